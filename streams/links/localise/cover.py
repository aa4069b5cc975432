"""Set cover for dead links: the fewest links that explain the losses of the dead paths.

`Suspicion` holds paths with loss streaks and, per element, the losses that count against it. A loss counts
against a link only if no answer crossed the link after the probe was sent. Both NICs of the path must also
have lived after it: a NIC that is dead or short of CPU answers on no path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streams.links.evidence.path_table import PathTable
from streams.links.rules import FALSE_RUN_LOG, GUARD_NS, MAX_PATH_LOSSES
from streams.runtime.loss_rates import NOTHING, Int64s


def losses_needed(min_losses: float, lost: float, answered: float) -> int:
    """Return how many losses in a row it takes to declare a link dead.

    `lost`, `answered`: the link's recent probes while it lived. A link that loses a share r has a run of k
    losses with probability r^k. `lost` may be negative: spurious losses are subtracted, even if they were
    counted before the window began.
    """
    lost, answered = max(lost, 0.0), max(answered, 0.0)
    rate = (lost + 0.5) / (lost + answered + 20)
    return max(int(np.ceil(min_losses)), int(np.ceil(FALSE_RUN_LOG / -np.log(rate))))


@dataclass(slots=True)
class Suspicion:
    """Unexplained paths, and how many losses of each path count against each of its elements."""

    evidence: PathTable
    paths: NDArray[np.intp]
    """[S] rows of the paths in `evidence`."""
    rows: NDArray[np.int32]
    """[S, width] elements that each path crosses."""
    losses: Int64s
    """[S, width] losses of the path that count against the element; 0 if it cannot be the cause."""

    def best(self) -> int:
        """Return the element that explains most losses; `NOTHING` if no element explains any."""
        if not len(self.paths):
            return NOTHING
        score = np.bincount(self.rows.reshape(-1), np.minimum(self.losses, MAX_PATH_LOSSES).reshape(-1))
        element = int(np.argmax(score))
        return element if score[element] > 0 else NOTHING

    def of(self, element: int) -> NDArray[np.intp]:
        """Return the positions in `paths` of the paths with losses that count against an element."""
        return np.flatnonzero(((self.rows == element) & (self.losses > 0)).any(axis=1))

    def total(self, element: int) -> int:
        """Return the number of losses that count against an element."""
        return int(self.losses[self.rows == element].sum())

    def rivals(self, element: int, margin: int) -> list[int]:
        """Return the other elements that explain all losses of `element`, or all but fewer than `margin`."""
        crossing = self.of(element)
        rows, losses = self.rows[crossing], np.minimum(self.losses[crossing], MAX_PATH_LOSSES)
        own = int(losses[rows == element].sum())
        covered = np.bincount(rows.reshape(-1), losses.reshape(-1))
        return [int(e) for e in np.flatnonzero(covered > own - margin) if e not in (element, NOTHING)]

    def begin_ns(self, element: int) -> int:
        """Return the time at which the losses that count against an element began, ns."""
        crossing = self.paths[self.of(element)]
        first = self.evidence.first_lost_ns[crossing]
        return int(np.maximum(first, self.evidence.last_answer_ns[element]).min())

    def newest_ns(self, element: int) -> int:
        """Return the time of the newest event about any path with losses against an element, ns."""
        return int(self.evidence.path_event_ns[self.paths[self.of(element)]].max())

    def without(self, explained: NDArray[np.bool_]) -> Suspicion:
        """Return a copy without the paths marked in `explained` ([S])."""
        unexplained = ~explained
        return Suspicion(
            self.evidence, self.paths[unexplained], self.rows[unexplained], self.losses[unexplained]
        )

    def without_element(self, element: int) -> Suspicion:
        """Return a copy without the paths whose losses count against an element."""
        explained = np.zeros(len(self.paths), np.bool_)
        explained[self.of(element)] = True
        return self.without(explained)


def against_links(evidence: PathTable, paths: NDArray[np.intp]) -> Suspicion:
    """Return the losses of `paths` that count against links.

    A lost probe counts if it was sent after the last answer over the link, and both NICs of its path
    answered later.
    """
    rows = evidence.rows[paths]
    floor, upto = _between(evidence, paths)
    after = np.maximum(evidence.last_answer_ns[rows], floor[:, None])
    losses = evidence.losses_within(paths, after, upto)
    losses[:, :2] = 0
    return Suspicion(evidence, paths, rows, losses)


def against_fabric(evidence: PathTable, paths: NDArray[np.intp]) -> Int64s:
    """Return [S] an upper bound on the losses of each path that count against elements between its NICs."""
    return evidence.losses_within(paths, *_between(evidence, paths))


def against_switch(evidence: PathTable, paths: NDArray[np.intp], links: NDArray[np.intp]) -> Int64s:
    """Return [S] how many losses of each path count against the switch to which all `links` belong.

    All `paths` cross the switch. A lost probe counts if it was sent after the last answer over any of the
    links, and if both NICs of the path answered later.
    """
    floor, upto = _between(evidence, paths)
    after = np.maximum(floor, evidence.last_answer_ns[links].max(initial=0))
    return evidence.losses_within(paths, after, upto)


def against_nics(evidence: PathTable, paths: NDArray[np.intp]) -> Suspicion:
    """Return the losses of `paths` that count against the NICs at their ends.

    A lost probe counts if it was sent after the NIC's last answer, while the prober's agent was healthy.
    """
    rows = evidence.rows[paths]
    last = evidence.last_lost_ns[paths]
    prober_exempt = evidence.exempt_ns[rows[:, 0]]
    floor = np.maximum(prober_exempt, evidence.path_answer_ns[paths])
    after = np.maximum(evidence.last_answer_ns[rows], floor[:, None])
    losses = evidence.losses_within(paths, after, last)
    losses[:, 2:] = 0
    return Suspicion(evidence, paths, rows, losses)


def cables_needed(losses: Int64s, crossing: NDArray[np.bool_], margin: int) -> int:
    """Return the number of dead cables that explain all but `margin` losses.

    `losses`: [S] losses of each path; `crossing`: [S, cables] whether a path crosses a cable. The cover is
    greedy, so the number is sometimes one above the minimum.
    """
    left, needed = losses.copy(), 0
    while left.sum() >= margin:
        explained = left @ crossing
        best = int(np.argmax(explained))
        if not explained[best]:
            break
        left[crossing[:, best]] = 0
        needed += 1
    return needed


def _between(evidence: PathTable, paths: NDArray[np.intp]) -> tuple[Int64s, Int64s]:
    """Return [S] the start and [S] the end, ns, of the period in which both NICs of a path were healthy."""
    ends = evidence.rows[paths][:, :2]
    event_ns, first = evidence.path_event_ns[paths], evidence.first_lost_ns[paths]
    floor = np.maximum(evidence.exempt_ns[ends].max(axis=1), evidence.path_answer_ns[paths])
    revived = evidence.revived_ns[ends].max(axis=1)
    settled = (revived <= first) | (event_ns >= revived + GUARD_NS)
    return floor, np.where(settled, evidence.last_answer_ns[ends].min(axis=1), 0)
