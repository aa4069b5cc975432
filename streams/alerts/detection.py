"""What a watch found out, as alerts take it: raised, told of more, over.

In: a watch's verdict. Out: `Finding`. Times are of the log's clock, so that a verdict needs no clock of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["SINCE", "Finding", "Proof"]

SINCE: Final = "{since}"
"""Stands in a text for the time of `Finding.since_ns`."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A record that a finding stands on: `at_ns` is when the log took it, ns."""

    topic: str
    key: str
    at_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A state that begins, that more is known of, or that is over. Times are ns of log append time."""

    kind: str
    """Of `Alert.kind`."""
    subject: str
    at_ns: int
    """When this was found."""
    since_ns: int
    """When it began, or was over."""
    text: str
    over: bool = False
    severity: str = "WARNING"
    nics: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    grouped: tuple[str, ...] = ()
    proofs: tuple[Proof, ...] = ()
