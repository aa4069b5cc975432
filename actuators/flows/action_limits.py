"""Limits over a host's recent actions: actions per second, and flows moved per minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

SECOND_NS: Final = 1_000_000_000
MINUTE_NS: Final = 60 * SECOND_NS


class ActionLimits:
    """Counts the recent actions and moves of one host, on a monotonic clock."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._actions: deque[int] = deque()
        """Times of the actions within the last second."""
        self._moved: dict[str, int] = {}
        """Maps flow moved within the last minute to the time of the move, oldest first."""

    def admit(self, max_actions_per_s: int) -> bool:
        """Count an action and return True if the host is below its limit; else return False."""
        now_ns = self._clock_ns()
        while self._actions and now_ns - self._actions[0] >= SECOND_NS:
            self._actions.popleft()
        if len(self._actions) >= max_actions_per_s:
            return False
        self._actions.append(now_ns)
        return True

    def add_move(self, key: str) -> None:
        """Count a move of a flow."""
        self._moved.pop(key, None)
        self._moved[key] = self._clock_ns()
        self._drop_old_moves()

    def may_move(self, key: str, max_flows: int) -> bool:
        """Return True if the flow moved within the last minute, or if fewer than `max_flows` flows did."""
        self._drop_old_moves()
        return key in self._moved or len(self._moved) < max_flows

    def _drop_old_moves(self) -> None:
        oldest_ns = self._clock_ns() - MINUTE_NS
        while self._moved:
            oldest = next(iter(self._moved))
            if self._moved[oldest] > oldest_ns:
                return
            del self._moved[oldest]
