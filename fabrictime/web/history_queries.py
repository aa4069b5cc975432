"""History queries that tabs share, with a cache of their results.

Every query ends at the newest window of the history and not at the current time. A stopped pipeline thus
shows its last state beside its age."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from fabrictime.web.history_client import History
from fabrictime.web.history_sql import SECOND_NS, Direction
from fabrictime.web.tabs.audit import queries as audit_queries
from fabrictime.web.tabs.audit.queries import AuditFleet, ResultRow, RunRow, Scope
from fabrictime.web.tabs.clocks import queries as clock_queries
from fabrictime.web.tabs.clocks.queries import (
    ClockPoint,
    ClockRow,
    ClockSpread,
    EventRow,
    FleetPoint,
    MeshPair,
    MeshSize,
    StatePoint,
    SuspectRow,
    WanderPoint,
)
from fabrictime.web.tabs.delays import pipeline_health, pipeline_queries
from fabrictime.web.tabs.delays import queries as delay_queries
from fabrictime.web.tabs.delays.pipeline_health import PipelineRows
from fabrictime.web.tabs.delays.pipeline_queries import ProberRow, RejectRow, ThroughputRow
from fabrictime.web.tabs.delays.queries import NicRow, PairRow, PointRow, TableEnd, WorstRow
from schemas import tables

T = TypeVar("T")

ENDS_KEPT_S = 0.15
"""How long the table ends are reused."""
WINDOW_KEPT_S = 30.0
"""How long a table's window length is reused."""
SLOW_KEPT_S = 5.0
"""How long ten-minute sums and the inventory are reused."""
REJECTS_KEPT_S = 1.0
MAX_RESULTS = 48
"""Results in the cache."""
MAX_POINTS = 300
"""Steps of a series."""
MAX_DRAWN_CLOCKS = 16
"""Clocks that the Delays tab draws one by one. More clocks are shown as a distribution."""
DRAW_ALL_CLOCKS = 8
"""Clocks that the Clocks tab draws one by one. With more clocks, it draws the chosen or the widest ones."""
WIDEST_CLOCKS = 3
MAX_TIMELINES = 16
MAX_EVENTS = 200
MAX_SUSPECTS = 256
MAX_MESH_NICS = 200
"""With more NICs in the mesh, only the suspect pairs are queried and drawn."""
MAX_WORST_PATHS = 12
NEWEST_S = 3
RECENT_S = 10
LONG_S = 600
DAY_NS = 86_400 * SECOND_NS
AUDIT_RUN_DAYS = 7
"""Days of which the runs are listed."""
MAX_RUNS = 8


@dataclass(frozen=True, slots=True)
class TableEnds:
    """Ends of the newest windows, ns since the Unix epoch; None for an empty table.

    `delays_ns` and `clocks_ns` are in fabric time, `pipeline_ns` in log append time. `state` changes with the
    tables: a cached result is valid for one state.
    """

    delays_ns: int | None
    clocks_ns: int | None
    pipeline_ns: int | None
    state: tuple[TableEnd, ...]


@dataclass(frozen=True, slots=True)
class Heat:
    """All pairs of a span that ends at `end_ns` (fabric time)."""

    pairs: list[PairRow]
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The header's figures. Ages in seconds by this machine's clock."""

    ends: TableEnds
    nics: list[NicRow]
    probing: int
    samples_per_s: float
    worst: list[WorstRow]
    delays_age_s: float | None
    clocks_age_s: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """A pair's series in steps of `step_ns`."""

    points: list[PointRow]
    start_ns: int
    end_ns: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class ClockSeries:
    """Clocks over time: `points` of few clocks, or the `spread` of many."""

    points: list[ClockPoint]
    spread: list[ClockSpread]
    start_ns: int
    end_ns: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class ClockFleet:
    """All clocks over a span. `wander` is empty for few clocks, `states` holds the clocks with most
    trouble."""

    points: list[FleetPoint]
    wander: list[WanderPoint]
    events: list[EventRow]
    states: list[StatePoint]
    start_ns: int
    end_ns: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """The mesh of the newest windows. `pairs` is empty with more than `MAX_MESH_NICS` NICs."""

    size: MeshSize
    pairs: list[MeshPair]
    suspects: list[SuspectRow]


