"""What may be done to the flows of one host: the limits that `fabric.config` sets, for policy and actuators.

In: the newest `ActuatorConfig` of `*` and of each host. Out: `Limits`. A host's own record goes before that
of `*`, value by value; protected jobs add up. Where nothing sets the mode it is OBSERVE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["EVERYONE", "MOST_VERSION", "Limits"]

EVERYONE: Final = "*"
ALLOWED: Final = frozenset({"REROUTE", "RESTORE"})
MOST_ACTIONS_PER_S: Final = 100
MOST_MOVED_SHARE: Final = 0.5
MOST_VERSION: Final = 2**53
"""Of one record; a higher one, which nobody counts up to, is taken for this one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits in force at one host."""

    act: bool = False
    """Whether decisions are carried out; else they are only told (OBSERVE)."""
    allowed: frozenset[str] = ALLOWED
    max_actions_per_s: int = MOST_ACTIONS_PER_S
    """Within any second, at this host."""
    max_moved_share: float = MOST_MOVED_SHARE
    """Of a shard's flows, within any minute: 0 to 1."""
    protected_jobs: frozenset[str] = frozenset()
    revert_before_ns: int = 0
    """Fabric time: what was applied before it is undone; 0: nothing."""
    version: int = 0
    """Versions of the records that it is made of, added up: what a decision names as its config."""

    def most_moves(self, flows: int, part: float = 1.0) -> int:
        """Return how many of `flows` may move within a minute, by `part` of the share: one at least, unless
        that is 0."""
        share = part * self.max_moved_share
        return max(1, int(share * flows)) if share > 0 else 0

    @classmethod
    def of(cls, records: Mapping[str, Mapping[str, Any]], host: str) -> Limits:
        """Return the limits at a host, of `ActuatorConfig` records by key."""
        found = [records[key] for key in dict.fromkeys((EVERYONE, host)) if key in records]
        act, allowed, actions = False, ALLOWED, MOST_ACTIONS_PER_S
        for record in found:
            act = act if record["mode"] == "UNKNOWN" else record["mode"] == "ACT"
            allowed = frozenset(record["allowed_actions"]) or allowed
            if record["max_actions_per_s"] is not None:
                actions = record["max_actions_per_s"]
        share = records[EVERYONE]["max_moved_share"] if EVERYONE in records else None
        return cls(
            act, allowed, actions,
            MOST_MOVED_SHARE if share is None else min(1.0, max(0.0, share)),
            frozenset(job for record in found for job in record["protected_jobs"]),
            max((record.get("revert_before_ns") or 0 for record in found), default=0),
            sum(min(record["version"], MOST_VERSION) for record in found),
        )  # fmt: skip
