"""Every question that the live page asks history: SQL in, typed rows out.

In: a `History` and bound parameters. Out: frozen rows whose names carry their units. No page logic here.
Delays over a span come from the rollup's merged histograms, so p50 and p99 there are right to a bucket
(25% at worst, 10% typically); a pair's series comes from the base table and shows the figures as measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fabrictime.web.history_client import History
from schemas import tables
from schemas.validation import MAX_NS

Direction = Literal["forward", "reverse"]

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Newest:
    """A table's rows before merging, and the start of its newest window in ns; None where it has no row."""

    rows: int
    start_ns: int | None


@dataclass(frozen=True, slots=True)
class NicRow:
    """One NIC of the inventory."""

    nic: str
    host: str
    device: str
    shard: str
    rail: int | None
    rack: str | None
    clock: str
    stamp: str


@dataclass(frozen=True, slots=True)
class PairRow:
    """One (prober, peer) over a span, paths merged; delays are None where no one-way figure exists."""

    nic: str
    peer: str
    count: int
    lost: int
    loss_max: float
    min_ns: float | None
    p50_ns: float | None
    p99_ns: float | None
    rtt_min_ns: float | None
    bound_ns: float | None
    last_ns: int


@dataclass(frozen=True, slots=True)
class WorstRow:
    """One path's worst window of the last seconds. `way` is forward (nic to peer) or reverse."""

    nic: str
    peer: str
    path: int
    way: Direction
    p50_ns: float
    p99_ns: float
    bound_ns: float | None
    lost: int
    count: int


@dataclass(frozen=True, slots=True)
class PointRow:
    """One path of a pair in one step of its series: windows of a step are merged.

    p50 is the median of the windows' medians weighted by samples, p99 the worst window's, min the least.
    """

    path: int
    at_ns: int
    count: int
    lost: int
    forward_min_ns: float | None
    forward_p50_ns: float | None
    forward_p99_ns: float | None
    reverse_min_ns: float | None
    reverse_p50_ns: float | None
    reverse_p99_ns: float | None
    rtt_p50_ns: float | None
    bound_ns: float | None


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
    """A clock in one step: its offset in the step's middle, its worst state, bound and residual."""

    clock: str
    at_ns: int
    offset_ns: float
    bound_ns: float
    state: str
    residual_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class ClockSpread:
    """All clocks of one step: quantiles of their bounds in ns, and how many are not SYNCED."""

    at_ns: int
    clocks: int
    unsynced: int
    bound_p50_ns: float
    bound_p90_ns: float
    bound_p99_ns: float
    bound_max_ns: float


@dataclass(frozen=True, slots=True)
class FleetPoint:
    """All clocks of one step: how many are in which state, and quantiles in ns of their bounds and residuals.

    A clock counts with its worst state, widest bound and largest residual of the step; UNSYNCED ones have
    neither bound nor residual. `bound_clock` and `residual_clock` name the worst; None: no clock may be used.
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
    """Quantiles in ns over all clocks of one step: offset less the clock's own straight line."""

    at_ns: int
    p1_ns: float
    p10_ns: float
    p50_ns: float
    p90_ns: float
    p99_ns: float


@dataclass(frozen=True, slots=True)
class EventRow:
    """What a window showed of a clock; `event_ns` as in ClockOffsets, `at_ns` the window's start."""

    at_ns: int
    clock: str
    shard: str
    event: str
    event_ns: float
    state: str


@dataclass(frozen=True, slots=True)
class LanePoint:
    """A clock's worst state in one step."""

    clock: str
    at_ns: int
    state: str


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """A pair whose path looks asymmetric in its shard's newest window; `since_ns`: first so in the span."""

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
    """A directed pair in its source's newest window, as fitted."""

    prober: str
    peer: str
    sigma_ns: float
    rtt_min_ns: float
    samples: int
    accepted: int


@dataclass(frozen=True, slots=True)
class MeshSize:
    """How many NICs and directed pairs the newest windows have."""

    nics: int
    pairs: int


