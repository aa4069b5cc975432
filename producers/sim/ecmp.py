"""Choice among equal-cost links (ECMP): each switch hashes a flow with its own seed. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Uint64s: TypeAlias = NDArray[np.uint64]
Bools: TypeAlias = NDArray[np.bool_]


class Position(IntEnum):
    """Positions of links on a route. A route need not have links in all of the middle positions."""

    HOST_UP = 0
    LEAF_UP = 1
    SPINE_UP = 2
    CORE_DOWN = 3
    SPINE_DOWN = 4
    LEAF_DOWN = 5


class Paths(NamedTuple):
    """Links of N flows. The links of flow f are link[start[f]] to link[start[f + 1] - 1], in route order."""

    start: Int64s
    """[N + 1] index in `link` at which each flow's links begin."""
    link: Int32s
    reached: Bools
    """[N] False if a switch had no living port for the flow; its links then end before that switch."""

    def of(self, flow: int) -> Int32s:
        """Return the indices of the links of one flow, in route order."""
        return self.link[self.start[flow] : self.start[flow + 1]]

    @property
    def hops(self) -> Int64s:
        """[N]: number of links of each flow."""
        return np.diff(self.start)


class EcmpChoice:
    """The links of N flows, chosen position by position.

    `flow_hash` [N] hashes NICs and ports, and `node_seed` holds the seed of every node. `alive` [L] is True
    for links that are up; None if all links are up.
    """

    def __init__(self, flow_hash: Uint64s, node_seed: Uint64s, alive: Bools | None) -> None:
        self._flow_hash, self._node_seed = flow_hash, node_seed
        self._up = None if alive is None else _LivingCables(alive[0::2])
        self._down = None if alive is None else _LivingCables(alive[1::2])
        self._links: Int64s = np.full((len(flow_hash), len(Position)), -1, np.int64)
        """[N, positions] chosen links; -1 if a flow needs no link at a position, or there was none."""
        self._reached = np.ones(len(flow_hash), np.bool_)
        """[N] True for flows that still have a route."""

    def choose(
        self,
        position: Position,
        at: Int64s,
        node: Int64s,
        first: Int64s,
        width: int,
        usable: Callable[[Int64s], Bools] | None = None,
    ) -> None:
        """Choose a link at `position` for each of the flows `at`.

        The hash of the switch `node` selects one of `width` cables, numbered from `first`. `usable` returns
        [n, width] booleans for n flows, and replaces the up or down state of the links.
        """
        on = self._reached[at]
        at, node, first = at[on], node[on], first[on]
        draw = mix(self._flow_hash[at] ^ self._node_seed[node]) >> np.uint64(32)
        is_down = position >= Position.CORE_DOWN
        living = self._down if is_down else self._up
        if usable is not None:
            cable, some = _pick(usable(at), first, draw)
        elif living is not None:
            cable, some = living.pick(first, width, draw)
        else:
            cable = first + ((draw * np.uint64(width)) >> np.uint64(32)).astype(np.int64)
            some = np.ones(len(at), np.bool_)
        self._reached[at[~some]] = False
        self._links[at[some], position] = 2 * cable[some] + is_down

    def cables(self, position: Position) -> Int64s:
        """Return the cable of each flow at a position, [N]; -1 for a flow without one."""
        cables: Int64s = self._links[:, position] // 2
        return cables

    def paths(self) -> Paths:
        """Return the links chosen so far as `Paths`."""
        is_used = self._links >= 0
        start = np.concatenate([[0], np.cumsum(is_used.sum(axis=1))])
        return Paths(start, self._links[is_used].astype(np.int32), self._reached)


class UsableRoutes(NamedTuple):
    """The usable uplinks and cores of a fleet after all its switches have learnt of every dead link."""

    up: Bools
    """[leaf, uplink] True if the uplink lives."""
    below: Bools
    """[leaf, spine of its pod] True if a living cable leads from the spine down to the leaf."""
    to_core: Bools
    """[pod, spine, core] True if the link up to the core lives."""
    from_core: Bools
    """[pod, spine, core] True if the link down from the core lives."""
    joined: Bools
    """[pod, other pod, spine] True if a core connects the pods over this spine; True for a pod and itself."""

    def uplinks(self, leaf: Int64s, pod: Int64s, to_leaf: Int64s, to_pod: Int64s) -> Bools:
        """Return [n, uplink]: True for the uplinks of `leaf` that lead to `to_leaf`."""
        spines = self.below[to_leaf] & self.joined[pod, to_pod]
        usable: Bools = self.up[leaf] & np.repeat(spines, self.up.shape[1] // spines.shape[1], axis=1)
        return usable

    def cores(self, pod: Int64s, to_pod: Int64s, plane: Int64s) -> Bools:
        """Return [n, core]: True for the cores that connect the spines `plane` of two pods."""
        usable: Bools = self.to_core[pod, plane] & self.from_core[to_pod, plane]
        return usable


class _LivingCables:
    """Picks among the cables of a range that are up in one direction."""

    def __init__(self, alive: Bools) -> None:
        self._before = np.concatenate([[0], np.cumsum(alive)])
        self._alive = np.flatnonzero(alive)

    def pick(self, first: Int64s, width: int, draw: Uint64s) -> tuple[Int64s, Bools]:
        """Pick a cable that is up among [first, first + width) for each flow, by `draw` of 32 bits.

        Returns the cables, and booleans that are False for flows without such a cable.
        """
        begin = self._before[first]
        count = self._before[first + width] - begin
        some = count > 0
        rank = ((draw * count.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
        if not len(self._alive):
            return first, some
        return self._alive[np.minimum(begin + rank, len(self._alive) - 1)], some


def _pick(usable: Bools, first: Int64s, draw: Uint64s) -> tuple[Int64s, Bools]:
    """Pick one of the `usable` [n, width] cables from `first` on for each flow, by `draw` of 32 bits.

    Returns the cables, and booleans that are False for flows without a usable cable.
    """
    count = usable.sum(axis=1)
    rank = ((draw * count.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
    place = (np.cumsum(usable, axis=1, dtype=np.int32) > rank[:, None]).argmax(axis=1)
    return first + place, count > 0


def mix(values: Uint64s) -> Uint64s:
    """Permute 64-bit values: fold the high bits down and multiply by odd constants."""
    mixed = values.copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    result: Uint64s = mixed ^ (mixed >> np.uint64(31))
    return result
