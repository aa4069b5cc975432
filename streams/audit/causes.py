"""Checks that find the same fault: one result is the error, the others refer to it as warnings. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemas.records import AuditResult, AuditSeverity, AuditStatus
from streams.audit.results import one_line

CAUSES: Final = {
    "fabric.rails": ("fabric.cables",),
    "fabric.rail-reach": ("fabric.egress", "fabric.connectivity"),
}
"""Check to the checks that name the cause. A NIC with another NIC's cable is on a leaf of another rail; one
that sends by another NIC, or reaches no NIC at all, does not reach its rail."""


def one_error_per_cause(results: Iterable[AuditResult]) -> list[AuditResult]:
    """Return the results; one of which the other check names all failed devices becomes a warning.

    Its text refers to the other check. Results of the same host are compared.
    """
    kept = list(results)
    failed = {(each["host"], each["check"]): _failed(each) for each in kept}
    out = []
    for each in kept:
        of_cause = {
            cause: failed.get((each["host"], cause), set()) for cause in CAUSES.get(each["check"], ())
        }
        named = set().union(*of_cause.values())
        causes = [cause for cause, subjects in of_cause.items() if subjects & _failed(each)]
        out.append(_referring(each, " and ".join(causes)) if causes and _failed(each) <= named else each)
    return out


def _failed(result: AuditResult) -> set[str]:
    """Return the devices that failed."""
    return {each["subject"] for each in result["findings"] if each["status"] == AuditStatus.FAILED}


def _referring(result: AuditResult, cause: str) -> AuditResult:
    if result["status"] != AuditStatus.FAILED:
        return result
    text = one_line(f"see {cause}: {result['text']}")
    return {**result, "severity": AuditSeverity.WARNING, "text": text}
