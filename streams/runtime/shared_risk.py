"""Finds dead switches by shared risk: members (cables or NICs) that fail together at one node have one cause.

Three callers use this rule with their own limits. Probe evidence groups silent cables, and NICs that stop
answering. Alerts group cables that are DOWN.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from streams.runtime.units import NS_PER_MS, NS_PER_S

Member = TypeVar("Member", str, int)


@dataclass(frozen=True, slots=True)
class SharedRiskRules:
    """Limits that decide whether several failures at a node have one cause."""

    min_members: int
    """Smallest number of members that must have failed."""
    window_ns: int | None = None
    """Time within which they must have failed; None if the caller has another criterion."""
    min_share: float = 0.0
    """Smallest share of the node's members that must have failed."""

    def has_enough(self, failed: int, members: int = 0) -> bool:
        """Return whether `failed` of a node's `members` (0 if unknown) indicate one common cause."""
        return failed >= max(self.min_members, members * self.min_share)


SILENT_CABLES: Final = SharedRiskRules(min_members=3)
"""Limits for cables without an answer. A switch with fewer is the cause if all but one are unexplained."""
SILENT_NICS: Final = SharedRiskRules(min_members=2, window_ns=200 * NS_PER_MS)
"""Limits for NICs of one leaf. Their last answers lie within a few probe intervals of each other."""
DOWN_CABLES: Final = SharedRiskRules(min_members=3, window_ns=2 * NS_PER_S, min_share=0.5)
"""Limits for cables published as dead. Their start times differ by more than those of the evidence."""


def group_by_node(failed: Iterable[tuple[Member, Iterable[str]]]) -> dict[str, set[Member]]:
    """Return, for each node, its failed members. `failed`: each failed member with its nodes."""
    groups: dict[str, set[Member]] = {}
    for member, nodes in failed:
        for node in nodes:
            groups.setdefault(node, set()).add(member)
    return groups
