"""Estimates the demand of flows, and the resulting load of each link as a share of its rate.

A flow that competes for a link sends less than it would alone. So its demand is its rate before the
competition. If a flow has always shared its links, its demand is the fair share at both NICs, as in Hedera
(Al-Fares et al., NSDI 2010).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

Links = tuple[str, ...]

PEAK_DECAY_NS: Final = 10_000_000_000
"""Time constant with which a flow's highest rate decays; long, because jobs send in bursts."""
CONFIRM_NS: Final = 1_000_000_000
"""A rate counts as uncontended if no queue is reported for this long after it: reports lag behind queues."""
STEADY_SHARE: Final = 0.5
"""A flow whose mean rate is above this share of its highest rate counts as one that sends all the time."""
MIN_BUSY_SHARE: Final = 0.01
"""A report shows the speed of a flow only if the flow had data to send for this share of the interval."""
BUSY_WEIGHT: Final = 0.3
"""Weight of the newest report in the moving average of busy share and busy rate."""


@dataclass(slots=True)
class Demand:
    """Estimate of the rate that one flow would send without competition, bit/s."""

    alone_bps: float = 0.0
    """Highest recent rate while no link of its path had a queue; 0 if there was always a queue."""
    confirmed_ns: int = 0
    candidate_bps: float = 0.0
    candidate_since_ns: int | None = None
    peak_bps: float = 0.0
    """Highest recent rate, with or without queues."""
    mean_bps: float = 0.0
    """Mean rate over the last complete interval of at least `CONFIRM_NS`."""
    peak_ns: int = 0
    busy: float = 0.0
    """Recent share of the time in which the flow had data to send; 0 if unknown."""
    busy_bps: float = 0.0
    """Mean rate over the reports from which `busy` comes."""
    since: tuple[int, int] | None = None
    """Start of the current mean: time on the host's clock, ns, and bytes sent by then."""

    def update(
        self,
        rate_bps: float,
        contended: bool,
        now_ns: int,
        at_ns: int = 0,
        sent: int = 0,
        busy_share: float | None = None,
    ) -> None:
        """Apply a flow report. `sent`: bytes since the flow began, as of `at_ns` on its host's clock."""
        if busy_share is not None and busy_share >= MIN_BUSY_SHARE:
            weight = BUSY_WEIGHT if self.busy else 1.0
            self.busy += weight * (busy_share - self.busy)
            self.busy_bps += weight * (rate_bps - self.busy_bps)
        decay = math.exp(-max(0, now_ns - self.peak_ns) / PEAK_DECAY_NS)
        self.peak_bps, self.peak_ns = max(decay * self.peak_bps, rate_bps), now_ns
        self._update_mean(at_ns, sent)
        self._update_alone(rate_bps, contended, now_ns)

    def _update_mean(self, at_ns: int, sent: int) -> None:
        if self.since is None or sent < self.since[1]:
            self.since = (at_ns, sent)
        elif at_ns - self.since[0] >= CONFIRM_NS:
            self.mean_bps = (sent - self.since[1]) * 8e9 / (at_ns - self.since[0])
            self.since = (at_ns, sent)

    def _update_alone(self, rate_bps: float, contended: bool, now_ns: int) -> None:
        if contended:
            self.candidate_since_ns = None
        elif self.candidate_since_ns is None:
            self.candidate_bps, self.candidate_since_ns = rate_bps, now_ns
        elif now_ns - self.candidate_since_ns < CONFIRM_NS:
            self.candidate_bps = max(self.candidate_bps, rate_bps)
        else:
            decay = math.exp(-(now_ns - self.confirmed_ns) / PEAK_DECAY_NS)
            self.alone_bps = max(decay * self.alone_bps, self.candidate_bps)
            self.confirmed_ns = now_ns
            self.candidate_bps, self.candidate_since_ns = rate_bps, now_ns

    def bps(
        self, rate_bps: float, bottlenecked: bool, fair_bps: float, *, assume_full_demand: bool = False
    ) -> float:
        """Return the estimated demand, bit/s.

        `bottlenecked`: whether the flow would send more without a queue. `fair_bps`: its fair share at both
        NICs. `assume_full_demand`: count a bottlenecked flow at least at its fair share.
        """
        known_bps = max(self.alone_bps, rate_bps)
        if bottlenecked and (assume_full_demand or not self.alone_bps):
            return max(known_bps, fair_bps)
        return known_bps

    @property
    def duty(self) -> float:
        """Estimated share of the time in which the flow sends, 0 to 1."""
        if not self.mean_bps or self.mean_bps >= STEADY_SHARE * self.peak_bps:
            return 1.0
        return self.mean_bps / self.peak_bps


