"""Merges the links that no probe can distinguish into columns, the unknowns of the solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core.columns import Float64s, Int64s
from native.core.queue_cells import count_links
from native.core.queues import QueueSolver
from streams.queues.calibration import Calibration
from streams.queues.cells import Cells
from streams.queues.routes import LinkKey
from streams.runtime.pipeline_constants import SUB_SLOTS

PACKET_BYTES: Final = 1500
LinkState = tuple[float, float]
"""Last and mean depth of a link's column in the solver's state."""


@dataclass(frozen=True, slots=True)
class LinkColumns:
    """Links and routes of a shard as arrays. Links that the same routes cross share one column."""

    lengths: Int64s
    """[routes]: number of links."""
    last: Int64s
    """[routes]: the last link, which leads to the receiver."""
    flat: Int64s
    """The links of all routes, one after the other."""
    column: Int64s
    """[links]: the column of each link."""
    same: NDArray[np.int32]
    """[routes]: the first route with the same links; such routes differ only in their sender."""
    kind: NDArray[np.int32]
    """[routes]: number of the route's sequence of links among all distinct ones."""
    start: Int64s
    """[routes + 1]: where the links of each route begin in `flat`."""
    groups: list[int]
    """[links]: links with the same number above 0 cannot be distinguished; 0 for all others."""

    @classmethod
    def of(cls, routes: Sequence[tuple[int, ...]], links: int) -> LinkColumns:
        """Build the columns; `routes`: links of each route, `links`: number of links."""
        lengths = np.array([len(route_links) for route_links in routes])
        flat = np.fromiter(
            (link for route_links in routes for link in route_links), np.int64, int(lengths.sum())
        )
        route = np.repeat(np.arange(len(lengths)), lengths)
        order = np.lexsort((route, flat))
        begin = np.searchsorted(flat[order], np.arange(links + 1))
        columns: dict[bytes, int] = {}
        column = [
            columns.setdefault(route[order[begin[link] : begin[link + 1]]].tobytes(), len(columns))
            for link in range(links)
        ]
        last = np.array([route_links[-1] for route_links in routes], np.int64)
        firsts: dict[tuple[int, ...], int] = {}
        same = np.array(
            [firsts.setdefault(route_links, number) for number, route_links in enumerate(routes)], np.int32
        )
        links_of_column = np.bincount(column)
        groups = [number + 1 if links_of_column[number] > 1 else 0 for number in column]
        start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        kind = np.unique(same, return_inverse=True)[1].astype(np.int32)
        return cls(lengths, last, flat, np.array(column, np.int64), same, kind, start, groups)

    @property
    def count(self) -> int:
        """The number of columns."""
        return int(self.column.max()) + 1

    def solver(self, rate_bps: Float64s) -> QueueSolver:
        """Return a solver for the columns; `rate_bps`: [links] rate of each link."""
        start, hop = self._hops()
        return QueueSolver(self._packet_ns(rate_bps), start, hop, merge=SUB_SLOTS)

    def calibration(self, rate_bps: Float64s) -> Calibration:
        """Return a new calibration of the columns; `kind` numbers its routes. `rate_bps`: [links] rates."""
        start, hop = self._hops()
        first = np.unique(self.same)
        lengths = np.diff(start)
        in_first = np.repeat(np.isin(np.arange(len(lengths)), first), lengths)
        starts = np.concatenate([[0], np.cumsum(lengths[first])]).astype(np.int64)
        return Calibration(starts, hop[in_first], self._packet_ns(rate_bps))

    def columns_before(self, column: Int64s) -> Int64s:
        """Return each column's number in an earlier `column` array, matched by first link; -1 if new."""
        first = np.zeros(self.count, np.int64)
        first[self.column[::-1]] = np.arange(len(self.column))[::-1]
        column_before = np.append(column, np.full(max(0, len(self.column) - len(column)), -1))
        before: Int64s = column_before[first]
        return before

    def _packet_ns(self, rate_bps: Float64s) -> Float64s:
        packet_ns = np.zeros(self.count)
        np.maximum.at(packet_ns, self.column, PACKET_BYTES * 8e9 / rate_bps)
        return packet_ns

    def _hops(self) -> tuple[Int64s, NDArray[np.int32]]:
        """Return the start of each route in an array of all routes' columns, and this array."""
        count = self.count
        route = np.repeat(np.arange(len(self.lengths)), self.lengths)
        pairs = route * count + self.column[self.flat]
        pairs = pairs[np.sort(np.unique(pairs, return_index=True)[1])]  # in the order of the links
        start = np.searchsorted(pairs // count, np.arange(len(self.lengths) + 1))
        return start.astype(np.int64), (pairs % count).astype(np.int32)

    def restore(
        self, solver: QueueSolver, names: Sequence[LinkKey], states: Mapping[LinkKey, LinkState]
    ) -> None:
        """Restore a solver's state from `states`, by link and class; unknown links start without a queue."""
        if not states:
            return
        last, mean = np.zeros(self.count), np.zeros(self.count)
        for link, name in enumerate(names):
            last[self.column[link]], mean[self.column[link]] = states.get(name, (0.0, 0.0))
        solver.restore(last, mean)

    def states(self, solver: QueueSolver, names: Sequence[LinkKey]) -> dict[LinkKey, LinkState]:
        """Return a solver's queue state of each link, by link and traffic class."""
        last, mean = solver.state()
        columns = self.column.tolist()
        return {name: (float(last[c]), float(mean[c])) for name, c in zip(names, columns, strict=False)}

    def probes_by_link(self, cells: Cells) -> Int64s:
        """Return [links] the number of probes that crossed each link."""
        return count_links(self.start, self.flat, cells.route, cells.count, len(self.column))
