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

__all__ = ["Cells", "WaitingCells", "without_own_delay"]

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

    def where(self, chosen: NDArray[np.bool_]) -> Cells:
        """Return the chosen cells."""
        return Cells(*(getattr(self, name)[chosen] for name in Cells.__slots__))


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
