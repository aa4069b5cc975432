"""Localises dead links: the fewest links that explain the losses of the dead paths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schemas.ids import cable_id
from schemas.records import HealthKind
from streams.links.evidence.probe_evidence import Evidence
from streams.links.health.text import count_text
from streams.links.localise.cover import Suspicion, against_links
from streams.links.localise.fault import Fault
from streams.links.localise.link_death import Dead, Wait, evaluate_link
from streams.links.rules import LOSS_MARGIN, NEVER_NS
from streams.runtime.loss_rates import NOTHING
from streams.runtime.thresholds import Thresholds
from streams.runtime.units import NS_PER_MS


def localise_links(
    evidence: Evidence, thresholds: Thresholds, paths: NDArray[np.intp], now_ns: int
) -> tuple[list[Fault], int]:
    """Return the dead links, and the next time, ns, at which the evidence may show more, or `NEVER_NS`."""
    suspicion = against_links(evidence, paths)
    faults: list[Fault] = []
    wait_ns = NEVER_NS
    while (link := suspicion.best()) != NOTHING:
        result = evaluate_link(evidence, thresholds, suspicion, link, now_ns)
        if isinstance(result, Wait):  # it explains most, but too little yet: keep its paths for it
            wait_ns = min(wait_ns, result.until_ns)
            suspicion = suspicion.without_element(link)
        else:
            faults.append(_fault(evidence, suspicion, result))
            suspicion = suspicion.without((suspicion.rows == result.link).any(axis=1))
    return faults, wait_ns


def _fault(evidence: Evidence, suspicion: Suspicion, dead: Dead) -> Fault:
    link = dead.link
    cable = cable_id(evidence.names[link])
    crossing = suspicion.of(link)
    begin_ns = suspicion.begin_ns(link)
    quiet_ms = (suspicion.newest_ns(link) - begin_ns) / NS_PER_MS
    probers = len(set(suspicion.rows[crossing, 0].tolist()))
    # The other direction dies with it if every path that crosses one crosses both.
    both = [
        other
        for other in suspicion.rivals(link, LOSS_MARGIN)
        if not evidence.is_nic[other] and cable_id(evidence.names[other]) == cable
    ]
    return Fault(
        subject=cable,
        kind=HealthKind.LINK,
        elements=(link, *both),
        begin_ns=begin_ns,
        cause=(
            f"nothing crossed it for {quiet_ms:.0f} ms while {count_text(len(crossing), 'path')} of "
            f"{count_text(probers, 'NIC')} lost {count_text(suspicion.total(link), 'probe')}"
        ),
        candidates=dead.candidates,
    )
