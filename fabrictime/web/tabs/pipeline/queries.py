"""History queries about the pipeline itself: throughput, probers, lag, latency and rejects."""

from __future__ import annotations

from dataclasses import dataclass

from fabrictime.web.history_client import History
from fabrictime.web.history_reader import Ends, HistoryReader, kept_for, until_changed
from fabrictime.web.history_sql import END, START, Span, dialect, records
from schemas import queries, tables

DAY_NS = 86_400_000_000_000
RECENT_S = 10
LONG_S = 600
MAX_REJECTS = 200
"""Largest number of rejects that a query returns. If there are this many, there may be more."""


@dataclass(frozen=True, slots=True)
class ThroughputRow:
    """Numbers of samples, messages and bytes through the pipeline in a span."""

    windows: int
    span_s: float
    samples: int
    messages: int
    size_bytes: int
    late: int
    rejected: int

    @property
    def samples_per_s(self) -> float:
        """Samples per second; 0 without a window."""
        return self.samples / self.span_s if self.span_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ProberRow:
    """Samples, losses, restarts and clock jumps, summed over all probers in a span."""

    nics: int
    samples: int
    lost: int
    lost_batches: int
    restarts: int
    clock_jumps: int
    worst_loss_nic: str
    worst_loss: float


@dataclass(frozen=True, slots=True)
class LagRow:
    """A source's newest window, with the number of unread messages at its close (-1: unknown)."""

    source: str
    lag_messages: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """Quantiles over a span of the time from a window's end to its solution."""

    windows: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class RejectRow:
    """A message that a stage rejected."""

    append_ns: int
    topic: str
    partition: int
    offset: int
    reader: str
    reason: str
    detail: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PipelineRows:
    """Inputs of the pipeline checks. Fields `*_now` cover the last 10 s, `*_recent` the last 10 min."""

    throughput_now: ThroughputRow
    throughput_recent: ThroughputRow
    probers_now: ProberRow
    probers_recent: ProberRow
    lags: list[LagRow]
    latency: LatencyRow
    rejects_recent: int


def pipeline(history: HistoryReader) -> PipelineRows | None:
    """Return the inputs of the pipeline checks, or None while the history has no pipeline rows."""
    end_ns = history.ends()[tables.PIPELINE].end_ns
    if end_ns is None:
        return None
    throughput_now, probers_now = recent(history)
    throughput_recent, probers_recent = _long(history)
    return PipelineRows(
        throughput_now,
        throughput_recent,
        probers_now,
        probers_recent,
        _newest_lags(history),
        _newest_latency(history),
        sum(row.append_ns >= end_ns - LONG_S * 1_000_000_000 for row in rejects(history)),
    )


@kept_for(1.0)
def rejects(history: HistoryReader) -> list[RejectRow]:
    """Return the newest rejected messages of the last day."""
    return recent_rejects(history, history.now_ns() - DAY_NS, MAX_REJECTS)


@until_changed(tables.PIPELINE)
def recent(history: HistoryReader, ends: Ends) -> tuple[ThroughputRow, ProberRow]:
    """Return the pipeline's volume and the probers' losses of the last 10 s."""
    span = Span.before(ends[tables.PIPELINE].end_ns, RECENT_S)
    return throughput(history, span), probers(history, span)


@kept_for(5.0)
def _long(history: HistoryReader) -> tuple[ThroughputRow, ProberRow]:
    span = Span.before(history.ends()[tables.PIPELINE].end_ns, LONG_S)
    return throughput(history, span), probers(history, span)


@until_changed(tables.PIPELINE)
def _newest_lags(history: HistoryReader, ends: Ends) -> list[LagRow]:
    return lags(history, Span.before(ends[tables.PIPELINE].end_ns, 60))


@until_changed(tables.CLOCKS)
def _newest_latency(history: HistoryReader, ends: Ends) -> LatencyRow:
    return offset_latency(history, Span.before(ends[tables.CLOCKS].end_ns, 60))


def throughput(history: History, span: Span) -> ThroughputRow:
    """Return the volume of the map stage's input in `span`, a range of log append time."""
    sql = (
        f"SELECT uniqExact(window), (max({END}) - min({START})) / 1e9, sum(samples), sum(messages), "
        f"sum(bytes), sum(late), sum(rejected) {dialect(history).rows(tables.PIPELINE)}"
    )
    return records(ThroughputRow, history, sql, span)[0]


def probers(history: History, span: Span) -> ProberRow:
    """Return the losses, restarts and clock jumps of all probers in the span, and the NIC with the largest
    loss.
    """
    loss = "lost / greatest(samples + lost, 1)"
    sql = (
        "SELECT count(), sum(samples), sum(lost), sum(lost_batches), sum(restarts), "
        f"sum(clock_jumps), argMax(nic, {loss}), max({loss}) FROM ({queries.nic_windows(dialect(history))})"
    )
    return records(ProberRow, history, sql, span)[0]


def lags(history: History, span: Span) -> list[LagRow]:
    """Return the lag of each source's newest window in the span, the largest lag first."""
    sql = (
        f"SELECT source, lag_messages, {END} AS at {dialect(history).rows(tables.PIPELINE, 'part = 0')} "
        "ORDER BY source, window DESC LIMIT 1 BY source"
    )
    return sorted(records(LagRow, history, sql, span), key=lambda row: (-row.lag_messages, row.source))


def offset_latency(history: History, span: Span) -> LatencyRow:
    """Return quantiles of the time from a window's end, in log time, to its solution, over the span."""
    delay = f"(solved_ns - ({END} - log_offset_ns)) / 1e6"
    sql = (
        "SELECT windows, if(windows > 0, ms[1], 0), if(windows > 0, ms[2], 0) FROM ("
        "SELECT count() AS windows, quantilesExact(0.5, 0.99)(delay) AS ms FROM ("
        f"SELECT max({delay}) AS delay {dialect(history).rows(tables.CLOCKS)} GROUP BY shard, window))"
    )
    return records(LatencyRow, history, sql, span)[0]


def recent_rejects(history: History, since_ns: int, limit: int) -> list[RejectRow]:
    """Return the rejected messages since `since_ns` (log append time), the newest first."""
    sql = queries.rejects(history.database, "append_ns >= {since_ns:Int64}", limit)
    return records(RejectRow, history, sql, since_ns=since_ns)
