"""Localises grey links: elements with a loss rate that neither a burst nor a busy host explains.

A switch may lose the packets of one traffic class only, because the queue of the class is full, broken or
configured differently. So losses are also localised class by class. A class is named if the other classes
clearly lose less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.links.evidence.probe_evidence import Evidence
from streams.links.rules import (
    CPU_STARVED_TIMES,
    HOST_TIMES,
    LATE_GAPS,
    MIN_GREY_LOSSES,
    MIN_GREY_PARTS,
    MIN_HOST_PARTS,
    MIXED_LOSSES,
    WARM_UP_NS,
    WINDOW_PARTS,
)
from streams.runtime.loss_rates import NOTHING, ClassRate, Int32s, Lossy, find_lossy, wilson
from streams.runtime.thresholds import Thresholds
from streams.runtime.units import NS_PER_S


class LossyFaults(NamedTuple):
    """All elements that lose packets, and the losses that make a link or NIC GREY."""

    by_element: dict[int, Lossy]
    grey: list[Lossy]
    requests: NDArray[np.float64]
    """[P] number of requests within the window."""


def localise_lossy(
    evidence: Evidence, thresholds: Thresholds, now_ns: int, *, is_warm: bool = True
) -> LossyFaults:
    """Return the lossy elements. `is_warm`: whether all NICs have reported; if not, return no elements."""
    min_share = thresholds["grey_loss_percent"] / 100
    requests, lossy_by_element = _lossy_within(evidence, now_ns, WINDOW_PARTS, min_share, is_warm=is_warm)
    # A loss that began a moment ago shows more clearly in the newer half of the window.
    newer = _lossy_within(evidence, now_ns, WINDOW_PARTS // 2, min_share, is_warm=is_warm)[1]
    for element, lossy in newer.items():
        if element not in lossy_by_element or lossy.low > lossy_by_element[element].low:
            lossy_by_element[element] = lossy
    grey = [lossy for lossy in lossy_by_element.values() if _is_grey(evidence, thresholds, lossy, now_ns)]
    return LossyFaults(lossy_by_element, grey, requests)


def _lossy_within(
    evidence: Evidence, now_ns: int, parts: int, min_share: float, *, is_warm: bool
) -> tuple[NDArray[np.float64], dict[int, Lossy]]:
    """Return [P] requests within the newest `parts` of the window, and the lossy elements by index."""
    lost, answered = evidence.counts(now_ns, parts)
    short = evidence.unsettled_paths(now_ns, parts)
    lost[short] += evidence.unsettled[short]
    n = evidence.paths
    rows = evidence.rows[:n]
    counted = (lost + answered).astype(float)
    requests = counted.copy()
    # A prober reports a loss at once, so it has had none since its last report, or that report is late.
    nics = rows[:, 0]
    since_ns = np.minimum(now_ns - evidence.covered_ns[nics], LATE_GAPS * evidence.report_gap_ns[nics])
    is_waiting = (evidence.loss_streak[:n] == 0) & (requests > 0) & (since_ns > 0)
    requests += np.where(is_waiting, evidence.rate_hz[:n] * since_ns / NS_PER_S, 0.0)
    requests[evidence.down[evidence.possible_elements(np.arange(n))].any(axis=1)] = 0.0
    if not is_warm:
        return requests, {}
    lossy_elements = find_lossy(rows, lost, requests, ~evidence.is_nic, evidence.incomplete[:n])
    by_element = {lossy.element: lossy for lossy in lossy_elements}
    if not evidence.dscps or not lost.any():
        return requests, by_element
    lost_by_class, answered_by_class = evidence.class_counts(now_ns, parts)
    lost_by_class[short] += evidence.class_unsettled[short]
    # Requests without a report yet are those of all classes, in the shares of the reported ones.
    waiting = np.divide(requests, counted, out=np.ones(n), where=counted > 0)
    requests_by_class = (lost_by_class + answered_by_class) * waiting[:, None] * (requests > 0)[:, None]
    return requests, _by_class(evidence, by_element, lost_by_class, requests_by_class, min_share)


def _by_class(
    evidence: Evidence,
    lossy_by_element: dict[int, Lossy],
    lost: NDArray[np.float64],
    requests: NDArray[np.float64],
    min_share: float,
) -> dict[int, Lossy]:
    """Return the lossy elements with loss rates by class, including elements lossy in only some classes.

    `lossy_by_element`: result over all classes together. `lost`, `requests`: [P, C] counts.
    """
    n, classes = requests.shape
    rows = evidence.rows[:n]
    by_class = [
        find_lossy(rows, lost[:, c], requests[:, c], ~evidence.is_nic, evidence.incomplete[:n])
        for c in range(classes)
    ]
    result = dict(lossy_by_element)
    elements = [
        *lossy_by_element,
        *(lossy.element for lossy_elements in by_class for lossy in lossy_elements),
    ]
    for element in dict.fromkeys(elements):
        lossy_by_dscp = _of_element(element, by_class, evidence.dscps)
        rates = [
            _rate(dscp, element, rows, by_class[c], lost[:, c], requests[:, c])
            for c, dscp in enumerate(evidence.dscps)
        ]
        named = _named(rates, lossy_by_dscp, min_share)
        is_named = any(rate.is_lossy for rate in named)
        if element in lossy_by_element and not is_named:
            result[element] = replace(lossy_by_element[element], classes=named)
        elif is_named and (element in lossy_by_element or not _is_explained(lossy_by_element, element)):
            worst = max(lossy_by_dscp.values(), key=lambda lossy: lossy.rate)
            result[element] = replace(worst, element=element, classes=named)
    return result


def _of_element(element: int, by_class: Sequence[Sequence[Lossy]], dscps: Sequence[int]) -> dict[int, Lossy]:
    """Return, by DSCP, the losses of each class that an element may cause."""
    return {
        dscp: lossy
        for dscp, lossy_elements in zip(dscps, by_class, strict=True)
        for lossy in lossy_elements
        if _explains(lossy, element)
    }


def _is_explained(lossy_by_element: dict[int, Lossy], element: int) -> bool:
    return any(_explains(lossy, element) for lossy in lossy_by_element.values())


def _explains(lossy: Lossy, element: int) -> bool:
    return element == lossy.element or element in lossy.aliased


def _rate(
    dscp: int,
    element: int,
    rows: Int32s,
    lossy_elements: Sequence[Lossy],
    lost: NDArray[np.float64],
    requests: NDArray[np.float64],
) -> ClassRate | None:
    """Return the loss rate of a class on an element; None if no packet of the class crossed the element.

    `lossy_elements`: lossy elements of the class. `lost`, `requests`: [P] counts of the class.
    """
    for lossy in lossy_elements:
        if _explains(lossy, element):
            return ClassRate(dscp, lossy.rate, lossy.low, lossy.high)
    here = (rows == element).any(axis=1) & ~np.isin(rows, [lossy.element for lossy in lossy_elements]).any(
        axis=1
    )
    total, share = float(requests[here].sum()), float(lost[here].sum())
    return ClassRate(dscp, min(share / total, 1.0), *wilson(share, total)) if total > 0 else None


def _named(
    class_rates: Sequence[ClassRate | None], lossy_by_dscp: Mapping[int, Lossy], min_share: float
) -> tuple[ClassRate, ...]:
    """Return the known rates; mark the lossy classes if every other class clearly loses less."""
    lossy = {dscp for dscp, loss in lossy_by_dscp.items() if loss.low >= min_share}
    rates = [rate for rate in class_rates if rate is not None]
    is_clear = _are_separate(
        [rate for rate in rates if rate.dscp in lossy], [rate for rate in rates if rate.dscp not in lossy]
    )
    return tuple(rate._replace(is_lossy=is_clear and rate.dscp in lossy) for rate in rates)


def _are_separate(lossy: Sequence[ClassRate], others: Sequence[ClassRate]) -> bool:
    """Return whether there are other classes and each of them clearly loses less than every lossy class."""
    low = min((rate.low for rate in lossy), default=0.0)
    return bool(others) and all(rate.high < low for rate in others)


def _is_grey(evidence: Evidence, thresholds: Thresholds, lossy: Lossy, now_ns: int) -> bool:
    """Return whether losses are high enough, spread over time, and not caused by the host."""
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
    """Return a mask [WINDOW_PARTS] of the parts in which a path over the lossy element lost packets."""
    paths = evidence.paths_over(lossy.element)
    has_losses: NDArray[np.bool_] = np.asarray((evidence.lost[paths] > 0).any(axis=0))
    short = np.intersect1d(paths, evidence.unsettled_paths(now_ns))
    has_losses[evidence.first_lost_ns[short] // evidence.bucket_ns % len(has_losses)] = True
    return has_losses
