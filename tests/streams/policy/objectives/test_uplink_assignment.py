"""Uplink assignment: each alternating NIC gets its own uplink, with the fewest moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.policy.objectives.uplink_assignment import UplinkAssignment, UplinkRequest

LINE = 1e9


def draw(nic: str, link: str) -> int:
    return sum(map(ord, nic + link)) % 5


def request(flows: dict[str, int], reach: dict[str, int], bps: float = LINE) -> UplinkRequest:
    return UplinkRequest(bps, Counter(flows), Counter(reach))


def assigned(assignment: UplinkAssignment, requests: dict[str, UplinkRequest]) -> dict[str, str | None]:
    assignment.assign(requests, draw)
    return {nic: assignment.of(nic) for nic in requests}


@given(st.data(), st.integers(2, 12))
def test_no_two_nics_share_a_link_while_there_are_enough(data, count):
    links = [f"u{n}" for n in range(count)]
    requests = {}
    for n in range(count):
        flows = data.draw(st.dictionaries(st.sampled_from(links), st.integers(1, 9), max_size=4))
        # each NIC reaches its own link and the drawn ones, so a perfect matching exists
        missing = data.draw(st.sets(st.sampled_from(links), max_size=count - 1)) - {links[n]}
        requests[f"n{n}"] = request(flows, {link: 8 for link in links if link not in missing})
    found = assigned(UplinkAssignment(lambda link: int(LINE)), requests)
    assert len(set(found.values())) == count
    assert all(requests[nic].reachable[link] == 8 for nic, link in found.items())


def test_an_uplink_with_the_largest_number_of_flows_stays():
    assignment = UplinkAssignment(lambda link: int(LINE))
    reach = dict.fromkeys(("u0", "u1", "u2"), 4)
    requests = {"a": request({"u1": 3, "u0": 1}, reach), "b": request({"u1": 2, "u2": 2}, reach)}
    assert assigned(assignment, requests) == {"a": "u1", "b": "u2"}
    requests = {
        "a": request({"u0": 4}, reach),
        "b": request({"u1": 4}, reach),
        "c": request({"u1": 9}, reach),
    }
    assert assigned(assignment, requests) == {"a": "u1", "b": "u2", "c": "u0"}


def test_a_nic_that_no_longer_reaches_its_uplink_gets_another():
    assignment = UplinkAssignment(lambda link: int(LINE))
    assert assigned(assignment, {"a": request({"u0": 4}, {"u0": 4, "u1": 4})}) == {"a": "u0"}
    assert assigned(assignment, {"a": request({"u0": 4}, {"u1": 4})}) == {"a": "u1"}


def test_light_nics_share_a_link_and_the_rest_take_the_emptiest():
    assignment = UplinkAssignment(lambda link: int(LINE))
    reach = {"u0": 2, "u1": 2}
    light = {f"n{n}": request({}, reach, LINE / 2) for n in range(4)}
    assert sorted(Counter(assigned(assignment, light).values()).values()) == [2, 2]
    heavy = {f"m{n}": request({}, reach) for n in range(3)}
    assert sorted(Counter(assigned(UplinkAssignment(lambda link: int(LINE)), heavy).values()).values()) == [
        1,
        2,
    ]


@pytest.mark.parametrize("attempt", range(3))
def test_the_same_requests_give_the_same_assignment(attempt):
    reach = {f"u{n}": 4 for n in range(6)}
    requests = {f"n{n}": request({f"u{n % 2}": 4}, reach) for n in range(6)}
    first = assigned(UplinkAssignment(lambda link: int(LINE)), requests)
    again = assigned(UplinkAssignment(lambda link: int(LINE)), dict(reversed(requests.items())))
    assert first == again
