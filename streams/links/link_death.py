"""Whether a link that explains the paths which died is dead by now, or is still to be waited for.

In: `Evidence`, `Suspicion` and the link that explains most (cover.py). Out: `Dead`, with what it cannot be
told from, or `Wait`. How long nothing must cross a link, how many losses it takes, how many of its paths must
have died, and for how long others that explain as much are to be told from it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.ids import cable_id
from streams.links.cover import Suspicion, losses_needed
from streams.links.evidence import BUCKETS, Evidence
from streams.runtime.thresholds import Thresholds

__all__ = [
    "FEW_ENDS", "FEW_PATHS", "MARGIN", "NEVER", "RETRACT_NS", "STALE_NS", "Dead", "Wait", "silence_ns",
    "weigh_link",
]  # fmt: skip

MS: Final = 1_000_000
S: Final = 1_000_000_000
NEVER: Final = 2**62
STALE_NS: Final = 5 * S
"""Losses that nobody told of for this long are no news."""
MARGIN: Final = 3
"""Losses by which a link must explain more than its rivals."""
FEW_SHARE: Final = 0.2
FEW_PATHS, FEW_ENDS = 4, 3
"""A link of which so few paths died, and so few NICs' at either end, is waited for to show itself on more of
them; but for where they are this share of all."""
HELD_NS: Final = 3 * S
HELD_A_NIC: Final = 2
"""Where the network held an answer over a link up for longer than it is waited for, within the first of
these, or so many a NIC anywhere, packets wait for tens of ms: `link_late_dead_ms` holds."""
HALF: Final = 0.5
LITTLE: Final = 0.4
"""Of the paths that would have lost something by now were the link dead: where fewer did, it is waited for
those that live to be told of."""
RETRACT_NS: Final = 1500 * MS
"""A DOWN link across which some paths live, while others stay dead, was the wrong one after this long."""
MIXED: Final = 2
"""So many losses that an answer followed are a share that gets lost, and no way to die."""


class Dead(NamedTuple):
    """A dead link, and the cables that it cannot be told from."""

    link: int
    others: tuple[str, ...]


class Wait(NamedTuple):
    """It is not said yet: until when the evidence that is there may say so by itself, `NEVER` if it takes
    more."""

    until_ns: int


def weigh_link(
    evidence: Evidence, thresholds: Thresholds, suspicion: Suspicion, link: int, now_ns: int
) -> Dead | Wait:
    """Judge the link that explains most, at `now_ns` on the log's clock."""
    total, begin_ns = suspicion.total(link), suspicion.begin_ns(link)
    span_ns = suspicion.newest_ns(link) - begin_ns
    if total < thresholds["dead_losses"] or span_ns < silence_ns(evidence, thresholds, now_ns, link):
        return Wait(NEVER)
    if total < _losses_needed(evidence, thresholds["dead_losses"], link):
        return Wait(NEVER)
    mine = suspicion.paths[suspicion.of(link)]
    if len(mine) == 1 and evidence.gap[mine].all():  # the unknown half of its way explains it as well
        return Wait(NEVER)
    cable = cable_id(evidence.names[link])
    rivals = [
        e for e in suspicion.rivals(link, MARGIN)
        if not evidence.is_nic[e] and cable_id(evidence.names[e]) != cable
    ]  # fmt: skip
    apart_ns = begin_ns + thresholds.ns("tell_apart_ms")
    share = _share_lost(evidence, link, now_ns, begin_ns)
    few = len(mine) < FEW_PATHS or min(len(np.unique(side)) for side in evidence.rows[mine, :2].T) < FEW_ENDS
    alike = _crossed_alike(evidence, link, rivals, now_ns)
    if now_ns < apart_ns and (len(alike) < len(rivals) or (few and share < FEW_SHARE)):
        return Wait(apart_ns)
    young = now_ns - begin_ns < RETRACT_NS
    # lost since whenever: late answers may have crossed it since, and what goes on is told of less often
    little = LITTLE * _share_expected(evidence, link, now_ns, span_ns)
    if young and _share_lost(evidence, link, now_ns) < little:
        return Wait(begin_ns + RETRACT_NS)
    if len(alike) == len(rivals):
        return Dead(link, tuple(sorted({cable_id(evidence.names[e]) for e in alike})))
    shares = {link: share} | {e: _share_lost(evidence, e, now_ns, begin_ns) for e in rivals}
    chosen = max(shares, key=lambda e: (shares[e], e == link, -e))
    if young and shares[chosen] < HALF:
        return Wait(begin_ns + RETRACT_NS)
    equal = {cable_id(evidence.names[e]) for e, s in shares.items() if s >= min(HALF, shares[chosen])}
    return Dead(chosen, tuple(sorted(equal - {cable_id(evidence.names[chosen])})))


