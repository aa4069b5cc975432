"""Shares of tenants: to which rate each flow is held so that every tenant has what it is promised everywhere.

In: `ActuatorConfig.slices`, the flows as of now with links, tenants and rates. Out: the rates wanted, by
flow, of flows that need one. Pure: times are the caller's. Hosts alone enforce it, flow by flow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.policy.rate_target import Low, Peak, Target
from streams.runtime.flow_table import LiveFlow

__all__ = ["Filled", "Group", "SliceRules", "Slices", "fill"]

Record = dict[str, Any]
Float64s = NDArray[np.float64]

MS: Final = 1_000_000
S: Final = 1_000 * MS
CLOSE: Final = 1e-9
"""Relative: what is nearer than this to a limit is at it."""


@dataclass(frozen=True, slots=True)
class SliceRules:
    """How demand is judged, and what is kept free."""

    fill_share: float = 0.97
    """Share of a link's rate that is given out: the rest lets demand be seen to grow."""
    full_share: float = 0.9
    """Share of its rate from which on a link counts as full."""
    used_share: float = 0.85
    """Share of its limit from which on a flow uses it."""
    growth: float = 1.1
    """A flow that leaves some of what it is given is given so much times its highest rate of late."""
    spare_share: float = 0.01
    """And all of them together this share of a link, so that what is idle can begin."""
    noticed_share: float = 0.02
    """Share of a link below which a flow that grows is not taken to want all."""
    peak_ns: int = 1 * S
    """Rates of late: of one to two of these."""
    settle_ns: int = 1_200 * MS
    """A flow leaves some of its limit where it used none of those that it had within this."""
    idle_share: float = 0.1
    """One that uses less than this share of it leaves it at once."""
    linger_ns: int = 5 * S
    """A limit is kept for so long after it was needed last."""
    linger_share: float = 0.05
    """And is then no less than this share of the flow's slowest link."""
    absent_ns: int = 30 * S
    """A tenant that sent nothing over a link for so long has nothing at risk there."""
    step_ns: int = 100 * MS
    """Least time between two fillings."""


class _Slice(NamedTuple):
    guarantee_bps: float
    ceiling_bps: float


class Group(NamedTuple):
    """Flows, by number, that together may have so much."""

    name: str
    most_bps: float
    flows: list[int]


class Filled(NamedTuple):
    """What filling gave."""

    rate_bps: Float64s
    stopped: list[int]
    """Of each flow the number of the group that stopped it; -1: its demand is met."""


