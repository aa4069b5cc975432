"""The views that tabs share: each joins the query functions that one part of the page needs.

In: history and the wall clock. Out: typed values for `frames` and `pipeline_health`. All of them end at the
newest
window that history holds, not at now, so that a stopped pipeline shows its last state beside its age.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from fabrictime.web.history_client import History
from fabrictime.web.tabs.delays import pipeline_health, queries
from schemas import tables

T = TypeVar("T")

SECOND_NS = queries.SECOND_NS
PULSE_KEPT_S = 0.15
WINDOW_KEPT_S = 30.0
SLOW_KEPT_S = 5.0
"""Ten-minute sums and the inventory are asked for this seldom."""

ANSWERS_KEPT = 48
POINTS = 300
"""Steps that a series has at most."""

CLOCK_LINES = 16
"""Clocks beyond this are shown as a distribution."""

DRAWN_ALL = 8
"""Up to this many clocks the clocks' own page draws each; of more the chosen, or the `DRAWN_WIDEST`."""
DRAWN_WIDEST = 3
LANES = 16
EVENTS = 200
SUSPECTS = 256
MESH_NICS = 200
"""Of a mesh with more NICs only the suspect pairs are fetched and drawn."""

REJECTS_KEPT_S = 1.0
WORST = 12
DAY_NS = 86_400 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Pulse:
    """Ends of the newest windows in history, ns since the Unix epoch; None where a table has no row.

    `delays_ns` and `clocks_ns` are in fabric time, `pipeline_ns` in log append time. `state` differs when
    a table has changed: what was asked before can be used again while it is the same.
    """

    delays_ns: int | None
    clocks_ns: int | None
    pipeline_ns: int | None
    state: tuple[queries.Newest, ...]


@dataclass(frozen=True, slots=True)
class Heat:
    """All pairs of a span that ends at `end_ns` (fabric time)."""

    pairs: list[queries.PairRow]
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the header needs; ages in seconds by this machine's clock."""

    pulse: Pulse
    nics: list[queries.NicRow]
    probing: int
    samples_per_s: float
    worst: list[queries.WorstRow]
    delays_age_s: float | None
    clocks_age_s: float | None


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


@dataclass(frozen=True, slots=True)
class ClockFleet:
    """All clocks over a span: states, bounds, residuals, wander (none of few clocks), events and lanes."""

    points: list[queries.FleetPoint]
    wander: list[queries.WanderPoint]
    events: list[queries.EventRow]
    lanes: list[queries.LanePoint]
    start_ns: int
    end_ns: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """The mesh of the newest windows; `pairs` is empty where it has more than `MESH_NICS` NICs."""

    size: queries.MeshSize
    pairs: list[queries.MeshPair]
    suspects: list[queries.SuspectRow]


