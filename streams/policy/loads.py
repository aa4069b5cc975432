"""What flows would send, and what that makes of links: the loads that policy weighs moves by.

In: flows with the links that they take, links' rates. Out: `Demand` of a flow and `Loads` of links, as shares
of their rates. A flow that contends sends less than it would: what it sent before counts, and of one that
never was alone its fair share of the two NICs, as in Hedera (Al-Fares et al., NSDI 2010).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = ["Demand", "Links", "Loads", "Weight"]

Links = tuple[str, ...]

MEMORY_NS: Final = 10_000_000_000
"""Time constant in which a flow's highest rate is forgotten: jobs send in bursts."""
SURE_NS: Final = 1_000_000_000
"""A rate counts as that of a flow alone once no queue was told of for so long after it: queues stand for a
while before they are."""
STEADY: Final = 0.5
"""Mean over highest rate from which on a flow counts as one that sends all the time."""
LEAST_BUSY: Final = 0.01
"""Share of an interval that a flow must have had something to send for its rate to say how fast it was."""
NEWEST: Final = 0.3
"""Weight of the newest report in what is known of how fast a flow sends while it does."""


@dataclass(slots=True)
class Demand:
    """What one flow would send, bit/s."""

    alone_bps: float = 0.0
    """Highest rate of late while no link of its path queued; 0: it never was so."""
    sure_ns: int = 0
    unsure_bps: float = 0.0
    unsure_since_ns: int | None = None
    peak_bps: float = 0.0
    """Highest rate of late, queues or not."""
    mean_bps: float = 0.0
    """Over the last second or more that was told."""
    peak_ns: int = 0
    busy: float = 0.0
    """Share of the time that it had something to send, of late; 0: not known."""
    busy_bps: float = 0.0
    """Its rate in that time."""
    since: tuple[int, int] | None = None
    """When its mean was taken last, ns on its host's clock, and the bytes that it had sent by then."""

    def hear(
        self, rate_bps: float, contended: bool, now_ns: int, at_ns: int = 0, sent: int = 0,
        busy_share: float | None = None,
    ) -> None:  # fmt: skip
        """Take a reported rate; `sent`: bytes since the flow began, `at_ns` on its host's clock;
        `busy_share`: of the time reported of, that it had something to send."""
        if busy_share is not None and busy_share >= LEAST_BUSY:
            newest = NEWEST if self.busy else 1.0
            self.busy += newest * (busy_share - self.busy)
            self.busy_bps += newest * (rate_bps - self.busy_bps)
        kept = math.exp(-max(0, now_ns - self.peak_ns) / MEMORY_NS)
        self.peak_bps, self.peak_ns = max(kept * self.peak_bps, rate_bps), now_ns
        if self.since is None or sent < self.since[1]:
            self.since = (at_ns, sent)
        elif at_ns - self.since[0] >= SURE_NS:
            self.mean_bps = (sent - self.since[1]) * 8e9 / (at_ns - self.since[0])
            self.since = (at_ns, sent)
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

    @property
    def duty(self) -> float:
        """Share of the time that it sends, as far as its rates tell; 1: all the time."""
        if not self.mean_bps or self.mean_bps >= STEADY * self.peak_bps:
            return 1.0
        return self.mean_bps / self.peak_bps


Group = tuple[str, str | None]
"""A peer and a job: what a NIC sends at the same time."""


class Weight(NamedTuple):
    """What a flow puts on its links."""

    source: str
    """Its NIC."""
    group: Group
    mean_bps: float
    burst_bps: float


@dataclass(slots=True)
class _Source:
    """One NIC's flows over one link."""

    mean_bps: float = 0.0
    bursts_bps: dict[Group, float] = field(default_factory=dict)
    burst_bps: float = 0.0
    """The highest of them."""

    def bps(self) -> float:
        """Return its part of the load."""
        return self.mean_bps if self.mean_bps > self.burst_bps else self.burst_bps

    def with_one_more(self, weight: Weight) -> float:
        """Return its part of the load with one more flow."""
        together = self.bursts_bps.get(weight.group, 0.0) + weight.burst_bps
        return max(self.mean_bps + weight.mean_bps, together, self.burst_bps)


# Collectives send in steps: a NIC speaks to one peer at a time, over several flows at once, as fast as its
# cable lets it. Mean rates do not show what meets on a link then. So of each NIC the larger of two counts:
# what its flows over the link send in the mean, all together, and what the flows of one job to one peer send
# over it while they do:
#
#     load(link) = sum over NICs of max(sum of mean rates, max over (peer, job) of the sum of burst rates)
#
# With a burst rate of line/n for each of n flows between two NICs, a non-blocking fabric carries every step
# where each such group is spread evenly over its spines, and the sum then is just the link's rate.
class Loads:
    """Demand over each directed link. `rate_of`: its bit/s, 0 where not known; such a link weighs nothing."""

    def __init__(self, rate_of: Callable[[str], int]) -> None:
        self._rate_of = rate_of
        self._links: dict[str, dict[str, _Source]] = {}
        self._bps: dict[str, float] = {}
        """Of links that were asked for since their flows changed."""

    def add(self, links: Links, weight: Weight, sign: int = 1) -> None:
        """Let a flow take these links; `sign` -1: no longer."""
        for link in links:
            sources = self._links.get(link)
            if sources is None:
                sources = self._links[link] = {}
            source = sources.get(weight.source)
            if source is None:
                source = sources[weight.source] = _Source()
            source.mean_bps += sign * weight.mean_bps
            together = source.bursts_bps.get(weight.group, 0.0) + sign * weight.burst_bps
            source.bursts_bps[weight.group] = together
            if sign > 0:
                source.burst_bps = max(source.burst_bps, together)
            else:
                source.burst_bps = max(source.bursts_bps.values())
            self._bps.pop(link, None)

    def share(self, link: str, more: Weight | None = None) -> float:
        """Return demand over rate of a link, with one more flow on it."""
        rate_bps = self._rate_of(link)
        if not rate_bps:
            return 0.0
        bps = self._bps.get(link)
        if bps is None:
            bps = self._bps[link] = sum(source.bps() for source in self._links.get(link, {}).values())
        if more is not None:
            source = self._links.get(link, {}).get(more.source, _NOTHING)
            bps += source.with_one_more(more) - source.bps()
        return bps / rate_bps

    def worst(self, links: Iterable[str], more: Weight | None = None) -> float:
        """Return the highest share among these links, with one more flow on each."""
        return max([self.share(link, more) for link in links], default=0.0)

    def together(self, links: Iterable[str], weight: Weight, *, more: bool = False) -> float:
        """Return the highest burst, bit/s, that a flow's own group puts on any of these links; `more`: with
        that flow, which is not on them yet."""
        found = 0.0
        for link in links:
            source = self._links.get(link, {}).get(weight.source)
            if source is not None:
                found = max(found, source.bursts_bps.get(weight.group, 0.0))
        return found + weight.burst_bps if more else found


_NOTHING: Final = _Source()