@dataclass(frozen=True, slots=True)
class FlowRow:
    """What went through the pipeline in a span; rates over the span's windows."""

    windows: int
    span_s: float
    samples: int
    messages: int
    size_bytes: int
    late: int
    rejected: int


@dataclass(frozen=True, slots=True)
class ProberRow:
    """What the probers of the fleet reported in a span."""

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
    """A source's newest window: messages not yet read when it closed (-1: not known)."""

    source: str
    lag_messages: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """Milliseconds from a window's end to its solution, over a span."""

    windows: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class RejectRow:
    """A message that a stage refused."""

    append_ns: int
    topic: str
    partition: int
    offset: int
    reader: str
    reason: str
    detail: str
    size_bytes: int


VAGUE = 20
"""A one-way delay whose error bound is more than this many round trips says nothing: it counts as unknown.
So it is while clocks start from the hosts' system clocks."""

_VAGUE = f"ifNull(bound_ns > {VAGUE} * {{rtt}}, 0)"
_SINCE = "window_start >= fromUnixTimestamp64Nano({since_ns:Int64}, 'UTC')"
_UNTIL = "window_start < fromUnixTimestamp64Nano({until_ns:Int64}, 'UTC')"
_END = "toUnixTimestamp64Nano(window_end)"
_START = "toUnixTimestamp64Nano(window_start)"
# A window belongs to the step that holds its middle: its ends sit near a step's edge, and jitter.
_MID = f"intDiv({_START} + {_END}, 2)"
_STEP = f"intDiv({_MID}, {{step_ns:Int64}}) * {{step_ns:Int64}}"
# The window nearest to the step's middle, carried there by its drift: a step that is not full yet, or has
# lost windows, says what a full one would say.
_TO_MIDDLE = f"({{step_ns:Int64}} - 2 * positiveModulo({_MID}, {{step_ns:Int64}})) / 2"
_MID_OFFSET = f"argMin(offset_ns + drift_ppb * 1e-9 * {_TO_MIDDLE}, abs({_TO_MIDDLE}))"


def newest(history: History) -> dict[str, Newest]:
    """Return how far each table is. Reads the metadata of parts alone, so it costs the same at any size."""
    select = "SELECT '{0}', count(), toUnixTimestamp64Nano(max(window_start)) FROM {1}.{0}"
    asked = (tables.DELAYS_1S, tables.CLOCKS, tables.PIPELINE)
    sql = " UNION ALL ".join(select.format(table, history.database) for table in asked)
    return {
        table: Newest(int(rows), int(start) if rows else None) for table, rows, start in _rows(history, sql)
    }


def window_ns(history: History, table: str, start_ns: int) -> int:
    """Return the length of a table's windows from `start_ns` on. Raises ValueError where there is none."""
    sql = f"SELECT count(), max({_END} - {_START}) FROM {history.database}.{table} WHERE {_SINCE}"
    windows, length = next(_rows(history, sql, since_ns=start_ns))
    if not windows:
        raise ValueError(f"{table}: no window from {start_ns} ns on, expected the newest one")
    return int(length)


def inventory(history: History) -> list[NicRow]:
    """Return the NICs that are announced and not gone, by name."""
    return [
        NicRow(nic, host, device, shard, _int(rail), rack, clock, stamp)
        for nic, host, device, shard, rail, rack, clock, stamp in _rows(
            history,
            "SELECT nic, host, device, shard, rail, rack, clock, toString(stamp) "
            f"FROM {history.database}.{tables.NICS} FINAL WHERE gone = 0 AND probe_port > 0 ORDER BY nic",
        )
    ]