# Filling. Flow i of tenant t crosses links; link l gives out F = fill x rate. Rates r rise together until
# something stops them (max-min by progressive filling: Bertsekas and Gallager, Data Networks, 6.5), twice:
#
# 1. Promised: flows of tenants with a guarantee g, evenly, each until its demand is met or on one of its
#    links the tenant has g there (scaled down where the promises at a link add up to more than F).
# 2. What is left: all flows go on from there until their demand is met, a link has given F, or the tenant its
#    ceiling on a link. Tenants rise evenly, whatever number of flows each has: a flow's weight is one over
#    its tenant's count. So r is work-conserving: a flow that got less than it wants crosses a full link, or
#    one where its tenant has its ceiling.
#
# What takes part and cannot be held counts first, at the rate that it has.
def fill(demand_bps: Float64s, weight: Float64s, groups: list[Group], from_bps: Float64s) -> Filled:
    """Let the rates of all flows rise from `from_bps`, in proportion to their weights, each until its demand
    is met or one of its groups is full. Raises ValueError where nothing stops one.

    Each turn finds the least rise at which a group is full if nobody's demand were met before. Demands met up
    to there are met whatever else happens, and only where there are none is that group full.
    """
    rate = np.minimum(from_bps, demand_bps)
    stopped = [-1] * len(rate)
    rising = (rate < demand_bps * (1 - CLOSE)) & (weight > 0)
    members = [np.array(group.flows, np.int64) for group in groups]
    of_flow: list[list[int]] = [[] for _ in rate]
    for number, group in enumerate(groups):
        for flow in group.flows:
            of_flow[flow].append(number)
    left = np.array([group.most_bps for group in groups]) - [rate[flows].sum() for flows in members]
    pull = np.array([weight[flows[rising[flows]]].sum() for flows in members])
    while rising.any():
        live = pull > CLOSE * weight.max()
        rises = np.where(live, np.maximum(left, 0.0) / np.where(live, pull, 1.0), math.inf)
        first = int(np.argmin(rises)) if len(rises) else -1
        least = float(rises[first]) if first >= 0 else math.inf
        needs = np.where(rising, (demand_bps - rate) / np.where(rising, weight, 1.0), math.inf)
        met = rising & (needs <= least)
        if math.isinf(least) and np.isinf(demand_bps[rising]).any():
            raise ValueError("fill: a flow that wants all and is in no group that ends, expected one")
        if met.any():
            chosen, to = np.flatnonzero(met), demand_bps[met]
        else:
            chosen = members[first][rising[members[first]]]
            to = rate[chosen] + weight[chosen] * least
            for flow in chosen.tolist():
                stopped[flow] = first
        # Those chosen stop here. The others' rise is made up when they are: nothing is full before `least`.
        grown = to - rate[chosen]
        rate[chosen] = to
        rising[chosen] = False
        for flow, more in zip(chosen.tolist(), grown.tolist(), strict=True):
            for number in of_flow[flow]:
                left[number] -= more
                pull[number] -= weight[flow]
    return Filled(rate, stopped)


@dataclass(slots=True)
class _Flow:
    """What is known of one flow."""

    live: LiveFlow
    peak: Peak
    wants: bool = False
    """Whether it is taken to want all there is."""
    demand_bps: float = 0.0
    limit_bps: float | None = None
    low: Low | None = None
    """Of its limits of late."""
    needed_ns: int = 0
    reason: str = ""
    sent_ns: int = 0


