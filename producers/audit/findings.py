"""Counts the failed checks of the newest results, for the metrics of the auditor."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES
from schemas.records import AuditResult, AuditSeverity, AuditStatus


class FailedChecks:
    """The checks of this agent's hosts that failed when they last ran, with their severities."""

    def __init__(self) -> None:
        self._severities: dict[tuple[str, str], AuditSeverity] = {}
        SOURCES.add(self.samples)

    def take(self, result: AuditResult) -> None:
        """Add a result. A check that passes, or whose subject is gone, ends its finding."""
        key = (result["host"], result["check"])
        if result["status"] == AuditStatus.FAILED:
            self._severities[key] = AuditSeverity(result["severity"])
        elif result["status"] != AuditStatus.UNKNOWN:
            self._severities.pop(key, None)

    def samples(self) -> Iterator[Sample]:
        """Yield the number of failed checks by severity."""
        failed = list(self._severities.values())
        for severity in AuditSeverity:
            yield Sample("fabrictime_audit_findings", failed.count(severity), (severity,))
