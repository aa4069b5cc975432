"""Candidates: possible explanations of a job's speed."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.records import DiagnosisEvidence, Verdict


@dataclass(slots=True)
class Candidate:
    """One possible explanation of a job's speed."""

    verdict: Verdict
    confidence: float
    loss_share: float
    """Share of the job's time that this cause costs."""
    subject: str
    text: str
    remedy: str
    blames_network: bool = False
    decisive: bool = False
    """Whether the cause stops the job: it then comes before all other causes of lost time."""
    subjects: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    evidence: list[DiagnosisEvidence] = field(default_factory=list)
    since_ns: int | None = None
    """Time at which the cause began; None if unknown."""
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """NIC pairs that the cause slows; it thus explains why one of them is an outlier."""

    @property
    def score(self) -> float:
        """Weight of the candidate among those that cost time."""
        return self.confidence * min(1.0, self.loss_share)
