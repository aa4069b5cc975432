"""Limits of drains: racks, rails, hours, and the circuit breaker that a person resets."""

import re

from hypothesis import given
from hypothesis import strategies as st

from actuators.nodes.caps import HOUR_NS, Breaker, Caps, NodeRules, Opening, Unit
from actuators.settings import NodeSettings

S = 1_000_000_000
WIDE = {"max_out_share": 0.5, "min_in": 1}


def units(racks, **rules):
    """One unit for each rack name in the list."""
    limits = NodeRules(**{**WIDE, **rules})
    return [Unit(f"n{number}", (f"n{number}",), rack, False, limits) for number, rack in enumerate(racks)]


def test_a_rack_loses_no_more_nodes_than_its_cap():
    fleet = units(["r1"] * 4 + ["r2"] * 4, max_per_rack=1)
    caps = Caps(fleet, (), Breaker(), 0)
    assert caps.obstacle(fleet[0], ()) == ""
    caps.add(fleet[0], ())
    assert caps.obstacle(fleet[1], ()) == "1 nodes of rack r1 are out (max_per_rack): waits until one returns"
    assert caps.obstacle(fleet[4], ()) == ""


def test_caps_of_a_rail_and_an_hour_count_the_drains_of_the_log():
    fleet = units([None] * 8, max_per_rail=2, max_per_hour=3)
    openings = [Opening(0, "", frozenset({3}), True), Opening(1, "", frozenset({3}), True)]
    caps = Caps(fleet, openings, Breaker(), 2)
    assert (
        caps.obstacle(fleet[0], {3}) == "2 drains for NICs of rail 3 (max_per_rail): waits until one returns"
    )
    assert caps.obstacle(fleet[0], {4}) == ""
    caps.add(fleet[0], {4})
    end = "waits until 01:00:00 UTC"
    assert caps.obstacle(fleet[1], {4}) == f"3 drains within an hour (max_per_hour): {end}"
    later = Caps(fleet, openings, Breaker(), HOUR_NS + 2)
    assert later.obstacle(fleet[0], {4}) == ""


@given(st.lists(st.integers(0, 3599), max_size=9), st.integers(1, 4))
def test_a_wait_for_the_hour_ends_at_the_time_of_its_text(drains_s, limit):
    openings = [Opening(at_s * S, "", frozenset(), False) for at_s in drains_s]
    [unit, *_] = fleet = units([None] * 20, max_per_hour=limit)

    def obstacle(now_s):
        return Caps(fleet, openings, Breaker(100), now_s * S).obstacle(unit, ())

    ends = [list(map(int, end)) for end in re.findall(r"until (\d+):(\d+):(\d+) UTC", obstacle(3599))]
    assert bool(ends) == (len(drains_s) >= limit)
    for hours, minutes, seconds in ends:
        end_s = 3600 * hours + 60 * minutes + seconds
        assert not obstacle(end_s)
        assert obstacle(end_s - 1)


def test_the_breaker_opens_on_a_burst_and_stays_open_until_its_reset():
    fleet = units([None] * 20)
    burst = [Opening(at * S, "", frozenset(), False) for at in (1, 2, 3)]
    reset = "until `fabrictime audit repairs --reset`"
    expected = f"circuit breaker: 3 drains within 10 s (breaker_drains) stop all {reset}"
    for now_s in (4, 10**6):
        assert Caps(fleet, burst, Breaker(3, 10 * S), now_s * S).obstacle(fleet[0], ()) == expected
    assert Caps(fleet, burst, Breaker(3, 10 * S, reset_ns=3 * S + 1), 4 * S).obstacle(fleet[0], ()) == ""
    assert Caps(fleet, burst, Breaker(3, S), 4 * S).obstacle(fleet[0], ()) == ""


@given(
    st.lists(st.integers(0, 1000), max_size=40),
    st.integers(1, 6),
    st.integers(0, 300),
    st.integers(0, 1000),
)
def test_the_breaker_is_open_if_a_window_holds_too_many_drains(times, max_drains, window, reset):
    counted = [at for at in times if at >= reset]
    is_burst = any(sum(at - window <= other <= at for other in counted) >= max_drains for at in counted)
    assert (Breaker(max_drains, window, reset).opened_ns(times) is not None) == is_burst


@given(
    racks=st.lists(st.sampled_from(["r1", "r2", "r3", None]), min_size=1, max_size=30),
    order=st.randoms(use_true_random=False),
    share=st.floats(0, 0.5),
    per_rack=st.integers(1, 4),
    per_rail=st.integers(1, 4),
    per_hour=st.integers(1, 8),
    breaker=st.integers(1, 8),
)
def test_no_order_of_drains_breaks_a_cap(racks, order, share, per_rack, per_rail, per_hour, breaker):
    fleet = units(
        racks, max_out_share=share, max_per_rack=per_rack, max_per_rail=per_rail, max_per_hour=per_hour
    )
    caps, drained = Caps(fleet, (), Breaker(breaker, S), 0), []
    for unit in order.sample(fleet, len(fleet)):
        rail = len(drained) % 2
        if not caps.obstacle(unit, {rail}):
            caps.add(unit, {rail})
            drained.append((unit, rail))
    assert len(drained) <= min(share * len(fleet) + 1e-9, per_hour, breaker, max(0, len(fleet) - 1))
    for rack in {"r1", "r2", "r3"}:
        assert sum(unit.rack == rack for unit, _ in drained) <= per_rack
    for rail in (0, 1):
        assert sum(of == rail for _, of in drained) <= per_rail


def test_the_first_group_that_names_a_node_sets_its_rules():
    settings = NodeSettings(
        max_per_hour=5,
        groups={
            "gb200": {"nodes": ["gb*"], "unit": "rack", "max_out_share": 0.25},
            "test": {"nodes": ["*-test", "gb9"], "observe": True},
        },
    )
    gb200, test, other = (settings.rules_of(node) for node in ("gb9", "n1-test", "n1"))
    assert (gb200.group, gb200.is_rack_unit, gb200.max_out_share, gb200.observe) == (
        "gb200",
        True,
        0.25,
        False,
    )
    assert (test.group, test.observe, test.max_out_share, test.max_per_hour) == ("test", True, 0.1, 5)
    assert (other.group, other.is_rack_unit, other.observe) == ("", False, False)
