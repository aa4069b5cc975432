"""Counts recent actions against the limits: actions per second and host, share of flows moved per minute."""

from __future__ import annotations

from collections import deque
from typing import Final

from schemas.limits import Limits
from streams.runtime.units import NS_PER_S

NS_PER_MINUTE: Final = 60 * NS_PER_S
RESERVED_SHARE: Final = 0.5
"""Share of the moves per minute that is reserved for urgent moves, so that failover always has moves left.

Other moves may use the rest even if urgent moves exceed their reserve. So a link failure elsewhere does not
delay the relief of a collision by a minute.
"""


class ActionBudget:
    """The recent actions of one shard. A flow that moves again within the minute counts once."""

    def __init__(self) -> None:
        self._actions: dict[str, deque[int]] = {}
        self._moved: dict[str, int] = {}
        """Time of the last move of each flow, ns; oldest first."""
        self._moved_calmly: dict[str, int] = {}
        """The same for flows whose moves count as not urgent."""
        self._rated: dict[str, int] = {}
        """Time at which a rate change of each flow was last counted, ns; oldest first."""

    def check_move(
        self, flow_id: str, host: str, limits: Limits, flows: int, now_ns: int, *, urgent: bool
    ) -> str | None:
        """Return the name of the limit that forbids moving a flow now, or None.

        `flows` is the number of flows in the shard. An `urgent` move may use the reserved share. In total, at
        most `limits.max_moves` flows move within a minute.
        """
        recent = self._recent(host, now_ns)
        if len(recent) >= limits.max_actions_per_s:
            return "ACTIONS_PER_S"
        for moved in (self._moved, self._moved_calmly):
            _forget(moved, now_ns)
        if flow_id in self._moved:
            return None
        is_spent = len(self._moved) >= limits.max_moves(flows)
        if not urgent:
            is_spent |= len(self._moved_calmly) >= limits.max_moves(flows, 1 - RESERVED_SHARE)
        return "MOVED_SHARE" if is_spent else None

    def check_rate(self, flow_id: str, host: str, limits: Limits, now_ns: int) -> str | None:
        """Return the name of the limit that forbids changing a flow's rate now, or None.

        All rate changes of a flow within a second count as one, because a rate follows its queue closely.
        """
        if self._rated.get(flow_id, -NS_PER_S) > now_ns - NS_PER_S:
            return None
        return "ACTIONS_PER_S" if len(self._recent(host, now_ns)) >= limits.max_actions_per_s else None

    def count_rate(self, flow_id: str, host: str, now_ns: int) -> None:
        """Count a change of a flow's rate."""
        if self._rated.get(flow_id, -NS_PER_S) > now_ns - NS_PER_S:
            return
        self._recent(host, now_ns).append(now_ns)
        self._rated.pop(flow_id, None)
        self._rated[flow_id] = now_ns
        oldest = next(iter(self._rated))
        if self._rated[oldest] <= now_ns - NS_PER_MINUTE:
            del self._rated[oldest]

    def count_move(self, flow_id: str, host: str, now_ns: int, *, urgent: bool) -> None:
        """Count a move of a flow.

        A flow's first move within the minute decides whether all its moves count as urgent. So if failover
        moved a flow, the move back does not use the share of the moves that are not urgent.
        """
        self._recent(host, now_ns).append(now_ns)
        for moved in (self._moved, self._moved_calmly):
            _forget(moved, now_ns)
        is_calm = flow_id in self._moved_calmly or (not urgent and flow_id not in self._moved)
        for moved in (self._moved, self._moved_calmly) if is_calm else (self._moved,):
            moved.pop(flow_id, None)
            moved[flow_id] = now_ns

    def _recent(self, host: str, now_ns: int) -> deque[int]:
        """Return the times, ns, of a host's actions within the last second."""
        recent = self._actions.setdefault(host, deque())
        while recent and recent[0] <= now_ns - NS_PER_S:
            recent.popleft()
        return recent


def _forget(moved: dict[str, int], now_ns: int) -> None:
    """Drop the moves that are older than a minute."""
    while moved:
        oldest = next(iter(moved))
        if moved[oldest] > now_ns - NS_PER_MINUTE:
            return
        del moved[oldest]