class HistoryQueries:
    """Asks history for one part of the page at a time; safe to call from many threads.

    An answer is used again while the tables that it came from have not changed.
    """

    def __init__(self, history: History, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._history = history
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._pulse: Pulse | None = None
        self._pulse_s = -1e9
        self._windows: dict[str, tuple[float, int]] = {}
        self._answers: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()

    def pulse(self) -> Pulse:
        """Return the newest windows' ends, at most `PULSE_KEPT_S` old."""
        with self._lock:
            if self._pulse is None or time.monotonic() - self._pulse_s > PULSE_KEPT_S:
                found = queries.newest(self._history)
                delays, clocks, pipeline = (
                    (table, found[table]) for table in (tables.DELAYS_1S, tables.CLOCKS, tables.PIPELINE)
                )
                self._pulse = Pulse(
                    self._end_ns(*delays),
                    self._end_ns(*clocks),
                    self._end_ns(*pipeline),
                    (delays[1], clocks[1], pipeline[1]),
                )
                self._pulse_s = time.monotonic()
            return self._pulse

    def heat(self, way: queries.Direction, span_s: int) -> Heat:
        """Return every pair's delays of the span."""
        pulse = self.pulse()
        end_ns = pulse.delays_ns
        if end_ns is None:
            return Heat([], None)
        return self._once(
            ("heat", way, span_s),
            pulse.state[0],
            lambda: Heat(queries.pair_delays(self._history, way, span_s * SECOND_NS, end_ns), end_ns),
        )

    def fleet(self) -> Fleet:
        """Return the fleet's summary: the worst paths of the last 3 s, rates of the last 10 s."""
        pulse = self.pulse()
        nics = self.inventory()
        probing, rate = 0, 0.0
        worst: list[queries.WorstRow] = []
        if pulse.pipeline_ns is not None:
            flow, probers = self._short(pulse)
            probing, rate = probers.nics, pipeline_health.samples_per_s(flow)
        if (end_ns := pulse.delays_ns) is not None:
            worst = self._once(
                "worst",
                pulse.state[0],
                lambda: queries.worst_paths(self._history, 3 * SECOND_NS, end_ns, WORST),
            )
        ages_s = self._age_s(pulse.delays_ns), self._age_s(pulse.clocks_ns)
        return Fleet(pulse, nics, probing, rate, worst, *ages_s)

    def series(self, nic: str, peer: str, span_s: int) -> Series:
        """Return the series of one pair, by path."""
        pulse = self.pulse()
        end_ns, span_ns, step_ns = pulse.delays_ns or 0, span_s * SECOND_NS, step_ns_of(span_s)
        points = self._once(
            ("series", nic, peer, span_s),
            pulse.state[0],
            lambda: queries.pair_series(self._history, nic, peer, span_ns, end_ns, step_ns),
        )
        return Series(points, end_ns - span_ns, end_ns, step_ns)

    def clocks(self) -> list[queries.ClockRow]:
        """Return each clock's newest solution."""
        pulse = self.pulse()
        end_ns = pulse.clocks_ns
        if end_ns is None:
            return []
        return self._once("clocks", pulse.state[1], lambda: queries.clocks_now(self._history, end_ns))

    def clock_lines(self, span_s: int) -> ClockLines:
        """Return the clocks over the span: each of them, or their spread where they are many."""
        pulse, step_ns = self.pulse(), step_ns_of(span_s)
        end_ns = pulse.clocks_ns
        if end_ns is None:
            return ClockLines([], [], 0, 0, step_ns)
        span_ns = span_s * SECOND_NS
        names = [row.clock for row in self.clocks()]

        def ask() -> ClockLines:
            points: list[queries.ClockPoint] = []
            spread: list[queries.ClockSpread] = []
            if len(names) > CLOCK_LINES:
                spread = queries.clock_spread(self._history, span_ns, end_ns, step_ns)
            else:
                points = queries.clock_series(self._history, names, span_ns, end_ns, step_ns)
            return ClockLines(points, spread, end_ns - span_ns, end_ns, step_ns)

        return self._once(("lines", span_s), pulse.state[1], ask)

    def clock_fleet(self, span_s: int) -> ClockFleet:
        """Return all clocks over the span."""
        pulse, step_ns = self.pulse(), step_ns_of(span_s)
        end_ns = pulse.clocks_ns
        if end_ns is None:
            return ClockFleet([], [], [], [], 0, 0, step_ns)
        span_ns, history = span_s * SECOND_NS, self._history
        many = len(self.clocks()) > DRAWN_ALL
        return self._once(
            ("clock fleet", span_s),
            pulse.state[1],
            lambda: ClockFleet(
                queries.clock_fleet(history, span_ns, end_ns, step_ns),
                queries.clock_wander(history, span_ns, end_ns, step_ns) if many else [],
                queries.clock_events(history, span_ns, end_ns, EVENTS),
                queries.clock_lanes(history, span_ns, end_ns, step_ns, LANES),
                end_ns - span_ns,
                end_ns,
                step_ns,
            ),
        )

    def drawn_clocks(self, names: tuple[str, ...], span_s: int) -> ClockLines:
        """Return the named clocks over the span; none named: all of few, of many those of widest bound."""
        pulse, step_ns = self.pulse(), step_ns_of(span_s)
        end_ns = pulse.clocks_ns
        if end_ns is None:
            return ClockLines([], [], 0, 0, step_ns)
        span_ns, history = span_s * SECOND_NS, self._history
        known = sorted({row.clock for row in self.clocks()})

        def ask() -> ClockLines:
            drawn = list(names)
            if not drawn and len(known) <= DRAWN_ALL:
                drawn = known
            elif not drawn:
                drawn = queries.widest_clocks(history, span_ns, end_ns, DRAWN_WIDEST)
            points = queries.clock_series(history, drawn, span_ns, end_ns, step_ns)
            return ClockLines(points, [], end_ns - span_ns, end_ns, step_ns)

        return self._once(("drawn", names, span_s), pulse.state[1], ask)

    def mesh(self) -> Mesh:
        """Return the newest mesh and its suspect pairs."""
        pulse, history = self.pulse(), self._history
        fits_ns, clocks_ns = pulse.pipeline_ns, pulse.clocks_ns

        def ask() -> Mesh:
            size = queries.MeshSize(0, 0) if fits_ns is None else queries.mesh_size(history, fits_ns)
            pairs = [] if fits_ns is None or size.nics > MESH_NICS else queries.mesh_pairs(history, fits_ns)
            suspects = [] if clocks_ns is None else queries.suspects_now(history, clocks_ns, SUSPECTS)
            return Mesh(size, pairs, suspects)

        return self._once("mesh", pulse.state[1:], ask)

    def inventory(self) -> list[queries.NicRow]:
        """Return the NICs that are announced."""
        return self._seldom("inventory", lambda: queries.inventory(self._history))

    def pipeline(self) -> pipeline_health.PipelineRows | None:
        """Return what the health section judges; None while history has no row of the pipeline."""
        pulse, history = self.pulse(), self._history
        end_ns = pulse.pipeline_ns
        if end_ns is None:
            return None
        flow, probers = self._short(pulse)
        long_ns = 600 * SECOND_NS
        return pipeline_health.PipelineRows(
            flow,
            self._seldom("flow", lambda: queries.flow(history, long_ns, end_ns)),
            probers,
            self._seldom("probers", lambda: queries.probers(history, long_ns, end_ns)),
            self._once("lags", pulse.state[2], lambda: queries.lags(history, end_ns)),
            self._once(
                "latency",
                pulse.state[1],
                lambda: queries.offset_latency(history, 60 * SECOND_NS, pulse.clocks_ns or 0),
            ),
            self._age_s(pulse.delays_ns),
            self._age_s(pulse.clocks_ns),
            sum(row.append_ns >= end_ns - long_ns for row in self.rejects()),
        )

    def rejects(self) -> list[queries.RejectRow]:
        """Return the newest rejects of the last day."""
        since_ns = self._now_ns() - DAY_NS
        return self._seldom(
            "rejects",
            lambda: queries.recent_rejects(self._history, since_ns, pipeline_health.REJECTS_SEEN),
            REJECTS_KEPT_S,
        )

    def _short(self, pulse: Pulse) -> tuple[queries.FlowRow, queries.ProberRow]:
        short_ns, end_ns = 10 * SECOND_NS, pulse.pipeline_ns or 0
        return self._once(
            "short",
            pulse.state[2],
            lambda: (
                queries.flow(self._history, short_ns, end_ns),
                queries.probers(self._history, short_ns, end_ns),
            ),
        )

    def _end_ns(self, table: str, newest: queries.Newest) -> int | None:
        if newest.start_ns is None:
            return None
        asked_s, length_ns = self._windows.get(table, (-1e9, 0))
        if time.monotonic() - asked_s > WINDOW_KEPT_S:
            length_ns = queries.window_ns(self._history, table, newest.start_ns)
            self._windows[table] = (time.monotonic(), length_ns)
        return newest.start_ns + length_ns

    def _seldom(self, key: Hashable, ask: Callable[[], T], kept_s: float = SLOW_KEPT_S) -> T:
        return self._once(key, int(time.monotonic() / kept_s), ask)

    def _once(self, key: Hashable, state: Hashable, ask: Callable[[], T]) -> T:
        """Return the answer kept for this key and state, else ask."""
        with self._lock:
            kept = self._answers.get(key)
        if kept is not None and kept[0] == state:
            return kept[1]  # type: ignore[no-any-return]
        answer = ask()
        with self._lock:
            self._answers[key] = (state, answer)
            self._answers.move_to_end(key)
            while len(self._answers) > ANSWERS_KEPT:
                self._answers.popitem(last=False)
        return answer

    def _age_s(self, end_ns: int | None) -> float | None:
        return None if end_ns is None else max(0.0, (self._now_ns() - end_ns) / 1e9)


def step_ns_of(span_s: int) -> int:
    """Return the step of a series over a span: whole seconds, at most `POINTS` steps."""
    return max(1, span_s // POINTS) * SECOND_NS
