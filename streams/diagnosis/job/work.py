"""Combines a job's operations of an interval across ranks, and holds each rank's time.

Times are float64 ns after the interval's begin: exact for all intervals below 100 days.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from schemas.records import CollectiveFunction as _F
from streams.diagnosis.job.arrivals import (
    Arrivals,
    Bools,
    Floats,
    Groups,
    Ints,
    arrivals_of,
    distinct,
    group_medians,
    groups_of,
    order_by,
)
from streams.diagnosis.job.columns import EVERY, FUNCTIONS, IS_COLLECTIVE, Op, Rows, Sum, is_one_of, pair_key
from streams.diagnosis.job.iterations import Iterations, find_iterations
from streams.diagnosis.job.moving import Moving, moving_of
from streams.diagnosis.job.rank_times import RankTimes, RowTimes, rank_times
from streams.diagnosis.job.ranks import Ranks
from streams.diagnosis.job.view import Columns, JobView
from streams.diagnosis.rules import CLOCK_FLOOR_NS, NEVER_NS

Kind = tuple[int, int, int]
"""Number of ranks of the communicator, index of the function, binary logarithm of the bytes."""
_SEND: Final = FUNCTIONS.index(_F.SEND)
_IS_PAIRED: Final = is_one_of(_F.SEND, _F.RECEIVE)
_IS_DOWN: Final = is_one_of(_F.BROADCAST, _F.SCATTER, _F.SCATTERV)
_IS_UP: Final = is_one_of(_F.REDUCE, _F.GATHER, _F.GATHERV, _F.SCAN)
"""Whether only the root waits for the others, by index of the function; `_IS_DOWN`: only they for it."""
_MIX: Final = tuple(
    np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
)
FULL_SHARE: Final = 0.5
"""Share of a communicator's ranks that must be seen before a last rank is named."""


def mixed(*columns: Rows | Ints | int) -> Ints:
    """Return one number for each row of several columns; equal rows have equal numbers."""
    total = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for at, column in enumerate(columns):
            values = np.asarray(column, np.int64).astype(np.uint64)
            total = (total ^ (values * _MIX[at % 3])) * _MIX[2] + (total >> np.uint64(29))
    return total.astype(np.int64)


@dataclass(slots=True)
class Work:
    """Operations of a job in an interval. Arrays have one element per row, unless named otherwise."""

    length_ns: float
    rank: Ints
    """Position of the row's rank in `Ranks` order."""
    rows: Rows
    begin: Floats
    end: Floats
    """End of the operation; the interval's end if it still runs then."""
    running: Bools
    groups: Groups
    grouped: Ints
    """Rows of collectives; `groups` and `arrivals` index this selection."""
    arrivals: Arrivals
    arrival_wait: Floats
    """Time until the last rank arrived, ns: the part of waiting that late ranks cause; NaN: unknown."""
    wait: Floats
    """Time of waiting for peers, ns; NaN: unknown."""
    network: Floats
    """Time of moving data, ns; NaN: unknown."""
    critical: Floats
    """Greatest `network` of all ranks of the operation: the other ranks wait for the slowest."""
    moving: Moving
    """Time of moving data of the whole operation, if all of its ranks are seen."""
    weight: Floats
    """Share of the row that lies in the interval, times the number of operations that it stands for."""
    kind: Ints
    """Index in `kinds`."""
    kinds: list[Kind]
    times: RankTimes
    iterations: Iterations | None = None
    iteration_key: tuple[int, ...] = ()
    pace_ns: float | None = None
    bus_bps: float | None = None
    kind_network: dict[Kind, float] = field(default_factory=dict)
    """Median of `critical` for each kind, ns."""
    kind_moving: dict[Kind, float] = field(default_factory=dict)
    """Median of `moving` for each kind, ns."""


