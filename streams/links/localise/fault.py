"""The output of a localiser."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.records import DetectedBy, HealthKind


@dataclass(frozen=True, slots=True)
class Fault:
    """One dead subject, as a localiser found it."""

    subject: str
    kind: HealthKind
    elements: tuple[int, ...]
    """Elements that are dead with it, in the order in which they are marked."""
    begin_ns: int
    """Start of the outage, log append time."""
    cause: str
    """Text that explains the evidence."""
    detected_by: DetectedBy = DetectedBy.PROBES
    candidates: tuple[str, ...] = ()
    """Names that cannot be told apart from the subject."""
    yields_to_carrier: bool = False
    """Whether the fault is dropped if the subject's own port already reports no carrier."""
