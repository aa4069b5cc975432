"""Estimates the demand of all flows of a shard, the NICs that alternate between peers, and the link loads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from streams.policy.flows.flow import Flow, Sender
from streams.policy.flows.loads import Weight
from streams.policy.state import NicDemand, PolicyState

Groups = Mapping[tuple[str, str, str | None], list[Flow]]
Speed = tuple[float, list[Flow]]
"""Rate of a group of flows while it sends, bit/s, and the flows of the group."""

EVEN_SHARE: Final = 0.5
"""A flow above this share of the highest rate at a queue gets an even share there."""
MIN_OVERSUBSCRIPTION: Final = 1.5
"""A NIC alternates between peers if its flows' rates while sending add up to this multiple of its line."""
SLOWED_SHARE: Final = 0.85
"""Flows between two NICs are slowed if together they send at less than this share of the full speed."""


def estimate_demands(state: PolicyState) -> None:
    """Estimate demands and weights of all flows, and add the weights to the loads of their links.

    A flow is bottlenecked if its rate comes near the highest rate at a queue on its path: it gets an even
    share there. A far slower flow already sends at its full demand (max-min fairness: Bertsekas and Gallager,
    Data Networks, 6.5).
    """
    highest_bps: dict[str, float] = {}
    for flow in state.flows.values():
        for link in flow.queues:
            highest_bps[link] = max(highest_bps.get(link, 0.0), flow.live.rate_bps)
    groups: dict[tuple[str, str, str | None], list[Flow]] = {}
    for flow in state.flows.values():
        rate_bps = flow.live.rate_bps
        limited_by_host = flow.live.sender_limited or flow.live.receiver_limited
        flow.bottlenecked = not limited_by_host and any(
            rate_bps >= EVEN_SHARE * highest_bps[link] > 0 for link in flow.queues
        )
        groups.setdefault(flow.group, []).append(flow)
    _sum_nic_demands(state)
    for flow in state.flows.values():
        fair_bps = _fair_bps(state, flow) if flow.bottlenecked else 0.0
        flow.bps = flow.demand.bps(flow.live.rate_bps, flow.bottlenecked, fair_bps)
    _find_alternating(state, groups)
    for group in groups.values():
        _set_weights(state, group)
        for flow in group:
            state.loads.add(flow.links, flow.weight)


def assume_full_demand(state: PolicyState, flows: Iterable[Flow]) -> None:
    """Set flows to their highest possible demand, because the observed rates do not explain a queue."""
    names: dict[tuple[str, str, str | None], None] = {}
    for flow in flows:
        fair_bps = _fair_bps(state, flow)
        flow.bps = flow.demand.bps(flow.live.rate_bps, flow.bottlenecked, fair_bps, assume_full_demand=True)
        names[flow.group] = None
    for name in names:
        group = [flow for flow in state.flows.values() if flow.group == name]
        for flow in group:
            state.loads.add(flow.links, flow.weight, -1)
        _set_weights(state, group, assume_full_demand=True)
        for flow in group:
            state.loads.add(flow.links, flow.weight)


def _sum_nic_demands(state: PolicyState) -> None:
    """Count the flows that each NIC sends and receives, and add up the rates that no queue limits."""
    state.nic_demands = {}
    for flow in state.flows.values():
        for end in (flow.live.nic, ">" + flow.live.peer):
            demand = state.nic_demands.setdefault(end, NicDemand())
            demand.flows += 1
            demand.bottlenecked += flow.bottlenecked
            demand.rest_bps += 0.0 if flow.bottlenecked else flow.live.rate_bps


