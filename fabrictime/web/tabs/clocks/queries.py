"""History queries of the Clocks tab: clock solutions, their series, events, and the probe mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fabrictime.web.history_client import History
from fabrictime.web.history_reader import Ends, HistoryReader, until_changed
from fabrictime.web.history_sql import (
    MIDDLE_OFFSET,
    MIDDLE_REST,
    SECOND_NS,
    SINCE,
    STEP,
    Span,
    dialect,
    records,
    rows,
)
from fabrictime.web.time_series import GAP_STEPS
from schemas import queries, tables

MAX_DRAWN_CLOCKS = 16
"""Largest number of clocks that the Delays tab draws one by one. With more, it shows a distribution."""
DRAW_ALL_CLOCKS = 8
"""Number of clocks up to which the Clocks tab draws all. With more, it draws the chosen or the
widest ones.
"""
WIDEST_CLOCKS = 3
MAX_TIMELINES = 16
MAX_EVENTS = 200
EVENTS_PER_KIND = 60
MAX_SUSPECTS = 256
MAX_MESH_NICS = 200
"""Largest number of NICs in a mesh that is queried and drawn as a whole; of a larger one, only the suspect
pairs are.
"""
MESH_AGE_NS = 10 * SECOND_NS
"""Age at which a source's pairs leave the mesh, ns."""


@dataclass(frozen=True, slots=True)
class ClockRow:
    """A clock's newest solution: state, offset, drift and error bound."""

    clock: str
    shard: str
    domain: str
    at_ns: int
    offset_ns: float
    drift_ppb: float
    bound_ns: float
    state: str
    pairs: int
    residual_ns: float
    drift_sigma_ppb: float = 0.0
    reference: str = "ensemble"


@dataclass(frozen=True, slots=True)
class ClockPoint:
    """A clock in one step: its offset in the middle of the step, and the step's worst state, bound and
    residual.
    """

    clock: str
    at_ns: int
    offset_ns: float
    bound_ns: float
    state: str
    residual_ns: float = 0.0
    moved_ns: float = 0.0
    """The offset minus the whole ns of the clock's first offset, so that no precision is lost."""


@dataclass(frozen=True, slots=True)
class FleetPoint:
    """All clocks in one step: the number of clocks by state, and quantiles of their bounds and residuals.

    A clock counts with its worst state, widest bound and largest residual of the step. UNSYNCED clocks have
    no bound and no residual. `bound_clock` and `residual_clock` have the largest values. The quantiles are
    None if no clock is usable.
    """

    at_ns: int
    synced: int
    holdover: int
    unsynced: int
    bound_p50_ns: float | None
    bound_p90_ns: float | None
    bound_p99_ns: float | None
    bound_max_ns: float | None
    bound_clock: str
    residual_p50_ns: float | None
    residual_p99_ns: float | None
    residual_max_ns: float | None
    residual_clock: str


@dataclass(frozen=True, slots=True)
class WanderPoint:
    """Quantiles over all clocks, in one step, of the wander: the offset minus the clock's linear fit."""

    at_ns: int
    p1_ns: float
    p10_ns: float
    p50_ns: float
    p90_ns: float
    p99_ns: float


@dataclass(frozen=True, slots=True)
class EventRow:
    """A clock's event in a window. `event_ns` is that field of ClockOffsets, `at_ns` the window's start."""

    at_ns: int
    clock: str
    shard: str
    event: str
    event_ns: float
    state: str


@dataclass(frozen=True, slots=True)
class StatePoint:
    """A clock's worst state in one step."""

    clock: str
    at_ns: int
    state: str


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """A pair with a suspected asymmetric path in its shard's newest window. `since_ns` is the start of the
    first window of the span that suspects the pair.
    """

    prober: str
    peer: str
    shard: str
    asymmetry_ns: float
    sigma_ns: float
    weight: float
    since_ns: int
    windows: int


@dataclass(frozen=True, slots=True)
class MeshPair:
    """The fit of a directed pair of NICs in its source's newest window."""

    prober: str
    peer: str
    sigma_ns: float
    rtt_min_ns: float
    samples: int
    accepted: int


@dataclass(frozen=True, slots=True)
class MeshSize:
    """Number of NICs and directed pairs in the newest windows."""

    nics: int
    pairs: int


@dataclass(frozen=True, slots=True)
class ClockSeries:
    """Clocks over time: `points` of each clock if the clocks are few, else the `spread` over all of them."""

    points: list[ClockPoint]
    spread: list[FleetPoint]
    span: Span


@dataclass(frozen=True, slots=True)
class ClockFleet:
    """All clocks over a span. `wander` is empty if the clocks are few. `states` covers the clocks with the
    most trouble.
    """

    points: list[FleetPoint]
    wander: list[WanderPoint]
    events: list[EventRow]
    states: list[StatePoint]
    span: Span


