"""Index from a link to the paths that cross it.

The index is filled from PathMaps records and stored in packed arrays: a thousand NICs with twenty peers and
sixteen paths each take about 15 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fabrictime.state.cable_graph import CableGraph
from schemas.records import PathMaps
from streams.runtime.cable_votes import CableVotes

MAX_PAIRS: Final = 65_536
"""Largest number of pairs whose paths are stored. Further pairs only add their links to the cable graph."""
MAX_LINKS: Final = 16_000_000
"""Largest number of links of all stored paths together: 64 MB."""

_Int32s = NDArray[np.int32]


class PathOnLink(NamedTuple):
    """A path that crosses a link. With `answer`, its packets are `nic`'s answers to `peer`'s probes."""

    nic: str
    peer: str
    path: int
    answer: bool


@dataclass(frozen=True, slots=True)
class _PackedPaths:
    path: _Int32s
    answer: NDArray[np.bool_]
    end: _Int32s  # [N]: end of each path's links in `link`
    link: _Int32s
    routes: bytes  # digest of the record's routes; empty if unknown


class LinkIndex:
    """Index from links to paths, with the newest paths of every directed pair."""

    def __init__(self, cable_graph: CableGraph) -> None:
        self.version = 0
        self.shape = 0
        """Incremented when a link gets its first path or loses its last one, or when `is_doubted` changes for
        a link.
        """
        self.left_out = 0
        self._cable_graph = cable_graph
        self._pairs: dict[tuple[str, str], _PackedPaths] = {}
        self._size = 0
        self._pair_counts: dict[int, int] = {}
        self._votes = CableVotes()
        self._flat: tuple[int, list[tuple[str, str]], _Int32s, _Int32s] | None = None

    @property
    def pairs(self) -> int:
        """Number of directed pairs with stored paths."""
        return len(self._pairs)

    def pair_count(self, number: int) -> int:
        """Return the number of stored pairs that have a path over a link."""
        return self._pair_counts.get(number, 0)

    def is_doubted(self, number: int) -> bool:
        """Return whether only one NIC reports a link's cable, while others report another cable at its
        port.
        """
        doubted = self._votes.doubted
        return bool(doubted) and self._cable_graph.cable(number) in doubted

    def has(self, nic: str, peer: str, routes: bytes) -> bool:
        """Return whether a pair's stored paths have routes with this digest."""
        packed = self._pairs.get((nic, peer))
        return packed is not None and packed.routes == routes

    def take(self, record: PathMaps, routes: bytes = b"") -> None:
        """Replace a pair's paths by those in a PathMaps record. `routes` is the digest of its routes."""
        path, answer, end, link = [], [], [], []
        for path_map in record["paths"]:
            numbers = [n for name in path_map["links"] if (n := self._cable_graph.number(name)) is not None]
            if not numbers:
                continue
            link.extend(numbers)
            path.append(path_map["path"])
            answer.append(path_map["leg"] == "ANSWER")
            end.append(len(link))
        pair = (record["nic"], record["peer"])
        before = self._pairs.get(pair)
        size = self._size - (0 if before is None else len(before.link)) + len(link)
        if not link or size > MAX_LINKS or (before is None and len(self._pairs) >= MAX_PAIRS):
            self.left_out += bool(link)
            self.forget(*pair)
            return
        self._pairs[pair] = _PackedPaths(
            np.array(path, np.int32),
            np.array(answer, np.bool_),
            np.array(end, np.int32),
            np.array(link, np.int32),
            routes,
        )
        self._size = size
        self._count(pair[0], set() if before is None else set(before.link.tolist()), set(link))

    def forget(self, nic: str, peer: str) -> None:
        """Remove the paths of a directed pair."""
        before = self._pairs.pop((nic, peer), None)
        if before is not None:
            self._size -= len(before.link)
            self._count(nic, set(before.link.tolist()), set())

    def forget_nic(self, nic: str) -> None:
        """Remove the paths of all pairs with a NIC."""
        for pair in [pair for pair in self._pairs if nic in pair]:
            self.forget(*pair)

    def _count(self, nic: str, before: set[int], now: set[int]) -> None:
        self.version += 1
        name = self._cable_graph.cable
        if before != now and self._votes.replace(nic, set(map(name, before)), set(map(name, now))):
            self.shape += 1
        for number in now - before:
            self._pair_counts[number] = self._pair_counts.get(number, 0) + 1
            self.shape += self._pair_counts[number] == 1
        for number in before - now:
            self._pair_counts[number] -= 1
            if not self._pair_counts[number]:
                del self._pair_counts[number]
                self.shape += 1

    def paths_over(self, number: int) -> list[PathOnLink]:
        """Return the paths that cross a link, in unspecified order."""
        if self._flat is None or self._flat[0] != self.version:
            pairs = list(self._pairs)
            parts = [self._pairs[pair].link for pair in pairs]
            links = np.concatenate(parts) if parts else np.empty(0, np.int32)
            starts = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64).astype(np.int32)
            self._flat = (self.version, pairs, starts, links)
        _, pairs, starts, links = self._flat
        paths: dict[PathOnLink, None] = {}
        for at in np.flatnonzero(links == number).tolist():
            k = int(np.searchsorted(starts, at, side="right")) - 1
            packed = self._pairs[pairs[k]]
            row = int(np.searchsorted(packed.end, at - starts[k], side="right"))
            paths[PathOnLink(*pairs[k], int(packed.path[row]), bool(packed.answer[row]))] = None
        return list(paths)

    def route(self, path: PathOnLink) -> list[int]:
        """Return the numbers of a path's links in order; empty if the path is unknown."""
        packed = self._pairs.get((path.nic, path.peer))
        if packed is None:
            return []
        rows = np.flatnonzero((packed.path == path.path) & (packed.answer == path.answer))
        if not len(rows):
            return []
        k = int(rows[0])
        begin = int(packed.end[k - 1]) if k else 0
        return [int(number) for number in packed.link[begin : packed.end[k]]]
