"""History queries of the Clocks tab: clock solutions, their series, events, and the probe mesh."""

from __future__ import annotations

from dataclasses import dataclass

from fabrictime.web.history_client import History
from fabrictime.web.history_sql import END, MIDDLE_OFFSET, MIDDLE_REST, SECOND_NS, SINCE, START, STEP, rows
from schemas import tables


@dataclass(frozen=True, slots=True)
class ClockRow:
    """A clock's newest solution."""

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
    """A clock in one step: its offset in the step's middle, and its worst state, bound and residual."""

    clock: str
    at_ns: int
    offset_ns: float
    bound_ns: float
    state: str
    residual_ns: float = 0.0
    moved_ns: float = 0.0
    """The offset minus that of the clock's first point: exact for any offset."""


@dataclass(frozen=True, slots=True)
class ClockSpread:
    """All clocks of one step: quantiles of their bounds, and the number of clocks that are not SYNCED."""

    at_ns: int
    clocks: int
    unsynced: int
    bound_p50_ns: float
    bound_p90_ns: float
    bound_p99_ns: float
    bound_max_ns: float


@dataclass(frozen=True, slots=True)
class FleetPoint:
    """All clocks of one step: clocks by state, and quantiles of their bounds and residuals.

    A clock counts with its worst state, widest bound and largest residual of the step. UNSYNCED clocks have
    neither. `bound_clock` and `residual_clock` are the worst clocks. None: no clock is usable.
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
    """Quantiles over all clocks of one step of the offset minus the clock's linear fit."""

    at_ns: int
    p1_ns: float
    p10_ns: float
    p50_ns: float
    p90_ns: float
    p99_ns: float


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of a clock in a window. `event_ns` is as in ClockOffsets, `at_ns` the window's start."""

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
    """A pair with a suspected asymmetric path in its shard's newest window. `since_ns`: first in the span."""

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
    """The fit of a directed pair in its source's newest window."""

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


def clocks_now(history: History, newest_ns: int, within_ns: int = 60 * SECOND_NS) -> list[ClockRow]:
    """Return the newest solution of each clock within `within_ns`, by name."""
    columns = "at_ns, offset_ns, drift_ppb, bound_ns, toString(state), pairs, residual_ns, "
    columns += "drift_sigma_ppb, reference"
    sql = (
        f"SELECT clock, shard, domain, {END}, {columns} FROM {history.database}.{tables.CLOCKS} FINAL "
        f"WHERE {SINCE} ORDER BY clock, shard, window DESC LIMIT 1 BY clock, shard"
    )
    found = []
    for row in rows(history, sql, since_ns=newest_ns - within_ns):
        clock, shard, domain, end, _at, offset, drift, bound, state, pairs, residual, sigma, reference = row
        found.append(
            ClockRow(
                clock,
                shard,
                domain,
                int(end),
                float(offset),
                float(drift),
                float(bound),
                state,
                int(pairs),
                float(residual),
                float(sigma),
                reference,
            )
        )
    return found


def clock_series(
    history: History, clocks: list[str], span_ns: int, newest_ns: int, step_ns: int
) -> list[ClockPoint]:
    """Return the series of the named clocks in steps of `step_ns`, oldest first."""
    sql = (
        f"SELECT clock, {STEP} AS at, "
        f"{MIDDLE_OFFSET}, {MIDDLE_REST}, max(bound_ns), toString(min(state)), max(residual_ns) "
        f"FROM {history.database}.{tables.CLOCKS} FINAL "
        f"WHERE {SINCE} AND clock IN {{clocks:Array(String)}} GROUP BY clock, at ORDER BY clock, at"
    )
    found: list[ClockPoint] = []
    first: dict[str, int] = {}
    for clock, at, whole, rest, bound, state, residual in rows(
        history, sql, since_ns=newest_ns - span_ns, step_ns=step_ns, clocks=clocks
    ):
        moved = int(whole) - first.setdefault(clock, int(whole)) + float(rest)
        offset = int(whole) + float(rest)
        found.append(ClockPoint(clock, int(at), offset, float(bound), state, float(residual), moved))
    return found


