"""Finds checks that report the same fault: one stays an error, the others refer to it as warnings. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemas.records import AuditResult, AuditSeverity, AuditStatus
from streams.audit.results import one_line

CAUSES: Final = {
    "fabric.rails": ("fabric.cables",),
    "fabric.rail-reach": ("fabric.egress", "fabric.connectivity"),
}
"""Maps check to the checks that name its cause. A NIC with another NIC's cable is on a leaf of another rail.
A NIC that sends by another NIC, or reaches no NIC at all, does not reach its rail."""


def one_error_per_cause(results: Iterable[AuditResult]) -> list[AuditResult]:
    """Return the results; a result becomes a warning if a check of its cause names all its failed devices.

    The text of the warning refers to the other check. Only results of the same host are compared.
    """
    all_results = list(results)
    failed = {(result["host"], result["check"]): _failed(result) for result in all_results}
    out = []
    for result in all_results:
        of_cause = {
            cause: failed.get((result["host"], cause), set()) for cause in CAUSES.get(result["check"], ())
        }
        named = set().union(*of_cause.values())
        causes = [cause for cause, subjects in of_cause.items() if subjects & _failed(result)]
        out.append(
            _referring(result, " and ".join(causes)) if causes and _failed(result) <= named else result
        )
    return out


def _failed(result: AuditResult) -> set[str]:
    """Return the devices that failed."""
    return {finding["subject"] for finding in result["findings"] if finding["status"] == AuditStatus.FAILED}


def _referring(result: AuditResult, cause: str) -> AuditResult:
    if result["status"] != AuditStatus.FAILED:
        return result
    text = one_line(f"see {cause}: {result['text']}")
    return {**result, "severity": AuditSeverity.WARNING, "text": text}
