"""Lanes: every NIC that sends in turns gets a way into the fabric of its own, with the fewest moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.policy.uplink_assignment import UplinkAssignment, UplinkRequest

LINE = 1e9


def draw(nic: str, link: str) -> int:
    return sum(map(ord, nic + link)) % 5


def want(flows: dict[str, int], reach: dict[str, int], bps: float = LINE) -> UplinkRequest:
    return UplinkRequest(bps, Counter(flows), Counter(reach))


def assigned(lanes: UplinkAssignment, wants: dict[str, UplinkRequest]) -> dict[str, str | None]:
    lanes.assign(wants, draw)
    return {nic: lanes.of(nic) for nic in wants}


@given(st.data(), st.integers(2, 12))
def test_no_two_share_a_link_while_there_is_one_for_each(data, count):
    links = [f"u{n}" for n in range(count)]
    wants = {}
    for n in range(count):
        flows = data.draw(st.dictionaries(st.sampled_from(links), st.integers(1, 9), max_size=4))
        # each reaches its own link and what is drawn: a perfect matching exists
        missing = data.draw(st.sets(st.sampled_from(links), max_size=count - 1)) - {links[n]}
        wants[f"n{n}"] = want(flows, {link: 8 for link in links if link not in missing})
    found = assigned(UplinkAssignment(lambda link: int(LINE)), wants)
    assert len(set(found.values())) == count
    assert all(wants[nic].reachable[link] == 8 for nic, link in found.items())


def test_a_lane_is_where_most_of_its_flows_are_and_stays():
    lanes = UplinkAssignment(lambda link: int(LINE))
    reach = dict.fromkeys(("u0", "u1", "u2"), 4)
    wants = {"a": want({"u1": 3, "u0": 1}, reach), "b": want({"u1": 2, "u2": 2}, reach)}
    assert assigned(lanes, wants) == {"a": "u1", "b": "u2"}
    wants = {"a": want({"u0": 4}, reach), "b": want({"u1": 4}, reach), "c": want({"u1": 9}, reach)}
    assert assigned(lanes, wants) == {"a": "u1", "b": "u2", "c": "u0"}


def test_one_that_reaches_its_lane_no_longer_gets_another():
    lanes = UplinkAssignment(lambda link: int(LINE))
    assert assigned(lanes, {"a": want({"u0": 4}, {"u0": 4, "u1": 4})}) == {"a": "u0"}
    assert assigned(lanes, {"a": want({"u0": 4}, {"u1": 4})}) == {"a": "u1"}


def test_light_ones_share_and_those_for_whom_none_is_left_take_the_emptiest():
    lanes = UplinkAssignment(lambda link: int(LINE))
    reach = {"u0": 2, "u1": 2}
    light = {f"n{n}": want({}, reach, LINE / 2) for n in range(4)}
    assert sorted(Counter(assigned(lanes, light).values()).values()) == [2, 2]
    heavy = {f"m{n}": want({}, reach) for n in range(3)}
    assert sorted(Counter(assigned(UplinkAssignment(lambda link: int(LINE)), heavy).values()).values()) == [1, 2]


@pytest.mark.parametrize("turn", range(3))
def test_the_same_wants_give_the_same_lanes(turn):
    reach = {f"u{n}": 4 for n in range(6)}
    wants = {f"n{n}": want({f"u{n % 2}": 4}, reach) for n in range(6)}
    first = assigned(UplinkAssignment(lambda link: int(LINE)), wants)
    again = assigned(UplinkAssignment(lambda link: int(LINE)), dict(reversed(wants.items())))
    assert first == again
