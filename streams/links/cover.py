"""Which links explain the paths that died: the fewest, by the losses that each explains.

In: `Evidence` and the paths with losses in a row. Out: `Suspicion`, candidates with the losses that speak
against them, one after another. A loss speaks against a link only if nothing crossed that link since it was
sent, and both its NICs lived after it: what was starved or is gone answers nobody, on whichever path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams.links.evidence import NOTHING, Evidence, Int64s

__all__ = ["Suspicion", "against_links", "against_nics", "against_switch", "cables_needed", "losses_needed"]

GUARD_NS: Final = 5_000_000
"""After a NIC lives again, answers that waited there are given so long before losses to it count."""
PATH_MOST: Final = 6
"""Losses of one path that count: more say no more about a link, which many paths cross."""
CHANCE_LOG: Final = 18.4
"""Of a run of losses that a lossy but living link has once in so many times, as a logarithm: 1e-8."""


def losses_needed(least: float, lost: float, answered: float) -> int:
    """Return how many losses in a row on a link call it dead, by what it lost of late while it lived.

    A link that loses a share r has a run of k losses with probability r^k. `lost` may lie below zero, where
    losses were taken back that were counted before the window.
    """
    lost, answered = max(lost, 0.0), max(answered, 0.0)
    rate = (lost + 0.5) / (lost + answered + 20)
    return max(int(np.ceil(least)), int(np.ceil(CHANCE_LOG / -np.log(rate))))


@dataclass(slots=True)
class Suspicion:
    """Paths that are not explained yet, and the losses of each that speak against each of its elements."""

    evidence: Evidence
    paths: NDArray[np.intp]
    """[S]"""
    rows: NDArray[np.int32]
    """[S, width]"""
    losses: Int64s
    """[S, width], 0 where the element lived since or cannot be the one"""

    def best(self, shunned: set[int]) -> int:
        """Return the element that explains most; NOTHING where none is left."""
        if not len(self.paths):
            return NOTHING
        score = np.bincount(self.rows.reshape(-1), np.minimum(self.losses, PATH_MOST).reshape(-1))
        if shunned:
            score[[each for each in shunned if each < len(score)]] = 0
        found = int(np.argmax(score))
        return found if score[found] > 0 else NOTHING

    def of(self, element: int) -> NDArray[np.intp]:
        """Return the positions in `paths` of those with losses that speak against an element."""
        return np.flatnonzero(((self.rows == element) & (self.losses > 0)).any(axis=1))

    def total(self, element: int) -> int:
        """Return all losses that speak against an element."""
        return int(self.losses[self.rows == element].sum())

    def rivals(self, element: int, margin: int) -> list[int]:
        """Return the other elements that leave less than `margin` of its losses unexplained."""
        mine = self.of(element)
        rows, losses = self.rows[mine], np.minimum(self.losses[mine], PATH_MOST)
        own = int(losses[rows == element].sum())
        covered = np.bincount(rows.reshape(-1), losses.reshape(-1))
        return [int(e) for e in np.flatnonzero(covered > own - margin) if e not in (element, NOTHING)]

    def begin_ns(self, element: int) -> int:
        """Return when the first loss was sent that speaks against an element."""
        mine = self.paths[self.of(element)]
        first = self.evidence.first_lost_ns[mine]
        return int(np.maximum(first, self.evidence.life_ns[element]).min())

    def newest_ns(self, element: int) -> int:
        """Return the time of the newest event that told of them."""
        return int(self.evidence.seen_ns[self.paths[self.of(element)]].max())

    def without(self, explained: NDArray[np.bool_]) -> Suspicion:
        """Return what is left once some of the paths ([S] booleans) are explained."""
        kept = ~explained
        return Suspicion(self.evidence, self.paths[kept], self.rows[kept], self.losses[kept])


def against_links(evidence: Evidence, paths: NDArray[np.intp]) -> Suspicion:
    """Return the losses of `paths` that speak against links: sent after the link's last sign of life, and
    before a later one of both ends."""
    rows = evidence.rows[paths]
    floor, upto = _between(evidence, paths)
    after = np.maximum(evidence.life_ns[rows], floor[:, None])
    losses = evidence.losses_within(paths, after, upto)
    losses[:, :2] = 0
    return Suspicion(evidence, paths, rows, losses)


def against_switch(evidence: Evidence, paths: NDArray[np.intp], links: NDArray[np.intp]) -> Int64s:
    """Return [S] the losses of `paths`, which all cross a switch of `links`, that speak against it: sent
    after the last sign of life of all of them, and before a later one of both ends."""
    floor, upto = _between(evidence, paths)
    after = np.maximum(floor, evidence.life_ns[links].max(initial=0))
    return evidence.losses_within(paths, after, upto)


def cables_needed(losses: Int64s, crossing: NDArray[np.bool_], margin: int) -> int:
    """Return how many dead cables it takes to explain all but `margin` of some losses: [S] of each path,
    [S, cables] whether it crosses each. Greedy, so now and then one more than the least."""
    left, needed = losses.copy(), 0
    while left.sum() >= margin:
        explained = left @ crossing
        best = int(np.argmax(explained))
        if not explained[best]:
            break
        left[crossing[:, best]] = 0
        needed += 1
    return needed


def _between(evidence: Evidence, paths: NDArray[np.intp]) -> tuple[Int64s, Int64s]:
    """Return [S] each: after when and up to when losses of `paths` were sent while both ends were well."""
    ends = evidence.rows[paths][:, :2]
    seen, first = evidence.seen_ns[paths], evidence.first_lost_ns[paths]
    floor = np.maximum(evidence.excused_ns[ends].max(axis=1), evidence.alive_ns[paths])
    revived = evidence.revived_ns[ends].max(axis=1)
    settled = (revived <= first) | (seen >= revived + GUARD_NS)
    return floor, np.where(settled, evidence.life_ns[ends].min(axis=1), 0)


def against_nics(evidence: Evidence, paths: NDArray[np.intp]) -> Suspicion:
    """Return the losses of `paths` that speak against the NICs at their ends: sent after the NIC's last sign
    of life, by an agent that was well then."""
    rows = evidence.rows[paths]
    last = evidence.last_lost_ns[paths]
    prober_excused = evidence.excused_ns[rows[:, 0]]
    after = np.maximum(evidence.life_ns[rows], np.maximum(prober_excused, evidence.alive_ns[paths])[:, None])
    losses = evidence.losses_within(paths, after, last)
    losses[:, 2:] = 0
    return Suspicion(evidence, paths, rows, losses)
