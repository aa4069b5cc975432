"""Computes a rate limit for each flow so that every tenant gets its guaranteed share of every link.

Inputs are `ActuatorConfig.slices` and the flows with their links, tenants and rates. Hosts enforce the limits
flow by flow; switches take no part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.reasons import Reason
from schemas.records import FlowAction, TenantSlice
from streams.policy.rates.rate_target import RateTarget, RecentMax, RecentMin
from streams.runtime.flow_table import LiveFlow
from streams.runtime.units import NS_PER_MS, NS_PER_S

Float64s = NDArray[np.float64]
Bools = NDArray[np.bool_]
IsAllowed = Callable[[LiveFlow, FlowAction], bool]

TOLERANCE: Final = 1e-9
"""A rate counts as having reached its limit within this relative distance, to allow for rounding."""
MAX_NOTICED_SHARE: Final = 0.25
"""Upper limit of `noticed_share`, as a part of an even share of a flow's slowest link."""


@dataclass(frozen=True, slots=True)
class SliceRules:
    """Thresholds of the demand estimate, and the part of each link that stays free."""

    fill_share: float = 0.97
    """Share of a link's rate that is granted; the rest makes growing demand visible."""
    full_share: float = 0.9
    """Share of its rate above which a link counts as full."""
    used_share: float = 0.85
    """A flow counts as using its limit if its rate is at least this share of it."""
    growth: float = 1.1
    """Demand of a flow that does not use its limit, as a multiple of its highest recent rate."""
    spare_share: float = 0.01
    """Share of a link that all such flows together get in addition, so that idle flows can start."""
    noticed_share: float = 0.02
    """Growth of a flow whose rate is below this share of its slowest link does not count as full demand."""
    peak_ns: int = 1 * NS_PER_S
    """Recent rates cover one to two times this time."""
    settle_ns: int = 1_200 * NS_PER_MS
    """Time over which a flow must stay below all its limits before its demand counts as met."""
    idle_share: float = 0.1
    """Share of its limit below which the demand of a flow counts as met at once."""
    linger_ns: int = 5 * NS_PER_S
    """Time for which a limit stays after it was last needed."""
    linger_share: float = 0.05
    """Lower bound of a limit that is no longer needed, as a share of the flow's slowest link."""
    absent_ns: int = 30 * NS_PER_S
    """A tenant needs no protection on a link over which it has sent nothing for this long."""
    step_ns: int = 100 * NS_PER_MS
    """Shortest time between two computations."""


class _Slice(NamedTuple):
    guarantee_bps: float
    ceiling_bps: float


class Group(NamedTuple):
    """Flows, given by their numbers, whose rates together have an upper limit."""

    name: str
    max_bps: float
    flows: list[int]


class Filled(NamedTuple):
    """The result of `fill`: the rate of each flow, and the group that stopped its rise."""

    rate_bps: Float64s
    stopped: list[int]
    """For each flow the number of the group that stopped it; -1 if its demand is met."""


