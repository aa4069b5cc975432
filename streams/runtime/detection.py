"""The output of detectors that raise alerts directly: the begin, growth or end of a fault state.

Times are log append times, so a detector needs no clock of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemas.records import AlertKind, Severity

SINCE: Final = "{since}"
"""Placeholder in a text, to be replaced by the time of `Detection.since_ns`."""


@dataclass(frozen=True, slots=True)
class EvidenceRef:
    """A reference to a record that supports a detection. `at_ns`: the record's log append time."""

    topic: str
    key: str
    at_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class Detection:
    """The begin, an update or the end of a fault state. Times are ns of log append time."""

    kind: AlertKind
    subject: str
    at_ns: int
    """Time of the detection."""
    since_ns: int
    """Time at which the state began or, if it is over, ended."""
    text: str
    over: bool = False
    severity: Severity = Severity.WARNING
    nics: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    grouped: tuple[str, ...] = ()
    evidence: tuple[EvidenceRef, ...] = ()
