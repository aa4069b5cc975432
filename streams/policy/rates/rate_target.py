"""Types that pacing and slices share: a target rate for a flow, and the recent maximum and minimum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from schemas.reasons import Reason


class RateTarget(NamedTuple):
    """A rate limit for one flow, bit/s."""

    rate_bps: float
    reason: Reason
    urgent: bool = False


@dataclass(slots=True)
class RecentMax:
    """The highest recent rate, bit/s. 'Recent' spans between `half_ns` and twice `half_ns`."""

    half_ns: int
    began_ns: int
    current_bps: float = 0.0
    previous_bps: float = 0.0
    empty_bps: float = 0.0
    """Result for a half without any rate, bit/s."""

    def add(self, rate_bps: float, now_ns: int) -> None:
        """Add a rate, bit/s, observed at `now_ns`."""
        self._advance(now_ns)
        self.current_bps = max(self.current_bps, rate_bps)

    def bps(self, now_ns: int) -> float:
        """Return the highest recent rate, bit/s."""
        self._advance(now_ns)
        return max(self.current_bps, self.previous_bps)

    def _advance(self, now_ns: int) -> None:
        if now_ns - self.began_ns >= 2 * self.half_ns:
            self.previous_bps = self.current_bps = self.empty_bps
            self.began_ns = now_ns
        elif now_ns - self.began_ns >= self.half_ns:
            self.previous_bps, self.current_bps = self.current_bps, self.empty_bps
            self.began_ns += self.half_ns


class RecentMin:
    """The lowest recent value. 'Recent' spans between `half_ns` and twice `half_ns`."""

    def __init__(self, half_ns: int, began_ns: int) -> None:
        self._negated = RecentMax(half_ns, began_ns, -math.inf, -math.inf, -math.inf)

    def add(self, figure: float, now_ns: int) -> None:
        """Add a value observed at `now_ns`."""
        self._negated.add(-figure, now_ns)

    def value(self, now_ns: int) -> float:
        """Return the lowest recent value; inf if there are none."""
        return -self._negated.bps(now_ns)