def pair_delays(history: History, way: Direction, span_ns: int, newest_ns: int) -> list[PairRow]:
    """Return every (nic, peer) with a window in the `span_ns` before `newest_ns` (a window's end).

    Spans up to a second take each NIC's own newest windows instead (at most 3 s old): the windows of one
    second do not reach history all at once.
    """
    merged, low = tables.merged_sql(way), f"{way}_min_ns"
    table = f"{history.database}.{tables.DELAYS_1S}"
    own = span_ns <= SECOND_NS
    vague = _VAGUE.format(rtt="rtt_min_ns")
    known = ", ".join(
        f"if({vague}, {none}, {column}) AS {column}"
        for column, none in ((f"{way}_bucket", "[]"), (f"{way}_bucket_count", "[]"), (low, "NULL"))
    )
    source = f"(SELECT * REPLACE ({known}) FROM {table} FINAL WHERE {_SINCE})"
    if own:
        source = (
            f"(SELECT *, max({_END}) OVER (PARTITION BY nic) AS own_end FROM {source})"
            f" WHERE {_START} >= own_end - {{span_ns:Int64}}"
        )
    p50, p99 = tables.quantile_sql(0.5, "g"), tables.quantile_sql(0.99, "g")
    sql = (
        f"SELECT nic, peer, n, l, loss, low, greatest({p50}, low), greatest({p99}, low), rtt, bound, at "
        "FROM ("
        f"SELECT nic, peer, sum(count) AS n, sum(lost) AS l, "
        f"max(lost / greatest(lost + count, 1)) AS loss, min({low}) AS low, {merged} AS g, "
        f"min(rtt_min_ns) AS rtt, maxIf(bound_ns, NOT {vague}) AS bound, max({_END}) AS at "
        f"FROM {source} GROUP BY nic, peer)"
        " ORDER BY nic, peer"
    )
    since_ns = newest_ns - (max(span_ns, 3 * SECOND_NS) if own else span_ns)
    return [
        PairRow(
            nic,
            peer,
            int(n),
            int(lost),
            float(loss),
            _float(low),
            _float(p50),
            _float(p99),
            _float(rtt),
            _float(bound),
            int(at),
        )
        for nic, peer, n, lost, loss, low, p50, p99, rtt, bound, at in _rows(
            history, sql, since_ns=since_ns, span_ns=span_ns
        )
    ]


def worst_paths(history: History, span_ns: int, newest_ns: int, limit: int) -> list[WorstRow]:
    """Return the paths with the highest p99 one-way delay in the span, each in its worst window."""
    sql = (
        "SELECT nic, peer, path, way.1 AS w, way.2 AS p50, way.3 AS p99, bound_ns, lost, count FROM ("
        "SELECT nic, peer, path, bound_ns, lost, count, "
        "arrayJoin([('forward', forward_p50_ns, forward_p99_ns), "
        "('reverse', reverse_p50_ns, reverse_p99_ns)]) AS way "
        f"FROM {history.database}.{tables.DELAYS} FINAL "
        f"WHERE {_SINCE} AND NOT {_VAGUE.format(rtt='rtt_p50_ns')}) "
        "WHERE p99 IS NOT NULL ORDER BY p99 DESC, nic, peer, path, w "
        "LIMIT 1 BY nic, peer, path, w LIMIT {limit:UInt32}"
    )
    return [
        WorstRow(nic, peer, int(path), way, float(p50), float(p99), _float(bound), int(lost), int(count))
        for nic, peer, path, way, p50, p99, bound, lost, count in _rows(
            history, sql, since_ns=newest_ns - span_ns, limit=limit
        )
    ]


@dataclass(frozen=True, slots=True)
class PathDelay:
    """One path over a span: (p50, p99) out and back in ns; None where no one-way figure exists."""

    forward: tuple[float | None, float | None]
    reverse: tuple[float | None, float | None]
    bound_ns: float | None
    lost: int
    count: int