def silence_ns(evidence: Evidence, thresholds: Thresholds, now_ns: int, links: int | list[int]) -> int:
    """Return for how long nothing must cross a link, or some together, for them to be dead."""
    held = int(np.max(evidence.held_ns[links])) > now_ns - HELD_NS
    held = held or evidence.held_answers(now_ns) > HELD_A_NIC * evidence.speaking(now_ns)
    least_ns = thresholds.ns("link_dead_ms")
    return max(least_ns, thresholds.ns("link_late_dead_ms")) if held else least_ns


def _losses_needed(evidence: Evidence, least: float, link: int) -> int:
    """Return how many losses in a row call a link dead: more where it loses a share, be it since a moment."""
    crossing = evidence.crossing(link)
    # a path that nobody asks any more keeps the losses of a death that is over
    explained = evidence.healed_ns[evidence.rows[crossing]] > evidence.first_lost_ns[crossing, None]
    crossing = crossing[~explained.any(axis=1)]
    since = np.full(len(crossing), evidence.life_ns[link])
    in_row = evidence.losses_within(crossing, since, np.full(len(crossing), NEVER))
    mixed = int(np.maximum(evidence.pending[crossing] - in_row, 0).sum())
    mixed = mixed if mixed >= MIXED else 0
    needed = losses_needed(least, mixed, 0) if mixed else 0
    for parts in (BUCKETS, BUCKETS // 4, BUCKETS // 8):
        lost, answered = evidence.across(link, parts)
        needed = max(needed, losses_needed(least, lost + mixed, answered))
    return needed


def _crossed_alike(evidence: Evidence, link: int, rivals: list[int], now_ns: int) -> list[int]:
    """Return the rivals that the very paths cross which cross a link, as far as their ways are known: no
    evidence, however long it is waited for, tells those from it."""
    n = evidence.paths
    rows = evidence.rows[:n][(evidence.seen_ns[:n] > now_ns - STALE_NS) & ~evidence.gap[:n]]
    mine = (rows == link).any(axis=1)
    return [rival for rival in rivals if np.array_equal((rows == rival).any(axis=1), mine)]


def _across_lately(evidence: Evidence, element: int, now_ns: int) -> NDArray[np.intp]:
    paths = evidence.crossing(element)
    return paths[evidence.seen_ns[paths] > now_ns - STALE_NS]


def _share_lost(evidence: Evidence, element: int, now_ns: int, since_ns: int = 0) -> float:
    """Return which share of the paths across an element was last told of as lost, for the last time at
    `since_ns` or later."""
    paths = _across_lately(evidence, element, now_ns)
    lost = (evidence.in_row[paths] > 0) & (evidence.last_lost_ns[paths] >= since_ns)
    return float(lost.mean()) if len(paths) else 0.0


def _share_expected(evidence: Evidence, element: int, now_ns: int, span_ns: int) -> float:
    """Return which share of the paths across an element would have lost a probe, had it been dead for
    `span_ns`: of those asked at random moments, `rate` times a second, 1 - exp(-rate span)."""
    paths = _across_lately(evidence, element, now_ns)
    asked = -np.expm1(-evidence.rate_hz[paths] * (span_ns / S))
    return float(asked.mean()) if len(paths) else 0.0
