"""Localises NICs that answer no peer, and the cause: port, NIC, host or leaf switch.

A silent agent whose host answers is not a fault here: prober_health.py reports it.

A host that is short of CPU seems dead for a while, so the time thresholds are longer here than for links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from schemas.ids import cable_id, host_of
from schemas.records import DetectedBy, HealthKind
from streams.links.evidence.probe_evidence import Evidence
from streams.links.health.text import count_text
from streams.links.localise.cover import Suspicion, against_nics
from streams.links.localise.fault import Fault
from streams.links.localise.switches import links_by_cable
from streams.links.rules import KNOWN_NS, REPORTS_AFTER_NS, STALE_NS
from streams.runtime.loss_rates import NOTHING
from streams.runtime.shared_risk import SILENT_NICS, group_by_node
from streams.runtime.thresholds import Thresholds
from streams.runtime.units import NS_PER_MS

IsMember = Callable[[str], bool]
"""Returns whether a NIC is in the inventory: a NIC that was removed on purpose is no fault."""


class _Cause(Enum):
    PORT = "the agent is healthy, its port is not"
    SILENT = "neither NIC nor agent can be reached"


def localise_nics(
    evidence: Evidence, thresholds: Thresholds, is_member: IsMember, paths: NDArray[np.intp], now_ns: int
) -> Iterator[Fault]:
    """Yield the faults that explain NICs that answer no peer.

    The caller must mark a fault's elements as down before it takes the next fault, because later faults
    depend on these marks.
    """
    answers_ns = evidence.last_answer_ns[evidence.rows[paths, :2]]
    if now_ns - int(answers_ns.min()) < thresholds.ns("nic_dead_ms"):
        return
    suspicion = against_nics(evidence, paths)
    due: dict[int, _Cause] = {}
    while (nic := suspicion.best()) != NOTHING:
        cause = _evaluate_nic(evidence, thresholds, is_member, suspicion, nic, now_ns)
        if cause is not None:
            due[nic] = cause
        suspicion = suspicion.without_element(nic)
    silent_nics: set[int] = set()
    for switch, nics in _silent_switches(evidence, due):
        faults = _switch_faults(evidence, switch, nics)
        if faults is not None:
            yield from faults
            silent_nics |= nics
    for nic, cause in due.items():
        if nic not in silent_nics and not evidence.down[nic]:
            yield _nic_fault(evidence, thresholds, is_member, nic, cause, now_ns)


def _evaluate_nic(
    evidence: Evidence,
    thresholds: Thresholds,
    is_member: IsMember,
    suspicion: Suspicion,
    nic: int,
    now_ns: int,
) -> _Cause | None:
    """Return the cause of a NIC's silence; None if there is no fault or not enough evidence yet."""
    min_losses = thresholds["dead_losses"]
    answer_ns = int(evidence.last_answer_ns[nic])
    alive_ns = _last_sign_ns(evidence, [nic])
    if suspicion.total(nic) < min_losses or not evidence.has_answered[nic]:
        return None
    if now_ns - answer_ns > thresholds.ns("forget_s") or not is_member(evidence.names[nic]):
        return None
    crossing = suspicion.of(nic)
    rows, losses = suspicion.rows[crossing], suspicion.losses[crossing]
    own = int(losses[:, :1][rows[:, :1] == nic].sum())
    if own >= min_losses and _port_is_dead(evidence, thresholds, suspicion, nic):
        return _Cause.PORT
    lost_ns = int(evidence.last_lost_ns[suspicion.paths[crossing]].max())
    if lost_ns - alive_ns < thresholds.ns("nic_silent_ms"):
        return None
    probing = {host_of(evidence.names[int(e)]) for e in rows[:, 0] if e != nic}
    if own < min_losses and len(probing) < min(2, len(_probing_hosts(evidence, nic, now_ns))):
        return None
    reported_ns = int(evidence.nic_event_ns[nic]) - max(answer_ns, int(evidence.cpu_starved_ns[nic]))
    return _Cause.PORT if reported_ns > REPORTS_AFTER_NS else _Cause.SILENT


def _port_is_dead(evidence: Evidence, thresholds: Thresholds, suspicion: Suspicion, nic: int) -> bool:
    """Return whether enough of a NIC's own probes were lost, for long enough, while its agent was healthy."""
    crossing = suspicion.of(nic)
    lost_ns = int(evidence.last_lost_ns[suspicion.paths[crossing]].max())
    reported_ns = int(evidence.nic_event_ns[nic])
    # Only probes lost since the agent was last late are evidence against the port.
    healthy_ns = max(
        int(evidence.last_answer_ns[nic]), int(evidence.exempt_ns[nic]), int(evidence.cpu_starved_ns[nic])
    )
    if min(lost_ns, reported_ns) - healthy_ns < thresholds.ns("nic_dead_ms"):
        return False
    own = suspicion.paths[crossing][suspicion.rows[crossing][:, 0] == nic]
    since_ns, until_ns = np.full(len(own), healthy_ns), evidence.last_lost_ns[own]
    return int(evidence.losses_within(own, since_ns, until_ns).sum()) >= thresholds["dead_losses"]