def clock_spread(history: History, span_ns: int, newest_ns: int, step_ns: int) -> list[ClockSpread]:
    """Return quantiles over all clocks in steps of `step_ns`, oldest first."""
    sql = (
        f"SELECT {STEP} AS at, uniqExact(shard, clock), "
        "uniqExactIf((shard, clock), state != 'SYNCED'), "
        "quantilesExact(0.5, 0.9, 0.99)(bound_ns) AS q, max(bound_ns) "
        f"FROM {history.database}.{tables.CLOCKS} FINAL WHERE {SINCE} GROUP BY at ORDER BY at"
    )
    return [
        ClockSpread(int(at), int(clocks), int(unsynced), *map(float, (q[0], q[1], q[2], worst)))
        for at, clocks, unsynced, q, worst in rows(
            history, sql, since_ns=newest_ns - span_ns, step_ns=step_ns
        )
    ]


def clock_fleet(history: History, span_ns: int, newest_ns: int, step_ns: int) -> list[FleetPoint]:
    """Return states, bounds and residuals of all clocks in steps of `step_ns`, oldest first."""
    usable = "worst != 'UNSYNCED'"
    sql = (
        "SELECT at, countIf(worst = 'SYNCED'), countIf(worst = 'HOLDOVER'), countIf(worst = 'UNSYNCED'), "
        f"quantilesExactIf(0.5, 0.9, 0.99, 1)(bound, {usable}), argMaxIf(clock, bound, {usable}), "
        f"quantilesExactIf(0.5, 0.99, 1)(residual, {usable}), argMaxIf(clock, residual, {usable}) FROM ("
        f"SELECT {STEP} AS at, shard, clock, min(state) AS worst, max(bound_ns) AS bound, "
        f"max(residual_ns) AS residual FROM {history.database}.{tables.CLOCKS} FINAL WHERE {SINCE} "
        "GROUP BY at, shard, clock) GROUP BY at ORDER BY at"
    )
    points = []
    for at, synced, holdover, unsynced, bound, bound_clock, residual, residual_clock in rows(
        history, sql, since_ns=newest_ns - span_ns, step_ns=step_ns
    ):
        known = synced + holdover > 0  # ClickHouse returns 0 for quantiles of no rows
        p50, p90, p99, widest = (float(value) if known else None for value in bound)
        middle, high, largest = (float(value) if known else None for value in residual)
        points.append(
            FleetPoint(
                int(at),
                int(synced),
                int(holdover),
                int(unsynced),
                p50,
                p90,
                p99,
                widest,
                bound_clock,
                middle,
                high,
                largest,
                residual_clock,
            )
        )
    return points


def clock_wander(history: History, span_ns: int, newest_ns: int, step_ns: int) -> list[WanderPoint]:
    """Return how far all clocks deviate from their linear fits, in steps of `step_ns`, oldest first."""
    window = "OVER (PARTITION BY shard, clock ORDER BY at)"
    sql = (
        "SELECT p.1 AS at, quantilesExact(0.01, 0.1, 0.5, 0.9, 0.99)(p.2) FROM (SELECT arrayJoin(arrayMap("
        "(a, x, y) -> (a, y - (fit.1 * x + fit.2)), ats, xs, ys)) AS p FROM ("
        "SELECT groupArray(at) AS ats, groupArray(x) AS xs, groupArray(moved) AS ys, "
        "simpleLinearRegression(x, moved) AS fit FROM ("
        f"SELECT shard, clock, at, (at - first_value(at) {window}) / 1e9 AS x, "
        f"(whole - first_value(whole) {window}) + (rest - first_value(rest) {window}) AS moved FROM ("
        f"SELECT shard, clock, {STEP} AS at, {MIDDLE_OFFSET} AS whole, {MIDDLE_REST} AS rest "
        f"FROM {history.database}.{tables.CLOCKS} FINAL WHERE {SINCE} AND state != 'UNSYNCED' "
        "GROUP BY shard, clock, at)) GROUP BY shard, clock HAVING count() > 2)) GROUP BY at ORDER BY at"
    )
    return [
        WanderPoint(int(at), *map(float, quantiles))
        for at, quantiles in rows(history, sql, since_ns=newest_ns - span_ns, step_ns=step_ns)
    ]


def widest_clocks(history: History, span_ns: int, newest_ns: int, limit: int) -> list[str]:
    """Return the clocks with the widest mean bounds over the span, the widest first."""
    sql = (
        f"SELECT clock FROM {history.database}.{tables.CLOCKS} FINAL WHERE {SINCE} "
        "GROUP BY clock ORDER BY avgIf(bound_ns, state != 'UNSYNCED') DESC NULLS LAST, clock "
        "LIMIT {limit:UInt32}"
    )
    return [clock for (clock,) in rows(history, sql, since_ns=newest_ns - span_ns, limit=limit)]


EVENTS_PER_KIND = 60


