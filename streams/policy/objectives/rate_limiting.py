"""Rate limiting: limits flows to end incasts and to enforce the tenants' shares."""

from __future__ import annotations

from schemas.ids import host_of
from schemas.records import FlowAction
from streams.policy.objectives.base import Proposals, RateProposal
from streams.policy.rates.leases import Rates
from streams.policy.state import PolicyState
from streams.runtime.flow_table import LiveFlow


class RateLimiting:
    """The objective that proposes the rate limits that pacing and slices request."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates

    def propose(self, state: PolicyState) -> Proposals:
        """Propose rate limits that are new, changed or due for renewal, and the end of obsolete limits."""

        def is_allowed(flow: LiveFlow, action: FlowAction) -> bool:
            limits = state.limits_of(host_of(flow.nic))
            return action in limits.allowed and flow.job not in limits.protected_jobs

        flows = [
            flow.live if flow.live.hops else flow.live._replace(hops=flow.links)
            for _, flow in sorted(state.flows.items())
        ]
        for rate in self.rates.decide(state.now_ns, flows, is_allowed):
            flow = state.flows.get(rate.flow_id)
            if flow is None:
                continue
            admitted = yield RateProposal(flow, rate)
            if not admitted:
                self.rates.refuse(rate, state.now_ns)