# Demand. A flow's rate is its demand while it uses less than it is given, and a little more, so that growth
# is seen; one that uses what it is given, or outgrows what it was thought to want, is taken to want all there
# is, until it is seen to leave some of it. So a tenant that comes back has its guarantee with the next
# report.
class Slices:
    """The shares of one shard's tenants. `rate_of`: a directed link's bit/s, 0 where it is not known."""

    def __init__(self, rate_of: Callable[[str], int], rules: SliceRules | None = None) -> None:
        self.rules = rules or SliceRules()
        self._rate_of = rate_of
        self._slices: dict[str, _Slice] = {}
        self._flows: dict[str, _Flow] = {}
        self._filled_ns: int | None = None
        self._targets: dict[str, Target] = {}
        self.scaled: frozenset[str] = frozenset()
        """Links where guarantees add up to more than is given out."""
        self.links: frozenset[str] = frozenset()
        """Links where a tenant has something at risk: they are shared out here."""

    def take_slices(self, slices: Iterable[Record]) -> None:
        """Take `ActuatorConfig.slices`; a tenant's last element counts."""
        found = {}
        for each in slices:
            ceiling = math.inf if each["ceiling_bps"] is None else float(each["ceiling_bps"])
            if each["guarantee_bps"] or ceiling < math.inf:
                found[each["tenant"]] = _Slice(min(float(each["guarantee_bps"]), ceiling), ceiling)
        if found != self._slices:
            self._slices, self._filled_ns = found, None

    def decide(
        self, now_ns: int, flows: Iterable[LiveFlow], may: Callable[[LiveFlow, str], bool] | None = None
    ) -> dict[str, Target]:
        """Return the rates wanted at `now_ns`, fabric time, by flow; a flow that is not named is let go.
        `may`: whether SLICE of a flow is allowed."""
        if not self._slices:
            self._flows.clear()
            self._targets, self.links = {}, frozenset()
            return {}
        if self._filled_ns is not None and now_ns - self._filled_ns < self.rules.step_ns:
            return self._targets
        self._filled_ns = now_ns
        taking = self._taking_part(now_ns, flows)
        self._judge(taking, now_ns)
        self._targets = self._share(taking, may, now_ns)
        return self._targets

    # ------------------------------------------------------------------------------------ what there is

    def _taking_part(self, now_ns: int, flows: Iterable[LiveFlow]) -> list[tuple[_Flow, list[str]]]:
        """Return the flows that promises are about, by id, each with the links where they are."""
        rules, live = self.rules, [flow for flow in flows if flow.hops]
        here = {flow.flow_id for flow in live}
        for name in [name for name in self._flows if name not in here]:
            del self._flows[name]
        promised: set[str] = set()
        for flow in live:
            of_tenant = self._slices.get(flow.tenant or "")
            if of_tenant is None or not of_tenant.guarantee_bps:
                continue
            known = self._flows.get(flow.flow_id)
            if flow.rate_bps > 0 or known is None or now_ns - known.sent_ns < rules.absent_ns:
                promised.update(link for link in flow.hops if self._rate_of(link))
        self.links = frozenset(promised)
        found = []
        for flow in live:
            of_tenant = self._slices.get(flow.tenant or "")
            links = [link for link in flow.hops if link in promised]
            if not links and (of_tenant is None or math.isinf(of_tenant.ceiling_bps)):
                self._flows.pop(flow.flow_id, None)
                continue
            f = self._flows.get(flow.flow_id)
            if f is None:
                f = self._flows[flow.flow_id] = _Flow(flow, Peak(rules.peak_ns, now_ns), sent_ns=now_ns)
                f.demand_bps = -1.0
            found.append((f, links))
            if f.demand_bps < 0 or f.live is not flow:
                f.live = flow
                f.peak.hear(flow.rate_bps, now_ns)
                if flow.rate_bps > 0:
                    f.sent_ns = now_ns
        found.sort(key=lambda each: each[0].live.flow_id)
        return found

    # ------------------------------------------------------------------------------------ demand

    def _judge(self, taking: list[tuple[_Flow, list[str]]], now_ns: int) -> None:
        """Judge what flows want."""
        rules = self.rules
        sent: Counter[str] = Counter()
        for f, links in taking:
            for link in links:
                sent[link] += f.live.rate_bps  # type: ignore[assignment]
        full = {link for link, bps in sent.items() if bps >= rules.full_share * self._rate_of(link)}
        count = max(1, len(taking))
        for f, links in taking:
            rate_bps = f.live.rate_bps
            slowest_bps = self._slowest_bps(f.live)
            noticed = rate_bps > slowest_bps * min(rules.noticed_share, 0.25 / count)
            if f.limit_bps is None:
                outgrew = noticed and f.demand_bps >= 0 and rate_bps > f.demand_bps
                new = f.demand_bps < 0
                crowded = any(link in full for link in links)
                if crowded and noticed and (outgrew or new):
                    f.wants = True
                elif not crowded:
                    f.wants = False
            elif rate_bps >= rules.used_share * f.limit_bps:
                f.wants = True
            elif f.low is not None:
                low_bps = f.low.value(now_ns)
                idle = rate_bps < rules.idle_share * low_bps
                if idle or f.peak.bps(now_ns) < rules.used_share * low_bps:
                    f.wants = False
            modest_bps = rules.growth * f.peak.bps(now_ns) + rules.spare_share * slowest_bps / count
            f.demand_bps = modest_bps

    def _slowest_bps(self, flow: LiveFlow) -> float:
        return float(min((rate for link in flow.hops if (rate := self._rate_of(link))), default=0))

    # ------------------------------------------------------------------------------------ shares

    def _share(
        self, taking: list[tuple[_Flow, list[str]]], may: Callable[[LiveFlow, str], bool] | None, now_ns: int
    ) -> dict[str, Target]:
        """Fill, and return the limits that follow."""
        if not taking:
            return {}
        able = [
            "PACE" in f.live.can and (may is None or may(f.live, "SLICE")) for f, _ in taking
        ]  # fmt: skip
        rate = np.array([f.live.rate_bps for f, _ in taking])
        demand = np.array([math.inf if f.wants else f.demand_bps for f, _ in taking])
        demand = np.where(able, demand, rate)
        guaranteed, most = self._groups(taking)
        counts = Counter(f.live.tenant for f, _ in taking)
        weight = np.array([1 / counts[f.live.tenant] for f, _ in taking])
        fixed = np.where(able, 0.0, rate)
        held = np.array([bool(self._guarantee(f)) for f, _ in taking], float)
        in_promise = {number for group in guaranteed for number in group.flows}
        sure = np.array([number in in_promise for number in range(len(taking))], float)
        first = fill(demand, held * sure, guaranteed, fixed).rate_bps
        filled = fill(demand, weight, most, first)
        found = {}
        for number, (f, _) in enumerate(taking):
            if able[number]:
                stop = filled.stopped[number]
                limit = self._limit(
                    f, float(filled.rate_bps[number]), "" if stop < 0 else most[stop].name, now_ns
                )
                if limit is not None:
                    found[f.live.flow_id] = limit
        return found

    def _guarantee(self, f: _Flow) -> float:
        of_tenant = self._slices.get(f.live.tenant or "")
        return of_tenant.guarantee_bps if of_tenant is not None else 0.0

    def _groups(self, taking: list[tuple[_Flow, list[str]]]) -> tuple[list[Group], list[Group]]:
        """Return the groups of the promised part, and those of all."""
        over: dict[str, list[int]] = {}
        of_tenant: dict[tuple[str, str], list[int]] = {}
        for number, (f, links) in enumerate(taking):
            for link in links:
                over.setdefault(link, []).append(number)
            if f.live.tenant in self._slices:
                for link in f.live.hops:
                    of_tenant.setdefault((link, f.live.tenant), []).append(number)
        given = {link: self.rules.fill_share * self._rate_of(link) for link in over}
        promised: Counter[str] = Counter()
        for link, tenant in of_tenant:
            promised[link] += self._slices[tenant].guarantee_bps  # type: ignore[assignment]
        guaranteed, most = [], [Group(link, given[link], numbers) for link, numbers in over.items()]
        for (link, tenant), numbers in of_tenant.items():
            each = self._slices[tenant]
            if each.guarantee_bps and link in given:
                part = min(1.0, given[link] / promised[link])
                guaranteed.append(Group(f"{tenant}@{link}", part * each.guarantee_bps, numbers))
            if each.ceiling_bps < math.inf:
                most.append(Group(f"{tenant}@{link}", each.ceiling_bps, numbers))
        self.scaled = frozenset(link for link in given if promised[link] > given[link])
        return guaranteed, most

    def _limit(self, f: _Flow, rate_bps: float, stop: str, now_ns: int) -> Target | None:
        """Return what a flow is to be held to, None where it needs no limit."""
        rules, before = self.rules, f.limit_bps
        if stop:
            f.needed_ns, f.reason = now_ns, stop
            limit_bps = rate_bps
        elif before is not None and now_ns - f.needed_ns < rules.linger_ns:
            unused_bps = rules.growth * rate_bps / rules.used_share
            limit_bps = max(unused_bps, self._guarantee(f), rules.linger_share * self._slowest_bps(f.live))
        else:
            f.limit_bps = f.low = None
            return None
        if f.low is None:
            f.low = Low(rules.settle_ns, now_ns)
            f.low.hear(f.live.rate_bps, now_ns)
        f.low.hear(limit_bps, now_ns)
        f.limit_bps = limit_bps
        return Target(limit_bps, f.reason, urgent=before is None or limit_bps < 0.9 * before)
