"""Sums each rank's time in an interval over its operations; a sample is extrapolated by its summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from streams.diagnosis.job.arrivals import Bools, Floats, Ints
from streams.diagnosis.job.columns import SAMPLED, Op, Rows, Sum
from streams.diagnosis.job.ranks import Rank
from streams.diagnosis.job.view import JobView

MAX_SCALE: Final = 1_000.0
"""Largest number of operations for which one sampled operation stands."""
_PARTS: Final = (Sum.LAUNCH, Sum.GPU_LATE, Sum.PEER_LATE, Sum.NETWORK_LATE, Sum.FLUSH)


class RowTimes(NamedTuple):
    """Operations of all ranks, one element per operation. Times are in ns; NaN: unknown."""

    rank: Ints
    order: Ints
    """Numbers of the operations sorted by rank, then by begin."""
    rows: Rows
    duration: Floats
    inside: Floats
    """Share of the operation that lies in the interval."""
    running: Bools
    wait: Floats
    network: Floats


@dataclass(slots=True)
class RankTimes:
    """Sums of times, ns, counts and bytes for each rank, in the order of rank numbers."""

    observed: Floats
    """Part of the interval that the rank's records cover."""
    busy: Floats
    launch: Floats
    gpu_late: Floats
    peer_late: Floats
    network_late: Floats
    flush: Floats
    operations: Ints
    bytes: Floats
    last_arrivals: Ints

    @property
    def compute(self) -> Floats:
        """Time that each rank spent outside of operations, ns."""
        return np.maximum(0.0, self.observed - self.busy)

    @property
    def largest_bytes(self) -> float:
        """Largest mean bytes of an operation among the ranks: a collective waits for the slowest rank."""
        return float(np.max(self.bytes / np.maximum(self.operations, 1), initial=0.0))


def positions(processes: Sequence[int], column: Rows) -> Ints:
    """Return, for each process in `column`, its index in `processes`, which must contain it."""
    if not processes:
        return np.empty(0, np.int64)
    numbers = np.array(processes, np.int64)
    by_name = np.argsort(numbers)
    return np.asarray(by_name[np.searchsorted(numbers[by_name], column)], np.int64)


class _Summaries:
    """Sums of summaries by rank, each weighted by the share of its record that overlaps the interval."""

    def __init__(self, summaries: Rows, processes: list[int], interval: tuple[int, int]) -> None:
        self._count = len(processes)
        self._rows = summaries[np.isin(summaries[:, Sum.PROCESS], np.array(processes, np.int64))]
        self._owner = positions(processes, self._rows[:, Sum.PROCESS])
        span = np.maximum(self._rows[:, Sum.END] - self._rows[:, Sum.BEGIN], 1).astype(np.float64)
        inside = np.minimum(self._rows[:, Sum.END], interval[1])
        inside = inside - np.maximum(self._rows[:, Sum.BEGIN], interval[0])
        self._weight = np.clip(inside.astype(np.float64) / span, 0.0, 1.0)

    def of(self, column: Sum) -> Floats:
        """Return the weighted sums of a summary column, one element per rank."""
        values = np.maximum(self._rows[:, column], 0).astype(np.float64) * self._weight
        return np.bincount(self._owner, values, self._count)[: self._count].astype(np.float64)


def rank_times(
    job: JobView, members: list[Rank], interval: tuple[int, int], summaries: Rows, of: RowTimes
) -> tuple[RankTimes, Floats]:
    """Return the sums by rank, and each row's weight: the number of operations that the row represents.

    Operations that were published because they are slow represent only themselves. A fair sample represents
    all other operations.
    """
    processes = [member.process for member in members]
    count, sums = len(members), _Summaries(summaries, processes, interval)

    def by_rank(values: Floats) -> Floats:
        return np.bincount(of.rank, values, count)[:count].astype(np.float64)

    reasons = of.rows[:, Op.KEPT]
    sampled = reasons == SAMPLED
    busy = sums.of(Sum.BUSY)
    time = of.duration * of.inside
    rest = busy - by_rank(np.where(sampled, 0.0, time))
    scale = np.clip(rest / np.maximum(by_rank(np.where(sampled, time, 0.0)), 1.0), 1.0, MAX_SCALE)
    weight = of.inside * np.where(sampled, scale[of.rank], 1.0) if count else of.inside
    limit = float(interval[1] - interval[0])

    def total(values: Floats) -> Floats:
        return np.minimum(by_rank(values * weight), limit)

    columns = of.rows[:, (Op.LAUNCH, Op.GPU_LATE, Op.FLUSH)]
    launch, gpu_late, flush = (
        total(np.minimum(np.maximum(columns[:, at], 0), of.duration)) for at in range(3)
    )
    parts = [launch, gpu_late, total(_known(of.wait)), total(_known(of.network)), flush]
    unknown = by_rank(np.where(np.isnan(of.network), 0.0, 1.0)) == 0
    for values, column in zip(parts, _PARTS, strict=True):
        values[unknown] = np.minimum(sums.of(column), busy)[unknown]
    done = np.where(of.running, 0.0, 1.0)
    return (
        RankTimes(
            observed=_observed(job, processes, interval),
            busy=np.minimum(np.maximum(busy, by_rank(time)) * _apart(of, count), limit),
            launch=parts[0],
            gpu_late=parts[1],
            peer_late=parts[2],
            network_late=parts[3],
            flush=parts[4],
            operations=np.maximum(sums.of(Sum.COUNT), by_rank(done)).round().astype(np.int64),
            bytes=np.maximum(sums.of(Sum.BYTES), by_rank(of.rows[:, Op.BYTES].astype(np.float64))),
            last_arrivals=np.zeros(count, np.int64),
        ),
        weight,
    )


def _apart(of: RowTimes, count: int) -> Floats:
    """Return, by rank, the time in which any operation ran, as a share of the sum of the operations' times.

    Sends and receives of a group run at the same time, as do operations on several streams.
    """
    column = of.rows[:, Op.BEGIN]
    begin = (column - column.min(initial=column[0] if len(column) else 0)).astype(np.float64)
    end = begin + of.duration
    span = end.max() + 1.0 if len(end) else 1.0
    order = of.order
    first, last = (times[order] + of.rank[order] * span for times in (begin, end))
    former = np.concatenate(([0.0], np.maximum.accumulate(last)[:-1])) if len(last) else last
    alone = np.clip(last - np.maximum(first, former), 0.0, None)
    sums = np.bincount(of.rank, of.duration, count)[:count]
    union = np.bincount(of.rank[order], alone, count)[:count]
    return np.where(sums > 0, np.minimum(union / np.maximum(sums, 1.0), 1.0), 1.0).astype(np.float64)


def _known(values: Floats) -> Floats:
    return np.where(np.isnan(values), 0.0, values)


def _observed(job: JobView, processes: list[int], interval: tuple[int, int]) -> Floats:
    """Return, by rank, the part of the interval, ns, that its records cover."""
    begin_ns, end_ns = interval
    observed_ns = np.zeros(len(processes))
    for at, name in enumerate(processes):
        batches = job.processes[name].overlapping(begin_ns, end_ns)
        spans = sorted([(max(b.begin_ns, begin_ns), min(b.end_ns, end_ns)) for b in batches])
        covered, until = 0, begin_ns
        for start, stop in spans:
            covered += max(0, stop - max(start, until))
            until = max(until, stop)
        observed_ns[at] = covered
    return observed_ns