class HistoryQueries:
    """Runs and caches the queries of the tabs. Thread-safe.

    A result is reused until its tables change.
    """

    def __init__(self, history: History, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._history = history
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._ends: TableEnds | None = None
        self._ends_s = -1e9
        self._windows: dict[str, tuple[float, int]] = {}
        self._results: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()

    def table_ends(self) -> TableEnds:
        """Return the newest windows' ends, at most `ENDS_KEPT_S` old."""
        with self._lock:
            if self._ends is None or time.monotonic() - self._ends_s > ENDS_KEPT_S:
                found = delay_queries.table_ends(self._history)
                delays, clocks, pipeline = (
                    (table, found[table]) for table in (tables.DELAYS_1S, tables.CLOCKS, tables.PIPELINE)
                )
                self._ends = TableEnds(
                    self._end_ns(*delays),
                    self._end_ns(*clocks),
                    self._end_ns(*pipeline),
                    (delays[1], clocks[1], pipeline[1]),
                )
                self._ends_s = time.monotonic()
            return self._ends

    # ------------------------------------------------------------------------------------------------ delays

    def heat(self, direction: Direction, span_s: int) -> Heat:
        """Return every pair's delays in the span."""
        ends = self.table_ends()
        end_ns, span_ns = ends.delays_ns, span_s * SECOND_NS
        if end_ns is None:
            return Heat([], None)
        return self._cached(
            ("heat", direction, span_s),
            ends.state[0],
            lambda: Heat(delay_queries.pair_delays(self._history, direction, span_ns, end_ns), end_ns),
        )

    def fleet(self) -> Fleet:
        """Return the fleet's summary: the worst paths of the last 3 s, rates of the last 10 s."""
        ends = self.table_ends()
        nics = self.inventory()
        probing, rate = 0, 0.0
        worst: list[WorstRow] = []
        if ends.pipeline_ns is not None:
            throughput, probers = self._recent(ends)
            probing, rate = probers.nics, pipeline_health.samples_per_s(throughput)
        if (end_ns := ends.delays_ns) is not None:
            span_ns = NEWEST_S * SECOND_NS
            worst = self._cached(
                "worst",
                ends.state[0],
                lambda: delay_queries.worst_paths(self._history, span_ns, end_ns, MAX_WORST_PATHS),
            )
        ages_s = self._age_s(ends.delays_ns), self._age_s(ends.clocks_ns)
        return Fleet(ends, nics, probing, rate, worst, *ages_s)

    def series(self, nic: str, peer: str, span_s: int) -> Series:
        """Return the series of one pair by path."""
        ends = self.table_ends()
        end_ns, span_ns, step_ns = ends.delays_ns or 0, span_s * SECOND_NS, step_ns_of(span_s)
        points = self._cached(
            ("series", nic, peer, span_s),
            ends.state[0],
            lambda: delay_queries.pair_series(self._history, nic, peer, span_ns, end_ns, step_ns),
        )
        return Series(points, end_ns - span_ns, end_ns, step_ns)

    def inventory(self) -> list[NicRow]:
        """Return the announced NICs."""
        return self._cached_for(SLOW_KEPT_S, "inventory", lambda: delay_queries.inventory(self._history))

    # ------------------------------------------------------------------------------------------------ clocks

    def clocks(self) -> list[ClockRow]:
        """Return each clock's newest solution."""
        ends = self.table_ends()
        end_ns = ends.clocks_ns
        if end_ns is None:
            return []
        return self._cached("clocks", ends.state[1], lambda: clock_queries.clocks_now(self._history, end_ns))

    def clock_series(self, span_s: int) -> ClockSeries:
        """Return each clock over the span, or the spread of many clocks."""
        ends, step_ns = self.table_ends(), step_ns_of(span_s)
        end_ns = ends.clocks_ns
        if end_ns is None:
            return ClockSeries([], [], 0, 0, step_ns)
        span_ns = span_s * SECOND_NS
        names = [row.clock for row in self.clocks()]

        def query() -> ClockSeries:
            points: list[ClockPoint] = []
            spread: list[ClockSpread] = []
            if len(names) > MAX_DRAWN_CLOCKS:
                spread = clock_queries.clock_spread(self._history, span_ns, end_ns, step_ns)
            else:
                points = clock_queries.clock_series(self._history, names, span_ns, end_ns, step_ns)
            return ClockSeries(points, spread, end_ns - span_ns, end_ns, step_ns)

        return self._cached(("clock series", span_s), ends.state[1], query)

    def clock_fleet(self, span_s: int) -> ClockFleet:
        """Return all clocks over the span."""
        ends, step_ns = self.table_ends(), step_ns_of(span_s)
        end_ns = ends.clocks_ns
        if end_ns is None:
            return ClockFleet([], [], [], [], 0, 0, step_ns)
        span_ns, history = span_s * SECOND_NS, self._history
        many = len(self.clocks()) > DRAW_ALL_CLOCKS
        return self._cached(
            ("clock fleet", span_s),
            ends.state[1],
            lambda: ClockFleet(
                clock_queries.clock_fleet(history, span_ns, end_ns, step_ns),
                clock_queries.clock_wander(history, span_ns, end_ns, step_ns) if many else [],
                clock_queries.clock_events(history, span_ns, end_ns, MAX_EVENTS),
                clock_queries.clock_states(history, span_ns, end_ns, step_ns, MAX_TIMELINES),
                end_ns - span_ns,
                end_ns,
                step_ns,
            ),
        )

    def drawn_clocks(self, names: tuple[str, ...], span_s: int) -> ClockSeries:
        """Return the named clocks over the span. Without names: all of few clocks, or the widest of many."""
        ends, step_ns = self.table_ends(), step_ns_of(span_s)
        end_ns = ends.clocks_ns
        if end_ns is None:
            return ClockSeries([], [], 0, 0, step_ns)
        span_ns, history = span_s * SECOND_NS, self._history
        known = sorted({row.clock for row in self.clocks()})

        def query() -> ClockSeries:
            drawn = list(names)
            if not drawn and len(known) <= DRAW_ALL_CLOCKS:
                drawn = known
            elif not drawn:
                drawn = clock_queries.widest_clocks(history, span_ns, end_ns, WIDEST_CLOCKS)
            points = clock_queries.clock_series(history, drawn, span_ns, end_ns, step_ns)
            return ClockSeries(points, [], end_ns - span_ns, end_ns, step_ns)

        return self._cached(("drawn", names, span_s), ends.state[1], query)

    def mesh(self) -> Mesh:
        """Return the newest mesh and its suspect pairs."""
        ends, history = self.table_ends(), self._history
        fits_ns, clocks_ns = ends.pipeline_ns, ends.clocks_ns

        def query() -> Mesh:
            size, pairs, suspects = MeshSize(0, 0), [], []
            if fits_ns is not None:
                size = clock_queries.mesh_size(history, fits_ns)
                if size.nics <= MAX_MESH_NICS:
                    pairs = clock_queries.mesh_pairs(history, fits_ns)
            if clocks_ns is not None:
                suspects = clock_queries.suspects_now(history, clocks_ns, MAX_SUSPECTS)
            return Mesh(size, pairs, suspects)

        return self._cached("mesh", ends.state[1:], query)

    # ------------------------------------------------------------------------------------------------- audit

    def audit(self, run: str) -> AuditFleet:
        """Return the newest results of all hosts: of one run, or of the last day if `run` is empty."""
        return self._audited(run, ("audit", run), lambda scope: audit_queries.fleet(self._history, scope))

    def audit_host(self, run: str, host: str) -> list[ResultRow]:
        """Return a host's newest results, the worst first."""
        key = ("audit host", run, host)
        return self._audited(run, key, lambda scope: audit_queries.host_results(self._history, scope, host))

    def audit_check(self, run: str, check: str) -> list[ResultRow]:
        """Return a check's newest results on all hosts, the worst first."""
        key = ("audit check", run, check)
        return self._audited(run, key, lambda scope: audit_queries.check_results(self._history, scope, check))

    def audit_runs(self) -> list[RunRow]:
        """Return the newest runs of the last days."""
        since_ns = self._now_ns() - AUDIT_RUN_DAYS * DAY_NS
        return self._cached_for(
            SLOW_KEPT_S, "audit runs", lambda: audit_queries.runs(self._history, since_ns, MAX_RUNS)
        )

    def _audited(self, run: str, key: Hashable, query: Callable[[Scope], T]) -> T:
        hour_ns = 3_600 * SECOND_NS
        scope = Scope(run, 0 if run else (self._now_ns() - DAY_NS) // hour_ns * hour_ns)
        state = self._cached_for(
            REJECTS_KEPT_S, ("audit state", run), lambda: audit_queries.state(self._history, scope)
        )
        return self._cached(key, (scope, state), lambda: query(scope))

    # ---------------------------------------------------------------------------------------------- pipeline

    def pipeline(self) -> PipelineRows | None:
        """Return the inputs of the pipeline checks, or None while the history has no pipeline rows."""
        ends, history = self.table_ends(), self._history
        end_ns = ends.pipeline_ns
        if end_ns is None:
            return None
        throughput, probers = self._recent(ends)
        long_ns, latency_ns = LONG_S * SECOND_NS, 60 * SECOND_NS
        return PipelineRows(
            throughput,
            self._cached_for(
                SLOW_KEPT_S,
                "throughput",
                lambda: pipeline_queries.throughput(history, long_ns, end_ns),
            ),
            probers,
            self._cached_for(
                SLOW_KEPT_S, "probers", lambda: pipeline_queries.probers(history, long_ns, end_ns)
            ),
            self._cached("lags", ends.state[2], lambda: pipeline_queries.lags(history, end_ns)),
            self._cached(
                "latency",
                ends.state[1],
                lambda: pipeline_queries.offset_latency(history, latency_ns, ends.clocks_ns or 0),
            ),
            self._age_s(ends.delays_ns),
            self._age_s(ends.clocks_ns),
            sum(row.append_ns >= end_ns - long_ns for row in self.rejects()),
        )

    def rejects(self) -> list[RejectRow]:
        """Return the newest rejects of the last day."""
        since_ns = self._now_ns() - DAY_NS
        return self._cached_for(
            REJECTS_KEPT_S,
            "rejects",
            lambda: pipeline_queries.recent_rejects(self._history, since_ns, pipeline_health.MAX_REJECTS),
        )

    def _recent(self, ends: TableEnds) -> tuple[ThroughputRow, ProberRow]:
        span_ns, end_ns = RECENT_S * SECOND_NS, ends.pipeline_ns or 0
        return self._cached(
            "recent",
            ends.state[2],
            lambda: (
                pipeline_queries.throughput(self._history, span_ns, end_ns),
                pipeline_queries.probers(self._history, span_ns, end_ns),
            ),
        )

    # ------------------------------------------------------------------------------------------------- cache

    def _end_ns(self, table: str, end: TableEnd) -> int | None:
        if end.start_ns is None:
            return None
        queried_s, length_ns = self._windows.get(table, (-1e9, 0))
        if time.monotonic() - queried_s > WINDOW_KEPT_S:
            length_ns = delay_queries.window_ns(self._history, table, end.start_ns)
            self._windows[table] = (time.monotonic(), length_ns)
        return end.start_ns + length_ns

    def _cached_for(self, kept_s: float, key: Hashable, query: Callable[[], T]) -> T:
        return self._cached(key, int(time.monotonic() / kept_s), query)

    def _cached(self, key: Hashable, state: Hashable, query: Callable[[], T]) -> T:
        """Return the cached result for this key and state, else run the query."""
        with self._lock:
            kept = self._results.get(key)
        if kept is not None and kept[0] == state:
            return kept[1]  # type: ignore[no-any-return]
        result = query()
        with self._lock:
            self._results[key] = (state, result)
            self._results.move_to_end(key)
            while len(self._results) > MAX_RESULTS:
                self._results.popitem(last=False)
        return result

    def _age_s(self, end_ns: int | None) -> float | None:
        return None if end_ns is None else max(0.0, (self._now_ns() - end_ns) / 1e9)


def step_ns_of(span_s: int) -> int:
    """Return the step of a series over a span: whole seconds, at most `MAX_POINTS` steps."""
    return max(1, span_s // MAX_POINTS) * SECOND_NS


def series_period_s(span_s: int) -> float:
    """Return the poll period of a series. A series with a wide step changes less often."""
    return min(step_ns_of(span_s) / 1e9, 2.0) / 2
