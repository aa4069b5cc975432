"""Cells of `PathQueueing` as columns: the delays of one route's probes in one slot."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core.columns import Float64s, Int64s
from schemas.records import PathQueueing

__all__ = ["Cells", "Delays", "WaitingCells", "without_own_delay"]

OWN_RECEIVERS: Final = 3
OWN_SIGMAS: Final = 5.0
"""A NIC's own delay is common to paths to so many receivers, and above so many standard errors of noise."""
MIN_NOISE_NS: Final = 1e-3


@dataclass(slots=True)
class Cells:
    """Cells of records, as columns."""

    slot: Int64s
    route: NDArray[np.int32]
    at: Float64s
    """Mean time within the slot, 0 to 1."""
    count: Float64s
    mean_ns: Float64s
    noise_ns: Float64s
    ce: Float64s
    """Samples that a queue marked."""

    @classmethod
    def of(cls, record: PathQueueing, route: NDArray[np.int32]) -> Cells:
        """Return the cells of a record's rows with a known route; `route` has -1 for the others."""
        cells = np.asarray(record["cells"], np.int64)
        cell_route = np.repeat(route, cells)
        noise_ns = np.repeat(np.asarray(record["noise_ns"], np.float64), cells)
        published_at = np.asarray(record["at_ns"], np.float64) / record["slot_ns"]
        return cls(
            record["start_ns"] // record["slot_ns"] + np.asarray(record["slot"], np.int64),
            cell_route,
            published_at if len(published_at) else np.full(len(cell_route), 0.5),
            np.asarray(record["count"], np.float64),
            np.asarray(record["mean_ns"], np.float64),
            np.maximum(noise_ns, MIN_NOISE_NS),
            np.asarray(record["ce"], np.float64) if len(record["ce"]) else np.zeros(len(cell_route)),
        ).where(cell_route >= 0)

    @classmethod
    def joined(cls, parts: Sequence[Cells]) -> Cells:
        """Return the cells of all parts."""
        if not parts:
            none = np.zeros(0)
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int32), none, none, none, none, none)
        return cls(*(np.concatenate([getattr(c, name) for c in parts]) for name in cls.__slots__))

    def folded(self, fold: int) -> Cells:
        """Return the same cells in slots of `fold` times the length."""
        if fold == 1:
            return self
        slot = self.slot // fold
        at = (self.slot - slot * fold + self.at) / fold
        return Cells(slot, self.route, at, self.count, self.mean_ns, self.noise_ns, self.ce)

    def where(self, chosen: NDArray[np.bool_]) -> Cells:
        """Return the chosen cells."""
        return Cells(*(getattr(self, name)[chosen] for name in Cells.__slots__))


