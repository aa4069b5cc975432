"""Loads: demand estimates of flows and loads of links."""

from __future__ import annotations

import pytest

from streams.policy.flows.loads import Demand, Loads, Weight
from streams.runtime.units import NS_PER_S

RATE = 1000


def test_a_rate_without_a_queue_counts_after_a_second() -> None:
    demand = Demand()
    for second in range(4):
        demand.update(100.0, False, second * NS_PER_S)
    demand.update(40.0, True, 4 * NS_PER_S)
    assert demand.bps(40.0, bottlenecked=True, fair_bps=500.0) == 100.0
    assert demand.bps(40.0, bottlenecked=True, fair_bps=500.0, assume_full_demand=True) == 500.0


def test_the_fair_share_counts_for_a_bottlenecked_flow_that_was_never_alone() -> None:
    demand = Demand()
    demand.update(40.0, True, 0)
    assert demand.bps(40.0, bottlenecked=True, fair_bps=500.0) == 500.0
    assert demand.bps(40.0, bottlenecked=False, fair_bps=500.0) == 40.0


def test_the_larger_of_mean_and_burst_counts_for_each_nic() -> None:
    loads = Loads(lambda link: RATE)
    first = Weight("n1", ("p1", "job"), 100.0, 400.0)
    second = Weight("n1", ("p2", "job"), 100.0, 300.0)
    for weight in (first, second):
        loads.add(("a", "b"), weight)
    assert loads.share("a") == pytest.approx(0.4), "bursts to two peers alternate"
    loads.add(("a",), Weight("n2", ("p1", "job"), 500.0, 200.0))
    assert loads.max_share(("a", "b")) == pytest.approx(0.9)
    assert loads.share("b", second) == pytest.approx(0.6)
    assert loads.group_burst_bps(("a", "b"), first) == 400.0
    loads.add(("a", "b"), first, -1)
    assert loads.share("b") == pytest.approx(0.3)


def test_a_link_of_unknown_rate_has_no_load() -> None:
    loads = Loads(lambda link: 0)
    loads.add(("a",), Weight("n1", ("p1", None), 100.0, 100.0))
    assert loads.share("a") == 0.0
