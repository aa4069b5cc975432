"""Defines the interface of explanations: each takes a case and yields candidates.

Each family of verdicts is one file with functions of type `Explanation`; `diagnose.EXPLANATIONS` lists all
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from schemas.records import AuditResult, ContentionWindow, DiagnosisEvidence
from schemas.topics import AUDIT, CONTENTION
from streams.diagnosis.candidate import Candidate
from streams.diagnosis.case import Case

__all__ = ["Candidate", "Case"]
"""Names of other modules that explanations import from here."""

Explanation = Callable[[Case], Iterable[Candidate]]


def observation(
    topic: str,
    subject: str,
    quantity: str,
    number: float | None,
    expected: float | None,
    text: str,
    at_ns: int | None = None,
) -> DiagnosisEvidence:
    """Return an item of evidence. `quantity` includes its unit; `expected`: value of comparable subjects."""
    return {
        "topic": topic,
        "subject": subject,
        "quantity": quantity,
        "number": None if number is None else float(number),
        "expected": None if expected is None else float(expected),
        "at_ns": at_ns,
        "text": text,
    }


def audit_evidence(failures: list[AuditResult]) -> list[DiagnosisEvidence]:
    """Return the first four failed checks of a host as evidence."""
    return [
        observation(
            AUDIT.name, result["host"], result["check"], None, None, result["text"], result["checked_ns"]
        )
        for result in failures[:4]
    ]


def window_evidence(window: ContentionWindow) -> DiagnosisEvidence:
    """Return the queueing delay of a contention window, us, as evidence."""
    delay_us, opened_ns = window["delay_ns"] / 1e3, window["opened_ns"]
    return observation(CONTENTION.name, window["link"], "delay_us", delay_us, None, window["text"], opened_ns)