# Filling. Flow i of tenant t crosses links; link l grants F = fill x rate. All rates r rise together until
# something stops them (max-min by progressive filling: Bertsekas and Gallager, Data Networks, 6.5), twice:
#
# 1. Guarantees: flows of tenants with a guarantee g rise evenly. Each stops when its demand is met, or when
#    the tenant has g on one of its links (scaled down if the guarantees on a link add up to more than F).
# 2. The rest: all flows rise from there. Each stops when its demand is met, when a link has granted F, or
#    when its tenant has reached its ceiling on a link. Tenants rise evenly, whatever number of flows each
#    has: a flow's weight is one over its tenant's count. So r is work-conserving: a flow that gets less than
#    it demands crosses a full link, or one where its tenant has reached its ceiling.
#
# Flows that cannot be limited count first, at their current rate.
def fill(demand_bps: Float64s, weight: Float64s, groups: list[Group], from_bps: Float64s) -> Filled:
    """Raise all rates from `from_bps` in proportion to `weight`, until a demand or a full group stops them.

    Each step finds the smallest rise at which a group would be full if no flow met its demand before. Flows
    that meet their demand up to that rise stop there. If no flow does, the full group stops its flows.

    Raises ValueError if nothing stops a flow.
    """
    rate = np.minimum(from_bps, demand_bps)
    stopped = [-1] * len(rate)
    rising: Bools = (rate < demand_bps * (1 - TOLERANCE)) & (weight > 0)
    members = [np.array(group.flows, np.int64) for group in groups]
    groups_of = _groups_of(len(rate), groups)
    left = np.array([group.max_bps for group in groups]) - [rate[flows].sum() for flows in members]
    pull = np.array([weight[flows[rising[flows]]].sum() for flows in members])
    while rising.any():
        first, rise = _first_full(left, pull, TOLERANCE * weight.max())
        if math.isinf(rise) and np.isinf(demand_bps[rising]).any():
            raise ValueError("fill: a flow with unlimited demand is in no group that fills up, expected one")
        needed = np.where(rising, (demand_bps - rate) / np.where(rising, weight, 1.0), math.inf)
        met = rising & (needed <= rise)
        if met.any():
            stopping, final = np.flatnonzero(met), demand_bps[met]
        else:
            stopping = members[first][rising[members[first]]]
            final = rate[stopping] + weight[stopping] * rise
            for flow in stopping.tolist():
                stopped[flow] = first
        # The chosen flows stop here. The others catch up when they stop: no group is full before `rise`.
        grown = final - rate[stopping]
        rate[stopping] = final
        rising[stopping] = False
        for flow, growth in zip(stopping.tolist(), grown.tolist(), strict=True):
            for number in groups_of[flow]:
                left[number] -= growth
                pull[number] -= weight[flow]
    return Filled(rate, stopped)


def _groups_of(flows: int, groups: list[Group]) -> list[list[int]]:
    """Return, for each flow, the numbers of the groups that contain it."""
    groups_of: list[list[int]] = [[] for _ in range(flows)]
    for number, group in enumerate(groups):
        for flow in group.flows:
            groups_of[flow].append(number)
    return groups_of


def _first_full(left: Float64s, pull: Float64s, min_pull: float) -> tuple[int, float]:
    """Return the number of the group that fills first, and the rise at which it does; -1, inf if none."""
    if not len(left):
        return -1, math.inf
    live = pull > min_pull
    rises = np.where(live, np.maximum(left, 0.0) / np.where(live, pull, 1.0), math.inf)
    first = int(np.argmin(rises))
    return first, float(rises[first])


@dataclass(slots=True)
class _Flow:
    """The newest report and the demand estimate of one flow."""

    live: LiveFlow
    peak: RecentMax
    wants_all: bool = False
    """True if the flow is assumed to use any rate that it gets."""
    demand_bps: float = 0.0
    limit_bps: float | None = None
    min_limit: RecentMin | None = None
    """Lowest recent limit."""
    needed_ns: int = 0
    reason: str = ""
    sent_ns: int = 0


Member = tuple[_Flow, list[str]]
"""A flow, and the links on its path that are shared out among tenants."""