def work_of(job: JobView, ranks: Ranks, columns: Columns, begin_ns: int, end_ns: int) -> Work:
    """Return the work of a job in an interval. `columns`: the rows that overlap the interval."""
    operations, summaries = columns.operations, columns.summaries
    members = list(ranks)
    places = _places([m.process for m in members], operations[:, Op.PROCESS])
    rows, rank = _selected(operations, places, summaries, begin_ns, end_ns)
    length_ns = float(end_ns - begin_ns)
    running = (rows[:, Op.END] == NEVER_NS) | (rows[:, Op.END] > end_ns)
    begin = (rows[:, Op.BEGIN] - begin_ns).astype(np.float64)
    end = np.where(running, length_ns, (rows[:, Op.END] - begin_ns).astype(np.float64))
    end = np.maximum(end, begin)
    launch = np.minimum(np.maximum(rows[:, Op.LAUNCH], 0).astype(np.float64), end - begin)
    by_rank = order_by(rank, begin)
    gap = _gaps(by_rank, rank, begin, end, rows[:, Op.KEPT] == EVERY)
    tolerance = np.array([m.bound_ns for m in members], np.float64) + CLOCK_FLOOR_NS
    synced = np.array([m.synced for m in members], bool)[rank]
    grouped = np.flatnonzero(IS_COLLECTIVE[rows[:, Op.FUNCTION]] & synced)
    keys = mixed(rows[grouped, Op.COMMUNICATOR], rows[grouped, Op.SEQ])
    groups = groups_of(keys, (begin + launch)[grouped])
    sizes = _sizes(ranks, rows[grouped[groups.order[groups.starts]], Op.COMMUNICATOR])
    full = groups.counts >= FULL_SHARE * sizes
    row_tolerance = tolerance[rank] if len(members) else np.empty(0)
    own = row_tolerance[grouped]
    arrivals = arrivals_of(groups, begin[grouped], launch[grouped], gap[grouped], own, full=full)
    arrival_wait = _arrival_waits(rows, begin + launch, grouped, groups, full)
    arrival_wait = np.where(synced, np.clip(arrival_wait, 0.0, end - begin - launch), np.nan)
    moving = end - begin - launch
    measured = rows[:, Op.PEER_LATE].astype(np.float64)
    wait = np.where(measured >= 0, np.minimum(np.fmax(measured, arrival_wait), moving), arrival_wait)
    left = np.maximum(moving - np.nan_to_num(wait), 0.0)
    for column in (Op.GPU_LATE, Op.FLUSH):  # a GPU waits for data of a late rank, too
        rows[:, column] = np.minimum(rows[:, column], left)
    network = np.minimum(_network(rows, moving, wait), left)
    kind, kinds = _kinds(rows, ranks)
    inside = _inside(begin, end, length_ns)
    row_times = RowTimes(rank, by_rank, rows, end - begin, inside, running, wait, network)
    times, weight = rank_times(job, members, (begin_ns, end_ns), summaries, row_times)
    last = grouped[arrivals.group_last[arrivals.group_clear]]
    times.last_arrivals = np.bincount(rank[last], minlength=len(members))[: len(members)].astype(np.int64)
    critical = _critical(network, rows, grouped, groups)
    is_complete = groups.counts >= sizes
    whole_moving = moving_of(rows, rank, begin + launch, end, row_tolerance, grouped, groups, is_complete)
    work = Work(
        length_ns=length_ns,
        rank=rank,
        rows=rows,
        begin=begin,
        end=end,
        running=running,
        groups=groups,
        grouped=grouped,
        arrivals=arrivals,
        arrival_wait=arrival_wait,
        wait=wait,
        network=network,
        critical=critical,
        moving=whole_moving,
        weight=weight,
        kind=kind,
        kinds=kinds,
        times=times,
    )
    medians = group_medians(kind, len(kinds), np.where(running, np.nan, critical))
    work.kind_network = {kinds[at]: float(ns) for at, ns in enumerate(medians) if not np.isnan(ns)}
    medians = whole_moving.medians(kind, len(kinds), running)
    work.kind_moving = {kinds[at]: float(ns) for at, ns in enumerate(medians) if not np.isnan(ns)}
    _find_iterations(work, ranks)
    work.bus_bps = _bus_bps(summaries)
    return work


# ------------------------------------------------------------------------------------------- rows


