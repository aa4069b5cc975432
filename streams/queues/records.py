"""Makes `LinkQueues` records: for each block the links with queues, for each second all links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from native.core.columns import Float64s, Float64Table, Int64s
from schemas.records import LinkQueue, LinkQueues
from schemas.topics import MAX_ELEMENTS
from streams.queues.cells import Cells
from streams.queues.link_columns import PACKET_BYTES, LinkColumns
from streams.queues.utilisation import IdleProbes, end_nodes, exchange_errors
from streams.runtime.units import NS_PER_S

FLOWS_ERROR: Final = 0.01
"""Bound of the error of a link's utilisation if it comes from flow reports."""
JOINT_ERROR: Final = 0.04
"""Additional error of a utilisation from probes alone: links on the route of a flow are busy together."""
SHALLOW_BYTES: Final = 2.0 * PACKET_BYTES
"""Queues deeper than two full packets are published several times a second."""


class _Depths(TypedDict):
    """The depth fields of a `LinkQueue`."""

    depth_mean_bytes: float
    depth_max_bytes: float
    bound_bytes: float
    samples: int
    ce_share: float


class _Utilisation(TypedDict):
    """The utilisation fields of a `LinkQueue`."""

    utilisation: float | None
    utilisation_bound: float | None
    from_flows: bool


NO_UTILISATION: Final[_Utilisation] = {"utilisation": None, "utilisation_bound": None, "from_flows": False}
"""Utilisation fields in records of blocks; only records of whole seconds have a utilisation."""


@dataclass(frozen=True, slots=True)
class SolvedBlock:
    """The queue depths of one block, with their error bounds and probe counts."""

    start_ns: int
    end_ns: int
    slot_ns: int
    fold: int
    """How many slots were combined into each, to keep up."""
    solved_ns: int
    depth_ns: Float64s
    """[slots, columns] depth of each column: the sum over its links."""
    mean_bytes: Float64s
    largest_bytes: Float64s
    """[links] largest depth in any slot."""
    error_ns: Float64s
    """[columns] bound of the error of the depth."""
    bytes_per_ns: Float64s
    """[links] rate."""
    cells: Cells
    samples: Int64s
    """[links] number of probes that crossed each link."""
    marked: Float64Table | None
    """[slots, links] share of its probes that each link marked; None without marks."""


class _SecondTotals:
    """Depths and probes of each link since the start of the second."""

    def __init__(self) -> None:
        self._sum_bytes: Float64s = np.zeros(0)
        self._max_bytes: Float64s = np.zeros(0)
        self._error_bytes: Float64s = np.zeros(0)
        self._marked: Float64s = np.zeros(0)
        self._slots = 0
        self._second = -1
        self.samples: Int64s = np.zeros(0, np.int64)

    def grow(self, links: int) -> None:
        """Extend the columns to `links` links."""
        self._sum_bytes, self._max_bytes, self._error_bytes, self._marked, self.samples = (
            np.concatenate([old, np.zeros(links - len(old), old.dtype)])
            for old in (self._sum_bytes, self._max_bytes, self._error_bytes, self._marked, self.samples)
        )

    def add(self, block: SolvedBlock, column: Int64s) -> None:
        """Add a block; `column`: [links]. If it begins a new second, drop totals left from the last one."""
        second = block.start_ns // NS_PER_S
        if second != self._second:
            self._second = second
            self.reset()
        if block.marked is not None:
            self._marked += block.marked.sum(axis=0)
        self._sum_bytes += len(block.depth_ns) * block.mean_bytes
        self._max_bytes = np.maximum(self._max_bytes, block.largest_bytes)
        self._error_bytes = np.maximum(self._error_bytes, block.error_ns[column] * block.bytes_per_ns)
        self._slots += len(block.depth_ns)
        self.samples += block.samples

    def depths(self, link: int) -> _Depths:
        """Return the depth fields of a link for the present second."""
        return {
            "depth_mean_bytes": float(self._sum_bytes[link] / self._slots),
            "depth_max_bytes": float(self._max_bytes[link]),
            "bound_bytes": float(self._error_bytes[link]),
            "samples": int(self.samples[link]),
            "ce_share": float(self._marked[link] / self._slots),
        }

    def reset(self) -> None:
        """Clear all totals for the next second."""
        for column in (self._sum_bytes, self._max_bytes, self._error_bytes, self._marked, self.samples):
            column[:] = 0
        self._slots = 0


