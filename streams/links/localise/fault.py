"""The output of a localiser: one dead subject and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.records import DetectedBy, HealthKind


@dataclass(frozen=True, slots=True)
class Fault:
    """A dead cable, NIC or host that a localiser found, with its start, cause and alternatives."""

    subject: str
    kind: HealthKind
    elements: tuple[int, ...]
    """Elements that are dead with the subject, in the order in which they are to be marked."""
    begin_ns: int
    """Start of the outage, log append time."""
    cause: str
    """Text that explains the evidence."""
    detected_by: DetectedBy = DetectedBy.PROBES
    candidates: tuple[str, ...] = ()
    """Other subjects that the evidence cannot tell apart from this one."""
    yields_to_carrier: bool = False
    """Whether to drop the fault if the subject's own port has already reported that it has no carrier."""
