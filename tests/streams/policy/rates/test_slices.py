"""Slices: the filling algorithm, and a closed loop on a simulated fleet, observed with noise."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.policy.rates.slices import Group, fill
from tests.examples import examples
from tests.streams.policy.rate_loop import RateLoop, S, jain

C = 1e8


def slice_of(tenant: str, guarantee: float = 0.0, ceiling: float | None = None):
    """Return a slice, given in shares of a link."""
    return {
        "tenant": tenant,
        "guarantee_bps": int(guarantee * C),
        "ceiling_bps": None if ceiling is None else int(ceiling * C),
    }


def filled(demands, groups, weights=None):
    n = len(demands)
    demand, weight = np.array(demands, float), np.array(weights or [1.0] * n)
    named = [Group(str(max_bps), max_bps, flows) for max_bps, flows in groups]
    return fill(demand, weight, named, np.zeros(n)).rate_bps.tolist()


def test_filling_is_max_min_fair() -> None:
    assert filled([math.inf] * 3, [(9.0, [0, 1, 2])]) == pytest.approx([3, 3, 3])
    assert filled([1, math.inf, math.inf], [(9.0, [0, 1, 2])]) == pytest.approx([1, 4, 4])
    assert filled([math.inf] * 3, [(9.0, [0, 1]), (3.0, [1, 2])]) == pytest.approx([7.5, 1.5, 1.5])
    assert filled([math.inf] * 2, [(9.0, [0, 1])], [2.0, 1.0]) == pytest.approx([6, 3])
    assert filled([5.0], []) == [5.0]
    with pytest.raises(ValueError, match="unlimited demand"):
        filled([math.inf], [])


@settings(max_examples=examples(200))
@given(data=st.data())
def test_no_flow_can_get_more_without_taking_from_one_that_has_no_more(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    demands = data.draw(st.lists(st.sampled_from([0.0, 1.0, 3.0, 10.0, math.inf]), min_size=n, max_size=n))
    sets = st.lists(st.integers(0, n - 1), min_size=1, unique=True)
    groups = data.draw(st.lists(st.tuples(st.floats(0.5, 20.0), sets), max_size=5))
    groups = [*groups, (50.0, list(range(n)))]
    rates = filled(demands, groups)
    for max_bps, flows in groups:
        assert sum(rates[i] for i in flows) <= max_bps * (1 + 1e-6)
    for i, rate in enumerate(rates):
        assert rate <= demands[i]
        if rate < demands[i] * (1 - 1e-6):
            assert any(
                i in flows
                and sum(rates[j] for j in flows) >= max_bps * (1 - 1e-6)
                and rate >= max(rates[j] for j in flows) * (1 - 1e-6)
                for max_bps, flows in groups
            ), "stopped only by a full group in which no flow has more"


def two_tenants(noise: float = 0.1):
    """Return a loop with eight greedy flows and two of an idle tenant with a guarantee, all to one NIC."""
    loop = RateLoop(noise=noise)
    loop.rates.take_slices([slice_of("gold", 0.4)])
    greedy = [loop.open(1 + n, 0, 50_000 + n, tenant="greedy") for n in range(8)]
    gold = [loop.open(10 + n, 0, 51_000 + n, tenant="gold", endless=False) for n in range(2)]
    return loop, greedy, gold


def share(loop: RateLoop, flows, seconds: float = 2.0) -> float:
    return sum(loop.bps(flow, seconds) for flow in flows) / C


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_idle_capacity_is_used_and_returned_within_a_second(noise: float) -> None:
    loop, greedy, gold = two_tenants(noise)
    loop.advance(5)
    assert share(loop, greedy) >= 0.95
    assert jain([loop.bps(flow, 2) for flow in greedy]) > 0.95
    loop.want(gold[0], 0.4 * C)
    loop.advance(1)
    assert share(loop, gold, 0.5) >= 0.98 * 0.4
    loop.advance(5)
    assert share(loop, gold) >= 0.98 * 0.4
    assert share(loop, gold + greedy) >= (0.85 if noise <= 0.1 else 0.75)
    loop.want(gold[0], 0)
    loop.advance(5)
    assert share(loop, greedy) >= 0.95
    assert {w.kind for _, w in loop.made} == {"SLICE"}


def test_a_guarantee_holds_against_greedy_flows_and_the_rest_is_shared_evenly() -> None:
    loop, greedy, gold = two_tenants()
    for flow in gold:
        loop.want(flow, None)
    loop.advance(8)
    assert share(loop, gold) == pytest.approx(0.4 + (0.97 - 0.4) / 2, abs=0.01)
    assert share(loop, greedy) == pytest.approx((0.97 - 0.4) / 2, abs=0.01)
    rates_of: dict[str, set[int]] = defaultdict(set)
    for at_ns, wanted in loop.made:
        if at_ns > loop.run.now_ns - 3 * S:
            rates_of[wanted.flow_id].add(wanted.rate_bps)
    assert len(rates_of) == 10
    assert all(max(rates) <= 1.05 * min(rates) for rates in rates_of.values()), "rates settle"
    assert np.percentile(loop.delay_ms(0, 4), 99) < 1, "no queue persists"


def test_limits_end_once_no_guarantee_is_at_risk() -> None:
    loop, greedy, gold = two_tenants()
    loop.want(gold[0], None)
    loop.advance(4)
    assert loop.leases
    for flow in greedy:
        loop.want(flow, 0.01 * C)
    loop.want(gold[0], 0.1 * C)
    loop.advance(12)
    assert not loop.leases
    assert loop.made[-1][1].action == "UNPACE"
    assert loop.rates.in_force() == {}


def test_a_ceiling_holds_on_an_idle_fabric_and_ends_with_the_slice() -> None:
    loop = RateLoop()
    loop.rates.take_slices([slice_of("capped", 0, 0.2)])
    flows = [loop.open(1 + n, 0, 50_000 + n, tenant="capped") for n in range(2)]
    other = loop.open(5, 0, 50_010, tenant="other")
    loop.advance(10)
    assert share(loop, flows) == pytest.approx(0.2, abs=0.005)
    assert share(loop, [other]) >= 0.7
    loop.rates.take_slices([])
    loop.advance(0.2)
    assert {action for action, _ in loop.rates.in_force().values()} <= {"PACE"}


def test_guarantees_and_ceilings_hold_on_every_link_of_a_busy_fabric() -> None:
    loop = RateLoop()
    promised = {"gold": 0.3, "silver": 0.2}
    loop.rates.take_slices([slice_of("gold", 0.3), slice_of("silver", 0.2, 0.4), slice_of("capped", 0, 0.1)])
    rng = np.random.default_rng(3)
    flows = []
    for n in range(96):
        a = int(rng.integers(0, 32))
        tenant = ["gold", "silver", "capped", None][n % 4]
        flows.append(loop.open(a, (a + int(rng.integers(1, 32))) % 32, 50_000 + n, tenant=tenant))
    loop.advance(10)
    used: dict[tuple[str, str | None], float] = defaultdict(float)
    for flow in flows:
        for link in flow.hops:
            used[link, flow.tenant] += loop.bps(flow, 3) / C
    for flow in flows:
        if flow.tenant in promised:
            best = max(used[link, flow.tenant] for link in flow.hops)
            assert best >= 0.98 * promised[flow.tenant], "a greedy flow's tenant has its guarantee somewhere"
    for (_, tenant), max_bps in used.items():
        assert max_bps <= {"silver": 0.4, "capped": 0.1}.get(tenant or "", 1.0) * 1.02


def test_guarantees_beyond_a_links_rate_are_scaled_down_together() -> None:
    loop = RateLoop(noise=0.0)
    loop.rates.take_slices([slice_of("gold", 0.9), slice_of("silver", 0.45)])
    gold = [loop.open(1 + n, 0, 50_000 + n, tenant="gold") for n in range(2)]
    silver = [loop.open(3 + n, 0, 50_000 + n, tenant="silver") for n in range(2)]
    loop.advance(6)
    assert share(loop, gold) == pytest.approx(2 * share(loop, silver), rel=0.05)
    assert loop.last_link(0) in loop.rates.slices.scaled


def test_without_slices_no_rate_is_wanted() -> None:
    loop = RateLoop()
    loop.rates.take_slices([slice_of("gold", 0.0)])
    loop.open(1, 0, 50_000, tenant="gold")
    loop.advance(2)
    assert loop.made == []
