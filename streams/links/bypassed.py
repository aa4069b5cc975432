"""Links inside the fabric that all paths were led around: where switches see a carrier go, nothing is lost
that could tell.

In: the evidence of a shard. Out: the links that nothing crosses any more for a cause, and the paths that say
so. Pure.

Who moves paths for other reasons leaves some on every link. m paths that are hashed to n ways anew leave one
of these empty with probability (1 - 1/n)^m, and of c cables c times that many are empty by chance: unless
that is far below one, an empty cable says nothing. So a link counts where the paths that left its cable are
too many for chance, or those that left all cables of a switch inside, where all are empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams.links.evidence import NOTHING, Evidence, Left

__all__ = ["find_led_around"]

S: Final = 1_000_000_000
LEFT_NS: Final = 60 * S
"""Paths that left a link longer ago than this say nothing of it any more."""
FIRST_NS: Final = 15 * S
"""Links that are heard of so soon after the first evidence are no new ones: then all are."""
NEW_NS: Final = 60 * S
CHANCE: Final = 0.01
"""Cables that may be empty by chance when they are told."""


def find_led_around(
    evidence: Evidence, now_ns: int, stale_ns: int, few_paths: int, few_ends: int
) -> list[tuple[int, NDArray[np.intp]]]:
    """Return each such link with [M] the paths that left it: at least `few_paths`, of `few_ends` NICs at
    either end. `stale_ns`: for how long a path counts after it was last told of. Forgets what is old."""
    crossed = evidence.crossed(now_ns - stale_ns)
    at_nic = set(evidence.out.tolist()) | set(evidence.into.tolist())
    empty: dict[int, set[int]] = {}
    for link, left in list(evidence.left.items()):
        if link in evidence.recabled or link in at_nic or now_ns - left.newest_ns > LEFT_NS:
            del evidence.left[link]
        elif not crossed[link]:
            empty[link] = _elsewhere(evidence, left, at_nic, now_ns - stale_ns)
    news = [link for link, paths in empty.items() if len(paths) >= few_paths and not evidence.down[link]]
    odds = _Odds(evidence, crossed, at_nic, empty) if news else None
    found = []
    for link in news:
        paths = np.array(sorted(empty[link]), np.intp)
        ends = [len(np.unique(side)) for side in evidence.rows[paths, :2].T]
        if odds is not None and min(ends) >= few_ends and odds.of(link) < CHANCE:
            found.append((link, paths))
    return found


def _elsewhere(evidence: Evidence, left: Left, at_nic: set[int], since_ns: int) -> set[int]:
    """Return the living paths that left a link for links that were known before: those first heard of then
    may be the same ones, under names that a new topology file gives them."""
    paths = np.array(sorted(left.paths), np.intp)
    paths = paths[(evidence.seen_ns[paths] > since_ns) & (evidence.in_row[paths] == 0)]
    rows = evidence.rows[paths]
    old = evidence.met_ns[rows] < max(left.since_ns - NEW_NS, evidence.began_ns + FIRST_NS)
    old |= evidence.is_nic[rows] | np.isin(rows, list(at_nic)) | (rows == NOTHING)
    return set(paths[old.all(axis=1)].tolist())


class _Odds:
    """How many cables as empty as one would be so by chance."""

    def __init__(
        self, evidence: Evidence, crossed: NDArray[np.bool_], at_nic: set[int], empty: Mapping[int, set[int]]
    ) -> None:
        self._evidence, self._crossed, self._empty = evidence, crossed, empty
        self._leaves = {node for e in at_nic for node in evidence.nodes_of(e)}
        outside = at_nic | {NOTHING}
        inner = [e for e in np.flatnonzero(crossed & ~evidence.is_nic).tolist() if e not in outside]
        ends = [evidence.nodes_of(e) for e in inner]
        self._leaving, self._entering = Counter(near for near, _ in ends), Counter(far for _, far in ends)
        self._cables = 1 + len(inner) // 2

    def of(self, link: int) -> float:
        """Return the least of: that its cable is empty, and that a switch inside at its end is."""
        near, far = self._evidence.nodes_of(link)
        # whoever comes from a leaf chooses among its ways up; one down is chosen where it went up
        choices = [self._leaving[near]] if near in self._leaves else []
        choices += [self._entering[far]] if far in self._leaves else []
        ways = 1 + max(choices or [self._leaving[near], self._entering[far]])
        nodes = self._evidence.of_node
        inside = [nodes[node] for node in (near, far) if node not in self._leaves]
        groups = [nodes[near] & nodes[far], *(each for each in inside if not self._crossed[list(each)].any())]
        return min(self._cables * (1.0 - 1.0 / ways) ** self._paths_of(group) for group in groups)

    def _paths_of(self, links: set[int]) -> int:
        return len(set().union(*(self._empty.get(link, set()) for link in links)))
