"""Plans of a round: partners by position, NICs by rail, both ends agree on every flow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.host.base import Missing
from producers.audit.load.traffic import RING, Flow, Plan
from producers.audit.load.traffic_plan import (
    FAN_CHECK,
    MAX_FLOWS,
    PAIR_CHECK,
    PLANS,
    RING_CHECK,
    RoundNic,
    TrafficRound,
)
from producers.audit.settings import TrafficSettings


def round_of(host: str, count: int, nics: int = 1) -> TrafficRound:
    hosts = tuple(f"h{number}" for number in range(count))
    found = {
        each: tuple(RoundNic(rail, f"eth{rail}", f"10.{rail}.0.{at}") for rail in reversed(range(nics)))
        for at, each in enumerate(hosts)
    }
    return TrafficRound("r1", host, hosts, found, TrafficSettings(rate_mbps=100))


def plans(check: str, count: int, nics: int = 1) -> list[Plan]:
    found = []
    for number in range(count):
        try:
            found.append(PLANS[check](round_of(f"h{number}", count, nics)))
        except Missing:
            continue
    return found


@given(st.sampled_from(sorted(PLANS)), st.integers(1, 12), st.integers(1, 4))
def test_both_ends_agree_on_every_flow(check: str, count: int, nics: int) -> None:
    ends: dict[str, list[tuple[str, Flow]]] = {}
    for plan in plans(check, count, nics):
        for flow in plan.flows:
            ends.setdefault(flow.flow, []).append((plan.host, flow))
    for both in ends.values():
        assert len(both) == 2
        (host, flow), (other, back) = both
        assert (flow.host, back.host) == (other, host)
        assert (flow.near, flow.far) == (back.far, back.near)
        assert {flow.is_client, back.is_client} == {True, False}


def test_hosts_meet_by_position_and_nics_by_rail() -> None:
    plan = PLANS[PAIR_CHECK](round_of("h3", 4, nics=2))
    assert [(each.flow, each.near, each.far) for each in plan.flows] == [
        ("h2/eth0>h3/eth0", "10.0.0.3", "10.0.0.2"),
        ("h2/eth1>h3/eth1", "10.1.0.3", "10.1.0.2"),
    ]
    assert (plan.rate_bps, plan.seconds, plan.port) == (1e8, 2, 9318)
    with pytest.raises(Missing, match="pauses"):
        PLANS[PAIR_CHECK](round_of("h4", 5))


def test_receivers_of_a_fan_share_its_rate() -> None:
    first, *others = plans(FAN_CHECK, 5)
    assert len(first.flows) == 4
    assert {each.rate_bps for each in others} == {25e6}
    with pytest.raises(ValueError, match=f"65 flows, expected at most {MAX_FLOWS}"):
        PLANS[FAN_CHECK](round_of("h0", 66))


def test_a_ring_uses_one_nic_each() -> None:
    assert plans(RING_CHECK, 2) == []
    found = plans(RING_CHECK, 3, nics=4)
    assert {each.kind for each in found} == {RING}
    assert [len(each.flows) for each in found] == [2, 2, 2]


def test_a_host_outside_the_round_or_without_a_nic_has_no_plan() -> None:
    with pytest.raises(Missing, match="names no partner"):
        PLANS[PAIR_CHECK](round_of("h9", 4))
    order = round_of("h0", 2)
    with pytest.raises(Missing, match="h1 has no NIC in the inventory"):
        PLANS[PAIR_CHECK](replace(order, nics={"h0": order.nics["h0"]}))
    with pytest.raises(ValueError, match="expected each of them once"):
        PLANS[PAIR_CHECK](replace(order, hosts=("h0", "h1", "h0")))
