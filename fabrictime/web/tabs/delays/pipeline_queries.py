"""History queries about the pipeline itself: throughput, probers, lag, latency and rejects."""

from __future__ import annotations

from dataclasses import dataclass

from fabrictime.web.history_client import History
from fabrictime.web.history_sql import END, SECOND_NS, SINCE, START, rows
from schemas import tables


@dataclass(frozen=True, slots=True)
class ThroughputRow:
    """Volume of the pipeline in a span."""

    windows: int
    span_s: float
    samples: int
    messages: int
    size_bytes: int
    late: int
    rejected: int


@dataclass(frozen=True, slots=True)
class ProberRow:
    """Sums over all probers in a span."""

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
    """A source's newest window: unread messages when it closed (-1: unknown)."""

    source: str
    lag_messages: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """Time from a window's end to its solution, over a span."""

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


def throughput(history: History, span_ns: int, newest_ns: int) -> ThroughputRow:
    """Return the map stage's input in the span before `newest_ns` (log append time)."""
    sql = (
        f"SELECT uniqExact(window), (max({END}) - min({START})) / 1e9, sum(samples), sum(messages), "
        f"sum(bytes), sum(late), sum(rejected) FROM {history.database}.{tables.PIPELINE} FINAL WHERE {SINCE}"
    )
    windows, span_s, *sums = next(rows(history, sql, since_ns=newest_ns - span_ns))
    return ThroughputRow(int(windows), float(span_s) if windows else 0.0, *map(int, sums))


def probers(history: History, span_ns: int, newest_ns: int) -> ProberRow:
    """Return losses, restarts and clock jumps of the probers in the span, and the NIC with the largest
    loss."""
    sql = (
        "SELECT count(), sum(n), sum(l), sum(b), sum(r), sum(j), argMax(nic, loss), max(loss) FROM ("
        "SELECT nic, sum(samples) AS n, sum(lost) AS l, sum(lost_batches) AS b, sum(restarts) AS r, "
        "countIf(clock_jump_ns != 0) AS j, l / greatest(n + l, 1) AS loss "
        f"FROM {history.database}.{tables.NIC_WINDOWS} FINAL WHERE {SINCE} GROUP BY nic)"
    )
    nics, n, lost, batches, restarts, jumps, nic, loss = next(
        rows(history, sql, since_ns=newest_ns - span_ns)
    )
    return ProberRow(int(nics), int(n), int(lost), int(batches), int(restarts), int(jumps), nic, float(loss))


def lags(history: History, newest_ns: int, within_ns: int = 60 * SECOND_NS) -> list[LagRow]:
    """Return each source's newest window within `within_ns`, the largest lag first."""
    sql = (
        f"SELECT source, lag_messages, {END} AS at FROM {history.database}.{tables.PIPELINE} FINAL "
        f"WHERE {SINCE} AND part = 0 ORDER BY source, window DESC LIMIT 1 BY source"
    )
    found = [
        LagRow(source, int(lag), int(at))
        for source, lag, at in rows(history, sql, since_ns=newest_ns - within_ns)
    ]
    return sorted(found, key=lambda row: (-row.lag_messages, row.source))


def offset_latency(history: History, span_ns: int, newest_ns: int) -> LatencyRow:
    """Return the time from a window's end (in log time) to its solution, over the span."""
    delay = f"(solved_ns - ({END} - log_offset_ns)) / 1e6"
    sql = (
        "SELECT count(), quantilesExact(0.5, 0.99)(ms) FROM ("
        f"SELECT max({delay}) AS ms FROM {history.database}.{tables.CLOCKS} FINAL WHERE {SINCE} "
        "GROUP BY shard, window)"
    )
    windows, (p50, p99) = next(rows(history, sql, since_ns=newest_ns - span_ns))
    return LatencyRow(int(windows), float(p50) if windows else 0.0, float(p99) if windows else 0.0)


def recent_rejects(history: History, since_ns: int, limit: int) -> list[RejectRow]:
    """Return the rejected messages since `since_ns` (log append time), the newest first."""
    sql = (
        "SELECT append_ns, topic, partition, offset, reader, reason, detail, size_bytes "
        f"FROM {history.database}.{tables.REJECTS} FINAL WHERE append_ns >= {{since_ns:Int64}} "
        "ORDER BY append_ns DESC, topic, partition, offset DESC LIMIT {limit:UInt32}"
    )
    return [
        RejectRow(int(at), topic, int(partition), int(offset), reader, reason, detail, int(size))
        for at, topic, partition, offset, reader, reason, detail, size in rows(
            history, sql, since_ns=since_ns, limit=limit
        )
    ]
