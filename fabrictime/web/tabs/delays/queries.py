"""History queries of the Delays tab: the fleet's summary, inventory, delays of pairs and paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fabrictime.web.history_client import History
from fabrictime.web.history_reader import Ends, HistoryReader, kept_for, until_changed
from fabrictime.web.history_sql import (
    END,
    SECOND_NS,
    START,
    STEP,
    Direction,
    Span,
    dialect,
    records,
    rows,
    to_float,
)
from fabrictime.web.tabs.pipeline import queries as pipeline_queries
from schemas import tables
from schemas.queries import known_delays, pairs, unknown_delay
from schemas.validation import MAX_NS

MAX_WORST_PATHS = 12
NEWEST_S = 3


@dataclass(frozen=True, slots=True)
class NicRow:
    """One NIC of the inventory with its host, rack, rail and clock."""

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
    """A pair (prober, peer) over a span, with all its paths merged. A delay is None if no one-way delay is
    known.
    """

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
    """The delays of one path in its worst window of the last seconds."""

    nic: str
    peer: str
    path: int
    direction: Direction
    p50_ns: float
    p99_ns: float
    bound_ns: float | None
    lost: int
    count: int
    dscp: int
    ce_share: float | None
    """Share of the direction's packets marked with CE; None if they do not arrive ECN-capable."""


@dataclass(frozen=True, slots=True)
class PointRow:
    """One path of a pair in one step of its series, with the step's windows merged.

    p50 is the median of the windows' medians, weighted by samples. p99 is the p99 of the worst window, and
    min the smallest delay.
    """

    path: int
    dscp: int
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

    @property
    def label(self) -> int | str:
        """The path's number; a traffic class other than the default is appended."""
        return f"{self.path} DSCP {self.dscp}" if self.dscp else self.path


@dataclass(frozen=True, slots=True)
class Heat:
    """Delays of all pairs in a span that ends at `end_ns` (fabric time)."""

    pairs: list[PairRow]
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Series:
    """The series of one pair: its points by path and step."""

    points: list[PointRow]
    span: Span


@dataclass(frozen=True, slots=True)
class Fleet:
    """The figures in the header of the page. Ages are in s by this machine's clock."""

    nics: list[NicRow]
    probing: int
    samples_per_s: float
    worst: list[WorstRow]
    delays_age_s: float | None
    clocks_age_s: float | None


@until_changed(tables.DELAYS_1S)
def heat(history: HistoryReader, ends: Ends, direction: Direction, span_s: int) -> Heat:
    """Return every pair's delays in the span."""
    end_ns = ends[tables.DELAYS_1S].end_ns
    return Heat(pair_delays(history, Span.before(end_ns, span_s), direction), end_ns)


@until_changed(tables.DELAYS_1S)
def series(history: HistoryReader, ends: Ends, nic: str, peer: str, span_s: int) -> Series:
    """Return the series of one pair by path."""
    span = Span.before(ends[tables.DELAYS_1S].end_ns, span_s)
    return Series(pair_series(history, span, nic, peer), span)


@until_changed(tables.DELAYS_1S)
def _worst_now(history: HistoryReader, ends: Ends) -> list[WorstRow]:
    return worst_paths(history, Span.before(ends[tables.DELAYS_1S].end_ns, NEWEST_S), MAX_WORST_PATHS)


def fleet(history: HistoryReader) -> Fleet:
    """Return the figures in the header: worst paths of the last 3 s, and rates of the last 10 s."""
    throughput, probers = pipeline_queries.recent(history)
    ends = history.ends()
    return Fleet(
        inventory(history),
        probers.nics,
        throughput.samples_per_s,
        _worst_now(history),
        history.age_s(ends[tables.DELAYS_1S]),
        history.age_s(ends[tables.CLOCKS]),
    )


@kept_for(5.0)
def inventory(history: HistoryReader) -> list[NicRow]:
    """Return the announced NICs in the order of their names."""
    sql = (
        "SELECT nic, host, device, shard, rail, rack, clock, toString(stamp) "
        f"FROM {history.database}.{tables.NICS} FINAL WHERE gone = 0 AND probe_port > 0 ORDER BY nic"
    )
    return records(NicRow, history, sql)


def pair_delays(history: History, span: Span, direction: Direction) -> list[PairRow]:
    """Return every (nic, peer) with a window in the span. The span's end must be the end of a window.

    In a span of up to a second, each NIC's own newest windows count, at most 3 s old: the windows of one
    second do not reach the history together.
    """
    span_ns = span.end_ns - span.start_ns
    own = span_ns <= SECOND_NS
    source = f"FROM ({known_delays(dialect(history).rows(tables.DELAYS_1S), direction)})"
    if own:
        source = (
            f"FROM (SELECT *, max({END}) OVER (PARTITION BY nic) AS own_end {source})"
            f" WHERE {START} >= own_end - {{span_ns:Int64}}"
        )
    since_ns = span.end_ns - (max(span_ns, 3 * SECOND_NS) if own else span_ns)
    return records(PairRow, history, pairs(source, direction), since_ns=since_ns, span_ns=span_ns)


