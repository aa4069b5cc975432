"""Repath: moves flows with a persistent delay on a path of unknown route to another path, as PLB does."""

from __future__ import annotations

from schemas.reasons import Reason
from schemas.records import FlowAction, ReasonKind
from streams.policy.objectives.base import MoveProposal, Proposals
from streams.policy.state import PolicyState


class Repath:
    """The objective that moves slow flows of unknown route, as PLB does (Qureshi et al., SIGCOMM 2022)."""

    def propose(self, state: PolicyState) -> Proposals:
        """Propose a random path for each flow of unknown route that was slow for `slow_for_ns`."""
        for flow_id, flow in sorted(state.flows.items()):
            if flow.links or flow.routes or flow.move is not None or flow.slow_since_ns is None:
                continue
            if state.now_ns - flow.slow_since_ns < state.rules.slow_for_ns:
                continue
            path = state.random_path(flow)
            admitted = yield MoveProposal(
                flow, FlowAction.REROUTE, path, ReasonKind.DELAY, Reason(flow_id), steering=True
            )
            if admitted:
                flow.slow_since_ns = None