@dataclass(frozen=True, slots=True)
class Mesh:
    """The probe mesh in the newest windows. `pairs` is empty with more than `MAX_MESH_NICS` NICs."""

    size: MeshSize
    pairs: list[MeshPair]
    suspects: list[SuspectRow]


@until_changed(tables.CLOCKS)
def clocks(history: HistoryReader, ends: Ends) -> list[ClockRow]:
    """Return each clock's newest solution of the last minute, by name."""
    return newest_clocks(history, Span.before(ends[tables.CLOCKS].end_ns, 60))


@until_changed(tables.CLOCKS)
def clock_series(history: HistoryReader, ends: Ends, span_s: int) -> ClockSeries:
    """Return each clock's points over the span, or the spread over all clocks if they are many."""
    span = Span.before(ends[tables.CLOCKS].end_ns, span_s)
    names = [row.clock for row in clocks(history)]
    if len(names) > MAX_DRAWN_CLOCKS:
        return ClockSeries([], fleet_points(history, span), span)
    return ClockSeries(clock_points(history, span, names), [], span)


@until_changed(tables.CLOCKS)
def drawn_clocks(history: HistoryReader, ends: Ends, names: tuple[str, ...], span_s: int) -> ClockSeries:
    """Return the points of the named clocks over the span. Without names, return those of all clocks if they
    are few, else of the clocks with the widest bounds.
    """
    span = Span.before(ends[tables.CLOCKS].end_ns, span_s)
    drawn = names or sorted({row.clock for row in clocks(history)})
    if not names and len(drawn) > DRAW_ALL_CLOCKS:
        drawn = widest_clocks(history, span, WIDEST_CLOCKS)
    return ClockSeries(clock_points(history, span, drawn), [], span)


@until_changed(tables.CLOCKS)
def clock_fleet(history: HistoryReader, ends: Ends, span_s: int) -> ClockFleet:
    """Return the series, states and events of all clocks over the span."""
    span = Span.before(ends[tables.CLOCKS].end_ns, span_s)
    many = len(clocks(history)) > DRAW_ALL_CLOCKS
    return ClockFleet(
        fleet_points(history, span),
        clock_wander(history, span) if many else [],
        clock_events(history, span, MAX_EVENTS),
        clock_states(history, span, MAX_TIMELINES),
        span,
    )


@until_changed(tables.CLOCKS, tables.PIPELINE)
def mesh(history: HistoryReader, ends: Ends) -> Mesh:
    """Return the newest probe mesh and its suspect pairs."""
    fits_ns = ends[tables.PIPELINE].end_ns or 0
    size = mesh_size(history, fits_ns)
    pairs = mesh_pairs(history, fits_ns) if size.nics <= MAX_MESH_NICS else []
    recent = Span.before(ends[tables.CLOCKS].end_ns, 600)
    return Mesh(size, pairs, newest_suspects(history, recent, MAX_SUSPECTS))


def newest_clocks(history: History, span: Span) -> list[ClockRow]:
    """Return the newest solution of each clock within the span, by name."""
    columns = (
        "clock, shard, domain, toUnixTimestamp64Nano(updated), offset_ns, drift_ppb, bound_ns, state, pairs, "
        "residual_ns, drift_sigma_ppb, follows"
    )
    sql = f"SELECT {columns} FROM ({queries.newest_clocks(dialect(history))}) ORDER BY clock, shard"
    return records(ClockRow, history, sql, span)


def clock_points(history: History, span: Span, names: Sequence[str]) -> list[ClockPoint]:
    """Return the series of the named clocks, the oldest step first."""
    sql = (
        f"SELECT clock, {STEP} AS at, "
        f"{MIDDLE_OFFSET}, {MIDDLE_REST}, max(bound_ns), toString(min(state)), max(residual_ns) "
        f"{dialect(history).rows(tables.CLOCKS, 'clock IN {clocks:Array(String)}')} "
        "GROUP BY clock, at ORDER BY clock, at"
    )
    points: list[ClockPoint] = []
    first: dict[str, int] = {}
    for clock, at, whole_ns, rest, bound, state, residual in rows(history, sql, span, clocks=list(names)):
        moved = int(whole_ns) - first.setdefault(clock, int(whole_ns)) + float(rest)
        offset = int(whole_ns) + float(rest)
        points.append(ClockPoint(clock, int(at), offset, float(bound), state, float(residual), moved))
    return points


def fleet_points(history: History, span: Span) -> list[FleetPoint]:
    """Return the states, bounds and residuals of all clocks by step, the oldest step first."""
    return records(FleetPoint, history, queries.clock_fleet(dialect(history)), span)


