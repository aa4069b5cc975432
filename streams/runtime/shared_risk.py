"""Dead switches by shared risk: members that fail together at one node have one cause.

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
    """Limits for one cause behind several failures at a node."""

    min_members: int
    """Members that must have failed."""
    window_ns: int | None = None
    """Time within which they must have failed; None: the caller has another criterion."""
    min_share: float = 0.0
    """Share of the node's members that must have failed."""

    def has_enough(self, failed: int, members: int = 0) -> bool:
        """Return whether so many failures have one cause; `members`: of the node, 0 if unknown."""
        return failed >= max(self.min_members, members * self.min_share)


SILENT_CABLES: Final = SharedRiskRules(min_members=3)
"""Cables without an answer. A switch with fewer cables is the cause if all but one need an explanation."""
SILENT_NICS: Final = SharedRiskRules(min_members=2, window_ns=200 * NS_PER_MS)
"""NICs of one leaf. Their last answers lie within a few probe intervals of each other."""
DOWN_CABLES: Final = SharedRiskRules(min_members=3, window_ns=2 * NS_PER_S, min_share=0.5)
"""Published deaths of cables. Their start times differ by more than those of the evidence."""


def group_by_node(failed: Iterable[tuple[Member, Iterable[str]]]) -> dict[str, set[Member]]:
    """Group failed members, each given with its nodes, by node."""
    groups: dict[str, set[Member]] = {}
    for member, nodes in failed:
        for node in nodes:
            groups.setdefault(node, set()).add(member)
    return groups