def clock_events(history: History, span_ns: int, newest_ns: int, limit: int) -> list[EventRow]:
    """Return the events of clocks in the span, the newest first, at most `EVENTS_PER_KIND` of a kind.

    The limit per kind keeps a worker's start, at which every clock is NEW, from hiding other events.
    """
    sql = (
        f"SELECT {START}, clock, shard, toString(event), event_ns, toString(state) "
        f"FROM {history.database}.{tables.CLOCKS} FINAL WHERE {SINCE} AND event != 'NONE' "
        f"ORDER BY window DESC, shard, clock LIMIT {EVENTS_PER_KIND} BY event LIMIT {{limit:UInt32}}"
    )
    return [
        EventRow(int(at), clock, shard, event, float(event_ns), state)
        for at, clock, shard, event, event_ns, state in rows(
            history, sql, since_ns=newest_ns - span_ns, limit=limit
        )
    ]


def clock_states(
    history: History, span_ns: int, newest_ns: int, step_ns: int, limit: int
) -> list[StatePoint]:
    """Return states over the span of the clocks that were not SYNCED longest, then of those with most
    events."""
    table = f"{history.database}.{tables.CLOCKS} FINAL WHERE {SINCE}"
    sql = (
        f"SELECT clock, {STEP} AS at, toString(min(state)) FROM {table} AND clock IN ("
        f"SELECT clock FROM {table} GROUP BY clock "
        "ORDER BY countIf(state != 'SYNCED') DESC, countIf(event != 'NONE') DESC, clock "
        "LIMIT {limit:UInt32}) GROUP BY clock, at ORDER BY clock, at"
    )
    return [
        StatePoint(clock, int(at), state)
        for clock, at, state in rows(history, sql, since_ns=newest_ns - span_ns, step_ns=step_ns, limit=limit)
    ]


def suspects_now(
    history: History, newest_ns: int, limit: int, within_ns: int = 600 * SECOND_NS
) -> list[SuspectRow]:
    """Return the suspect pairs of each shard's newest window, the most asymmetric first."""
    database = history.database
    sql = (
        "SELECT prober, peer, shard, argMax(asymmetry_ns, window), argMax(sigma_ns, window), "
        f"argMax(weight, window), min({START}), uniqExact(window) "
        f"FROM {database}.{tables.SUSPECTS} FINAL WHERE {SINCE} GROUP BY prober, peer, shard "
        "HAVING (shard, max(window)) IN "
        f"(SELECT shard, max(window) FROM {database}.{tables.CLOCKS} WHERE {SINCE} GROUP BY shard) "
        "ORDER BY abs(argMax(asymmetry_ns, window)) DESC, prober, peer LIMIT {limit:UInt32}"
    )
    return [
        SuspectRow(
            prober, peer, shard, float(asymmetry), float(sigma), float(weight), int(since), int(windows)
        )
        for prober, peer, shard, asymmetry, sigma, weight, since, windows in rows(
            history, sql, since_ns=newest_ns - within_ns, limit=limit
        )
    ]


def mesh_size(history: History, newest_ns: int) -> MeshSize:
    """Return the size of the mesh in the newest windows. `newest_ns` is log append time."""
    pairs, nics = next(
        rows(
            history,
            f"SELECT uniqExact(prober, peer), uniqExactArray([prober, peer]) FROM {_newest_fits(history)}",
            since_ns=newest_ns - MESH_AGE_NS,
        )
    )
    return MeshSize(int(nics), int(pairs))


def mesh_pairs(history: History, newest_ns: int) -> list[MeshPair]:
    """Return the directed pairs of each source's newest window."""
    sql = (
        "SELECT prober, peer, sigma_ns, rtt_min_ns, samples, accepted "
        f"FROM {_newest_fits(history)} ORDER BY prober, peer, window DESC LIMIT 1 BY prober, peer"
    )
    return [
        MeshPair(prober, peer, float(sigma), float(rtt), int(samples), int(accepted))
        for prober, peer, sigma, rtt, samples, accepted in rows(
            history, sql, since_ns=newest_ns - MESH_AGE_NS
        )
    ]


MESH_AGE_NS = 10 * SECOND_NS
"""Age at which a source's pairs leave the mesh."""


def _newest_fits(history: History) -> str:
    table = f"{history.database}.{tables.PAIR_FITS}"
    return (
        f"{table} FINAL WHERE {SINCE} AND (source, window) IN "
        f"(SELECT source, max(window) FROM {table} WHERE {SINCE} GROUP BY source)"
    )
