"""What flows would send, and what that makes of links: the loads that policy weighs moves by.

In: flows with the links that they take, links' rates. Out: `Demand` of a flow and `Loads` of links, as shares
of their rates. A flow that contends sends less than it would: what it sent before counts, and of one that
never was alone its fair share of the two NICs, as in Hedera (Al-Fares et al., NSDI 2010).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["Demand", "Links", "Loads"]

Links = tuple[str, ...]

MEMORY_NS: Final = 10_000_000_000
"""Time constant in which a flow's highest rate is forgotten: jobs send in bursts."""
SURE_NS: Final = 1_000_000_000
"""A rate counts as that of a flow alone once no queue was told of for so long after it: queues stand for a
while before they are."""


@dataclass(slots=True)
class Demand:
    """What one flow would send, bit/s."""

    alone_bps: float = 0.0
    """Highest rate of late while no link of its path queued; 0: it never was so."""
    sure_ns: int = 0
    unsure_bps: float = 0.0
    unsure_since_ns: int | None = None

    def hear(self, rate_bps: float, contended: bool, now_ns: int) -> None:
        """Take a reported rate."""
        if contended:
            self.unsure_since_ns = None
        elif self.unsure_since_ns is None:
            self.unsure_bps, self.unsure_since_ns = rate_bps, now_ns
        elif now_ns - self.unsure_since_ns < SURE_NS:
            self.unsure_bps = max(self.unsure_bps, rate_bps)
        else:
            kept = math.exp(-(now_ns - self.sure_ns) / MEMORY_NS)
            self.alone_bps = max(kept * self.alone_bps, self.unsure_bps)
            self.sure_ns = now_ns
            self.unsure_bps, self.unsure_since_ns = rate_bps, now_ns

    def bps(self, rate_bps: float, squeezed: bool, fair_bps: float, *, doubted: bool = False) -> float:
        """Return its demand. `squeezed`: it would send more if a queue did not stand; `fair_bps`: its share
        of both NICs; `doubted`: what it sent alone explains no queue, although one stands."""
        known_bps = max(self.alone_bps, rate_bps)
        return max(known_bps, fair_bps) if squeezed and (doubted or not self.alone_bps) else known_bps


class Loads:
    """Demand over each directed link. `rate_of`: its bit/s, 0 where not known; such a link weighs nothing."""

    def __init__(self, rate_of: Callable[[str], int]) -> None:
        self._rate_of = rate_of
        self._bps: dict[str, float] = {}

    def add(self, links: Links, bps: float) -> None:
        """Let so much more flow over these links; below 0: less."""
        for link in links:
            self._bps[link] = self._bps.get(link, 0.0) + bps

    def share(self, link: str, more_bps: float = 0.0) -> float:
        """Return demand over rate of a link, with so much more on it."""
        rate_bps = self._rate_of(link)
        return (self._bps.get(link, 0.0) + more_bps) / rate_bps if rate_bps else 0.0

    def worst(self, links: Iterable[str], more_bps: float = 0.0) -> float:
        """Return the highest share among these links, with so much more on each."""
        return max((self.share(link, more_bps) for link in links), default=0.0)
