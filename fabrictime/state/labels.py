"""Names of links and verdicts in the form for readers."""

from __future__ import annotations

from typing import Final

from schemas.records import Verdict

_SPELLED: Final = {Verdict.PCIE_LIMIT: "PCIe limit", Verdict.UNKNOWN: "not enough evidence"}


def arrow(link: str) -> str:
    """Return a link as `leaf1:swp3 → spine2:swp1`, and a cable with an arrow in both directions."""
    return link.replace("<>", " ⇄ ") if "<>" in link else link.replace(">", " → ")


def verdict_label(verdict: str) -> str:
    """Return a job's verdict in words, such as `slow flow`."""
    kind = Verdict(verdict)
    return _SPELLED.get(kind) or kind.lower().replace("_", " ")