# Demand. While a flow uses less than its limit, its demand is its rate and a little more, which makes growth
# visible. A flow that uses its limit, or exceeds its estimated demand, is assumed to want all there is, until
# it leaves part of it unused. So a tenant that returns has its guarantee with the next report.
class Slices:
    """Enforces the shares of one shard's tenants. `rate_of` returns a directed link's bit/s, 0 if unknown."""

    def __init__(self, rate_of: Callable[[str], int], rules: SliceRules | None = None) -> None:
        self.rules = rules or SliceRules()
        self._rate_of = rate_of
        self._slices: dict[str, _Slice] = {}
        self._flows: dict[str, _Flow] = {}
        self._filled_ns: int | None = None
        self._targets: dict[str, RateTarget] = {}
        self.scaled: frozenset[str] = frozenset()
        """Links whose guarantees add up to more than can be granted, and are scaled down."""
        self.links: frozenset[str] = frozenset()
        """Links that are shared out among tenants, because a guarantee needs protection there."""

    def take_slices(self, slices: Iterable[TenantSlice]) -> None:
        """Set the tenants' shares to `ActuatorConfig.slices`; a tenant's last element counts."""
        slices_by_tenant = {}
        for tenant_slice in slices:
            ceiling_bps = (
                math.inf if tenant_slice["ceiling_bps"] is None else float(tenant_slice["ceiling_bps"])
            )
            if tenant_slice["guarantee_bps"] or ceiling_bps < math.inf:
                guarantee_bps = min(float(tenant_slice["guarantee_bps"]), ceiling_bps)
                slices_by_tenant[tenant_slice["tenant"]] = _Slice(guarantee_bps, ceiling_bps)
        if slices_by_tenant != self._slices:
            self._slices, self._filled_ns = slices_by_tenant, None

    def decide(
        self, now_ns: int, flows: Iterable[LiveFlow], is_allowed: IsAllowed | None = None
    ) -> dict[str, RateTarget]:
        """Return, by flow id, the limit of each flow that needs one at `now_ns`, fabric time.

        `is_allowed`: returns whether SLICE of a flow is allowed.
        """
        if not self._slices:
            self._flows.clear()
            self._targets, self.links = {}, frozenset()
            return {}
        if self._filled_ns is not None and now_ns - self._filled_ns < self.rules.step_ns:
            return self._targets
        self._filled_ns = now_ns
        members = self._members(now_ns, flows)
        self._estimate_demands(members, now_ns)
        self._targets = self._share_out(members, is_allowed, now_ns)
        return self._targets

    def _slice_of(self, flow: LiveFlow) -> _Slice | None:
        return self._slices.get(flow.tenant or "")

    # ------------------------------------------------------------------------------------ members

    def _members(self, now_ns: int, flows: Iterable[LiveFlow]) -> list[Member]:
        """Return the flows over links that are divided among tenants, and flows of tenants with a ceiling.

        They are sorted by flow id.
        """
        live = [flow for flow in flows if flow.hops]
        reported = {flow.flow_id for flow in live}
        for flow_id in [flow_id for flow_id in self._flows if flow_id not in reported]:
            del self._flows[flow_id]
        self.links = self._protected_links(now_ns, live)
        members = []
        for flow in live:
            of_tenant = self._slice_of(flow)
            links = [link for link in flow.hops if link in self.links]
            has_ceiling = of_tenant is not None and not math.isinf(of_tenant.ceiling_bps)
            if links or has_ceiling:
                members.append((self._updated(flow, now_ns), links))
            else:
                self._flows.pop(flow.flow_id, None)
        members.sort(key=lambda member: member[0].live.flow_id)
        return members

    def _protected_links(self, now_ns: int, live: list[LiveFlow]) -> frozenset[str]:
        """Return the links over which a tenant with a guarantee has sent recently."""
        protected: set[str] = set()
        for flow in live:
            of_tenant = self._slice_of(flow)
            if of_tenant is None or not of_tenant.guarantee_bps:
                continue
            flow_state = self._flows.get(flow.flow_id)
            if flow.rate_bps > 0 or flow_state is None or now_ns - flow_state.sent_ns < self.rules.absent_ns:
                protected.update(link for link in flow.hops if self._rate_of(link))
        return frozenset(protected)

    def _updated(self, flow: LiveFlow, now_ns: int) -> _Flow:
        """Update a flow's state with its newest report, and return the state."""
        flow_state = self._flows.get(flow.flow_id)
        if flow_state is None:
            peak = RecentMax(self.rules.peak_ns, now_ns)
            flow_state = self._flows[flow.flow_id] = _Flow(flow, peak, sent_ns=now_ns)
            flow_state.demand_bps = -1.0
        if flow_state.demand_bps < 0 or flow_state.live is not flow:
            flow_state.live = flow
            flow_state.peak.add(flow.rate_bps, now_ns)
            if flow.rate_bps > 0:
                flow_state.sent_ns = now_ns
        return flow_state

    # ------------------------------------------------------------------------------------ demand

    def _estimate_demands(self, members: list[Member], now_ns: int) -> None:
        """Estimate the demand of each member from its recent rates."""
        rules = self.rules
        sent_bps: dict[str, float] = {}
        for flow, links in members:
            for link in links:
                sent_bps[link] = sent_bps.get(link, 0) + flow.live.rate_bps
        full = {link for link, bps in sent_bps.items() if bps >= rules.full_share * self._rate_of(link)}
        count = max(1, len(members))
        for flow, links in members:
            slowest_bps = self._slowest_bps(flow.live)
            min_noticed_bps = slowest_bps * min(rules.noticed_share, MAX_NOTICED_SHARE / count)
            is_noticed = flow.live.rate_bps > min_noticed_bps
            if flow.limit_bps is None:
                self._update_unlimited(flow, any(link in full for link in links), is_noticed)
            else:
                self._update_limited(flow, flow.limit_bps, now_ns)
            spare_bps = rules.spare_share * slowest_bps / count
            flow.demand_bps = rules.growth * flow.peak.bps(now_ns) + spare_bps

    def _update_unlimited(self, flow: _Flow, is_crowded: bool, is_noticed: bool) -> None:
        is_new = flow.demand_bps < 0
        exceeds = flow.live.rate_bps > flow.demand_bps >= 0
        if not is_crowded:
            flow.wants_all = False
        elif is_noticed and (exceeds or is_new):
            flow.wants_all = True

    def _update_limited(self, flow: _Flow, limit_bps: float, now_ns: int) -> None:
        rules, rate_bps = self.rules, flow.live.rate_bps
        if rate_bps >= rules.used_share * limit_bps:
            flow.wants_all = True
        elif flow.min_limit is not None:
            lowest_bps = flow.min_limit.value(now_ns)
            is_idle = rate_bps < rules.idle_share * lowest_bps
            if is_idle or flow.peak.bps(now_ns) < rules.used_share * lowest_bps:
                flow.wants_all = False

    def _slowest_bps(self, flow: LiveFlow) -> float:
        return float(min((rate for link in flow.hops if (rate := self._rate_of(link))), default=0))

    # ------------------------------------------------------------------------------------ shares

    def _share_out(
        self, members: list[Member], is_allowed: IsAllowed | None, now_ns: int
    ) -> dict[str, RateTarget]:
        """Divide the capacity of the links among the members; return the resulting limits by flow id."""
        if not members:
            return {}
        flows = [flow for flow, _ in members]
        can_limit = np.array([_can_limit(flow.live, is_allowed) for flow in flows])
        guaranteed, groups = self._groups(members)
        filled = self._fill(flows, can_limit, guaranteed, groups)
        targets = {}
        for number, flow in enumerate(flows):
            if can_limit[number]:
                stop = filled.stopped[number]
                reason = "" if stop < 0 else groups[stop].name
                target = self._target(flow, float(filled.rate_bps[number]), reason, now_ns)
                if target is not None:
                    targets[flow.live.flow_id] = target
        return targets

    def _fill(
        self, flows: list[_Flow], can_limit: Bools, guaranteed: list[Group], groups: list[Group]
    ) -> Filled:
        """Return the rates after filling the guarantees first, then the remaining capacity of the links."""
        rate = np.array([flow.live.rate_bps for flow in flows])
        max_demand = np.array([math.inf if flow.wants_all else flow.demand_bps for flow in flows])
        demand = np.where(can_limit, max_demand, rate)
        counts = Counter(flow.live.tenant for flow in flows)
        weight = np.array([1 / counts[flow.live.tenant] for flow in flows])
        guarantee_weight = np.zeros(len(flows))
        for number in {number for group in guaranteed for number in group.flows}:
            guarantee_weight[number] = float(bool(self._guarantee_bps(flows[number])))
        fixed = np.where(can_limit, 0.0, rate)
        first = fill(demand, guarantee_weight, guaranteed, fixed).rate_bps
        return fill(demand, weight, groups, first)

    def _guarantee_bps(self, flow: _Flow) -> float:
        of_tenant = self._slice_of(flow.live)
        return of_tenant.guarantee_bps if of_tenant is not None else 0.0

    def _groups(self, members: list[Member]) -> tuple[list[Group], list[Group]]:
        """Return one group per guarantee, and one per link or tenant ceiling."""
        on_link, of_tenant = self._numbers(members)
        granted_bps = {link: self.rules.fill_share * self._rate_of(link) for link in on_link}
        promised_bps: dict[str, float] = {}
        for link, tenant in of_tenant:
            promised_bps[link] = promised_bps.get(link, 0) + self._slices[tenant].guarantee_bps
        guaranteed = []
        groups = [Group(link, granted_bps[link], numbers) for link, numbers in on_link.items()]
        for (link, tenant), numbers in of_tenant.items():
            name, limits = f"{tenant}@{link}", self._slices[tenant]
            if limits.guarantee_bps and link in granted_bps:
                scale = min(1.0, granted_bps[link] / promised_bps[link])
                guaranteed.append(Group(name, scale * limits.guarantee_bps, numbers))
            if limits.ceiling_bps < math.inf:
                groups.append(Group(name, limits.ceiling_bps, numbers))
        self.scaled = frozenset(link for link, bps in granted_bps.items() if promised_bps.get(link, 0) > bps)
        return guaranteed, groups

    def _numbers(
        self, members: list[Member]
    ) -> tuple[dict[str, list[int]], dict[tuple[str, str], list[int]]]:
        """Return the numbers of the members by link, and by (link, tenant) for tenants with a slice."""
        on_link: dict[str, list[int]] = {}
        of_tenant: dict[tuple[str, str], list[int]] = {}
        for number, (flow, links) in enumerate(members):
            for link in links:
                on_link.setdefault(link, []).append(number)
            if flow.live.tenant in self._slices:
                for link in flow.live.hops:
                    of_tenant.setdefault((link, flow.live.tenant), []).append(number)
        return on_link, of_tenant

    def _target(self, flow: _Flow, rate_bps: float, reason: str, now_ns: int) -> RateTarget | None:
        """Return the limit of a flow; None if it needs none. `reason`: the group that stopped it, or ''."""
        rules, before_bps = self.rules, flow.limit_bps
        if reason:
            flow.needed_ns, flow.reason = now_ns, reason
            limit_bps = rate_bps
        elif before_bps is not None and now_ns - flow.needed_ns < rules.linger_ns:
            unused_bps = rules.growth * rate_bps / rules.used_share
            floor_bps = rules.linger_share * self._slowest_bps(flow.live)
            limit_bps = max(unused_bps, self._guarantee_bps(flow), floor_bps)
        else:
            flow.limit_bps = flow.min_limit = None
            return None
        if flow.min_limit is None:
            flow.min_limit = RecentMin(rules.settle_ns, now_ns)
            flow.min_limit.add(flow.live.rate_bps, now_ns)
        flow.min_limit.add(limit_bps, now_ns)
        flow.limit_bps = limit_bps
        is_urgent = before_bps is None or limit_bps < 0.9 * before_bps
        return RateTarget(limit_bps, Reason(flow.reason), is_urgent)


def _can_limit(flow: LiveFlow, is_allowed: IsAllowed | None) -> bool:
    return "PACE" in flow.can and (is_allowed is None or is_allowed(flow, FlowAction.SLICE))