Group = tuple[str, str | None]
"""A peer and a job; a NIC sends the flows that have these in common at the same time."""


class Weight(NamedTuple):
    """The load that a flow adds to its links."""

    source: str
    """NIC of the sender."""
    group: Group
    mean_bps: float
    burst_bps: float


@dataclass(slots=True)
class _Source:
    """The load of one NIC's flows on one link: mean rate and bursts."""

    mean_bps: float = 0.0
    bursts_bps: dict[Group, float] = field(default_factory=dict)
    max_burst_bps: float = 0.0

    def bps(self) -> float:
        """Return the NIC's part of the link's load, bit/s."""
        return self.mean_bps if self.mean_bps > self.max_burst_bps else self.max_burst_bps

    def bps_with(self, weight: Weight) -> float:
        """Return the NIC's part of the link's load if a flow of this weight were added, bit/s."""
        group_bps = self.bursts_bps.get(weight.group, 0.0) + weight.burst_bps
        return max(self.mean_bps + weight.mean_bps, group_bps, self.max_burst_bps)


# Collectives send in steps. In each step a NIC sends to one peer, over several flows at once, as fast as its
# cable permits. Mean rates do not show which flows overlap on a link. So the larger of two figures counts
# for each NIC: the mean rate of all its flows on the link, or the burst rate of its flows of one job to one
# peer:
#
#     load(link) = sum over NICs of max(sum of mean rates, max over (peer, job) of the sum of burst rates)
#
# Let each of n flows between two NICs have a burst rate of line/n. Then a non-blocking fabric carries every
# step if each such group is spread evenly over its spines, and the sum is exactly the rate of the link.
class Loads:
    """Demand on each directed link. `rate_of` returns a link's bit/s; if it is 0 (unknown), the load is 0."""

    def __init__(self, rate_of: Callable[[str], int]) -> None:
        self._rate_of = rate_of
        self._links: dict[str, dict[str, _Source]] = {}
        self._changes: dict[str, list[tuple[Weight, int]]] = {}
        """Flows that were added (1) or removed (-1) and that `_links` lacks: many links are never read."""
        self._bps: dict[str, float] = {}
        """Cached load of links whose flows have not changed since it was computed."""

    def add(self, links: Links, weight: Weight, sign: int = 1) -> None:
        """Add a flow to these links, or remove it (`sign` -1)."""
        change = weight, sign
        for link in links:
            self._changes.setdefault(link, []).append(change)

    def _apply(self, link: str) -> None:
        """Apply the pending additions and removals of flows to the load of a link."""
        if link not in self._changes:
            return
        sources = self._links.setdefault(link, {})
        self._bps.pop(link, None)
        for weight, sign in self._changes.pop(link):
            source = sources.get(weight.source)
            if source is None:
                source = sources[weight.source] = _Source()
            source.mean_bps += sign * weight.mean_bps
            group_bps = source.bursts_bps.get(weight.group, 0.0) + sign * weight.burst_bps
            source.bursts_bps[weight.group] = group_bps
            if sign > 0:
                source.max_burst_bps = max(source.max_burst_bps, group_bps)
            else:
                source.max_burst_bps = max(source.bursts_bps.values())

    def share(self, link: str, extra: Weight | None = None) -> float:
        """Return the demand on a link as a share of its rate, with the flow `extra` added if given."""
        rate_bps = self._rate_of(link)
        if not rate_bps:
            return 0.0
        self._apply(link)
        bps = self._bps.get(link)
        if bps is None:
            bps = self._bps[link] = sum(source.bps() for source in self._links.get(link, {}).values())
        if extra is not None:
            source = self._links.get(link, {}).get(extra.source, _NO_SOURCE)
            bps += source.bps_with(extra) - source.bps()
        return bps / rate_bps

    def max_share(self, links: Iterable[str], extra: Weight | None = None) -> float:
        """Return the highest `share` of any of these links; 0 without links."""
        return max([self.share(link, extra) for link in links], default=0.0)

    def group_burst_bps(self, links: Iterable[str], weight: Weight, *, added: bool = False) -> float:
        """Return the highest burst on any of `links` by the group of a flow with load `weight`, bit/s.

        `added`: add the flow itself, because it is not on these links yet.
        """
        highest_bps = 0.0
        for link in links:
            self._apply(link)
            source = self._links.get(link, {}).get(weight.source)
            if source is not None:
                highest_bps = max(highest_bps, source.bursts_bps.get(weight.group, 0.0))
        return highest_bps + weight.burst_bps if added else highest_bps


_NO_SOURCE: Final = _Source()
