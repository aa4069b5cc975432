"""The interface of explanations: each takes a case and yields candidates.

Each family of verdicts is one file with functions of type `Explanation`. `diagnose.EXPLANATIONS` lists
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from schemas.records import DiagnosisEvidence
from streams.diagnosis.candidate import Candidate
from streams.diagnosis.case import Case

__all__ = ["Candidate", "Case", "Explanation", "observation"]


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
    """Return one piece of evidence. `quantity` includes its unit; `expected` is the value of comparable
    subjects."""
    return {
        "topic": topic,
        "subject": subject,
        "quantity": quantity,
        "number": None if number is None else float(number),
        "expected": None if expected is None else float(expected),
        "at_ns": at_ns,
        "text": text,
    }