def delays_of(
    history: History, paths: Sequence[tuple[str, str, int]], since_ns: int, until_ns: int = MAX_NS
) -> dict[tuple[str, str, int], PathDelay]:
    """Return the delays of the named (nic, peer, path) since then, in windows that began before `until_ns`:
    medians' median and worst p99."""
    clear = f"NOT {_VAGUE.format(rtt='rtt_p50_ns')}"
    figures = ", ".join(
        f"quantileExactWeightedIf(0.5)({way}_p50_ns, count, {clear}), maxIf({way}_p99_ns, {clear})"
        for way in ("forward", "reverse")
    )
    named = "arrayZip({nics:Array(String)}, {peers:Array(String)}, {paths:Array(UInt32)})"
    sql = (
        f"SELECT nic, peer, path, {figures}, maxIf(bound_ns, {clear}), sum(lost), sum(count) "
        f"FROM {history.database}.{tables.DELAYS} FINAL WHERE {_SINCE} AND {_UNTIL} "
        "AND (nic, peer, path) IN ("
        f"SELECT each.1, each.2, each.3 FROM (SELECT arrayJoin({named}) AS each)) GROUP BY nic, peer, path"
    )
    return {
        (nic, peer, int(path)): PathDelay(
            (_float(out50), _float(out99)),
            (_float(back50), _float(back99)),
            _float(bound),
            int(lost),
            int(count),
        )
        for nic, peer, path, out50, out99, back50, back99, bound, lost, count in _rows(
            history,
            sql,
            since_ns=since_ns,
            until_ns=until_ns,
            nics=[p[0] for p in paths],
            peers=[p[1] for p in paths],
            paths=[p[2] for p in paths],
        )
    }


def pair_series(
    history: History, nic: str, peer: str, span_ns: int, newest_ns: int, step_ns: int
) -> list[PointRow]:
    """Return the series of one (nic, peer) by path, in steps of `step_ns`, oldest first."""
    clear = f"NOT {_VAGUE.format(rtt='rtt_p50_ns')}"
    figures = ", ".join(
        f"minIf({way}_min_ns, {clear}), quantileExactWeightedIf(0.5)({way}_p50_ns, count, {clear}), "
        f"maxIf({way}_p99_ns, {clear})"
        for way in ("forward", "reverse")
    )
    sql = (
        f"SELECT path, {_STEP} AS at, sum(count), sum(lost), {figures}, "
        f"quantileExactWeighted(0.5)(rtt_p50_ns, count), maxIf(bound_ns, {clear}) "
        f"FROM {history.database}.{tables.DELAYS} FINAL "
        f"WHERE {_SINCE} AND nic = {{nic:String}} AND peer = {{peer:String}} "
        "GROUP BY path, at ORDER BY path, at"
    )
    return [
        PointRow(int(path), int(at), int(count), int(lost), *map(_float, figures))
        for path, at, count, lost, *figures in _rows(
            history, sql, since_ns=newest_ns - span_ns, step_ns=step_ns, nic=nic, peer=peer
        )
    ]


def clocks_now(history: History, newest_ns: int, within_ns: int = 60 * SECOND_NS) -> list[ClockRow]:
    """Return the newest solution of each clock that was solved within `within_ns`, by name."""
    columns = "at_ns, offset_ns, drift_ppb, bound_ns, toString(state), pairs, residual_ns, "
    columns += "drift_sigma_ppb, reference"
    sql = (
        f"SELECT clock, shard, domain, {_END}, {columns} FROM {history.database}.{tables.CLOCKS} FINAL "
        f"WHERE {_SINCE} ORDER BY clock, shard, window DESC LIMIT 1 BY clock, shard"
    )
    return [
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
        for clock, shard, domain, end, _at, offset, drift, bound, state, pairs, residual, sigma, reference in _rows(
            history, sql, since_ns=newest_ns - within_ns
        )
    ]


def clock_series(
    history: History, clocks: list[str], span_ns: int, newest_ns: int, step_ns: int
) -> list[ClockPoint]:
    """Return the series of the named clocks in steps of `step_ns`, oldest first."""
    sql = (
        f"SELECT clock, {_STEP} AS at, "
        f"{_MID_OFFSET}, max(bound_ns), toString(min(state)), max(residual_ns) "
        f"FROM {history.database}.{tables.CLOCKS} FINAL "
        f"WHERE {_SINCE} AND clock IN {{clocks:Array(String)}} GROUP BY clock, at ORDER BY clock, at"
    )
    return [
        ClockPoint(clock, int(at), float(offset), float(bound), state, float(residual))
        for clock, at, offset, bound, state, residual in _rows(
            history, sql, since_ns=newest_ns - span_ns, step_ns=step_ns, clocks=clocks
        )
    ]


