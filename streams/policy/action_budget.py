"""What was done lately, held against the limits: actions a second, share of flows moved within a minute.

In: `Limits` and the actions that are wanted. Out: whether one may be taken now, else why not.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from schemas.limits import Limits

__all__ = ["Ledger"]

SECOND_NS: Final = 1_000_000_000
MINUTE_NS: Final = 60 * SECOND_NS
RESERVED: Final = 0.5
"""Share of what may be moved within a minute that is kept for flows whose paths die."""


class Ledger:
    """Actions of one shard. A flow that moves again within the minute counts once."""

    def __init__(self) -> None:
        self._actions: dict[str, deque[int]] = {}
        self._moved: dict[str, int] = {}
        """Flow to when it was moved last, ns; the oldest first."""
        self._rated: dict[str, int] = {}
        """Flow to when a change of its rate was counted last, ns; the oldest first."""

    def why_not(
        self, flow_id: str, host: str, limits: Limits, flows: int, now_ns: int, *, urgent: bool
    ) -> str | None:
        """Return what forbids one more action on a flow now, None where nothing does. `flows`: how many
        there are; `urgent`: it may use what is reserved."""
        recent = self._recent(host, now_ns)
        if len(recent) >= limits.max_actions_per_s:
            return "ACTIONS_PER_S"
        self._forget(now_ns)
        if flow_id in self._moved:
            return None
        most = limits.most_moves(flows, 1.0 if urgent else 1 - RESERVED)
        return "MOVED_SHARE" if len(self._moved) >= most else None

    def why_no_rate(self, flow_id: str, host: str, limits: Limits, now_ns: int) -> str | None:
        """Return what forbids that a flow is held to another rate now. Of one flow all changes within
        a second count once: a rate follows its queue."""
        if self._rated.get(flow_id, -SECOND_NS) > now_ns - SECOND_NS:
            return None
        return "ACTIONS_PER_S" if len(self._recent(host, now_ns)) >= limits.max_actions_per_s else None

    def note_rate(self, flow_id: str, host: str, now_ns: int) -> None:
        """Count that a flow is held to another rate."""
        if self._rated.get(flow_id, -SECOND_NS) <= now_ns - SECOND_NS:
            self._recent(host, now_ns).append(now_ns)
            self._rated.pop(flow_id, None)
            self._rated[flow_id] = now_ns
            oldest = next(iter(self._rated))
            if self._rated[oldest] <= now_ns - MINUTE_NS:
                del self._rated[oldest]

    def note(self, flow_id: str, host: str, now_ns: int) -> None:
        """Count an action."""
        self._recent(host, now_ns).append(now_ns)
        self._moved.pop(flow_id, None)
        self._moved[flow_id] = now_ns

    def _recent(self, host: str, now_ns: int) -> deque[int]:
        recent = self._actions.setdefault(host, deque())
        while recent and recent[0] <= now_ns - SECOND_NS:
            recent.popleft()
        return recent

    def _forget(self, now_ns: int) -> None:
        while self._moved:
            oldest = next(iter(self._moved))
            if self._moved[oldest] > now_ns - MINUTE_NS:
                return
            del self._moved[oldest]
