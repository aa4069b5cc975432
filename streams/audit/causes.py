"""Checks that find the same fault: one result is the error, the others refer to it as warnings. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemas.records import AuditResult, AuditSeverity, AuditStatus
from streams.audit.results import one_line

__all__ = ["CAUSES", "one_error_per_cause"]

CAUSES: Final = {"fabric.rails": "fabric.cables"}
"""Check to the check that names the cause. A NIC with another NIC's cable is on a leaf of another rail."""


def one_error_per_cause(results: Iterable[AuditResult]) -> list[AuditResult]:
    """Return the results; one of which the other check names all failed devices becomes a warning.

    Its text refers to the other check. Results of the same host are compared.
    """
    kept = list(results)
    failed = {(each["host"], each["check"]): _failed(each) for each in kept}
    out = []
    for each in kept:
        cause = CAUSES.get(each["check"])
        named = failed.get((each["host"], cause), set()) if cause else set()
        out.append(_referring(each, cause) if cause and named and _failed(each) <= named else each)
    return out


def _failed(result: AuditResult) -> set[str]:
    """Return the devices that failed."""
    return {each["subject"] for each in result["findings"] if each["status"] == AuditStatus.FAILED}


def _referring(result: AuditResult, cause: str) -> AuditResult:
    if result["status"] != AuditStatus.FAILED:
        return result
    text = one_line(f"see {cause}: {result['text']}")
    return {**result, "severity": AuditSeverity.WARNING, "text": text}