def clock_wander(history: History, span: Span) -> list[WanderPoint]:
    """Return the quantiles of all clocks' wander by step, the oldest step first.

    Each run of a clock has its own linear fit, because a restart changes the clock's offset.
    """
    window, run = (f"OVER (PARTITION BY shard, clock{part} ORDER BY at)" for part in ("", ", run"))
    gap_ns = GAP_STEPS * span.step_ns
    sql = (
        "SELECT p.1 AS at, quantilesExact(0.01, 0.1, 0.5, 0.9, 0.99)(p.2) FROM (SELECT arrayJoin(arrayMap("
        "(a, x, y) -> (a, y - (fit.1 * x + fit.2)), ats, xs, ys)) AS p FROM ("
        "SELECT groupArray(at) AS ats, groupArray(x) AS xs, groupArray(moved) AS ys, "
        "simpleLinearRegression(x, moved) AS fit FROM ("
        f"SELECT shard, clock, run, at, (at - first_value(at) {run}) / 1e9 AS x, "
        f"(whole - first_value(whole) {run}) + (rest - first_value(rest) {run}) AS moved FROM ("
        f"SELECT *, sum(at - before > {gap_ns}) {window} AS run FROM ("
        f"SELECT *, lagInFrame(at, 1, at) {window} AS before FROM ("
        f"SELECT shard, clock, {STEP} AS at, {MIDDLE_OFFSET} AS whole, {MIDDLE_REST} AS rest "
        f"{dialect(history).rows(tables.CLOCKS, queries.USABLE)} "
        "GROUP BY shard, clock, at)))) GROUP BY shard, clock, run HAVING count() > 2)) "
        "GROUP BY at ORDER BY at"
    )
    return [WanderPoint(int(at), *map(float, quantiles)) for at, quantiles in rows(history, sql, span)]


def widest_clocks(history: History, span: Span, limit: int) -> list[str]:
    """Return at most `limit` clocks with the widest mean bounds over the span, the widest first."""
    sql = (
        f"SELECT clock {dialect(history).rows(tables.CLOCKS)} "
        f"GROUP BY clock ORDER BY avgIf(bound_ns, {queries.USABLE}) DESC NULLS LAST, clock LIMIT {limit}"
    )
    return [clock for (clock,) in rows(history, sql, span)]


def clock_events(history: History, span: Span, limit: int) -> list[EventRow]:
    """Return the newest events of clocks in the span, the newest first: at most `EVENTS_PER_KIND` of each
    kind.
    """
    sql = queries.clock_events(dialect(history), EVENTS_PER_KIND, limit)
    columns = "toUnixTimestamp64Nano(window_start), clock, shard, event, event_ns, state"
    return records(EventRow, history, f"SELECT {columns} FROM ({sql})", span)


def clock_states(history: History, span: Span, limit: int) -> list[StatePoint]:
    """Return the worst state per step of the `limit` clocks that were out of SYNCED for longest."""
    sql = queries.clock_states(dialect(history), limit)
    sql = f"SELECT clock, time, toString(worst) FROM ({sql}) ORDER BY clock, time"
    return records(StatePoint, history, sql, span)


def newest_suspects(history: History, span: Span, limit: int) -> list[SuspectRow]:
    """Return the suspect pairs of each shard's newest window, the pair with the largest asymmetry first."""
    columns = "prober, peer, shard, asymmetry_ns, sigma_ns, weight, toUnixTimestamp64Nano(since), windows"
    sql = f"SELECT {columns} FROM ({queries.suspects(dialect(history), newest=True)} LIMIT {limit})"
    return records(SuspectRow, history, sql, span)


def mesh_size(history: History, newest_ns: int) -> MeshSize:
    """Return the size of the mesh in the newest windows. `newest_ns` is their newest log append time."""
    sql = f"SELECT uniqExactArray([prober, peer]), uniqExact(prober, peer) FROM {_newest_fits(history)}"
    return records(MeshSize, history, sql, since_ns=newest_ns - MESH_AGE_NS)[0]


def mesh_pairs(history: History, newest_ns: int) -> list[MeshPair]:
    """Return the directed pairs of each source's newest window."""
    sql = (
        "SELECT prober, peer, sigma_ns, rtt_min_ns, samples, accepted "
        f"FROM {_newest_fits(history)} ORDER BY prober, peer, window DESC LIMIT 1 BY prober, peer"
    )
    return records(MeshPair, history, sql, since_ns=newest_ns - MESH_AGE_NS)


def _newest_fits(history: History) -> str:
    table = f"{history.database}.{tables.PAIR_FITS}"
    return (
        f"{table} FINAL WHERE {SINCE} AND (source, window) IN "
        f"(SELECT source, max(window) FROM {table} WHERE {SINCE} GROUP BY source)"
    )
