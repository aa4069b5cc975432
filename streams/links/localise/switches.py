"""Localises dead switches inside the fabric: no answer crosses any of their links.

Without this localiser, a dead switch would show as several dead links. No path could distinguish the last of
these links from a living link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from schemas.ids import cable_id
from schemas.records import HealthKind
from streams.links.evidence.probe_evidence import Evidence
from streams.links.health.text import count_text
from streams.links.localise.cover import against_fabric, against_switch, cables_needed
from streams.links.localise.fault import Fault
from streams.links.localise.link_death import silence_ns
from streams.links.rules import LOSS_MARGIN, RETRACT_NS
from streams.runtime.loss_rates import NOTHING
from streams.runtime.shared_risk import SILENT_CABLES, group_by_node
from streams.runtime.thresholds import Thresholds


def localise_switches(
    evidence: Evidence, thresholds: Thresholds, suspects: NDArray[np.intp], now_ns: int
) -> Iterator[Fault]:
    """Yield a fault for each cable of each dead switch.

    The caller must mark a fault's elements as down before it takes the next fault: later switches depend on
    these marks.
    """
    losses = against_fabric(evidence, suspects)
    if losses.sum() < thresholds["dead_losses"]:
        return
    at_nics = (evidence.nic_of != NOTHING) & evidence.has_answered
    crossed = np.unique(evidence.rows[suspects, 2:])
    silent = crossed[evidence.last_answer_ns[crossed] < now_ns - thresholds.ns("link_dead_ms")]
    silent = silent[~at_nics[silent]].tolist()
    cables = group_by_node((cable_id(evidence.names[e]), evidence.nodes_of(e)) for e in silent)
    for node in sorted(node for node, failed in cables.items() if SILENT_CABLES.has_enough(len(failed))):
        links = list(evidence.links_at[node])
        if at_nics[links].any():
            continue
        silent_for_ns = now_ns - int(evidence.last_answer_ns[links].max())
        if silent_for_ns >= silence_ns(evidence, thresholds, now_ns, links):
            yield from _localise_switch(evidence, thresholds, suspects[losses > 0], node, now_ns)


def _localise_switch(
    evidence: Evidence, thresholds: Thresholds, suspects: NDArray[np.intp], node: str, now_ns: int
) -> Iterator[Fault]:
    links = _links_within(evidence, node)
    last_ns = int(evidence.last_answer_ns[links].max(initial=0))
    if now_ns - last_ns < thresholds.ns("link_dead_ms"):
        return
    rows, within = evidence.rows[suspects], evidence.among(links)
    crosses = within[rows].any(axis=1)
    suspects, rows = suspects[crosses], rows[crosses]
    losses = against_switch(evidence, suspects, links)
    if losses.sum() < thresholds["dead_losses"]:
        return
    explained = evidence.down[rows] | (evidence.suppressed_ns[rows] > now_ns)
    losses[(explained & ~within[rows]).any(axis=1)] = 0
    has_losses = losses > 0
    losses, rows = losses[has_losses], rows[has_losses]
    by_cable = links_by_cable(evidence, links.tolist())
    if losses.sum() < thresholds["dead_losses"] or not SILENT_CABLES.has_enough(len(by_cable)):
        return
    crossing = np.array([evidence.among(links)[rows].any(axis=1) for links in by_cable.values()]).T
    needed = min(SILENT_CABLES.min_members, len(by_cable) - 1)
    if not crossing.any(axis=0).all() or cables_needed(losses, crossing, LOSS_MARGIN) < needed:
        return
    begin_ns = int(np.maximum(evidence.first_lost_ns[suspects[has_losses]], last_ns + 1).min())
    probers = len(np.unique(rows[:, 0]))
    cause = (
        f"nothing crosses {node} any more: {count_text(len(rows), 'path')} of {count_text(probers, 'NIC')} "
        f"lost {count_text(int(losses.sum()), 'probe')}"
    )
    for cable, of_cable in sorted(by_cable.items()):
        yield Fault(cable, HealthKind.LINK, tuple(of_cable), begin_ns, cause, yields_to_carrier=True)


def links_by_cable(evidence: Evidence, links: Iterable[int]) -> dict[str, list[int]]:
    """Return the links of each cable, by cable id."""
    by_cable: dict[str, list[int]] = {}
    for link in links:
        by_cable.setdefault(cable_id(evidence.names[link]), []).append(link)
    return by_cable


def _links_within(evidence: Evidence, node: str) -> NDArray[np.intp]:
    """Return the links of a switch that worked until the switch fell silent; none if all are known DOWN."""
    links = np.array(sorted(evidence.links_at[node]), np.intp)
    links = links[evidence.has_answered[links]]
    if evidence.down[links].all():
        return links[:0]
    answers_ns = evidence.last_answer_ns[links]
    recent: NDArray[np.intp] = links[answers_ns > answers_ns.max() - RETRACT_NS]
    return recent
