"""Which paths of which pairs cross a link.

In: PathMaps records. Out: per link the paths that cross it, as rows. Kept packed: a thousand NICs with twenty
peers and sixteen paths each are some 15 MB. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fabrictime.state.cable_graph import CableGraph

MOST_PAIRS: Final = 65_536
"""Pairs whose paths are kept; of further pairs only the links are kept."""
MOST_LINKS: Final = 16_000_000
"""Links of all paths that are kept together."""

_Int32s = NDArray[np.int32]


class Crossing(NamedTuple):
    """One path that crosses a link. `answer`: packets that answer `peer`'s probes of that path."""

    nic: str
    peer: str
    path: int
    answer: bool


@dataclass(frozen=True, slots=True)
class _Packed:
    path: _Int32s
    answer: NDArray[np.bool_]
    end: _Int32s  # [N]: where each path's links end in `link`
    link: _Int32s


class LinkIndex:
    """The newest paths of every directed pair."""

    def __init__(self, cable_graph: CableGraph) -> None:
        self.version = 0
        self.shape = 0
        """Grows when a link gets its first path or loses its last one."""
        self.left_out = 0
        self._wires = cable_graph
        self._pairs: dict[tuple[str, str], _Packed] = {}
        self._size = 0
        self._crossed: dict[int, int] = {}
        self._index: tuple[int, list[tuple[str, str]], _Int32s, _Int32s] | None = None

    @property
    def pairs(self) -> int:
        """Directed pairs whose paths are kept."""
        return len(self._pairs)

    def crossed(self, number: int) -> int:
        """Return how many kept pairs have a path over a link."""
        return self._crossed.get(number, 0)

    def take(self, record: Mapping[str, Any]) -> None:
        """Take one PathMaps record: the pair's paths are those and no others."""
        path, answer, end, link = [], [], [], []
        for each in record["paths"]:
            numbers = [number for hop in each["links"] if (number := self._wires.number(hop)) is not None]
            if not numbers:
                continue
            link.extend(numbers)
            path.append(each["path"])
            answer.append(each["leg"] == "ANSWER")
            end.append(len(link))
        pair = (record["nic"], record["peer"])
        before = self._pairs.get(pair)
        size = self._size - (0 if before is None else len(before.link)) + len(link)
        if not link or size > MOST_LINKS or (before is None and len(self._pairs) >= MOST_PAIRS):
            self.left_out += bool(link)
            self.forget(*pair)
            return
        self._pairs[pair] = _Packed(
            np.array(path, np.int32),
            np.array(answer, np.bool_),
            np.array(end, np.int32),
            np.array(link, np.int32),
        )
        self._size = size
        self._count(set() if before is None else set(before.link.tolist()), set(link))

    def forget(self, nic: str, peer: str) -> None:
        """Drop a pair."""
        before = self._pairs.pop((nic, peer), None)
        if before is not None:
            self._size -= len(before.link)
            self._count(set(before.link.tolist()), set())

    def _count(self, before: set[int], now: set[int]) -> None:
        self.version += 1
        for number in now - before:
            self._crossed[number] = self._crossed.get(number, 0) + 1
            self.shape += self._crossed[number] == 1
        for number in before - now:
            self._crossed[number] -= 1
            if not self._crossed[number]:
                del self._crossed[number]
                self.shape += 1

    def forget_nic(self, nic: str) -> None:
        """Drop all pairs of a NIC."""
        for pair in [pair for pair in self._pairs if nic in pair]:
            self.forget(*pair)

    def over(self, number: int) -> list[Crossing]:
        """Return the paths that cross a link, in no order that matters."""
        if self._index is None or self._index[0] != self.version:
            pairs = list(self._pairs)
            parts = [self._pairs[pair].link for pair in pairs]
            links = np.concatenate(parts) if parts else np.empty(0, np.int32)
            starts = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64).astype(np.int32)
            self._index = (self.version, pairs, starts, links)
        _, pairs, starts, links = self._index
        found: dict[Crossing, None] = {}
        for at in np.flatnonzero(links == number).tolist():
            k = int(np.searchsorted(starts, at, side="right")) - 1
            packed = self._pairs[pairs[k]]
            which = int(np.searchsorted(packed.end, at - starts[k], side="right"))
            found[Crossing(*pairs[k], int(packed.path[which]), bool(packed.answer[which]))] = None
        return list(found)

    def hops(self, crossing: Crossing) -> list[int]:
        """Return the links of one path, in order; empty where it is not known."""
        packed = self._pairs.get((crossing.nic, crossing.peer))
        if packed is None:
            return []
        at = np.flatnonzero((packed.path == crossing.path) & (packed.answer == crossing.answer))
        if not len(at):
            return []
        k = int(at[0])
        begin = int(packed.end[k - 1]) if k else 0
        return [int(number) for number in packed.link[begin : packed.end[k]]]
