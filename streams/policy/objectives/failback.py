"""Failback: returns flows to the path that they used before its links failed."""

from __future__ import annotations

import math

from schemas.records import FlowAction, ReasonKind
from streams.policy.flows.flow import Flow
from streams.policy.objectives.base import MoveProposal, Proposals
from streams.policy.rules import FULL_SHARE, RELIEF_SHARE
from streams.policy.state import PolicyState


class Failback:
    """The objective that returns flows in batches once their earlier paths have long been healthy."""

    def __init__(self) -> None:
        self._last_ns, self._batch = 0, 0

    def propose(self, state: PolicyState) -> Proposals:
        """Propose to return the next batch of flows to their earlier paths, the heaviest first."""
        ready = [flow for flow in state.flows.values() if _may_return(state, flow)]
        if not ready:
            self._batch = 0
            return
        self._batch = max(self._batch, math.ceil(len(ready) / state.rules.failback_steps))
        if state.now_ns < self._last_ns + state.rules.failback_step_ns:
            return
        ready.sort(key=lambda flow: (-flow.bps, state.draw(flow.live.flow_id)))
        moved = 0
        for flow in ready:
            if moved == self._batch:
                break
            if flow.home is None:
                continue
            reason = state.health.reason(flow.home_subject)
            links = flow.routes[flow.home].links
            before = state.loads.max_share(link for link in flow.links if link not in links)
            has_capacity = state.share_after(flow, links) <= max(FULL_SHARE, RELIEF_SHARE * before)
            blocked_by = None if has_capacity else "NO_BETTER_PATH"
            admitted = yield MoveProposal(
                flow, FlowAction.RESTORE, flow.home, ReasonKind.HEALED, reason, blocked_by=blocked_by
            )
            if admitted:
                moved += 1
                self._last_ns = state.now_ns


def _may_return(state: PolicyState, flow: Flow) -> bool:
    """Return True if a flow may return now: its earlier path is free and all its links are healthy."""
    route = None if flow.home is None else flow.routes.get(flow.home)
    if route is None or flow.move is not None or state.now_ns < max(flow.wait_ns, flow.home_from_ns):
        return False
    if flow.exclusive and flow.path != flow.home and (flow.ends, flow.home) in state.options.used_ports:
        return False
    return state.is_healthy(route)
