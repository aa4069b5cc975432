"""Decides whether the link that explains most losses is dead, or whether more evidence is needed.

`evaluate_link` checks how long no answer has crossed the link and how many probes were lost on it. It also
checks what share of the link's paths have died, and whether other links explain equally many losses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.ids import cable_id
from streams.links.evidence.probe_evidence import Evidence
from streams.links.localise.cover import Suspicion, losses_needed
from streams.links.rules import (
    DELAYED_KEPT_NS,
    DELAYED_LINK_NS,
    DELAYED_PER_NIC,
    EXPECTED_SHARE,
    FEW_ENDS,
    FEW_PATHS,
    FEW_SHARE,
    HALF,
    LOSS_MARGIN,
    MIXED_LOSSES,
    NEVER_NS,
    RETRACT_NS,
    STALE_NS,
    WINDOW_PARTS,
)
from streams.runtime.thresholds import Thresholds
from streams.runtime.units import NS_PER_S


class Dead(NamedTuple):
    """A dead link, and the other cables that the evidence cannot distinguish from it."""

    link: int
    candidates: tuple[str, ...]


class Wait(NamedTuple):
    """No decision yet. `until_ns`: time at which the present evidence may suffice, or `NEVER_NS`."""

    until_ns: int


def evaluate_link(
    evidence: Evidence, thresholds: Thresholds, suspicion: Suspicion, link: int, now_ns: int
) -> Dead | Wait:
    """Decide whether `link`, the link that explains most losses, is dead at `now_ns` (log append time)."""
    begin_ns = suspicion.begin_ns(link)
    span_ns = suspicion.newest_ns(link) - begin_ns
    if not _is_silent(evidence, thresholds, suspicion, link, now_ns, span_ns):
        return Wait(NEVER_NS)
    crossing_paths = suspicion.paths[suspicion.of(link)]
    if (
        len(crossing_paths) == 1 and evidence.incomplete[crossing_paths].all()
    ):  # the unknown half of its route explains it too
        return Wait(NEVER_NS)
    rivals = _rivals(evidence, suspicion, link)
    apart_ns = begin_ns + thresholds.ns("disambiguate_ms")
    share = _share_lost(evidence, link, now_ns, begin_ns)
    aliased = _aliased(evidence, link, rivals, now_ns)
    is_narrow = _has_few_paths(evidence, crossing_paths) and share < FEW_SHARE
    if now_ns < apart_ns and (len(aliased) < len(rivals) or is_narrow):
        return Wait(apart_ns)
    is_young = now_ns - begin_ns < RETRACT_NS
    # Losses of any age count here: late answers may have crossed since, and old losses are reported less
    # often.
    expected = EXPECTED_SHARE * _share_expected(evidence, link, now_ns, span_ns)
    if is_young and _share_lost(evidence, link, now_ns) < expected:
        return Wait(begin_ns + RETRACT_NS)
    if len(aliased) == len(rivals):
        return Dead(link, tuple(sorted({cable_id(evidence.names[e]) for e in aliased})))
    shares = {link: share} | {e: _share_lost(evidence, e, now_ns, begin_ns) for e in rivals}
    worst = max(shares, key=lambda e: (shares[e], e == link, -e))
    if is_young and shares[worst] < HALF:
        return Wait(begin_ns + RETRACT_NS)
    equal = {cable_id(evidence.names[e]) for e, s in shares.items() if s >= min(HALF, shares[worst])}
    return Dead(worst, tuple(sorted(equal - {cable_id(evidence.names[worst])})))


def _is_silent(
    evidence: Evidence, thresholds: Thresholds, suspicion: Suspicion, link: int, now_ns: int, span_ns: int
) -> bool:
    """Return whether enough probes were lost on a link, for long enough, to call it dead."""
    total = suspicion.total(link)
    if total < thresholds["dead_losses"] or span_ns < silence_ns(evidence, thresholds, now_ns, link):
        return False
    return total >= _losses_needed(evidence, thresholds["dead_losses"], link)


def _rivals(evidence: Evidence, suspicion: Suspicion, link: int) -> list[int]:
    """Return the links of other cables that explain nearly as many losses as `link`."""
    cable = cable_id(evidence.names[link])
    return [
        e
        for e in suspicion.rivals(link, LOSS_MARGIN)
        if not evidence.is_nic[e] and cable_id(evidence.names[e]) != cable
    ]


def _has_few_paths(evidence: Evidence, paths: NDArray[np.intp]) -> bool:
    ends = min(len(np.unique(side)) for side in evidence.rows[paths, :2].T)
    return len(paths) < FEW_PATHS or ends < FEW_ENDS


def silence_ns(evidence: Evidence, thresholds: Thresholds, now_ns: int, links: int | list[int]) -> int:
    """Return how long a link, or several links together, must pass no answer to count as dead, ns."""
    delayed = int(np.max(evidence.delayed_ns[links])) > now_ns - DELAYED_LINK_NS
    reporting = evidence.reporting_nics(now_ns - DELAYED_KEPT_NS)
    delayed = delayed or evidence.delayed_answers(now_ns) > DELAYED_PER_NIC * reporting
    min_ns = thresholds.ns("link_dead_ms")
    return max(min_ns, thresholds.ns("link_late_dead_ms")) if delayed else min_ns


def _losses_needed(evidence: Evidence, min_losses: float, link: int) -> int:
    """Return how many losses in a row declare a link dead; more if it loses packets while alive."""
    paths = evidence.paths_over(link)
    # A path without probes keeps the losses of an outage that is over.
    explained = evidence.recovered_ns[evidence.rows[paths]] > evidence.first_lost_ns[paths, None]
    paths = paths[~explained.any(axis=1)]
    since = np.full(len(paths), evidence.last_answer_ns[link])
    in_streak = evidence.losses_within(paths, since, np.full(len(paths), NEVER_NS))
    mixed = int(np.maximum(evidence.unsettled[paths] - in_streak, 0).sum())
    mixed = mixed if mixed >= MIXED_LOSSES else 0
    needed = losses_needed(min_losses, mixed, 0) if mixed else 0
    for parts in (WINDOW_PARTS, WINDOW_PARTS // 4, WINDOW_PARTS // 8):
        lost, answered = evidence.totals_over(link, parts)
        needed = max(needed, losses_needed(min_losses, lost + mixed, answered))
    return needed


def _aliased(evidence: Evidence, link: int, rivals: list[int], now_ns: int) -> list[int]:
    """Return the rivals crossed by exactly the same paths as `link`, among paths with complete routes."""
    n = evidence.paths
    current = (evidence.path_event_ns[:n] > now_ns - STALE_NS) & ~evidence.incomplete[:n]
    rows = evidence.rows[:n][current]
    crosses_link = (rows == link).any(axis=1)
    return [rival for rival in rivals if np.array_equal((rows == rival).any(axis=1), crosses_link)]


def _recent_paths(evidence: Evidence, element: int, now_ns: int) -> NDArray[np.intp]:
    paths = evidence.paths_over(element)
    return paths[evidence.path_event_ns[paths] > now_ns - STALE_NS]


def _share_lost(evidence: Evidence, element: int, now_ns: int, since_ns: int = 0) -> float:
    """Return the share of an element's recent paths whose newest result is a probe lost after `since_ns`."""
    paths = _recent_paths(evidence, element, now_ns)
    lost = (evidence.loss_streak[paths] > 0) & (evidence.last_lost_ns[paths] >= since_ns)
    return float(lost.mean()) if len(paths) else 0.0


def _share_expected(evidence: Evidence, element: int, now_ns: int, span_ns: int) -> float:
    """Return the share of an element's paths that would have lost a probe if it had been dead for `span_ns`.

    A path probed at random times, `rate` per second, has a probe in the span with probability
    1 - exp(-rate span).
    """
    paths = _recent_paths(evidence, element, now_ns)
    probed = -np.expm1(-evidence.rate_hz[paths] * (span_ns / NS_PER_S))
    return float(probed.mean()) if len(paths) else 0.0
