"""Checks of the pipeline, each OK, WARN or BAD with a figure and an explanation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fabrictime.web.tabs.pipeline.queries import (
    MAX_REJECTS,
    LagRow,
    LatencyRow,
    PipelineRows,
    ProberRow,
    ThroughputRow,
)
from schemas.units import count_text, counted, ms_text, percent_text, rate_text, seconds_text

LOSS_WARN = 0.001
LAG_WARN_MESSAGES, LAG_BAD_MESSAGES = 50, 1_000
LATENCY_WARN_MS, LATENCY_BAD_MS = 300.0, 2_000.0
AGE_WARN_S, AGE_BAD_S = 3.0, 10.0
RATE_WARN = 0.5
"""Share of the usual sample rate below which the check warns."""


class State(IntEnum):
    """Result of a pipeline check: OK, WARN or BAD."""

    OK = 0
    WARN = 1
    BAD = 2


@dataclass(frozen=True, slots=True)
class Check:
    """A check's line in the pipeline panel: its state, figure and explanation."""

    name: str
    state: State
    figure: str
    sentence: str


@dataclass(frozen=True, slots=True)
class DataAges:
    """Ages of the newest delays and of the newest clocks in the history, s; None without one."""

    delays_s: float | None
    clocks_s: float | None


def evaluate(rows: PipelineRows, ages: DataAges) -> list[Check]:
    """Return the results of all checks in the order of the pipeline: probers, log, map, solve, history."""
    return [
        _samples(rows),
        _loss(rows.probers_now),
        _batches(rows.probers_recent),
        _restarts(rows.probers_recent),
        _lag(rows.lags),
        _late(rows.throughput_recent),
        _rejects(rows.throughput_recent, rows.rejects_recent),
        _latency(rows.latency),
        _freshness(ages),
    ]


def _state(value: float, warn: float, bad: float) -> State:
    return State.BAD if value >= bad else State.WARN if value >= warn else State.OK


def _samples(rows: PipelineRows) -> Check:
    rate = rows.throughput_now.samples_per_s
    name = "Samples"
    if rate == 0:
        return Check(name, State.BAD, "0/s", "No sample in the last 10 s: is a prober running?")
    usual_per_s = rows.throughput_recent.samples_per_s
    figure = rate_text(rate)
    if rate < RATE_WARN * usual_per_s:
        return Check(name, State.WARN, figure, f"Down from {rate_text(usual_per_s)} over 10 min.")
    nics = rows.probers_now.nics
    return Check(name, State.OK, figure, f"From {counted(nics, 'prober')}.")


def _loss(probers: ProberRow) -> Check:
    sent = probers.samples + probers.lost
    share = probers.lost / sent if sent else 0.0
    if probers.lost == 0:
        sentence = "Every probe of the last 10 s was answered."
    else:
        worst = f"{probers.worst_loss_nic} ({percent_text(probers.worst_loss)})"
        sentence = f"{count_text(probers.lost)} of {count_text(sent)} in 10 s; most at {worst}. "
        sentence += "The tab Now names the links and hosts that lose them."
    # Links and hosts lose probes, and the pipeline measures them all the same: this is never BAD.
    state = State.WARN if share >= LOSS_WARN else State.OK
    return Check("Probes lost", state, percent_text(share), sentence)


def _batches(probers: ProberRow) -> Check:
    lost = probers.lost_batches
    if lost == 0:
        return Check("Batches lost", State.OK, "0", "No batch was missing in the log in 10 min.")
    return Check(
        "Batches lost", State.WARN, count_text(lost), "Messages lost between probers and log in 10 min."
    )


def _restarts(probers: ProberRow) -> Check:
    restarts, jumps = probers.restarts, probers.clock_jumps
    if restarts == jumps == 0:
        sentence = "No prober restarted, and no clock jumped against its host's. Clocks has smaller steps."
        return Check("Restarts, jumps", State.OK, "0", sentence)
    sentence = f"{counted(restarts, 'prober restart')} and {counted(jumps, 'clock jump')} in 10 min."
    return Check("Restarts, jumps", State.WARN, f"{restarts} + {jumps}", sentence)


def _lag(lags: list[LagRow]) -> Check:
    name = "Stream lag"
    lags_with_number = [row for row in lags if row.lag_messages >= 0]
    if not lags_with_number:
        return Check(name, State.OK, "none", "Probers publish reduced data: no raw samples in the log.")
    worst = lags_with_number[0]
    lag = worst.lag_messages
    state = _state(lag, LAG_WARN_MESSAGES, LAG_BAD_MESSAGES)
    figure = f"{count_text(lag)} msg"
    if state is State.OK:
        return Check(name, state, figure, f"{len(lags_with_number)} source partitions, all read to the end.")
    behind = sum(row.lag_messages >= LAG_WARN_MESSAGES for row in lags_with_number)
    return Check(
        name,
        state,
        figure,
        f"{worst.source} has the largest lag; {behind} of {len(lags_with_number)} partitions lag.",
    )


def _late(throughput: ThroughputRow) -> Check:
    name = "Late messages"
    if throughput.late == 0:
        return Check(name, State.OK, "0", "All of 10 min arrived in time for their window.")
    share = throughput.late / max(throughput.messages, 1)
    state = State.WARN if share >= LOSS_WARN else State.OK
    sentence = f"{percent_text(share)} of 10 min arrived after their window and count in the next one."
    return Check(name, state, count_text(throughput.late), sentence)


def _rejects(throughput: ThroughputRow, rejects: int) -> Check:
    count = max(throughput.rejected, rejects)
    if count == 0:
        return Check("Rejects", State.OK, "0", "Every message of 10 min was readable.")
    more = "+" if count == MAX_REJECTS else ""
    return Check(
        "Rejects", State.WARN, count_text(count) + more, "Rejected in 10 min; the reasons are listed below."
    )


def _latency(latency: LatencyRow) -> Check:
    name = "Offset latency"
    if latency.windows == 0:
        return Check(name, State.BAD, "none", "No window was solved in the last minute.")
    p99 = latency.p99_ms
    # With one window per second, a minute's p99 is its slowest window, and the first one after a start is
    # always slow. Only the median therefore makes the check BAD.
    bad = latency.p50_ms >= LATENCY_BAD_MS
    state = State.BAD if bad else State.WARN if p99 >= LATENCY_WARN_MS else State.OK
    sentence = f"Window's end to clocks solved, p99 of 1 min; p50 {ms_text(latency.p50_ms)}."
    return Check(name, state, ms_text(p99), sentence)


def _freshness(ages: DataAges) -> Check:
    name, delays_s, clocks_s = "Data age", ages.delays_s, ages.clocks_s
    if delays_s is None:
        return Check(name, State.BAD, "empty", "No delay in the history yet.")
    age_s = max(delays_s, AGE_WARN_S if clocks_s is None else clocks_s)
    clocks = "no clocks yet" if clocks_s is None else f"the newest clocks are {seconds_text(clocks_s)} old"
    sentence = f"Age of the newest delays in the history; {clocks}."
    return Check(name, _state(age_s, AGE_WARN_S, AGE_BAD_S), seconds_text(delays_s), sentence)
