"""Collision relief: moves as few flows as possible off links with an open COLLISION window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemas.reasons import Reason
from schemas.records import ContentionKind, ContentionWindow, FlowAction, ReasonKind
from streams.policy.flows.demands import assume_full_demand
from streams.policy.flows.flow import Flow
from streams.policy.flows.loads import Links, Loads
from streams.policy.flows.path_health import Grade
from streams.policy.objectives.base import MoveProposal, Proposals
from streams.policy.rules import FULL_SHARE, RELIEF_SHARE, SAFE_SHARE
from streams.policy.state import PolicyState
from streams.runtime.units import NS_PER_S

SAME_BURST: Final = 0.99
"""Two bursts whose ratio is above this count as equal."""
RECURRENCE_NS: Final = 5 * NS_PER_S
"""A queue that returns within this time counts as the same queue, because jobs send in bursts."""


class CollisionRelief:
    """The objective that clears collisions inside the fabric. `UplinkPinning` handles alternating flows."""

    def __init__(self) -> None:
        self._relieved_ns: dict[str, int] = {}
        """Time at which this objective last moved a flow off each link, ns."""
        self._collisions: dict[str, tuple[int, int]] = {}
        """Times at which the collision on each link began and was last seen, ns."""

    def propose(self, state: PolicyState) -> Proposals:
        """Propose to move the heaviest flows off each link with a collision until the remaining flows fit.

        Bursts of alternating flows rarely coincide, and `UplinkPinning` keeps them apart. So these flows
        count with their mean rates unless the queue persists.
        """
        windows = [window for window in state.open_windows() if window["kind"] == ContentionKind.COLLISION]
        if not windows:
            return
        flows_on, mean_loads = _steady_flows(state), _mean_loads(state)
        for window in windows:
            link = state.busiest((window["link"], *window["candidates"]))
            flows = flows_on.get(link, [])
            since_ns = max(self._since_ns(window, state.now_ns), self._relieved_ns.get(link, 0))
            persists = state.now_ns - since_ns >= state.rules.settle_ns
            if persists and state.loads.share(link) <= FULL_SHARE:
                assume_full_demand(state, flows)
                mean_loads = _mean_loads(state)
            collision = _Collision(window["window_id"], link, flows, persists=persists)
            yield from self._offload(state, mean_loads, collision)
            if persists and mean_loads is not state.loads:
                yield from self._offload(state, mean_loads, collision, with_bursts=True)

    def _since_ns(self, window: ContentionWindow, now_ns: int) -> int:
        """Return the start, ns, of the queue on a window's link; short pauses do not end a queue."""
        since_ns, last_ns = self._collisions.get(window["link"], (0, 0))
        if now_ns - last_ns > RECURRENCE_NS:
            since_ns = window["opened_ns"]
        self._collisions[window["link"]] = since_ns, now_ns
        return since_ns

    def _offload(
        self, state: PolicyState, mean_loads: Loads, collision: _Collision, *, with_bursts: bool = False
    ) -> Proposals:
        """Propose to move the heaviest flows of a collision until the remaining flows fit the link.

        `with_bursts`: count alternating flows with their bursts, not with their mean rates. While the rate of
        a heavier new flow is still unknown, no lighter flow moves unless the queue persists.
        """
        link, flows = collision.link, collision.flows
        loads = state.loads if with_bursts else mean_loads
        max_share = FULL_SHARE if collision.persists else SAFE_SHARE
        burst_of = {id(flow): state.loads.group_burst_bps((link,), flow.weight) for flow in flows}
        flows.sort(key=lambda flow: (-burst_of[id(flow)], -flow.bps, state.draw(flow.live.flow_id)))
        for flow in [flow for flow in flows if flow.move is None and link in flow.links]:
            if loads.share(link) <= max_share:
                return
            if state.now_ns - flow.since_ns < state.rules.new_flow_ns:
                if collision.persists:
                    continue
                return
            path, links_before = _better_path(state, loads, flow, link), flow.links
            blocked_by = "NO_BETTER_PATH" if path is None else None
            admitted = yield MoveProposal(
                flow,
                FlowAction.REROUTE,
                path,
                ReasonKind.COLLISION,
                Reason.of_window(collision.window_id),
                steering=True,
                blocked_by=blocked_by,
            )
            if admitted:
                self._relieved_ns[link] = state.now_ns
                if mean_loads is not state.loads:
                    mean_loads.add(links_before, flow.weight, -1)
                    mean_loads.add(flow.links, flow.weight)


@dataclass(frozen=True, slots=True)
class _Collision:
    """A link with a collision, and the flows that may be moved off it."""

    window_id: str
    link: str
    flows: list[Flow]
    persists: bool


def _mean_loads(state: PolicyState) -> Loads:
    """Return the loads in which alternating flows count with their mean rate, not with their bursts."""
    if not state.alternating:
        return state.loads
    loads = Loads(state.rate_of)
    for flow in state.flows.values():
        weight = flow.weight
        if flow.sender in state.alternating:
            weight = weight._replace(burst_bps=weight.mean_bps)
        loads.add(flow.links, weight)
    return loads


def _steady_flows(state: PolicyState) -> dict[str, list[Flow]]:
    """Return the flows on each link, except alternating ones."""
    flows_on: dict[str, list[Flow]] = {}
    for flow in state.flows.values():
        if flow.sender not in state.alternating:
            for link in dict.fromkeys(flow.links):
                flows_on.setdefault(link, []).append(flow)
    return flows_on


def _better_path(state: PolicyState, loads: Loads, flow: Flow, link: str) -> int | None:
    """Return the least loaded healthy path that avoids `link` and that the flow has not left recently.

    Return None if no path has capacity and none is clearly better than the current one.

    Flows of one group send at the same time. A flow does not move to a path on which more flows of its group
    overlap than on its current path. At the same load, a path with fewer overlapping flows is better. Each
    such move lowers the sum of the squared overlaps, so the moves come to an end.
    """
    left = {links for _, links in flow.steered}
    ranked = []
    for _, route, path in state.options.available(flow, lambda health: health.grade is Grade.HEALTHY):
        if link not in route.links and route.links not in left:
            rank = _rank(state, loads, flow, route.links)
            if rank is not None:
                ranked.append((*rank, state.draw(flow.live.flow_id, path), path))
    return min(ranked)[-1] if ranked else None


def _rank(state: PolicyState, loads: Loads, flow: Flow, links: Links) -> tuple[bool, float, float] | None:
    """Return the rank of a route (lower is better), or None if it is not better than the flow's own route.

    `loads` decides whether the route is better. Better routes are ranked by the loads with all bursts.
    """
    new = [link for link in links if link not in flow.links]
    old = [link for link in flow.links if link not in links]
    after, before = loads.max_share(new, flow.weight), loads.max_share(old)
    overlap_after = state.loads.group_burst_bps(new, flow.weight, added=True)
    overlap_before = state.loads.group_burst_bps(old, flow.weight)
    if overlap_after > overlap_before / SAME_BURST:
        return None
    fewer_overlap = overlap_after < SAME_BURST * overlap_before
    is_better = after < RELIEF_SHARE * before or (fewer_overlap and after <= before)
    if after > FULL_SHARE and not is_better:
        return None
    return not fewer_overlap, state.loads.max_share(new, flow.weight), overlap_after
