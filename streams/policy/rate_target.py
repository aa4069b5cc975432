"""What pacing and slices share: a rate that a flow is to be held to; highest and lowest figures of late."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Low", "Peak", "Target"]


class Target(NamedTuple):
    """A rate that one flow is to be held to, bit/s."""

    rate_bps: float
    reason: str
    urgent: bool = False


@dataclass(slots=True)
class Peak:
    """The highest rate, bit/s, heard within the last one to two `half_ns`."""

    half_ns: int
    began_ns: int
    now_bps: float = 0.0
    before_bps: float = 0.0
    none_bps: float = 0.0

    def hear(self, rate_bps: float, now_ns: int) -> None:
        """Take a rate."""
        self._turn(now_ns)
        self.now_bps = max(self.now_bps, rate_bps)

    def bps(self, now_ns: int) -> float:
        """Return the highest."""
        self._turn(now_ns)
        return max(self.now_bps, self.before_bps)

    def _turn(self, now_ns: int) -> None:
        if now_ns - self.began_ns >= 2 * self.half_ns:
            self.before_bps = self.now_bps = self.none_bps
            self.began_ns = now_ns
        elif now_ns - self.began_ns >= self.half_ns:
            self.before_bps, self.now_bps = self.now_bps, self.none_bps
            self.began_ns += self.half_ns


class Low:
    """The lowest figure heard within the last one to two `half_ns`."""

    def __init__(self, half_ns: int, began_ns: int) -> None:
        self._most = Peak(half_ns, began_ns, -math.inf, -math.inf, -math.inf)

    def hear(self, figure: float, now_ns: int) -> None:
        """Take a figure."""
        self._most.hear(-figure, now_ns)

    def value(self, now_ns: int) -> float:
        """Return the lowest."""
        return -self._most.bps(now_ns)