def clock_spread(history: History, span_ns: int, newest_ns: int, step_ns: int) -> list[ClockSpread]:
    """Return quantiles over all clocks in steps of `step_ns`, oldest first."""
    sql = (
        f"SELECT {_STEP} AS at, uniqExact(shard, clock), "
        "uniqExactIf((shard, clock), state != 'SYNCED'), "
        "quantilesExact(0.5, 0.9, 0.99)(bound_ns) AS q, max(bound_ns) "
        f"FROM {history.database}.{tables.CLOCKS} FINAL WHERE {_SINCE} GROUP BY at ORDER BY at"
    )
    return [
        ClockSpread(int(at), int(clocks), int(unsynced), *map(float, (q[0], q[1], q[2], worst)))
        for at, clocks, unsynced, q, worst in _rows(
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
        f"SELECT {_STEP} AS at, shard, clock, min(state) AS worst, max(bound_ns) AS bound, "
        f"max(residual_ns) AS residual FROM {history.database}.{tables.CLOCKS} FINAL WHERE {_SINCE} "
        "GROUP BY at, shard, clock) GROUP BY at ORDER BY at"
    )
    points = []
    for at, synced, holdover, unsynced, bound, bound_clock, residual, residual_clock in _rows(
        history, sql, since_ns=newest_ns - span_ns, step_ns=step_ns
    ):
        known = synced + holdover > 0  # a quantile of nothing would be 0
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
    """Return how far all clocks stray from their own straight lines, in steps of `step_ns`, oldest first."""
    first = "OVER (PARTITION BY shard, clock ORDER BY at)"
    sql = (
        "SELECT p.1 AS at, quantilesExact(0.01, 0.1, 0.5, 0.9, 0.99)(p.2) FROM (SELECT arrayJoin(arrayMap("
        "(a, x, y) -> (a, y - (line.1 * x + line.2)), ats, xs, ys)) AS p FROM ("
        "SELECT groupArray(at) AS ats, groupArray(x) AS xs, groupArray(moved) AS ys, "
        "simpleLinearRegression(x, moved) AS line FROM ("
        f"SELECT shard, clock, at, (at - first_value(at) {first}) / 1e9 AS x, "
        f"mean - first_value(mean) {first} AS moved FROM ("
        f"SELECT shard, clock, {_STEP} AS at, {_MID_OFFSET} AS mean "
        f"FROM {history.database}.{tables.CLOCKS} FINAL WHERE {_SINCE} AND state != 'UNSYNCED' "
        "GROUP BY shard, clock, at)) GROUP BY shard, clock HAVING count() > 2)) GROUP BY at ORDER BY at"
    )
    return [
        WanderPoint(int(at), *map(float, quantiles))
        for at, quantiles in _rows(history, sql, since_ns=newest_ns - span_ns, step_ns=step_ns)
    ]


def widest_clocks(history: History, span_ns: int, newest_ns: int, limit: int) -> list[str]:
    """Return the clocks whose bounds were widest over the span in the mean, the widest first."""
    sql = (
        f"SELECT clock FROM {history.database}.{tables.CLOCKS} FINAL WHERE {_SINCE} "
        "GROUP BY clock ORDER BY avgIf(bound_ns, state != 'UNSYNCED') DESC NULLS LAST, clock "
        "LIMIT {limit:UInt32}"
    )
    return [clock for (clock,) in _rows(history, sql, since_ns=newest_ns - span_ns, limit=limit)]


EVENTS_A_KIND = 60


def clock_events(history: History, span_ns: int, newest_ns: int, limit: int) -> list[EventRow]:
    """Return what windows showed of clocks in the span, the newest first, at most `EVENTS_A_KIND` of a kind.

    So a worker's start, at which every clock is NEW, hides nothing.
    """
    sql = (
        f"SELECT {_START}, clock, shard, toString(event), event_ns, toString(state) "
        f"FROM {history.database}.{tables.CLOCKS} FINAL WHERE {_SINCE} AND event != 'NONE' "
        f"ORDER BY window DESC, shard, clock LIMIT {EVENTS_A_KIND} BY event LIMIT {{limit:UInt32}}"
    )
    return [
        EventRow(int(at), clock, shard, event, float(event_ns), state)
        for at, clock, shard, event, event_ns, state in _rows(
            history, sql, since_ns=newest_ns - span_ns, limit=limit
        )
    ]


def clock_lanes(history: History, span_ns: int, newest_ns: int, step_ns: int, limit: int) -> list[LanePoint]:
    """Return the states over the span of the clocks with most trouble: not SYNCED first, then events."""
    table = f"{history.database}.{tables.CLOCKS} FINAL WHERE {_SINCE}"
    sql = (
        f"SELECT clock, {_STEP} AS at, toString(min(state)) FROM {table} AND clock IN ("
        f"SELECT clock FROM {table} GROUP BY clock "
        "ORDER BY countIf(state != 'SYNCED') DESC, countIf(event != 'NONE') DESC, clock "
        "LIMIT {limit:UInt32}) GROUP BY clock, at ORDER BY clock, at"
    )
    return [
        LanePoint(clock, int(at), state)
        for clock, at, state in _rows(
            history, sql, since_ns=newest_ns - span_ns, step_ns=step_ns, limit=limit
        )
    ]


def suspects_now(
    history: History, newest_ns: int, limit: int, within_ns: int = 600 * SECOND_NS
) -> list[SuspectRow]:
    """Return the suspect pairs of each shard's newest window, the most asymmetric first."""
    database = history.database
    sql = (
        "SELECT prober, peer, shard, argMax(asymmetry_ns, window), argMax(sigma_ns, window), "
        f"argMax(weight, window), min({_START}), uniqExact(window) "
        f"FROM {database}.{tables.SUSPECTS} FINAL WHERE {_SINCE} GROUP BY prober, peer, shard "
        "HAVING (shard, max(window)) IN "
        f"(SELECT shard, max(window) FROM {database}.{tables.CLOCKS} WHERE {_SINCE} GROUP BY shard) "
        "ORDER BY abs(argMax(asymmetry_ns, window)) DESC, prober, peer LIMIT {limit:UInt32}"
    )
    return [
        SuspectRow(
            prober, peer, shard, float(asymmetry), float(sigma), float(weight), int(since), int(windows)
        )
        for prober, peer, shard, asymmetry, sigma, weight, since, windows in _rows(
            history, sql, since_ns=newest_ns - within_ns, limit=limit
        )
    ]


def mesh_size(history: History, newest_ns: int) -> MeshSize:
    """Return how large the mesh of the newest windows is (`newest_ns` in log append time)."""
    pairs, nics = next(
        _rows(
            history,
            f"SELECT uniqExact(prober, peer), uniqExactArray([prober, peer]) FROM {_newest_fits(history)}",
            since_ns=newest_ns - _MESH_NS,
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
        for prober, peer, sigma, rtt, samples, accepted in _rows(history, sql, since_ns=newest_ns - _MESH_NS)
    ]


_MESH_NS = 10 * SECOND_NS
"""A source that has said nothing for this long has no pairs any more."""


def _newest_fits(history: History) -> str:
    table = f"{history.database}.{tables.PAIR_FITS}"
    return (
        f"{table} FINAL WHERE {_SINCE} AND (source, window) IN "
        f"(SELECT source, max(window) FROM {table} WHERE {_SINCE} GROUP BY source)"
    )


def flow(history: History, span_ns: int, newest_ns: int) -> FlowRow:
    """Return what the map stage read in the span before `newest_ns` (log append time)."""
    sql = (
        f"SELECT uniqExact(window), (max({_END}) - min({_START})) / 1e9, sum(samples), sum(messages), "
        f"sum(bytes), sum(late), sum(rejected) FROM {history.database}.{tables.PIPELINE} FINAL WHERE {_SINCE}"
    )
    windows, span_s, *sums = next(_rows(history, sql, since_ns=newest_ns - span_ns))
    return FlowRow(int(windows), float(span_s) if windows else 0.0, *map(int, sums))


def probers(history: History, span_ns: int, newest_ns: int) -> ProberRow:
    """Return what the probers did in the span: losses, restarts, clock jumps, the worst loser."""
    sql = (
        "SELECT count(), sum(n), sum(l), sum(b), sum(r), sum(j), argMax(nic, loss), max(loss) FROM ("
        "SELECT nic, sum(samples) AS n, sum(lost) AS l, sum(lost_batches) AS b, sum(restarts) AS r, "
        "countIf(clock_jump_ns != 0) AS j, l / greatest(n + l, 1) AS loss "
        f"FROM {history.database}.{tables.NIC_WINDOWS} FINAL WHERE {_SINCE} GROUP BY nic)"
    )
    nics, n, lost, batches, restarts, jumps, nic, loss = next(
        _rows(history, sql, since_ns=newest_ns - span_ns)
    )
    return ProberRow(int(nics), int(n), int(lost), int(batches), int(restarts), int(jumps), nic, float(loss))


def lags(history: History, newest_ns: int, within_ns: int = 60 * SECOND_NS) -> list[LagRow]:
    """Return each source's newest window within `within_ns`, the furthest behind first."""
    sql = (
        f"SELECT source, lag_messages, {_END} AS at FROM {history.database}.{tables.PIPELINE} FINAL "
        f"WHERE {_SINCE} AND part = 0 ORDER BY source, window DESC LIMIT 1 BY source"
    )
    rows = [
        LagRow(source, int(lag), int(at))
        for source, lag, at in _rows(history, sql, since_ns=newest_ns - within_ns)
    ]
    return sorted(rows, key=lambda row: (-row.lag_messages, row.source))


def offset_latency(history: History, span_ns: int, newest_ns: int) -> LatencyRow:
    """Return how long after a window's end (in log time) it was solved, over the span."""
    late = f"(solved_ns - ({_END} - log_offset_ns)) / 1e6"
    sql = (
        "SELECT count(), quantilesExact(0.5, 0.99)(ms) FROM ("
        f"SELECT max({late}) AS ms FROM {history.database}.{tables.CLOCKS} FINAL WHERE {_SINCE} "
        "GROUP BY shard, window)"
    )
    windows, (p50, p99) = next(_rows(history, sql, since_ns=newest_ns - span_ns))
    return LatencyRow(int(windows), float(p50) if windows else 0.0, float(p99) if windows else 0.0)


def recent_rejects(history: History, since_ns: int, limit: int) -> list[RejectRow]:
    """Return the newest messages that a stage refused since `since_ns` (log append time), newest first."""
    sql = (
        "SELECT append_ns, topic, partition, offset, reader, reason, detail, size_bytes "
        f"FROM {history.database}.{tables.REJECTS} FINAL WHERE append_ns >= {{since_ns:Int64}} "
        "ORDER BY append_ns DESC, topic, partition, offset DESC LIMIT {limit:UInt32}"
    )
    return [
        RejectRow(int(at), topic, int(partition), int(offset), reader, reason, detail, int(size))
        for at, topic, partition, offset, reader, reason, detail, size in _rows(
            history, sql, since_ns=since_ns, limit=limit
        )
    ]


def _rows(history: History, sql: str, **parameters: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*history.columns(sql, parameters), strict=True)


def _float(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def _int(value: Any) -> int | None:
    return None if value is None else int(value)
