"""The interface of explanations: a case in, candidates out.

Each family of verdicts is one file with functions of type `Explanation`. `diagnose.EXPLANATIONS` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from schemas.records import DiagnosisEvidence, Verdict
from streams.diagnosis.case import Case

__all__ = ["Candidate", "Case", "Explanation", "observation"]


@dataclass(slots=True)
class Candidate:
    """One possible explanation."""

    verdict: Verdict
    confidence: float
    loss_share: float
    """Share of the job's time lost to it."""
    subject: str
    text: str
    remedy: str
    blames_network: bool = False
    decisive: bool = False
    """Whether it stops the job: no other cause of lost time is worth a mention before it."""
    subjects: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    evidence: list[DiagnosisEvidence] = field(default_factory=list)
    since_ns: int | None = None
    """Begin of the cause; None: unknown."""
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """NIC pairs that it slows: it explains why one of them is an outlier."""

    @property
    def score(self) -> float:
        """Weight among candidates that cost time."""
        return self.confidence * min(1.0, self.loss_share)


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
    """Return one observation. `quantity` carries its unit; `expected` is the value of its like."""
    return {
        "topic": topic,
        "subject": subject,
        "quantity": quantity,
        "number": None if number is None else float(number),
        "expected": None if expected is None else float(expected),
        "at_ns": at_ns,
        "text": text,
    }
