"""Localise grey links: elements with a loss rate that no burst and no busy host explains."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.links.elements import NOTHING
from streams.links.evidence import Evidence
from streams.links.loss_rates import Lossy, find_lossy
from streams.links.rules import (
    CPU_STARVED_TIMES,
    HOST_TIMES,
    MIN_GREY_LOSSES,
    MIN_GREY_PARTS,
    MIN_HOST_PARTS,
    MIXED_LOSSES,
    WARM_UP_NS,
    WINDOW_PARTS,
)
from streams.runtime.thresholds import Thresholds
from streams.runtime.units import NS_PER_S

__all__ = ["LossyFaults", "localise_lossy"]


class LossyFaults(NamedTuple):
    """Elements with losses: all of them, and those whose losses make a link or NIC GREY."""

    found: dict[int, Lossy]
    grey: list[Lossy]
    requests: NDArray[np.float64]
    """[P] requests within the window."""


def localise_lossy(
    evidence: Evidence, thresholds: Thresholds, now_ns: int, *, is_warm: bool = True
) -> LossyFaults:
    """Return the lossy elements. `is_warm`: whether all NICs have reported, so that rates can be trusted."""
    requests, found = _lossy_within(evidence, now_ns, WINDOW_PARTS, is_warm=is_warm)
    # A loss that began a moment ago shows more clearly in the newer half of the window.
    for element, lossy in _lossy_within(evidence, now_ns, WINDOW_PARTS // 2, is_warm=is_warm)[1].items():
        if element not in found or lossy.low > found[element].low:
            found[element] = lossy
    grey = [lossy for lossy in found.values() if _is_grey(evidence, thresholds, lossy, now_ns)]
    return LossyFaults(found, grey, requests)


def _lossy_within(
    evidence: Evidence, now_ns: int, parts: int, *, is_warm: bool
) -> tuple[NDArray[np.float64], dict[int, Lossy]]:
    """Return [P] requests within the newest `parts` of the window, and the lossy elements."""
    lost, answered = evidence.counts(now_ns, parts)
    short = evidence.unsettled_paths(now_ns, parts)
    lost[short] += evidence.unsettled[short]
    n = evidence.paths
    rows = evidence.rows[:n]
    requests = (lost + answered).astype(float)
    since_ns = np.minimum(now_ns - evidence.path_event_ns[:n], evidence.bucket_ns * parts)
    is_waiting = (evidence.loss_streak[:n] == 0) & (requests > 0) & (since_ns > 0)
    requests += np.where(is_waiting, evidence.rate_hz[:n] * since_ns / NS_PER_S, 0.0)
    requests[evidence.down[evidence.possible_elements(np.arange(n))].any(axis=1)] = 0.0
    if not is_warm:
        return requests, {}
    found = find_lossy(rows, lost, requests, ~evidence.is_nic, evidence.incomplete[:n])
    return requests, {lossy.element: lossy for lossy in found}


def _is_grey(evidence: Evidence, thresholds: Thresholds, lossy: Lossy, now_ns: int) -> bool:
    """Return whether losses are high enough, spread over time, and not the host's."""
    min_share = thresholds["grey_loss_percent"] / 100
    if lossy.low < min_share or lossy.lost < MIN_GREY_LOSSES:
        return False
    if evidence.totals_over(lossy.element, WINDOW_PARTS)[0] < MIXED_LOSSES:
        return False  # paths that lose all since some moment have an outage, perhaps on another route by now
    has_losses = _parts_with_losses(evidence, lossy, now_ns)
    here = [lossy.element, *lossy.aliased]
    nics = [e for e in here if evidence.is_nic[e]]
    nics += [nic for nic in evidence.nic_of[here].tolist() if nic != NOTHING]
    if not nics:
        return int(has_losses.sum()) >= MIN_GREY_PARTS
    has_losses &= ~evidence.cpu_starved[nics].any(axis=0)  # a host short of CPU loses packets itself
    window_ns = evidence.bucket_ns * WINDOW_PARTS
    cpu_starved_ns = int(evidence.cpu_starved_ns[nics].max())
    times = HOST_TIMES if cpu_starved_ns < now_ns - window_ns else CPU_STARVED_TIMES
    if has_losses.sum() < MIN_HOST_PARTS or lossy.low < times * min_share:
        return False
    is_healthy = evidence.exempt_ns[nics] < now_ns - window_ns
    is_healthy &= evidence.nic_event_ns[nics] > now_ns - WARM_UP_NS  # a silent agent may be short of CPU
    return bool(is_healthy.all()) and cpu_starved_ns < now_ns - evidence.bucket_ns


def _parts_with_losses(evidence: Evidence, lossy: Lossy, now_ns: int) -> NDArray[np.bool_]:
    """Return [WINDOW_PARTS] whether any path over an element lost packets in a part of the window."""
    paths = evidence.paths_over(lossy.element)
    found: NDArray[np.bool_] = np.asarray((evidence.lost[paths] > 0).any(axis=0))
    short = np.intersect1d(paths, evidence.unsettled_paths(now_ns))
    found[evidence.first_lost_ns[short] // evidence.bucket_ns % len(found)] = True
    return found