@dataclass(slots=True)
class Delays:
    """Delays of cells as the solver takes them, as columns; times and slots as in `Cells`."""

    slot: Int64s
    route: NDArray[np.int32]
    at: Float64s
    count: Float64s
    mean_ns: Float64s
    longest_ns: Float64s
    noise_ns: Float64s

    @classmethod
    def of(cls, cells: Cells, delay_ns: Float64s) -> Delays:
        """Return one delay for each cell."""
        return cls(cells.slot, cells.route, cells.at, cells.count, delay_ns, delay_ns, cells.noise_ns)

    def merged(self, slots: int, same: NDArray[np.int32]) -> Delays:
        """Return one delay for each route and so many slots; `same`: by route the first with its links.

        The times stay those of single slots.
        """
        if not len(self.slot):
            return self
        group, routes = self.slot // slots, int(same.max()) + 1
        begin = int(group.min()) * slots
        key = (group - begin // slots) * routes + same[self.route]
        order = np.argsort(key, kind="stable")
        first = np.flatnonzero(np.diff(key[order], prepend=-1))
        count = self.count[order]
        total = np.add.reduceat(count, first)

        def mean(values: Float64s) -> Float64s:
            found: Float64s = np.add.reduceat(count * values[order], first) / total
            return found

        when = mean(self.slot - begin + self.at)
        last = (key[order[first]] // routes + 1) * slots - 1
        slot = np.minimum(np.floor(when).astype(np.int64), last)
        longest_ns = np.maximum.reduceat(self.longest_ns[order], first)
        route = same[self.route[order[first]]]
        noise_ns = mean(self.noise_ns)
        return Delays(slot + begin, route, when - slot, total, mean(self.mean_ns), longest_ns, noise_ns)


class WaitingCells:
    """Cells that wait for their block, in buckets of slots: taking a block costs as much with a backlog as
    without one."""

    def __init__(self, bucket_slots: int) -> None:
        self._bucket_slots = bucket_slots
        self._buckets: dict[int, list[Cells]] = {}
        self._numbers: list[int] = []
        """Heap of the buckets' numbers."""

    def __bool__(self) -> bool:
        """True if any cell waits."""
        return bool(self._buckets)

    def clear(self) -> None:
        """Drop all cells."""
        self._buckets.clear()
        self._numbers.clear()

    def add(self, cells: Cells) -> None:
        """Add the cells of a record."""
        bucket = cells.slot // self._bucket_slots
        for number in np.unique(bucket).tolist():
            self._add_to(number, cells.where(bucket == number))

    def _add_to(self, number: int, cells: Cells) -> None:
        if number not in self._buckets:
            self._buckets[number] = []
            heapq.heappush(self._numbers, number)
        self._buckets[number].append(cells)

    def waiting(self, begin: int, end: int) -> Cells:
        """Return the cells of slots [begin, end) of one bucket that wait."""
        number = begin // self._bucket_slots
        cells = Cells.joined(self._buckets.get(number, []))
        if number in self._buckets:
            self._buckets[number] = [cells]
        return cells.where((cells.slot >= begin) & (cells.slot < end))

    def take(self, begin: int, end: int) -> tuple[Cells, int]:
        """Remove and return the cells of slots [begin, end); drop earlier ones and return their number."""
        picked: list[Cells] = []
        late = 0
        while self._numbers and self._numbers[0] * self._bucket_slots < end:
            number = heapq.heappop(self._numbers)
            cells = Cells.joined(self._buckets.pop(number))
            late += int(np.count_nonzero(cells.slot < begin))
            picked.append(cells.where((cells.slot >= begin) & (cells.slot < end)))
            rest = cells.slot >= end
            if rest.any():  # only the last bucket has any
                self._add_to(number, cells.where(rest))
                break
        return Cells.joined(picked), late


def without_own_delay(cells: Cells, senders: Sequence[int], last_links: Int64s, links: int) -> Float64s:
    """Return [cells] ns of delay without the sender's own delay.

    A delay that one NIC's probes show towards several receivers at every moment of a block is an error of
    its clock or a delay in its host: no queue has this effect. `senders` and `last_links` are by route; the
    sender is -1 for a round trip.
    """
    sender = np.array(senders, np.int64)[cells.route] if len(cells.route) else cells.slot
    receiver = last_links[cells.route]
    key = sender * links + receiver
    each, at = np.unique(key[sender >= 0], return_inverse=True)
    lowest_ns = np.full(len(each), np.inf)
    np.minimum.at(lowest_ns, at, cells.mean_ns[sender >= 0])
    with_own, of = np.unique(each // max(1, links), return_inverse=True)
    own_ns = np.full(len(with_own), np.inf)
    np.minimum.at(own_ns, of, lowest_ns)
    own_ns[np.bincount(of, minlength=len(with_own)) < OWN_RECEIVERS] = 0
    number = np.searchsorted(with_own, sender)
    delay_ns = cells.mean_ns.copy()
    known = sender >= 0
    shift_ns = own_ns[number[known]]
    delay_ns[known] -= np.where(shift_ns > OWN_SIGMAS * cells.noise_ns[known], shift_ns, 0.0)
    return delay_ns