def _places(processes: list[int], column: Rows) -> Ints:
    """Return each row's index of its process in `processes`, or -1. Fast if equal rows are adjacent."""
    if not len(column):
        return np.empty(0, np.int64)
    starts = np.append(0, np.flatnonzero(column[1:] != column[:-1]) + 1)
    place_of = {process: at for at, process in enumerate(processes)}
    of_run = np.array([place_of.get(process, -1) for process in column[starts].tolist()], np.int64)
    return np.repeat(of_run, np.diff(np.append(starts, len(column))))


def _selected(
    operations: Rows, places: Ints, summaries: Rows, begin_ns: int, end_ns: int
) -> tuple[Rows, Ints]:
    """Return the operations that overlap the interval, each once, and the positions of their ranks.

    Operations that ended without a report are left out. `places`: position of each row's rank; rows with a
    negative position are left out.
    """
    begin, end = operations[:, Op.BEGIN], operations[:, Op.END]
    never = end == NEVER_NS
    inside = (begin < end_ns) & (never | (end > begin_ns)) & (places >= 0)
    selected = np.flatnonzero(inside)
    selected = selected[_by_begin(begin[selected], end[selected])]
    if len(selected):
        runs = never[selected]
        selected = np.concatenate((selected[~runs], selected[runs]))
    rows = _taken(operations, selected)
    keys = mixed(rows[:, Op.PROCESS], rows[:, Op.COMMUNICATOR], pair_key(rows), rows[:, Op.SEQ])
    dropped = ~_is_first(keys) | _ended_unseen(rows, operations, summaries)
    if not dropped.any():
        return rows, places[selected]
    remaining = np.flatnonzero(~dropped)
    return _taken(rows, remaining), places[selected[remaining]]


def _taken(rows: Rows, selected: Ints) -> Rows:
    """Return the selected rows as an array whose columns are contiguous."""
    return np.take(rows.T, selected, axis=1).T


