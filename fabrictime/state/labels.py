"""Readable names and texts for the identifiers in records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from schemas.records import ActionOutcome, AlertKind, ContentionKind, Verdict

ALIASED_SHOWN: Final = 3
LEVEL_COLOURS: Final = {"ok": "green", "warn": "yellow", "bad": "red", "wait": "dim"}
"""Colour of the sentence of health in a terminal, by its level."""
_SPELLED: Final[dict[str, str]] = {
    Verdict.PCIE_LIMIT: "PCIe limit",
    AlertKind.NIC_DOWN: "NIC down",
    ActionOutcome.APPLIED: "done",
    ActionOutcome.NO_FLOW: "no such flow",
}
_NAMES: Final = {f"{verdict}:" for verdict in Verdict}.union(
    name for kinds in (Verdict, AlertKind, ContentionKind, ActionOutcome) for name in kinds if "_" in name
)
_RAW: Final = re.compile(
    r"[^\s<>]*[:/][^\s<>]*<?>[^\s<>]+|(?<=\d )us\b|\b[A-Z]+(?:_[A-Z]+)+\b|(?<=: )[A-Z]+:"
)
"""Matches what records contain for programs: cables and links, microseconds, and the names of kinds."""


def arrow(link: str) -> str:
    """Return a link as text such as `leaf1:swp3 → spine2:swp1`; a cable has an arrow in both directions."""
    return link.replace("<>", " ⇄ ") if "<>" in link else link.replace(">", " → ")


def kind_label(kind: str) -> str:
    """Return the readable name of a kind, verdict or outcome, such as `slow flow`."""
    return _SPELLED.get(kind) or kind.lower().replace("_", " ")


def verdict_label(verdict: str) -> str:
    """Return the readable name of a job's verdict."""
    return "not enough evidence" if verdict == Verdict.UNKNOWN else kind_label(Verdict(verdict))


def aliased_text(cables: Sequence[str], subject: str = "") -> str:
    """Return a sentence about cables that may be at fault instead of the named one; empty if there are none.

    All cables of a host would have to fail at once to be at fault instead of the host. `subject` is this
    host.
    """
    if len(cables) > 1 and all(f"<>{subject}:" in f"<>{cable}" for cable in cables):
        return ""
    more = f" and {len(cables) - ALIASED_SHOWN} more" if len(cables) > ALIASED_SHOWN else ""
    names = ", ".join(map(arrow, cables[:ALIASED_SHOWN])) + more
    return names and f"May be {names} instead: the same paths cross them, so probes cannot distinguish them."


def readable(text: str) -> str:
    """Return a record's text with readable arrows, units and names of kinds."""
    return _RAW.sub(_replacement, text)


def _replacement(match: re.Match[str]) -> str:
    raw = match[0]
    if ">" in raw:
        return arrow(raw)
    return "µs" if raw == "us" else kind_label(raw) if raw in _NAMES else raw
