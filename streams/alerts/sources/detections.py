"""Raises alerts from detections: trouble of agents, probe storms, wrong cabling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from schemas.records import AlertKind, Evidence
from streams.alerts.book import AlertBook, OpenAlert, clock_text, evidence_ref
from streams.alerts.rules import TOGETHER_NS
from streams.runtime.detection import SINCE, Detection

TEXT_GROWS: Final = frozenset({AlertKind.MISWIRED, AlertKind.UNMEASURED})
"""Kinds of alerts whose text names the subjects, so that it changes with them."""


class DetectionAlerts:
    """Raises alerts from `Detection`s. A detection repeated for an earlier time is ignored.

    `forget_agent` is called with a host whose silent prober is not reported because the host is dead.
    """

    def __init__(self, book: AlertBook, forget_agent: Callable[[str], None] = lambda host: None) -> None:
        self._book, self._forget_agent = book, forget_agent

    def ingest(self, detection: Detection) -> None:
        """Raise, update or clear the alert of a detection."""
        alert = self._book.find(detection.kind, detection.subject)
        offset_ns = self._book.log_offset_ns
        at_ns, since_ns = detection.at_ns + offset_ns, detection.since_ns + offset_ns
        evidence = [evidence_ref(e.topic, e.key, e.at_ns + offset_ns, e.text) for e in detection.evidence]
        if alert is None:
            self._raise(detection, at_ns, since_ns, evidence)
        elif detection.over:
            if at_ns > alert.updated_ns:
                alert.over_ns, alert.text = since_ns, f"{alert.text}; over: {detection.text}"
                self._book.clear(alert)
        elif {*detection.nics, *detection.grouped} - {*alert.nics, *alert.grouped}:
            alert.add_names(links=detection.links, nics=detection.nics, grouped=detection.grouped)
            alert.add_evidence(evidence)
            if detection.kind in TEXT_GROWS:
                alert.text = detection.text.replace(SINCE, clock_text(alert.raised_ns))
            self._book.update(alert, at_ns)

    def _is_of_dead_host(self, detection: Detection) -> bool:
        """Return whether the detection is about an agent whose host has an active HOST_DOWN alert."""
        host = self._book.find(AlertKind.HOST_DOWN, detection.subject)
        return detection.kind == AlertKind.AGENT and host is not None

    def _raise(self, detection: Detection, at_ns: int, since_ns: int, evidence: list[Evidence]) -> None:
        covered = self._book.covered_times(detection.kind, detection.subject)
        if not detection.over and self._is_of_dead_host(detection):
            self._forget_agent(detection.subject)
            return
        if detection.over or any(a - TOGETHER_NS <= at_ns < b for a, b in covered):
            return
        since_ns = max([since_ns, *(b for _, b in covered if b <= at_ns)])
        alert = OpenAlert(
            kind=detection.kind,
            subject=detection.subject,
            severity=detection.severity,
            raised_ns=since_ns,
            updated_ns=at_ns,
            text=detection.text.replace(SINCE, clock_text(since_ns)),
            links=list(detection.links),
            nics=list(detection.nics),
            grouped=list(detection.grouped),
            evidence=evidence,
            members={detection.subject},
        )
        self._book.raise_alert(alert)