def _by_begin(begin: Rows, end: Rows) -> Ints:
    """Return row numbers sorted by begin, then end, then row. Fast if few begins are equal."""
    order = np.argsort(begin)
    ordered = begin[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        tied = np.append(same, False) | np.append(False, same)
        rows = np.sort(order[tied])
        order[tied] = rows[np.lexsort((end[rows], begin[rows]))]
    return np.asarray(order, np.int64)


def _is_first(keys: Ints) -> Bools:
    """Return, for each row, whether it is the first row with its key. Fast if nearly all keys differ."""
    first = np.ones(len(keys), bool)
    ordered = np.sort(keys)
    duplicates = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if len(duplicates):
        place = np.minimum(np.searchsorted(duplicates, keys), len(duplicates) - 1)
        repeated = np.flatnonzero(duplicates[place] == keys)
        first[repeated] = False
        first[repeated[np.unique(keys[repeated], return_index=True)[1]]] = True
    return first


def _ended_unseen(rows: Rows, operations: Rows, summaries: Rows) -> Bools:
    """Return, by row, whether a running operation must have ended, because a later one of its order has."""
    never = rows[:, Op.END] == NEVER_NS
    has_ended = np.zeros(len(rows), bool)
    if not never.any():
        return has_ended
    ended = operations[operations[:, Op.END] != NEVER_NS]
    is_collective = IS_COLLECTIVE[summaries[:, Sum.FUNCTION]]
    sums = summaries[is_collective]
    keys = np.concatenate(
        (
            mixed(ended[:, Op.PROCESS], ended[:, Op.COMMUNICATOR], pair_key(ended)),
            mixed(sums[:, Sum.PROCESS], sums[:, Sum.COMMUNICATOR], np.zeros(len(sums), np.int64)),
        )
    )
    seqs = np.concatenate((ended[:, Op.SEQ], sums[:, Sum.LAST_SEQ]))
    names, at = np.unique(keys, return_inverse=True)
    newest = np.full(len(names), -1, np.int64)
    np.maximum.at(newest, at, seqs)
    if len(names):
        targets = mixed(rows[:, Op.PROCESS], rows[:, Op.COMMUNICATOR], pair_key(rows))
        place = np.minimum(np.searchsorted(names, targets), len(names) - 1)
        has_ended = never & (names[place] == targets) & (newest[place] >= rows[:, Op.SEQ])
    return has_ended


def _gaps(order: Ints, rank: Ints, begin: Floats, end: Floats, every: Bools) -> Floats:
    """Return, by row, the time since the rank's previous operation, ns; NaN if unknown or still running.

    `order`: row numbers sorted by rank, then by begin.
    """
    gap = np.full(len(rank), np.nan)
    if len(order) < 2:
        return gap
    first, second = order[:-1], order[1:]
    pause = begin[second] - end[first]
    is_consecutive = (rank[first] == rank[second]) & every[first] & every[second] & (pause >= 0)
    gap[second[is_consecutive]] = pause[is_consecutive]
    return gap


def _inside(begin: Floats, end: Floats, length_ns: float) -> Floats:
    inside = np.minimum(end, length_ns) - np.maximum(begin, 0.0)
    return np.clip(inside / np.maximum(end - begin, 1.0), 0.0, 1.0)


def _sizes(ranks: Ranks, communicators: Ints) -> Floats:
    """Return the number of ranks of each communicator, given by hash."""
    sizes = {
        name: max(communicator.ranks, len(communicator.processes), 1)
        for name, communicator in ranks.communicators.items()
    }
    names, at = np.unique(communicators, return_inverse=True)
    counts = np.array([sizes.get(int(name), 1) for name in names], np.float64)
    return np.asarray(counts[at] if len(names) else np.empty(0), np.float64)


# ------------------------------------------------------------------------------------------- splits


def _arrival_waits(rows: Rows, arrival: Floats, grouped: Ints, groups: Groups, full: Bools) -> Floats:
    """Return, by row, the time until the last rank for which it must wait arrived, ns; NaN if unknown."""
    wait = np.full(len(rows), np.nan)
    if len(grouped):
        last = arrival[grouped][groups.last()][groups.group]
        function = rows[grouped, Op.FUNCTION]
        own = arrival[grouped]
        last = np.where(_IS_UP[function], own, last)
        is_down = _IS_DOWN[function]
        if is_down.any():
            is_root = rows[grouped, Op.RANK] == rows[grouped, Op.PEER]
            roots = group_medians(groups.group, len(groups.starts), np.where(is_root, own, np.nan))
            last = np.where(is_down, roots[groups.group], last)
        wait[grouped] = np.where(full[groups.group], last - own, np.nan)
    pairs = np.flatnonzero(_IS_PAIRED[rows[:, Op.FUNCTION]])
    if len(pairs):
        wait[pairs] = _pair_waits(rows[pairs], arrival[pairs])
    return wait


def _critical(network: Floats, rows: Rows, grouped: Ints, groups: Groups) -> Floats:
    """Return, by row, the greatest time of moving data among its operation's ranks, ns; NaN if unknown.

    A rank with an UNSYNCED clock counts: its wait for data does not depend on the clock's offset.
    """
    collective, group, count = grouped, groups.group, len(groups.starts)
    collectives = np.flatnonzero(IS_COLLECTIVE[rows[:, Op.FUNCTION]])
    if len(collectives) > len(grouped):
        names, group = distinct(mixed(rows[collectives, Op.COMMUNICATOR], rows[collectives, Op.SEQ]))
        collective, count = collectives, len(names)
    critical = network.copy()
    if len(collective):
        greatest = np.full(count, -1.0)
        np.maximum.at(greatest, group, np.nan_to_num(network[collective], nan=-1.0))
        critical[collective] = np.where(greatest < 0, np.nan, greatest)[group]
    return critical


def _pair_waits(rows: Rows, arrival: Floats) -> Floats:
    """Return, for each point-to-point operation, by how much its peer arrived later, ns; NaN if unknown."""
    sends = rows[:, Op.FUNCTION] == _SEND
    sender = np.where(sends, rows[:, Op.RANK], rows[:, Op.PEER])
    receiver = np.where(sends, rows[:, Op.PEER], rows[:, Op.RANK])
    groups = groups_of(mixed(rows[:, Op.COMMUNICATOR], sender, receiver, rows[:, Op.SEQ]), arrival)
    both = groups.counts == 2
    last = arrival[groups.last()][groups.group]
    return np.where(both[groups.group], last - arrival, np.nan)


def _network(rows: Rows, moving: Floats, wait: Floats) -> Floats:
    """Return, by row, the time of moving data, ns: as measured, else the operation's time without waiting."""
    others = np.maximum(rows[:, Op.GPU_LATE], 0) + np.maximum(rows[:, Op.FLUSH], 0).astype(np.float64)
    left = np.maximum(moving - wait - others, 0.0)
    measured = rows[:, Op.NETWORK_LATE].astype(np.float64)
    return np.where(measured >= 0, np.minimum(measured, np.maximum(moving, 0.0)), left)


def _kinds(rows: Rows, ranks: Ranks) -> tuple[Ints, list[Kind]]:
    """Return the kind of each row, as an index, and the list of all kinds."""
    exponent = np.ceil(np.log2(np.maximum(rows[:, Op.BYTES], 1).astype(np.float64))).astype(np.int64)
    keys = mixed(rows[:, Op.COMMUNICATOR], rows[:, Op.FUNCTION], exponent)
    unique_keys, at = distinct(keys)
    first = _first_rows(at, len(unique_keys))
    names = [
        (ranks.size_of(int(rows[row, Op.COMMUNICATOR])), int(rows[row, Op.FUNCTION]), int(exponent[row]))
        for row in first
    ]
    kinds = sorted(set(names))
    place = {kind: index for index, kind in enumerate(kinds)}
    index = np.array([place[kind] for kind in names], np.int64)
    return np.asarray(index[at] if len(first) else np.empty(0, np.int64), np.int64), kinds


# ------------------------------------------------------------------------------------------- pace


def _first_rows(group: Ints, count: int) -> Ints:
    """Return the number of each group's first row; 0 for a group without rows."""
    first = np.zeros(count, np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]
    return first


def _find_iterations(work: Work, ranks: Ranks) -> None:
    """Set the work's iterations and pace, found at the rank and communicator with the most rows."""
    rows = work.rows
    if not len(work.grouped):
        return
    _, code = distinct(rows[work.grouped, Op.COMMUNICATOR])
    rank = work.rank[work.grouped]
    at = code * (int(rank.max()) + 1) + rank
    counts = np.bincount(at)
    first = work.grouped[_first_rows(at, len(counts))]

    def place(group: int) -> tuple[int, int, int]:
        communicator = int(rows[first[group], Op.COMMUNICATOR])
        return -ranks.size_of(communicator), int(work.rank[first[group]]), communicator

    best = min(np.flatnonzero(counts == counts.max()).tolist(), key=place)
    selected = work.grouped[(at == best) & ~work.running[work.grouped]]
    selected = selected[np.argsort(rows[selected, Op.SEQ])]
    if len(selected) < 2:
        return
    seq, begin = rows[selected, Op.SEQ], work.begin[selected]
    kind = mixed(rows[selected, Op.FUNCTION], rows[selected, Op.BYTES]) >> 1
    kind = np.abs(kind)
    size = ranks.size_of(int(rows[selected[0], Op.COMMUNICATOR]))
    work.pace_ns = float(begin[-1] - begin[0]) / max(1, int(seq[-1] - seq[0]))
    work.iterations = find_iterations(seq, kind, begin, work.end[selected])
    if work.iterations is not None:
        shape = int(np.bitwise_xor.reduce(np.unique(kind)))
        work.iteration_key = (size, work.iterations.period, shape)


def _bus_bps(summaries: Rows) -> float | None:
    """Return the mean bus bandwidth of the summaries, bit/s, weighted by bytes; None if unknown."""
    valid = summaries[(summaries[:, Sum.BUS_BPS] >= 0) & (summaries[:, Sum.BYTES] > 0)]
    if not len(valid):
        return None
    weight = valid[:, Sum.BYTES].astype(np.float64)
    return float((valid[:, Sum.BUS_BPS] * weight).sum() / weight.sum())
