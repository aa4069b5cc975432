"""Collision relief: moves as few flows as possible off links with an open COLLISION window."""

from __future__ import annotations

from typing import Final

from schemas.reasons import Reason
from schemas.records import ContentionKind, ContentionWindow, FlowAction, ReasonKind
from streams.policy.base import MoveProposal, Proposals
from streams.policy.demands import assume_full_demand
from streams.policy.flow import Flow
from streams.policy.loads import Links
from streams.policy.path_health import Grade
from streams.policy.rules import FULL_SHARE, RELIEF_SHARE, SAFE_SHARE
from streams.policy.state import PolicyState
from streams.runtime.units import NS_PER_S

__all__ = ["CollisionRelief"]

SAME_BURST: Final = 0.99
"""Two bursts whose ratio is above this count as equal."""
RECURRENCE_NS: Final = 5 * NS_PER_S
"""A queue that returns within this time counts as the same queue, as behind jobs that send in bursts."""


class CollisionRelief:
    """The objective that clears collisions inside the fabric. `UplinkPinning` handles alternating NICs."""

    def __init__(self) -> None:
        self._relieved_ns: dict[str, int] = {}
        """Link to the time at which a flow last left it for this objective."""
        self._collisions: dict[str, tuple[int, int]] = {}
        """Link to the start and the last sight of its collision, ns."""

    def propose(self, state: PolicyState) -> Proposals:
        """Propose moves for the heaviest flows on each collision until the rest fits."""
        windows = [window for window in state.open_windows() if window["kind"] == ContentionKind.COLLISION]
        flows_on = _steady_flows(state) if windows else {}
        for window in windows:
            link = state.busiest((window["link"], *window["candidates"]))
            flows = flows_on.get(link, [])
            since_ns = max(self._since_ns(window, state.now_ns), self._relieved_ns.get(link, 0))
            persists = state.now_ns - since_ns >= state.rules.settle_ns
            if persists and state.loads.share(link) <= FULL_SHARE:
                assume_full_demand(state, flows)
            max_share = FULL_SHARE if persists else SAFE_SHARE
            yield from self._offload(state, link, flows, max_share, window["window_id"])

    def _since_ns(self, window: ContentionWindow, now_ns: int) -> int:
        """Return the time since which a link's queue persists or keeps returning."""
        since_ns, last_ns = self._collisions.get(window["link"], (0, 0))
        if now_ns - last_ns > RECURRENCE_NS:
            since_ns = window["opened_ns"]
        self._collisions[window["link"]] = since_ns, now_ns
        return since_ns

    def _offload(
        self, state: PolicyState, link: str, flows: list[Flow], max_share: float, window_id: str
    ) -> Proposals:
        """Propose to move the heaviest flows until at most `max_share` of the link's rate is left."""
        burst_of = {id(flow): state.loads.group_burst_bps((link,), flow.weight) for flow in flows}
        flows.sort(key=lambda flow: (-burst_of[id(flow)], -flow.bps, state.draw(flow.live.flow_id)))
        for flow in flows:
            if state.loads.share(link) <= max_share:
                return
            is_known = state.now_ns - flow.since_ns >= state.rules.settle_ns
            if flow.move is not None or link not in flow.links or not is_known:
                continue
            path = _better_path(state, flow, link)
            blocked_by = "NO_BETTER_PATH" if path is None else None
            admitted = yield MoveProposal(
                flow,
                FlowAction.REROUTE,
                path,
                ReasonKind.COLLISION,
                Reason.of_window(window_id),
                steering=True,
                blocked_by=blocked_by,
            )
            if admitted:
                self._relieved_ns[link] = state.now_ns


def _steady_flows(state: PolicyState) -> dict[str, list[Flow]]:
    """Return link to the flows on it, without those of alternating NICs."""
    flows_on: dict[str, list[Flow]] = {}
    for flow in state.flows.values():
        if flow.live.nic not in state.alternating:
            for link in dict.fromkeys(flow.links):
                flows_on.setdefault(link, []).append(flow)
    return flows_on


def _better_path(state: PolicyState, flow: Flow, link: str) -> int | None:
    """Return the least loaded healthy path that avoids `link` and that the flow has not left recently.

    Return None if no path has capacity and none is clearly better than the current one.

    Flows of one group send together. None moves to a path where more of them overlap than on the path left.
    A path where fewer overlap is better at the same load. Each such move lowers the sum of squares of the
    overlaps, so these moves end as well.
    """
    left = {links for _, links in flow.steered}
    ranked = []
    for _, route, path in state.options.available(flow, lambda each: each.grade is Grade.HEALTHY):
        if link not in route.links and route.links not in left:
            rank = _rank(state, flow, route.links)
            if rank is not None:
                ranked.append((*rank, state.draw(flow.live.flow_id, path), path))
    return min(ranked)[-1] if ranked else None


def _rank(state: PolicyState, flow: Flow, links: Links) -> tuple[bool, float, float] | None:
    """Return the rank of a route, the lowest being the best, or None if the route is no better."""
    loads = state.loads
    new = [each for each in links if each not in flow.links]
    old = [each for each in flow.links if each not in links]
    after, before = loads.max_share(new, flow.weight), loads.max_share(old)
    overlap_after = loads.group_burst_bps(new, flow.weight, added=True)
    overlap_before = loads.group_burst_bps(old, flow.weight)
    if overlap_after > overlap_before / SAME_BURST:
        return None
    fewer_overlap = overlap_after < SAME_BURST * overlap_before
    is_better = after < RELIEF_SHARE * before or (fewer_overlap and after <= before)
    return (not fewer_overlap, after, overlap_after) if after <= FULL_SHARE or is_better else None
