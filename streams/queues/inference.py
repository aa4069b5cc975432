"""Infers queues and utilisation of a shard's links from its sources' `PathQueueing`.

Each block of some 10 ms gives the links with queues, and each second all links that probes cross, as
`LinkQueues`. native/core/queues.c has the method for depths, `utilisation.py` that for utilisation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core.columns import Float64s, Int64s
from native.core.queues import QueueSolver
from schemas.records import LinkQueue, LinkQueues, PathQueueing
from streams.delays.queueing import SUB_SLOTS
from streams.queues.records import NO_UTILISATION, SecondTotals, Utilisation, in_parts
from streams.queues.utilisation import IdleProbes
from streams.runtime.route_table import RouteTable
from streams.runtime.units import NS_PER_S

__all__ = ["ShardQueues", "fold_of", "knots_of"]

BLOCK_NS, LONG_BLOCK_NS, MANY_LINKS = 10_000_000, 25_000_000, 1_000
BLOCK_SLOTS: Final = 5
"""Length of a block; its length with many links, because much of the work is per block; its minimum in slots,
because later probes also show a block's last slots."""
GRACE_NS: Final = 150_000_000
"""ns behind the others after which a source is not awaited."""
GONE_NS: Final = 2 * NS_PER_S
PACKET_BYTES: Final = 1500
UNKNOWN_BPS: Final = 1_000_000_000
"""Rate that a link of unknown rate is assumed to have."""
FLOWS_ERROR: Final = 0.01
"""Error of a link's utilisation from flow reports."""
JOINT_ERROR: Final = 0.04
"""Error of a link's utilisation from probes alone, because links on one flow's route are busy together."""
SIGMAS: Final = (2.0, 1.2)
"""Standard errors in a bound: for slots with one knot, and with more, whose errors average out."""
OWN_RECEIVERS: Final = 3
OWN_SIGMAS: Final = 5.0
"""A NIC's own delay is common to paths to so many receivers, and above so many standard errors of noise."""
KNOT_PROBES: Final = 0.9
"""Probes that a link needs between two knots."""
MAX_KNOTS: Final = 2
MAX_NICS: Final = 1 << 15
MIN_ROUTES: Final = 1024
SHALLOW_PACKETS: Final = 2.0
"""Full packets above which a queue is published several times a second."""


def fold_of(probes: float) -> int:
    """Return how many slots to combine, given the probes over a link per slot: probes limit the
    resolution."""
    return 1 if probes >= 1 else 2 if probes >= 0.5 else SUB_SLOTS


def knots_of(probes: float) -> int:
    """Return the number of straight lines for a slot, given its probes over each link."""
    return min(MAX_KNOTS, max(1, int(probes / KNOT_PROBES)))


@dataclass(slots=True)
class _Source:
    complete_ns: int = 0
    first_offset: int = -1
    next_offset: int = -1


@dataclass(slots=True)
class _Cells:
    """Cells of records, as columns."""

    slot: Int64s
    route: NDArray[np.int32]
    at: Float64s
    """Mean time within the slot, 0 to 1."""
    count: Float64s
    mean_ns: Float64s
    noise_ns: Float64s


