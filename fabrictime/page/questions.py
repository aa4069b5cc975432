"""The views that tabs share: each joins the query functions that one part of the page needs.

In: history and the wall clock. Out: typed values for `frames` and `health`. All of them end at the newest
window that history holds, not at now, so that a stopped pipeline shows its last state beside its age.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fabrictime.page import health, queries
from fabrictime.page.source import History

SECOND_NS = queries.SECOND_NS
PULSE_KEPT_S = 0.15
POINTS = 300
"""Steps that a series has at most."""

CLOCK_LINES = 16
"""Clocks beyond this are shown as a distribution."""

REJECTS = 200
DAY_NS = 86_400 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Heat:
    """All pairs of a span that ends at `end_ns` (fabric time)."""

    pairs: list[queries.PairRow]
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the header needs; ages in seconds by this machine's clock."""

    pulse: queries.Pulse
    nics: list[queries.NicRow]
    probing: int
    samples_per_s: float
    worst: list[queries.WorstRow]
    delays_age_s: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """A pair's series in steps of `step_ns` that ends at `end_ns`."""

    points: list[queries.PointRow]
    start_ns: int
    end_ns: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class ClockLines:
    """Clocks over time: `points` of few clocks, or the `spread` of many."""

    points: list[queries.ClockPoint]
    spread: list[queries.ClockSpread]
    start_ns: int
    end_ns: int
    step_ns: int


class Questions:
    """Asks history for one part of the page at a time; safe to call from many threads."""

    def __init__(self, history: History, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._history = history
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._pulse: queries.Pulse | None = None
        self._pulse_s = -1e9

    def pulse(self) -> queries.Pulse:
        """Return the newest windows' ends, at most `PULSE_KEPT_S` old."""
        with self._lock:
            if self._pulse is None or time.monotonic() - self._pulse_s > PULSE_KEPT_S:
                self._pulse = queries.pulse(self._history)
                self._pulse_s = time.monotonic()
            return self._pulse

    def heat(self, way: queries.Way, span_s: int) -> Heat:
        """Return every pair's delays of the span."""
        end_ns = self.pulse().delays_ns
        if end_ns is None:
            return Heat([], None)
        return Heat(queries.pair_delays(self._history, way, span_s * SECOND_NS, end_ns), end_ns)

    def fleet(self) -> Fleet:
        """Return the fleet's summary: the worst paths of the last 3 s, rates of the last 10 s."""
        pulse = self.pulse()
        nics = queries.inventory(self._history)
        probing, rate, worst = 0, 0.0, []
        if pulse.pipeline_ns is not None:
            rate = health.samples_per_s(queries.flow(self._history, 10 * SECOND_NS, pulse.pipeline_ns))
            probing = queries.probers(self._history, 10 * SECOND_NS, pulse.pipeline_ns).nics
        if pulse.delays_ns is not None:
            worst = queries.worst_paths(self._history, 3 * SECOND_NS, pulse.delays_ns, 12)
        return Fleet(pulse, nics, probing, rate, worst, self._age_s(pulse.delays_ns))

    def series(self, nic: str, peer: str, span_s: int) -> Series:
        """Return the series of one pair, by path."""
        end_ns, step_ns = self.pulse().delays_ns or 0, _step_ns(span_s)
        points = queries.pair_series(self._history, nic, peer, span_s * SECOND_NS, end_ns, step_ns)
        return Series(points, end_ns - span_s * SECOND_NS, end_ns, step_ns)

    def clocks(self) -> list[queries.ClockRow]:
        """Return each clock's newest solution."""
        end_ns = self.pulse().clocks_ns
        return [] if end_ns is None else queries.clocks_now(self._history, end_ns)

    def clock_lines(self, span_s: int) -> ClockLines:
        """Return the clocks over the span: each of them, or their spread where they are many."""
        end_ns, step_ns = self.pulse().clocks_ns, _step_ns(span_s)
        if end_ns is None:
            return ClockLines([], [], 0, 0, step_ns)
        span_ns = span_s * SECOND_NS
        names = [row.clock for row in queries.clocks_now(self._history, end_ns)]
        start_ns = end_ns - span_ns
        if len(names) > CLOCK_LINES:
            spread = queries.clock_spread(self._history, span_ns, end_ns, step_ns)
            return ClockLines([], spread, start_ns, end_ns, step_ns)
        points = queries.clock_series(self._history, names, span_ns, end_ns, step_ns)
        return ClockLines(points, [], start_ns, end_ns, step_ns)

    def pipeline(self) -> health.PipelineRows | None:
        """Return what the health section judges; None while history has no row of the pipeline."""
        pulse, history = self.pulse(), self._history
        end_ns = pulse.pipeline_ns
        if end_ns is None:
            return None
        short, long = 10 * SECOND_NS, 600 * SECOND_NS
        return health.PipelineRows(
            queries.flow(history, short, end_ns),
            queries.flow(history, long, end_ns),
            queries.probers(history, short, end_ns),
            queries.probers(history, long, end_ns),
            queries.lags(history, end_ns),
            queries.offset_latency(history, 60 * SECOND_NS, pulse.clocks_ns or 0),
            self._age_s(pulse.delays_ns),
            self._age_s(pulse.clocks_ns),
            len(queries.recent_rejects(history, end_ns - long, REJECTS)),
        )

    def rejects(self) -> list[queries.RejectRow]:
        """Return the newest rejects of the last day."""
        return queries.recent_rejects(self._history, self._now_ns() - DAY_NS, REJECTS)

    def _age_s(self, end_ns: int | None) -> float | None:
        return None if end_ns is None else max(0.0, (self._now_ns() - end_ns) / 1e9)


def _step_ns(span_s: int) -> int:
    return max(1, span_s // POINTS) * SECOND_NS
