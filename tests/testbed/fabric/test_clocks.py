"""Clocks of the testbed's NICs: drawn by seed, within their bounds."""

from __future__ import annotations

from fabrictime.testbed.fabric.clocks import draw_clock
from fabrictime.testbed.settings import UNSTABLE_PPB_PER_SQRT_S, FabricSettings


def test_clocks_are_drawn_by_seed_within_their_bounds():
    settings = FabricSettings(clock_offset_max_ns=1000, clock_drift_max_ppb=50.0, clock_seed=7)
    clocks = [draw_clock(settings, f"h{i}/eth1", 5) for i in range(100)]
    assert clocks == [draw_clock(settings, f"h{i}/eth1", 5) for i in range(100)]
    assert len({c.offset_ns for c in clocks}) > 50
    assert all(abs(c.offset_ns) <= 1000 and abs(c.drift_ppb) <= 50 and c.epoch_ns == 5 for c in clocks)
    assert draw_clock(FabricSettings(), "h1/eth1") is None


def test_another_seed_or_nic_has_another_clock_and_drift_alone_makes_one():
    first = FabricSettings(clock_drift_max_ppb=50.0, clock_seed=1)
    second = FabricSettings(clock_drift_max_ppb=50.0, clock_seed=2)
    clocks = [draw_clock(first, "h1/eth1"), draw_clock(first, "h1/eth2"), draw_clock(second, "h1/eth1")]
    assert len({clock.drift_ppb for clock in clocks if clock}) == 3
    assert {clock.offset_ns for clock in clocks if clock} == {0}


def test_a_broken_oscillator_walks_alone():
    settings = FabricSettings(unstable_clocks=("h2/eth1",))
    assert draw_clock(settings, "h1/eth1") is None
    clock = draw_clock(settings, "h2/eth1")
    assert clock is not None
    assert clock.wander_ppb_per_sqrt_s == UNSTABLE_PPB_PER_SQRT_S
    assert (clock.offset_ns, clock.drift_ppb) == (0, 0)
