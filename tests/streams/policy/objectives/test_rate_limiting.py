"""Rate limiting: wanted rates become proposals, and refused ones are returned."""

from __future__ import annotations

from typing import Any

from schemas.reasons import NO_REASON
from schemas.records import FlowAction, ReasonKind
from streams.policy.flows.flow import Flow
from streams.policy.objectives.rate_limiting import RateLimiting
from streams.policy.rates.leases import WantedRate
from streams.policy.rules import Rules
from streams.policy.state import PolicyState
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow
from tests.records import make

LINKS = ("h1:a>l1:1", "l1:2>h2:a")


class FakeRates:
    """Wants fixed rates, and keeps the arguments that it is given."""

    def __init__(self, flow_ids: list[str]) -> None:
        self.flow_ids = flow_ids
        self.flows: list[LiveFlow] = []
        self.allowed: Any = None
        self.refused: list[str] = []

    def decide(self, now_ns: int, flows: list[LiveFlow], is_allowed: Any) -> list[WantedRate]:
        self.flows, self.allowed = flows, is_allowed
        return [
            WantedRate(flow_id, FlowAction.PACE, 5, ReasonKind.INCAST, NO_REASON, now_ns + 1, False)
            for flow_id in self.flow_ids
        ]

    def refuse(self, wanted: WantedRate, now_ns: int) -> None:
        self.refused.append(wanted.flow_id)


def make_state() -> PolicyState:
    state = PolicyState("s0", 1, None, None, lambda link: 1000, 1, Rules())  # type: ignore[arg-type]
    for name in ("a", "b"):
        live = LiveFlow(name, "h1/a", "h2/a", "train", None, 1e8, False, False, (), 100, None)
        state.flows[name] = Flow(live, route=FlowRoute(LINKS))
    return state


def propose(state: PolicyState, rates: FakeRates, *, admit: bool) -> list[str]:
    """Answer each proposal with `admit`; return the proposed flows."""
    proposals = RateLimiting(rates).propose(state)  # type: ignore[arg-type]
    proposed = []
    answer = None
    while True:
        try:
            proposal: Any = proposals.send(answer)  # type: ignore[arg-type]
        except StopIteration:
            return proposed
        proposed.append(proposal.flow.live.flow_id)
        answer = admit


def test_refused_rates_are_returned_and_admitted_ones_are_not() -> None:
    for admit, refused in ((True, []), (False, ["a", "b"])):
        rates = FakeRates(["a", "b"])
        assert propose(make_state(), rates, admit=admit) == ["a", "b"]
        assert rates.refused == refused


def test_a_flow_that_ended_is_not_proposed() -> None:
    assert propose(make_state(), FakeRates(["gone", "b"]), admit=True) == ["b"]


def test_a_flow_without_traced_links_takes_those_of_its_route() -> None:
    rates = FakeRates([])
    propose(make_state(), rates, admit=True)
    assert [flow.hops for flow in rates.flows] == [LINKS, LINKS]


def test_actions_need_permission_and_protected_jobs_have_none() -> None:
    state, rates = make_state(), FakeRates([])
    state.take_config(
        {
            "*": make("ActuatorConfig", host="*", allowed_actions=["PACE"]),
            "h9": make("ActuatorConfig", host="h9", protected_jobs=["train"]),
        }
    )
    propose(state, rates, admit=True)
    [flow, _] = rates.flows
    assert rates.allowed(flow, FlowAction.PACE)
    assert not rates.allowed(flow, FlowAction.SLICE)
    assert not rates.allowed(flow._replace(nic="h9/a"), FlowAction.PACE)