class QueueRecords:
    """Makes the records of one shard; `rate_of` returns a link's bit/s, 0 if unknown."""

    def __init__(self, shard: str, rate_of: Callable[[str], int]) -> None:
        self.synced = True
        """False if a source's clocks were not synced since the last record."""
        self.flow_bps: Mapping[str, float] = {}
        """Rate of traffic over each link that flow reports show, bit/s."""
        self._shard, self._rate_of = shard, rate_of
        self._second = _SecondTotals()
        self._nodes = end_nodes(())

    def set_links(self, names: Sequence[str]) -> None:
        """Set the names of all links; already known links keep their numbers."""
        self._second.grow(len(names))
        self._nodes = end_nodes(names)

    def of_block(
        self, block: SolvedBlock, columns: LinkColumns, names: Sequence[str], dscps: Sequence[int]
    ) -> list[LinkQueues]:
        """Return the records of a block: the links with queues or marks, with their slots."""
        column, bytes_per_ns, marked = columns.column, block.bytes_per_ns, block.marked
        is_shown = is_deep = block.largest_bytes > SHALLOW_BYTES
        if marked is not None:
            is_shown = is_deep | marked.any(axis=0)
        link_numbers = np.flatnonzero(is_shown)
        depth = block.depth_ns[:, column[link_numbers]] * bytes_per_ns[link_numbers]
        bound = (block.error_ns[column[link_numbers]] * bytes_per_ns[link_numbers]).tolist()
        slots = _chosen_by_column((depth > SHALLOW_BYTES / 4) & is_deep[link_numbers])
        marks = np.zeros(depth.shape) if marked is None else marked[:, link_numbers]
        ce_share, ce_slots = marks.mean(axis=0).tolist(), _chosen_by_column(marks > 0)
        links: list[LinkQueue] = [
            {
                "link": names[link],
                "rate_bps": self._rate_of(names[link]),
                "depth_mean_bytes": float(block.mean_bytes[link]),
                "depth_max_bytes": float(block.largest_bytes[link]),
                "bound_bytes": bound[n],
                **NO_UTILISATION,
                "samples": int(block.samples[link]),
                "group": columns.groups[link],
                "slot": slots[n].tolist(),
                "depth_bytes": depth[slots[n], n].tolist(),
                "dscp": dscps[link],
                "ce_share": ce_share[n],
                "ce_slot": ce_slots[n].tolist(),
                "ce": marks[ce_slots[n], n].tolist(),
            }
            for n, link in enumerate(link_numbers.tolist())
        ]
        return self._records(block, block.start_ns, block.slot_ns, len(depth), _one_per_link(links))

    def of_second(
        self,
        block: SolvedBlock,
        columns: LinkColumns,
        names: Sequence[str],
        dscps: Sequence[int],
        probes: IdleProbes,
    ) -> list[LinkQueues]:
        """Add a block; if it ends a second, return the second's records, with utilisation of all links."""
        self._second.add(block, columns.column)
        second = block.start_ns // NS_PER_S
        if block.end_ns // NS_PER_S == second:
            return []
        share, sigma = probes.shares(columns.lengths, columns.flat, len(names))
        exchange = exchange_errors(columns.lengths, columns.flat, self._nodes, share)
        bound = 2 * sigma + JOINT_ERROR + exchange
        links: list[LinkQueue] = [
            {
                "link": names[link],
                "rate_bps": self._rate_of(names[link]),
                **self._second.depths(link),
                **self._utilisation(names[link], float(share[link]), float(bound[link])),
                "group": columns.groups[link],
                "slot": [],
                "depth_bytes": [],
                "dscp": dscps[link],
                "ce_slot": [],
                "ce": [],
            }
            for link in np.flatnonzero(self._second.samples).tolist()
        ]
        return self._records(block, second * NS_PER_S, NS_PER_S, 1, _one_per_link(links))

    def _utilisation(self, name: str, share: float, bound: float) -> _Utilisation:
        """Return the utilisation of a link: from flow reports if they are complete, else from probes."""
        rate_bps, reported_bps = self._rate_of(name), self.flow_bps.get(name)
        from_flows = False
        if reported_bps is not None and rate_bps:
            reported = reported_bps / rate_bps
            # reported flows are exact; if probes show more, some traffic is not reported
            if reported >= share - bound - FLOWS_ERROR:
                share, bound, from_flows = min(1.0, reported), FLOWS_ERROR, True
        has_value = from_flows or np.isfinite(bound)
        return {
            "utilisation": share if has_value else None,
            "utilisation_bound": min(bound, 1.0) if has_value else None,
            "from_flows": from_flows,
        }

    def _records(
        self, block: SolvedBlock, start_ns: int, slot_ns: int, slots: int, links: list[LinkQueue]
    ) -> list[LinkQueues]:
        synced, self.synced = self.synced, True
        record: LinkQueues = {
            "shard": self._shard,
            "window": start_ns // (slot_ns * slots),
            "window_start_ns": start_ns,
            "slot_ns": slot_ns,
            "slots": slots,
            "fold": block.fold,
            "synced": synced,
            "paths": int(np.count_nonzero(np.bincount(block.cells.route))),
            "solved_ns": block.solved_ns,
            "part": 0,
            "parts": 1,
            "links": links,
        }
        return _in_parts(record)


def _chosen_by_column(mask: NDArray[np.bool_]) -> list[Int64s]:
    """Return, for each column of `mask`, the numbers of the rows that are True, ascending."""
    column, row = np.nonzero(mask.T)
    return np.split(row, np.searchsorted(column, np.arange(1, mask.shape[1])))


def _one_per_link(links: list[LinkQueue]) -> list[LinkQueue]:
    """Return one element per link, merged from its classes: with the deepest queue and the most marks."""
    by_name: dict[str, LinkQueue] = {}
    for link in links:
        other = by_name.get(link["link"])
        if other is None:
            by_name[link["link"]] = link
            continue
        deeper = max(link, other, key=lambda queue: (queue["depth_max_bytes"], -queue["dscp"]))
        marked = max(link, other, key=lambda queue: queue["ce_share"])
        by_name[link["link"]] = {
            **deeper,
            "samples": link["samples"] + other["samples"],
            "ce_share": marked["ce_share"],
            "ce_slot": marked["ce_slot"],
            "ce": marked["ce"],
        }
    return list(by_name.values())


def _in_parts(record: LinkQueues) -> list[LinkQueues]:
    """Split a record into parts of at most MAX_ELEMENTS links; a record without links yields one part."""
    links = record["links"]
    parts = max(1, -(-len(links) // MAX_ELEMENTS))
    return [
        {
            **record,
            "part": part,
            "parts": parts,
            "links": links[part * MAX_ELEMENTS : (part + 1) * MAX_ELEMENTS],
        }
        for part in range(parts)
    ]