def worst_paths(history: History, span: Span, limit: int) -> list[WorstRow]:
    """Return the paths with the highest p99 one-way delay in the span, each in its worst window."""
    sql = (
        "SELECT nic, peer, path, leg.1 AS d, leg.2 AS p50, leg.3 AS p99, bound_ns, lost, count, dscp, "
        "if(ecn = 0, NULL, leg.4 / ecn) AS ce FROM ("
        "SELECT nic, peer, path, bound_ns, lost, count, dscp, ecn, "
        "arrayJoin([('forward', forward_p50_ns, forward_p99_ns, forward_ce), "
        "('reverse', reverse_p50_ns, reverse_p99_ns, reverse_ce)]) AS leg "
        f"{dialect(history).rows(tables.DELAYS)} AND NOT {unknown_delay('rtt_p50_ns')}) "
        "WHERE p99 IS NOT NULL ORDER BY p99 DESC, nic, peer, path, d, dscp "
        f"LIMIT 1 BY nic, peer, path, d, dscp LIMIT {limit}"
    )
    return records(WorstRow, history, sql, span)


@dataclass(frozen=True, slots=True)
class PathDelay:
    """The (p50, p99) delays of one path over a span, per direction, ns; None if no one-way delay is known."""

    forward: tuple[float | None, float | None]
    reverse: tuple[float | None, float | None]
    bound_ns: float | None
    lost: int
    count: int


def delays_of(
    history: History, paths: Sequence[tuple[str, str, int]], since_ns: int, until_ns: int = MAX_NS
) -> dict[tuple[str, str, int], PathDelay]:
    """Return the delays of each (nic, peer, path) over the windows that begin from `since_ns` to `until_ns`.

    p50 is the median of the windows' medians, p99 is the p99 of the worst window.
    """
    is_delay_known = f"NOT {unknown_delay('rtt_p50_ns')}"
    figures = ", ".join(
        f"quantileExactWeightedIf(0.5)({direction}_p50_ns, count, {is_delay_known}), "
        f"maxIf({direction}_p99_ns, {is_delay_known})"
        for direction in ("forward", "reverse")
    )
    named = "arrayZip({nics:Array(String)}, {peers:Array(String)}, {paths:Array(UInt32)})"
    sql = (
        f"SELECT nic, peer, path, {figures}, maxIf(bound_ns, {is_delay_known}), sum(lost), sum(count) "
        f"{dialect(history).rows(tables.DELAYS)} "
        "AND (nic, peer, path) IN ("
        f"SELECT each.1, each.2, each.3 FROM (SELECT arrayJoin({named}) AS each)) GROUP BY nic, peer, path"
    )
    return {
        (nic, peer, int(path)): PathDelay(
            (to_float(out50), to_float(out99)),
            (to_float(back50), to_float(back99)),
            to_float(bound),
            int(lost),
            int(count),
        )
        for nic, peer, path, out50, out99, back50, back99, bound, lost, count in rows(
            history,
            sql,
            since_ns=since_ns,
            until_ns=until_ns,
            nics=[p[0] for p in paths],
            peers=[p[1] for p in paths],
            paths=[p[2] for p in paths],
        )
    }


def pair_series(history: History, span: Span, nic: str, peer: str) -> list[PointRow]:
    """Return the points of one (nic, peer) by path from the base table, the oldest step first."""
    is_delay_known = f"NOT {unknown_delay('rtt_p50_ns')}"
    figures = ", ".join(
        f"minIf({direction}_min_ns, {is_delay_known}), "
        f"quantileExactWeightedIf(0.5)({direction}_p50_ns, count, {is_delay_known}), "
        f"maxIf({direction}_p99_ns, {is_delay_known})"
        for direction in ("forward", "reverse")
    )
    sql = (
        f"SELECT path, dscp, {STEP} AS at, sum(count), sum(lost), {figures}, "
        f"quantileExactWeighted(0.5)(rtt_p50_ns, count), maxIf(bound_ns, {is_delay_known}) "
        f"{dialect(history).rows(tables.DELAYS)} AND nic = {{nic:String}} AND peer = {{peer:String}} "
        "GROUP BY path, dscp, at ORDER BY path, dscp, at"
    )
    return records(PointRow, history, sql, span, nic=nic, peer=peer)