def _probing_hosts(evidence: Evidence, nic: int, now_ns: int) -> set[str]:
    """Return the hosts that probed a NIC recently."""
    n = evidence.paths
    recent = (evidence.rows[:n, 1] == nic) & (evidence.path_event_ns[:n] > now_ns - STALE_NS)
    return {host_of(evidence.names[int(e)]) for e in np.unique(evidence.rows[:n, 0][recent])}


# ------------------------------------------------------------------------------------------- leaf switches


def _silent_switches(evidence: Evidence, due: Mapping[int, _Cause]) -> Iterator[tuple[str, set[int]]]:
    """Yield each leaf switch whose NICs fell silent together, with these NICs. `due`: all silent NICs."""
    for switch, nics in sorted(group_by_node((nic, _switches_of(evidence, nic)) for nic in due).items()):
        answers_ns = evidence.last_answer_ns[list(nics)]
        spread_ns = int(answers_ns.max()) - int(answers_ns.min())
        is_together = SILENT_NICS.window_ns is not None and spread_ns <= SILENT_NICS.window_ns
        hosts = {host_of(evidence.names[nic]) for nic in nics}
        if SILENT_NICS.has_enough(len(nics)) and is_together and len(hosts) >= 2:
            yield switch, nics


def _switch_faults(evidence: Evidence, switch: str, nics: set[int]) -> Iterator[Fault] | None:
    """Return the faults of a dead leaf switch; None if an answer crossed its links after NICs fell silent."""
    last_ns = int(evidence.last_answer_ns[list(nics)].max())
    links = [e for e in evidence.links_at[switch] if evidence.has_answered[e] and not evidence.down[e]]
    if any(evidence.last_answer_ns[e] > last_ns for e in links):
        return None
    links = [e for e in links if evidence.last_answer_ns[e] > last_ns - KNOWN_NS]
    nic_at = {link: nic for nic in nics for link in evidence.links_of(nic)}
    cause = f"nothing crosses {switch} any more, and its {count_text(len(nics), 'NIC')} answer no probe"

    def faults() -> Iterator[Fault]:
        for cable, of_cable in sorted(links_by_cable(evidence, links).items()):
            elements: list[int] = []
            for link in of_cable:
                elements += [link, nic_at[link]] if link in nic_at else [link]
            yield Fault(cable, HealthKind.LINK, tuple(elements), last_ns + 1, cause)

    return faults()


def _switches_of(evidence: Evidence, nic: int) -> set[str]:
    host = host_of(evidence.names[nic])
    ends = (evidence.nodes_of(link) for link in evidence.links_of(nic))
    return {node for pair in ends for node in pair if node != host}


# ------------------------------------------------------------------------------------------- NICs and hosts


def _nic_fault(
    evidence: Evidence, thresholds: Thresholds, is_member: IsMember, nic: int, cause: _Cause, now_ns: int
) -> Fault:
    """Return the fault that explains one silent NIC: its cable, the NIC, or its host."""
    name, answer_ns = evidence.names[nic], _last_sign_ns(evidence, [nic])
    links = evidence.links_of(nic)
    cables = _cables_of(evidence, links)
    silence = f"no probe reaches {name} or comes from it for {(now_ns - answer_ns) / NS_PER_MS:.0f} ms"
    elements = (nic, *links)
    if cause is _Cause.PORT:
        text = f"{silence}, though its agent is healthy"
        if len(cables) > 1:  # a bond: all members, or their common NIC
            return Fault(name, HealthKind.NIC, elements, answer_ns + 1, text, candidates=tuple(cables))
        if cables:
            return Fault(cables[0], HealthKind.LINK, elements, answer_ns + 1, text, candidates=(name,))
        return Fault(name, HealthKind.NIC, elements, answer_ns + 1, text)
    host = host_of(name)
    nics = nics_of_host(evidence, is_member, host)
    half_ns = thresholds.ns("nic_silent_ms") / 2
    if now_ns - _last_sign_ns(evidence, nics) > half_ns:
        return _host_fault(evidence, host, nics)
    text = f"{silence}, and its agent is silent"
    return Fault(name, HealthKind.NIC, elements, answer_ns + 1, text, DetectedBy.SILENCE, tuple(cables))


def _last_sign_ns(evidence: Evidence, nics: list[int]) -> int:
    """Return the time of the newest answer from the agents or host kernels of `nics`, ns."""
    return int(max(evidence.last_answer_ns[nics].max(), evidence.host_answer_ns[nics].max()))


def _host_fault(evidence: Evidence, host: str, nics: list[int]) -> Fault:
    links = [e for n in nics for e in evidence.links_of(n)]
    answer_ns = _last_sign_ns(evidence, nics)
    text = f"no probe reaches {count_text(len(nics), 'NIC')} of it, and its agents are silent"
    candidates = tuple(_cables_of(evidence, links))
    return Fault(host, HealthKind.HOST, (*nics, *links), answer_ns + 1, text, DetectedBy.SILENCE, candidates)


def _cables_of(evidence: Evidence, links: list[int]) -> list[str]:
    return sorted({cable_id(evidence.names[link]) for link in links})


def nics_of_host(evidence: Evidence, is_member: IsMember, host: str) -> list[int]:
    """Return the NICs of a host that have ever answered and are in the inventory."""
    answering_nics = np.flatnonzero(evidence.is_nic & evidence.has_answered)
    names = evidence.names
    return [int(n) for n in answering_nics if host_of(names[n]) == host and is_member(names[n])]
