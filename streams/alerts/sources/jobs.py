"""Raises alerts from diagnoses of jobs: a hang, a job that the network slows, or a straggler.

A diagnosis comes every 5 s, and once more at the job's end. An alert ends with the first diagnosis that calls
for no alert of its kind, or when diagnoses stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from schemas.records import AlertKind, Evidence, Severity, Verdict
from schemas.topics import DIAGNOSES
from streams.alerts.book import AlertBook, OpenAlert, evidence_ref
from streams.alerts.rules import JOB_SILENT_NS, MAX_NAMES, TOGETHER_NS

JOB_KINDS: Final = (AlertKind.JOB_HANG, AlertKind.JOB_SLOW, AlertKind.JOB_STRAGGLER)
_BY_VERDICT: Final = {
    Verdict.HANG: AlertKind.JOB_HANG,
    Verdict.DEAD_RANK: AlertKind.JOB_HANG,
    Verdict.STRAGGLER: AlertKind.JOB_STRAGGLER,
}


def kind_of(head: Mapping[str, Any]) -> AlertKind | None:
    """Return the kind of alert that a diagnosis calls for; None if it calls for no alert."""
    kind = _BY_VERDICT.get(head["verdict"])
    return AlertKind.JOB_SLOW if kind is None and head["blames_network"] else kind


class JobAlerts:
    """Raises alerts from `Diagnosis` records, of which only the leading fields are needed."""

    def __init__(self, book: AlertBook) -> None:
        self._book = book
        self._causes: dict[str, tuple[str, str]] = {}
        """Maps id of an active alert to the verdict and subject that its text names."""

    def recover(self, alert: OpenAlert) -> None:
        """Restore an active alert; it ends if its job publishes no more diagnoses."""
        if alert.kind in JOB_KINDS:
            alert.over_ns = alert.updated_ns
            alert.clear_at_ns = alert.updated_ns - self._book.log_offset_ns + JOB_SILENT_NS

    def ingest(self, head: Mapping[str, Any]) -> None:
        """Take one diagnosis."""
        book, job, detected_kind = self._book, head["job"], kind_of(head)
        for kind in JOB_KINDS:
            alert = book.find(kind, job)
            if alert is None or head["end_ns"] < alert.over_ns:
                continue
            if kind == detected_kind:
                self._renew(alert, head)
            else:
                alert.clear_at_ns = min(alert.clear_at_ns, book.now_ns + book.thresholds.ns("alert_clear_s"))
        if (
            detected_kind is not None
            and book.find(detected_kind, job) is None
            and self._persists(detected_kind, head)
        ):
            self._raise(detected_kind, head)

    def _persists(self, kind: AlertKind, head: Mapping[str, Any]) -> bool:
        """Return whether a verdict has held for long enough to raise its alert; a HANG always has."""
        lasted_ns = head["end_ns"] - head["since_ns"]
        return kind == AlertKind.JOB_HANG or lasted_ns >= self._book.thresholds.ns("alert_job_s")

    def _renew(self, alert: OpenAlert, head: Mapping[str, Any]) -> None:
        """Keep an alert active; publish it again if the verdict or its cause has changed."""
        alert.over_ns = head["end_ns"]
        alert.clear_at_ns = self._book.now_ns + JOB_SILENT_NS
        cause = (str(head["verdict"]), head["subject"])
        if self._causes.setdefault(alert.alert_id, cause) != cause:
            self._causes[alert.alert_id] = cause
            alert.text = _text(head)
            alert.add_names(links=head["links"], nics=head["nics"], jobs=head["jobs"])
            alert.add_evidence([_evidence(head)])
            self._book.update(alert, head["end_ns"])

    def _raise(self, kind: AlertKind, head: Mapping[str, Any]) -> None:
        job, end_ns = head["job"], head["end_ns"]
        covered = self._book.covered_times(kind, job)
        if any(raised_ns - TOGETHER_NS <= end_ns <= cleared_ns for raised_ns, cleared_ns in covered):
            return
        alert = OpenAlert(
            kind=kind,
            subject=job,
            severity=Severity.CRITICAL if kind == AlertKind.JOB_HANG else Severity.WARNING,
            raised_ns=max([head["since_ns"], *(at_ns for _, at_ns in covered if at_ns <= end_ns)]),
            updated_ns=end_ns,
            text=_text(head),
            links=list(head["links"])[:MAX_NAMES],
            nics=list(head["nics"])[:MAX_NAMES],
            jobs=list(dict.fromkeys([job, *head["jobs"]])),
            evidence=[_evidence(head)],
            members={job},
            over_ns=end_ns,
            clear_at_ns=self._book.now_ns + JOB_SILENT_NS,
        )
        if self._book.raise_alert(alert):
            self._causes = {name: cause for name, cause in self._causes.items() if name in self._book.open}
            self._causes[alert.alert_id] = (str(head["verdict"]), head["subject"])


def _text(head: Mapping[str, Any]) -> str:
    return f"job {head['job']}: {head['verdict']}: {head['text']}"


def _evidence(head: Mapping[str, Any]) -> Evidence:
    return evidence_ref(DIAGNOSES.name, head["job"], head["end_ns"], head["text"])
