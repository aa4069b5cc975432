"""Demands: bottlenecked flows, fair shares, alternating senders and link weights."""

from __future__ import annotations

import pytest

from streams.policy.flows.demands import assume_full_demand, estimate_demands
from streams.policy.flows.flow import Flow
from streams.policy.rules import Rules
from streams.policy.state import PolicyState
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow

RATE = 1000
TO_FIRST = ("h1:a>l1:1", "l1:8>l2:8", "l2:1>h5:a")
TO_SECOND = ("h1:a>l1:1", "l1:9>l2:9", "l2:2>h6:a")


def make_state() -> PolicyState:
    return PolicyState("s0", 1, None, None, lambda link: RATE, 1, Rules())  # type: ignore[arg-type]


def add(
    state: PolicyState,
    number: int,
    rate_bps: float,
    *,
    peer: str = "h5/a",
    links: tuple[str, ...] = TO_FIRST,
    queues: tuple[str, ...] = (),
    sender_limited: bool = False,
    busy_share: float | None = None,
    job: str = "job",
) -> Flow:
    flow_id = f"h1/b/qp:a:{number}:1"
    live = LiveFlow(flow_id, "h1/a", peer, job, None, rate_bps, False, sender_limited, links, number, None)
    flow = Flow(live, route=FlowRoute(links), queues=queues)
    flow.demand.update(rate_bps, bool(queues), 0, busy_share=busy_share)
    state.flows[flow_id] = flow
    return flow


def test_a_flow_without_a_queue_wants_its_own_rate() -> None:
    state = make_state()
    flow = add(state, 1, 300.0)
    estimate_demands(state)
    assert (flow.bottlenecked, flow.bps) == (False, 300.0)
    assert state.loads.share(TO_FIRST[1]) == pytest.approx(0.3)


def test_flows_near_the_highest_rate_at_a_queue_are_bottlenecked_and_slow_ones_are_not() -> None:
    state = make_state()
    queue = TO_FIRST[1:2]
    fast, near, slow = (add(state, n, rate, queues=queue) for n, rate in enumerate((400.0, 200.0, 199.0)))
    estimate_demands(state)
    assert [flow.bottlenecked for flow in (fast, near, slow)] == [True, True, False]
    assert near.bps == pytest.approx((RATE - 199) / 2), "an even share of what the slow flow leaves"
    assert slow.bps == 199.0


def test_idle_connections_do_not_hide_the_demand_of_a_flow_that_met_a_queue_from_its_first_report() -> None:
    state = make_state()
    flow = add(state, 1, 500.0, queues=TO_FIRST[1:2])
    for number in range(2, 9):
        add(state, number, 5.0, peer="h6/a", links=TO_SECOND)
    estimate_demands(state)
    assert flow.bps == pytest.approx(RATE - 7 * 5)


def test_a_flow_has_no_less_than_an_even_share_of_its_nic() -> None:
    state = make_state()
    flow = add(state, 1, 100.0, queues=TO_FIRST[1:2])
    add(state, 2, 800.0, peer="h6/a", links=TO_SECOND)
    estimate_demands(state)
    assert flow.bps == pytest.approx(RATE / 2), "the other flow would make room"


def test_a_flow_that_its_host_limits_is_not_bottlenecked() -> None:
    state = make_state()
    flow = add(state, 1, 400.0, queues=TO_FIRST[1:2], sender_limited=True)
    estimate_demands(state)
    assert not flow.bottlenecked


def test_a_nic_with_bursts_above_its_line_rate_alternates_between_peers() -> None:
    state = make_state()
    first = add(state, 1, 400.0, busy_share=0.45)
    second = add(state, 2, 400.0, peer="h6/a", links=TO_SECOND, busy_share=0.45)
    estimate_demands(state)
    assert state.alternating == {("h1/a", "job"): pytest.approx(400.0 / 0.45)}
    assert first.weight.burst_bps == second.weight.burst_bps == state.alternating["h1/a", "job"]
    assert state.loads.share(TO_FIRST[0]) < 1, "bursts to two peers never coincide"
    assert not state.slowed


def test_a_flow_of_another_job_beside_an_alternating_one_is_steady() -> None:
    state = make_state()
    add(state, 1, 40.0, busy_share=0.045)
    add(state, 2, 40.0, peer="h6/a", links=TO_SECOND, busy_share=0.045)
    transfer = add(state, 3, 500.0, busy_share=1.0, job="transfer")
    estimate_demands(state)
    assert list(state.alternating) == [("h1/a", "job")]
    assert transfer.weight.burst_bps == 500.0


def test_the_fabric_links_of_a_slower_peer_count_as_slowed() -> None:
    state = make_state()
    add(state, 1, 450.0, busy_share=0.45)
    add(state, 2, 450.0, peer="h6/a", links=TO_SECOND, busy_share=0.8)
    estimate_demands(state)
    assert state.slowed == {TO_SECOND[1]}, "links of the NICs are not part of it"


def test_full_demand_replaces_the_load_of_a_flow() -> None:
    state = make_state()
    flow = add(state, 1, 100.0, queues=TO_FIRST[1:2])
    flow.demand.alone_bps = 100.0
    estimate_demands(state)
    assert state.loads.share(TO_FIRST[1]) == pytest.approx(0.1)
    assume_full_demand(state, [flow])
    assert flow.bps == RATE, "the only flow of both NICs may send at line rate"
    assert state.loads.share(TO_FIRST[1]) == pytest.approx(1.0)