def _fair_bps(state: PolicyState, flow: Flow) -> float:
    """Return the rate that a flow would get if it shared only the links of its two NICs, bit/s.

    Bottlenecked flows share evenly the capacity that the other flows leave, and get at least an even share of
    the link (max-min fairness, see `estimate_demands`). So many idle connections do not hide a flow that
    wants the whole link.
    """
    if not flow.links:
        return 0.0

    def share_bps(link: str, end: str) -> float:
        demand, line_bps = state.nic_demands[end], state.rate_of(link)
        return max(line_bps / demand.flows, (line_bps - demand.rest_bps) / max(1, demand.bottlenecked))

    sender_bps = share_bps(flow.links[0], flow.live.nic)
    return min(sender_bps, share_bps(flow.links[-1], ">" + flow.live.peer))


def _find_alternating(state: PolicyState, groups: Groups) -> None:
    """Find the NICs whose job sends to one peer after the other, and the links that slow them.

    A group is the flows of one job to one peer. Its speed is the sum of their rates, divided by the busy
    share of the flow that is busy longest.
    """
    speeds: dict[Sender, list[Speed]] = {}
    highest_of_job: dict[str, float] = {}
    for (nic, _, job), group in groups.items():
        busy = max(flow.demand.busy for flow in group)
        if job is not None and busy:
            speed_bps = sum(flow.demand.busy_bps for flow in group) / busy
            speeds.setdefault((nic, job), []).append((speed_bps, group))
            highest_of_job[job] = max(highest_of_job.get(job, 0.0), speed_bps)
    state.alternating, state.slowed = {}, set()
    for sender, of_sender in speeds.items():
        full_bps = _full_speed_bps(state, of_sender, highest_of_job)
        if full_bps is not None:
            state.alternating[sender] = full_bps
            slowed = [group for speed_bps, group in of_sender if speed_bps < SLOWED_SHARE * full_bps]
            state.slowed.update(*map(_links_of_slowest, slowed))


def _full_speed_bps(
    state: PolicyState, of_sender: list[Speed], highest_of_job: Mapping[str, float]
) -> float | None:
    """Return the speed at which a NIC could send, bit/s; None if it does not alternate between peers.

    The full speed is the highest speed of any group (the flows of one job to one peer), at most the line
    rate. If a queue is on the path of one of the NIC's flows, the full speed is the line rate.
    """
    flows = [flow for _, group in of_sender for flow in group]
    line_bps = next((state.rate_of(flow.links[0]) for flow in flows if flow.links), 0)
    total_bps = sum(speed_bps for speed_bps, _ in of_sender)
    if len(of_sender) < 2 or total_bps < MIN_OVERSUBSCRIPTION * line_bps:
        return None
    if any(flow.queues for flow in flows):
        return line_bps
    return min(line_bps, highest_of_job[flows[0].live.job or ""])


def _links_of_slowest(group: list[Flow]) -> set[str]:
    """Return the fabric links of those flows in a group whose busy time is near the longest."""
    longest = max(flow.demand.busy for flow in group)
    slowest = [flow for flow in group if flow.demand.busy >= SLOWED_SHARE * longest]
    return {link for flow in slowest for link in flow.links[1:-1]}


def _set_weights(state: PolicyState, group: list[Flow], *, assume_full_demand: bool = False) -> None:
    """Set the load that the flows of one group add to their links.

    Each flow gets an even share of the group's burst. `assume_full_demand`: the burst is the NIC's line rate.
    """
    first = group[0].live
    line_bps = state.rate_of(group[0].links[0]) if group[0].links else 0
    alternating_bps = state.alternating.get(group[0].sender)
    if alternating_bps is not None:
        bursts_bps = [alternating_bps / len(group)] * len(group)
    elif len(group) > 1 and line_bps:
        demands_bps = (max(flow.bps, flow.demand.peak_bps) for flow in group)
        sum_bps = line_bps if assume_full_demand else sum(demands_bps)
        bursts_bps = [min(line_bps, sum_bps) / len(group)] * len(group)
    else:
        bursts_bps = [flow.bps for flow in group]
    for flow, burst_bps in zip(group, bursts_bps, strict=True):
        mean_bps = flow.bps * flow.demand.duty
        flow.weight = Weight(first.nic, (first.peer, first.job), mean_bps, burst_bps)