class ShardQueues:
    """The queues of one shard. `rate_of` returns a link's bit/s, 0 if unknown."""

    def __init__(self, shard: str, rate_of: Callable[[str], int]) -> None:
        self.shard = shard
        self.unknown_paths = 0
        """Paths without a known route; their rows are skipped."""
        self.late_cells = 0
        """Cells that arrived after their block was solved."""
        self._rate_of = rate_of
        self._slot_ns = 0
        self._sources: dict[str, _Source] = {}
        self._cells: list[_Cells] = []
        self._next_block = -1
        self._solved_in_ns = 1
        """The block length that `_next_block` counts in."""
        self._synced = True
        self._paths_version = -1
        self._links: dict[str, int] = {}
        self._names: list[str] = []
        self._nics: dict[str, int] = {}
        self._keys: Int64s = np.zeros(0, np.int64)
        self._route_at: NDArray[np.int32] = np.zeros(0, np.int32)
        """Ascending path keys with a cached route, and the route of each."""
        self._routes: list[tuple[int, ...]] = []
        self._senders: list[int] = []
        """Sender of each route by number, -1 for round trips."""
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._used = 0
        """Number of cached paths since the last route change."""
        self._stale = True
        self._solver: QueueSolver | None = None
        self._lengths: NDArray[np.int64] = np.zeros(0, np.int64)
        self._last: Int64s = np.zeros(0, np.int64)
        """The link into the receiver of each route."""
        self._flat: NDArray[np.int64] = np.zeros(0, np.int64)
        self._column: NDArray[np.int64] = np.zeros(0, np.int64)
        self._memory: dict[str, tuple[float, float]] = {}
        self._idle_probes = IdleProbes()
        self._flow_bps: Mapping[str, float] = {}
        self._second = SecondTotals()

    def set_flow_rates(self, bps: Mapping[str, float]) -> None:
        """Set the bit/s over each link, as flows report it."""
        self._flow_bps = bps

    def take(self, record: PathQueueing, paths: RouteTable) -> None:
        """Add a record of one of the shard's sources; skip offsets that were added before."""
        source = self._sources.setdefault(record["source"], _Source())
        first, after = record["first_offset"], record["next_offset"]
        if (first, after) != (source.first_offset, source.next_offset):
            if first < source.next_offset:
                return
            source.first_offset, source.next_offset = first, after
        source.complete_ns = max(source.complete_ns, record["complete_ns"])
        if record["slot_ns"] != self._slot_ns:
            self._slot_ns = record["slot_ns"]
            self._cells.clear()
            self._next_block = -1
            self._stale = True
        if paths.version != self._paths_version:
            self._paths_version = paths.version
            self._keys, self._route_at = np.zeros(0, np.int64), np.zeros(0, np.int32)
            if len(self._routes) > MIN_ROUTES and len(self._routes) > 4 * self._used:
                self._forget_routes()
            self._used = 0
        self._synced = self._synced and record["synced"]
        route = self._routes_of(record, paths)
        self._count_idle(record, route)
        cells = np.asarray(record["cells"], np.int64)
        of = np.repeat(route, cells)
        known = of >= 0
        if not known.any():
            return
        noise = np.repeat(np.asarray(record["noise_ns"], np.float64), cells)
        published_at = np.asarray(record["at_ns"], np.float64) / self._slot_ns
        at = published_at if len(published_at) else np.full(len(of), 0.5)
        self._cells.append(
            _Cells(
                (record["start_ns"] // self._slot_ns + np.asarray(record["slot"], np.int64))[known],
                of[known],
                at[known],
                np.asarray(record["count"], np.float64)[known],
                np.asarray(record["mean_ns"], np.float64)[known],
                np.maximum(noise[known], 1e-3),
            )
        )

    def _routes_of(self, record: PathQueueing, paths: RouteTable) -> NDArray[np.int32]:
        """Return the route of each row of a record, -1 if unknown."""
        nics = record["nics"]
        if len(self._nics) + len(nics) > MAX_NICS:
            self._nics.clear()
            self._forget_routes()  # they identify senders by number
            self._keys, self._route_at = np.zeros(0, np.int64), np.zeros(0, np.int32)
        ids = np.array([self._nics.setdefault(name, len(self._nics)) for name in nics], np.int64)
        nic, peer, path, direction = (
            np.asarray(column, np.int64)
            for column in (record["nic"], record["peer"], record["path"], record["direction"])
        )
        key = ids[nic] << 48 | ids[peer] << 33 | path << 2 | direction if len(nic) else nic
        at = np.searchsorted(self._keys, key)
        found = np.full(len(key), -1, np.int32)
        hit = at < len(self._keys)
        hit[hit] = self._keys[at[hit]] == key[hit]
        found[hit] = self._route_at[at[hit]]
        new = np.flatnonzero(~hit)
        if len(new):
            rows = (column[new].tolist() for column in (nic, peer, path, direction))
            named = zip(*rows, strict=True)
            found[new] = [self._route(nics[n], nics[p], port, w, paths) for n, p, port, w in named]
            keys, first = np.unique(np.concatenate([self._keys, key[new]]), return_index=True)
            self._route_at = np.concatenate([self._route_at, found[new]])[first]
            self._keys = keys
            self.unknown_paths += int(np.count_nonzero(found[new] < 0))
        return found

    def _route(self, nic: str, peer: str, path: int, direction: int, paths: RouteTable) -> int:
        # t1 and t3 are taken after the sender's own queue, so the first link is not in the delay
        sender = {1: nic, 2: peer}.get(direction)
        out = paths.forward(nic, peer, path)[1:] if direction in (1, 3) else ()
        back = paths.reverse(nic, peer, path)[1:] if direction in (2, 3) else ()
        if (
            bool(out) < (direction in (1, 3))
            or bool(back) < (direction in (2, 3))
            or direction not in (1, 2, 3)
        ):
            return -1
        links = tuple(dict.fromkeys(self._link(name) for name in (*out, *back)))
        by = -1 if sender is None else self._nics.setdefault(sender, len(self._nics))
        number = self._numbers.setdefault((by, links), len(self._routes))
        if number == len(self._routes):
            self._routes.append(links)
            self._senders.append(by)
            self._stale = True
        self._used += 1
        return number

    def _forget_routes(self) -> None:
        """Drop all routes: many belong to paths that have changed."""
        self._routes.clear()
        self._senders.clear()
        self._numbers.clear()
        self._idle_probes.clear()
        self._cells.clear()
        self._stale = True

    def _link(self, name: str) -> int:
        found = self._links.get(name)
        if found is None:
            found = self._links[name] = len(self._names)
            self._names.append(name)
        return found

    def _count_idle(self, record: PathQueueing, route: NDArray[np.int32]) -> None:
        singles = np.asarray(record["singles"], np.int64)
        idle = np.asarray(record["idle"], np.int64)
        counts = (route >= 0) & (singles > 0) & (np.asarray(record["direction"]) != 3)
        second = record["complete_ns"] // NS_PER_S
        self._idle_probes.add(second, len(self._routes), route[counts], singles[counts], idle[counts])

    def _block_ns(self) -> int:
        slot = self._slot_ns * SUB_SLOTS
        length_ns = BLOCK_NS if len(self._names) <= MANY_LINKS else LONG_BLOCK_NS
        return max(BLOCK_SLOTS, length_ns // slot) * slot

    def _set_block_ns(self) -> None:
        """Continue at the first whole block after a change of the block length."""
        block_ns = self._block_ns()
        if self._next_block >= 0:
            self._next_block = -(-self._next_block * self._solved_in_ns // block_ns)
        self._solved_in_ns = block_ns

    def ready(self) -> bool:
        """Return whether a block can be solved: all active sources have published it."""
        if not self._slot_ns or not self._sources:
            return False
        newest = max(source.complete_ns for source in self._sources.values())
        self._set_block_ns()
        block_ns = self._solved_in_ns
        if self._next_block < 0:
            self._next_block = newest // block_ns if self._cells else -1
            return False
        end = (self._next_block + 1) * block_ns
        speaking = [s.complete_ns for s in self._sources.values() if newest - s.complete_ns < GONE_NS]
        return min(speaking) >= end or newest - end > GRACE_NS

    def solve(self, solved_ns: int) -> list[LinkQueues]:
        """Solve the block that is `ready`; return its `LinkQueues`, and those of the second that it ends.

        Slow.
        """
        block_ns, slot_ns = self._solved_in_ns, self._slot_ns
        newest = max(source.complete_ns for source in self._sources.values())
        if newest - self._next_block * block_ns > 2 * NS_PER_S + block_ns:  # a gap that no source will fill
            self._next_block = (newest - NS_PER_S) // block_ns
        block, self._next_block = self._next_block, self._next_block + 1
        first, slots = block * block_ns // slot_ns, block_ns // slot_ns
        cells = self._pick(first, first + slots)
        self._rebuild()
        if self._solver is None:
            return []
        hops = self._lengths[cells.route] @ cells.count if len(cells.route) else 0.0
        delay_ns = self._without_own(cells)
        probes = float(hops) / (slots * max(1, int(self._column.max()) + 1))
        fold = fold_of(probes)
        when = (cells.slot - first + cells.at) / fold
        slot = (cells.slot - first) // fold
        order = np.argsort(when, kind="stable")
        start = np.searchsorted(slot[order], np.arange(slots // fold + 1))
        knots = knots_of(probes * fold)
        found = self._solver.solve(
            float(slot_ns * fold),
            start,
            cells.route[order],
            (when - slot)[order],
            cells.count[order],
            delay_ns[order],
            cells.noise_ns[order],
            knots,
        )
        self._save_state()
        # convert to links, whole slots and bytes; the links of one column share its sum
        fine = SUB_SLOTS // fold
        depth = found.queue_ns.reshape(-1, fine, found.queue_ns.shape[1]).mean(axis=1)[:, self._column]
        error = np.sqrt((found.sigma_ns**2).mean(axis=0))[self._column]
        bytes_per_ns = self._rates() / 8e9
        depth, error = depth * bytes_per_ns, SIGMAS[knots > 1] * error * bytes_per_ns
        records = self._fast(block * block_ns, depth, error, cells, solved_ns)
        return records + self._slow(block * block_ns, block_ns, depth, error, cells, solved_ns)

    def _pick(self, begin: int, end: int) -> _Cells:
        """Remove and return the cells of slots [begin, end); drop older ones."""
        picked: list[_Cells] = []
        left: list[_Cells] = []
        for cells in self._cells:
            mine = (cells.slot >= begin) & (cells.slot < end)
            self.late_cells += int(np.count_nonzero(cells.slot < begin))
            for where, into in ((mine, picked), (cells.slot >= end, left)):
                if where.any():
                    into.append(
                        _Cells(
                            cells.slot[where],
                            cells.route[where],
                            cells.at[where],
                            cells.count[where],
                            cells.mean_ns[where],
                            cells.noise_ns[where],
                        )
                    )
        self._cells = left
        if not picked:
            none = np.zeros(0)
            return _Cells(np.zeros(0, np.int64), np.zeros(0, np.int32), none, none, none, none)
        return _Cells(*(np.concatenate([getattr(c, name) for c in picked]) for name in _Cells.__slots__))

    def _without_own(self, cells: _Cells) -> Float64s:
        """Return [cells] ns of delay without the sender's own delay.

        A delay that one NIC's probes show towards several receivers at every moment of a block is an error of
        its clock or a delay in its host: no queue has this effect.
        """
        sender = np.array(self._senders, np.int64)[cells.route] if len(cells.route) else cells.slot
        receiver = self._last[cells.route]
        key = sender * len(self._names) + receiver
        each, at = np.unique(key[sender >= 0], return_inverse=True)
        lowest_ns = np.full(len(each), np.inf)
        np.minimum.at(lowest_ns, at, cells.mean_ns[sender >= 0])
        senders, of = np.unique(each // max(1, len(self._names)), return_inverse=True)
        own = np.full(len(senders), np.inf)
        np.minimum.at(own, of, lowest_ns)
        own[np.bincount(of, minlength=len(senders)) < OWN_RECEIVERS] = 0
        number = np.searchsorted(senders, sender)
        delay_ns = cells.mean_ns.copy()
        known = sender >= 0
        shift = own[number[known]]
        delay_ns[known] -= np.where(shift > OWN_SIGMAS * cells.noise_ns[known], shift, 0.0)
        return delay_ns

    def _rates(self) -> Float64s:
        return np.array([self._rate_of(name) or UNKNOWN_BPS for name in self._names], np.float64)

    def _rebuild(self) -> None:
        """Rebuild the solver if links or routes have changed; links with the same set of routes become one
        column."""
        if not self._stale:
            return
        self._stale = False
        if not self._routes:
            self._solver = None
            return
        self._last = np.array([links[-1] for links in self._routes], np.int64)
        lengths = self._lengths = np.array([len(links) for links in self._routes])
        flat = self._flat = np.fromiter(
            (link for links in self._routes for link in links), np.int64, int(lengths.sum())
        )
        route = np.repeat(np.arange(len(lengths)), lengths)
        order = np.lexsort((route, flat))
        begin = np.searchsorted(flat[order], np.arange(len(self._names) + 1))
        columns: dict[bytes, int] = {}
        self._column = np.array(
            [
                columns.setdefault(route[order[begin[link] : begin[link + 1]]].tobytes(), len(columns))
                for link in range(len(self._names))
            ],
            np.int64,
        )
        packet_ns = np.zeros(len(columns))
        np.maximum.at(packet_ns, self._column, PACKET_BYTES * 8e9 / self._rates())
        pairs = route * len(columns) + self._column[flat]
        pairs = pairs[np.sort(np.unique(pairs, return_index=True)[1])]  # in the order of the links
        start = np.searchsorted(pairs // len(columns), np.arange(len(self._routes) + 1))
        self._solver = QueueSolver(packet_ns, start, (pairs % len(columns)).astype(np.int32), merge=SUB_SLOTS)
        last, mean = np.zeros(len(columns)), np.zeros(len(columns))
        for link, name in enumerate(self._names):
            last[self._column[link]], mean[self._column[link]] = self._memory.get(name, (0.0, 0.0))
        if self._memory:
            self._solver.restore(last, mean)
        self._second.grow(len(self._names))
        self._idle_probes.restart()

    def _save_state(self) -> None:
        if self._solver is not None and self._next_block % 20 == 0:
            last, mean = self._solver.state()
            self._memory = {
                name: (float(last[c]), float(mean[c]))
                for name, c in zip(self._names, self._column.tolist(), strict=False)
            }

    def _groups(self) -> list[int]:
        """Return a group number for each link: links with the same number cannot be distinguished; 0:
        none."""
        count = np.bincount(self._column)
        return np.where(count[self._column] > 1, self._column + 1, 0).tolist()  # type: ignore[no-any-return]

    def _probes_by_link(self, cells: _Cells) -> Int64s:
        """Return [links] probes that crossed each link."""
        counts = np.bincount(cells.route, weights=cells.count, minlength=len(self._routes))
        found = np.bincount(self._flat, np.repeat(counts, self._lengths), len(self._names))
        probes_by_link: Int64s = found.astype(np.int64)
        return probes_by_link

    def _fast(
        self, start_ns: int, depth: Float64s, error: Float64s, cells: _Cells, solved_ns: int
    ) -> list[LinkQueues]:
        """Return the records of a block: its links with queues, slot by slot."""
        shallow = SHALLOW_PACKETS * PACKET_BYTES
        deep = np.flatnonzero(depth.max(axis=0) > np.maximum(shallow, error))
        groups = self._groups()
        samples = self._probes_by_link(cells)
        self._second.samples += samples
        links: list[LinkQueue] = []
        for link in deep.tolist():
            slots = np.flatnonzero(depth[:, link] > shallow / 4)
            links.append(
                {
                    "link": self._names[link],
                    "rate_bps": self._rate_of(self._names[link]),
                    "depth_mean_bytes": float(depth[:, link].mean()),
                    "depth_max_bytes": float(depth[:, link].max()),
                    "bound_bytes": float(error[link]),
                    **NO_UTILISATION,
                    "samples": int(samples[link]),
                    "group": groups[link],
                    "slot": slots.tolist(),
                    "depth_bytes": depth[slots, link].tolist(),
                }
            )
        slot_ns = self._slot_ns * SUB_SLOTS
        return self._records(start_ns, slot_ns, len(depth), links, cells, solved_ns)

    def _slow(
        self, start_ns: int, block_ns: int, depth: Float64s, error: Float64s, cells: _Cells, solved_ns: int
    ) -> list[LinkQueues]:
        """Return the records of the second that a block ends, with the utilisation of all links."""
        second = self._second
        second.add(depth, error)
        if (start_ns + block_ns) // NS_PER_S == start_ns // NS_PER_S:
            return []
        share, sigma = self._idle_probes.shares(self._lengths, self._flat, len(self._names))
        groups = self._groups()
        links: list[LinkQueue] = [
            {
                "link": self._names[link],
                "rate_bps": self._rate_of(self._names[link]),
                **second.depths(link),
                **self._link_utilisation(link, float(share[link]), float(2 * sigma[link]) + JOINT_ERROR),
                "group": groups[link],
                "slot": [],
                "depth_bytes": [],
            }
            for link in np.flatnonzero(second.samples).tolist()
        ]
        second.reset()
        second_ns = start_ns // NS_PER_S * NS_PER_S
        return self._records(second_ns, NS_PER_S, 1, links, cells, solved_ns)

    def _link_utilisation(self, link: int, share: float, bound: float) -> Utilisation:
        """Return the utilisation of a link: from flow reports if they are complete, else from probes."""
        rate_bps, reported_bps = self._rate_of(self._names[link]), self._flow_bps.get(self._names[link])
        from_flows = False
        if reported_bps is not None and rate_bps:
            reported = reported_bps / rate_bps
            # reported flows are exact; if probes show more, some traffic is not reported
            if reported >= share - bound - FLOWS_ERROR:
                share, bound, from_flows = min(1.0, reported), FLOWS_ERROR, True
        known = from_flows or np.isfinite(bound)
        return {
            "utilisation": share if known else None,
            "utilisation_bound": min(bound, 1.0) if known else None,
            "from_flows": from_flows,
        }

    def _records(
        self, start_ns: int, slot_ns: int, slots: int, links: list[LinkQueue], cells: _Cells, solved_ns: int
    ) -> list[LinkQueues]:
        synced, self._synced = self._synced, True
        whole: LinkQueues = {
            "shard": self.shard,
            "window": start_ns // (slot_ns * slots),
            "window_start_ns": start_ns,
            "slot_ns": slot_ns,
            "slots": slots,
            "synced": synced,
            "paths": len(np.unique(cells.route)),
            "solved_ns": solved_ns,
            "part": 0,
            "parts": 1,
            "links": links,
        }
        return in_parts(whole)
