"""Finds records of the network and the audit about hosts for which a job waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from schemas.ids import host_of
from schemas.records import AlertKind, AuditCategory, DiagnosisEvidence, HealthKind, LinkState
from schemas.topics import ALERTS, AUDIT, LINK_HEALTH
from streams.diagnosis.base import Case, observation
from streams.diagnosis.network.view import Episode

MAX_EVIDENCE: Final = 8
_JOB_ALERTS: Final = (AlertKind.JOB_HANG, AlertKind.JOB_SLOW, AlertKind.JOB_STRAGGLER)
_OF_HARDWARE: Final = (AuditCategory.GPU, AuditCategory.PCIE, AuditCategory.NODE)


def surroundings(case: Case, hosts: Iterable[str]) -> list[DiagnosisEvidence]:
    """Return the troubles of hosts, their NICs and GPUs in the interval; the network's come first."""
    found = [evidence for host in dict.fromkeys(hosts) for evidence in _of_host(case, host)]
    return found[:MAX_EVIDENCE]


def _of_host(case: Case, host: str) -> Iterator[DiagnosisEvidence]:
    nics = sorted(nic for nic in case.network.inventory if host_of(nic) == host)
    for episode in case.network.episodes((host, *nics), case.begin_ns, case.end_ns):
        yield health_evidence(episode)
    names = {host, *nics}
    for alert in case.network.alerts(case.begin_ns, case.end_ns):
        if alert["subject"] in names and alert["kind"] not in _JOB_ALERTS:
            text, raised_ns = alert["text"], alert["raised_ns"]
            yield observation(ALERTS.name, alert["alert_id"], "alert", None, None, text, raised_ns)
    for result in case.network.failed_checks(host):
        if result["category"] in _OF_HARDWARE:
            yield observation(AUDIT.name, host, "check", None, None, f"{result['check']}: {result['text']}")


def health_evidence(episode: Episode) -> DiagnosisEvidence:
    """Return a health state of a link, NIC or host as evidence."""
    subject, text = episode.record["subject"], episode.record["text"]
    return observation(LINK_HEALTH.name, subject, "state", None, None, text, episode.begin_ns)


def hosts_down(case: Case, hosts: Iterable[str]) -> list[Episode]:
    """Return the episodes of hosts that were down in the interval."""
    return [
        episode
        for episode in case.network.episodes(hosts, case.begin_ns, case.end_ns)
        if episode.record["kind"] == HealthKind.HOST and episode.record["state"] == LinkState.DOWN
    ]
