"""Cells of `PathQueueing` as columns: the delays of one route's probes in one slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core.columns import Float64s, Int64s
from native.core.queue_cells import CellStore, own_delays
from schemas.records import PathQueueing

OWN_RECEIVERS: Final = 3
OWN_SIGMAS: Final = 5.0
"""A NIC's own delay is common to its paths to at least `OWN_RECEIVERS` receivers, and exceeds `OWN_SIGMAS`
standard errors of the noise."""
MIN_NOISE_NS: Final = 1e-3


@dataclass(slots=True)
class Cells:
    """Cells of `PathQueueing` records as columns, with one element per cell."""

    slot: Int64s
    route: NDArray[np.int32]
    at: Float64s
    """Mean time within the slot, 0 to 1."""
    count: Float64s
    mean_ns: Float64s
    noise_ns: Float64s
    ce: Float64s
    """Number of samples with a CE mark."""

    def columns(
        self,
    ) -> tuple[Int64s, NDArray[np.int32], Float64s, Float64s, Float64s, Float64s, Float64s]:
        """Return the columns of the cells in the order of the class's fields."""
        return self.slot, self.route, self.at, self.count, self.mean_ns, self.noise_ns, self.ce

    def folded(self, fold: int) -> Cells:
        """Return the same cells with `fold` slots combined into one."""
        if fold == 1:
            return self
        slot = self.slot // fold
        at = (self.slot - slot * fold + self.at) / fold
        return Cells(slot, self.route, at, self.count, self.mean_ns, self.noise_ns, self.ce)


@dataclass(slots=True)
class Delays:
    """Delays as columns for the solver; `slot` and `at` are as in `Cells`."""

    slot: Int64s
    route: NDArray[np.int32]
    at: Float64s
    count: Float64s
    mean_ns: Float64s
    longest_ns: Float64s
    noise_ns: Float64s

    @classmethod
    def of(cls, cells: Cells, delay_ns: Float64s) -> Delays:
        """Return the delays of cells, with `delay_ns`, one for each cell, instead of their mean delays."""
        return cls(cells.slot, cells.route, cells.at, cells.count, delay_ns, delay_ns, cells.noise_ns)

    def merged(self, slots: int, same: NDArray[np.int32]) -> Delays:
        """Return the delays merged to one per route and group of `slots` slots.

        `same`: [routes] the first route with the same links. Times still count single slots.
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
            means: Float64s = np.add.reduceat(count * values[order], first) / total
            return means

        when = mean(self.slot - begin + self.at)
        last = (key[order[first]] // routes + 1) * slots - 1
        slot = np.minimum(np.floor(when).astype(np.int64), last)
        longest_ns = np.maximum.reduceat(self.longest_ns[order], first)
        route = same[self.route[order[first]]]
        noise_ns = mean(self.noise_ns)
        return Delays(slot + begin, route, when - slot, total, mean(self.mean_ns), longest_ns, noise_ns)


class WaitingCells:
    """Cells that wait for their block, in buckets of slots, so that a backlog does not slow the access."""

    def __init__(self, bucket_slots: int) -> None:
        self._store = CellStore(bucket_slots)

    def __bool__(self) -> bool:
        """Return whether any cells wait."""
        return bool(self._store)

    def clear(self) -> None:
        """Drop all waiting cells."""
        self._store.clear()

    def add(self, cells: Cells) -> None:
        """Store cells until their block is taken."""
        self._store.add(*cells.columns())

    def add_record(self, record: PathQueueing, route: NDArray[np.int32]) -> None:
        """Add the cells of a record's rows. `route`: route of each row; skip rows with -1 (unknown)."""
        self._store.add_rows(
            record["start_ns"] // record["slot_ns"],
            record["slot_ns"],
            MIN_NOISE_NS,
            route,
            np.ascontiguousarray(record["cells"], np.int64),
            np.ascontiguousarray(record["noise_ns"], np.float32),
            np.ascontiguousarray(record["slot"], np.int64),
            np.ascontiguousarray(record["count"], np.int64),
            np.ascontiguousarray(record["mean_ns"], np.float32),
            np.ascontiguousarray(record["at_ns"], np.int64),
            np.ascontiguousarray(record["ce"], np.int64),
        )

    def waiting(self, begin: int, end: int) -> Cells:
        """Return the waiting cells of slots [begin, end) without removing them."""
        return Cells(*self._store.waiting(begin, end))

    def take(self, begin: int, end: int) -> tuple[Cells, int]:
        """Remove the cells before slot `end`. Return those from slot `begin` on, and the number before it."""
        columns, late = self._store.take(begin, end)
        return Cells(*columns), late


def without_own_delay(cells: Cells, senders: Sequence[int] | Int64s, last_links: Int64s) -> Float64s:
    """Return [cells] delays, ns, without the delay that the sender itself causes.

    If all of a NIC's probes show a delay throughout a block, its clock is wrong or its host delays packets:
    no queue has this effect. `senders`, `last_links`: [routes]; the sender is -1 for a round trip.
    """
    return own_delays(
        cells.route,
        cells.mean_ns,
        cells.noise_ns,
        np.ascontiguousarray(senders, np.int64),
        last_links,
        OWN_RECEIVERS,
        OWN_SIGMAS,
    )
