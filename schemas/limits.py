"""The limits on actions at one host, as `fabric.config` sets them, for policy and actuators.

`Limits` combines the newest `ActuatorConfig` of key `*` with that of the host. Values of the host's record
override those of `*`; the protected jobs of both records apply. The default mode is OBSERVE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from schemas.records import ActMode, ActuatorConfig, FlowAction

EVERYONE: Final = "*"
ALLOWED: Final[frozenset[str]] = frozenset({FlowAction.REROUTE, FlowAction.RESTORE})
DEFAULT_ACTIONS_PER_S: Final = 100
DEFAULT_MOVED_SHARE: Final = 0.5
MAX_VERSION: Final = 2**53
"""Highest version of one record; higher ones count as this one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits in force at one host."""

    act: bool = False
    """True if decisions are carried out; else they are only published (OBSERVE)."""
    allowed: frozenset[str] = ALLOWED
    max_actions_per_s: int = DEFAULT_ACTIONS_PER_S
    """Largest number of actions within any second at this host."""
    max_moved_share: float = DEFAULT_MOVED_SHARE
    """Largest share of a shard's flows that may move within any minute, 0 to 1."""
    protected_jobs: frozenset[str] = frozenset()
    revert_before_ns: int = 0
    """Actions that were applied before this fabric time are undone; 0 undoes none."""
    drains_reset_ns: int = 0
    """Drains before this time do not count for the circuit breaker of drains."""
    version: int = 0
    """Sum of the versions of both records; decisions carry it as `config_version`."""

    def max_moves(self, flows: int, part: float = 1.0) -> int:
        """Return how many of `flows` may move within a minute, by `part` (0 to 1) of the allowed share.

        The result is at least one, unless the share is 0.
        """
        share = part * self.max_moved_share
        return max(1, int(share * flows)) if share > 0 else 0

    @classmethod
    def of(cls, records: Mapping[str, ActuatorConfig], host: str) -> Limits:
        """Combine the `ActuatorConfig` records in `records`, by key, to the limits in force at a host."""
        in_force = [records[key] for key in dict.fromkeys((EVERYONE, host)) if key in records]
        act, allowed, actions = False, ALLOWED, DEFAULT_ACTIONS_PER_S
        for record in in_force:
            if record["mode"] != ActMode.UNKNOWN:
                act = record["mode"] == ActMode.ACT
            allowed = frozenset(record["allowed_actions"]) or allowed
            if record["max_actions_per_s"] is not None:
                actions = record["max_actions_per_s"]
        return cls(
            act, allowed, actions,
            _moved_share(records.get(EVERYONE)),
            frozenset(job for record in in_force for job in record["protected_jobs"]),
            max((record["revert_before_ns"] or 0 for record in in_force), default=0),
            (records[EVERYONE]["drains_reset_ns"] or 0) if EVERYONE in records else 0,
            sum(min(record["version"], MAX_VERSION) for record in in_force),
        )  # fmt: skip


def _moved_share(record: ActuatorConfig | None) -> float:
    share = None if record is None else record["max_moved_share"]
    return DEFAULT_MOVED_SHARE if share is None else min(1.0, max(0.0, share))
