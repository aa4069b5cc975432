"""Holds candidates: possible explanations of a job's speed."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.records import DiagnosisEvidence, Verdict
from streams.diagnosis.symptoms import Symptom


@dataclass(slots=True)
class Candidate:
    """One possible explanation of a job's speed."""

    verdict: Verdict
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
    is_new: bool = False
    """Whether the cause began after the baseline: it slows no job that is as fast as its baseline."""
    may_pass: bool = False
    """Whether the cause may be over in a moment, so that it must last before it is named."""
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """NIC pairs that the cause slows; it thus explains why one of them is an outlier."""
    symptoms: dict[Symptom, float] = field(default_factory=dict)
    """Evidence for and against the cause, each from 0 to 1."""
    confidence: float = 0.0
    """Probability that the cause is the right one; set by `model.weigh`."""
