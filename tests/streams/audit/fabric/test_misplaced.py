"""Cables at the wrong switch, found from routes."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.fabric.topology import exchange, make_plan, topology_file
from fabrictime.testbed.settings import FabricSettings
from schemas.topology import End, Topology
from streams.audit.fabric.misplaced import Misplaced, misplaced

PLAN = make_plan(FabricSettings(hosts=8, leaves=4, spines=4))
TOPOLOGY = Topology(topology_file(PLAN))


def routes(swapped_leaves: list[str], spines: tuple[str, str] = ("spine1", "spine2")) -> list[list[str]]:
    """Name the routes between leaves as traces do: ports by planned addresses, which go with the cable."""
    actual = exchange(PLAN, *spines, swapped_leaves)[0] if swapped_leaves else PLAN
    cables = {}
    for sender, receiver in actual.links().values():
        if sender.node.startswith("leaf") and receiver.node.startswith("spine"):
            cables[sender.node, receiver.node] = End(sender.node, sender.name)
    found = []
    for one, other in permutations(("leaf1", "leaf2", "leaf3", "leaf4"), 2):
        for spine in ("spine1", "spine2", "spine3", "spine4"):
            up, down = cables[one, spine], cables[other, spine]
            entered = TOPOLOGY.far(up)
            planned = TOPOLOGY.far(down)
            assert entered is not None
            assert planned is not None
            port = planned.port if planned.node == entered.node else "?"
            found.append([
                f"h:e>{one}:swp1",
                f"{up.node}:{up.port}>{entered.node}:{entered.port}",
                f"{entered.node}:{port}>{down.node}:{down.port}",
            ])  # fmt: skip
    return found


def test_a_cable_is_misplaced_and_not_its_neighbours() -> None:
    found = misplaced(routes(["leaf3"]), TOPOLOGY)
    first, second = End("leaf3", "swp3"), End("leaf3", "swp4")
    at_first, at_second = TOPOLOGY.far(first), TOPOLOGY.far(second)
    assert at_first is not None
    assert at_second is not None
    assert found == {first: Misplaced(at_first, "spine2"), second: Misplaced(at_second, "spine1")}


def test_routes_as_planned_have_no_misplaced_cable_and_half_of_the_leaves_prove_nothing() -> None:
    assert misplaced(routes([]), TOPOLOGY) == {}
    assert misplaced(routes(["leaf1", "leaf2"]), TOPOLOGY) == {}
    assert misplaced([], TOPOLOGY) == {}


@given(st.lists(st.sampled_from(routes(["leaf2"], ("spine3", "spine4"))), max_size=40))
def test_some_of_the_routes_never_accuse_a_cable_that_no_route_contradicts(some: list[list[str]]) -> None:
    ends = misplaced(some, TOPOLOGY)
    contradicted = {text for route in some if "?" in route[2] for text in (route[1], route[2])}
    for end in ends:
        assert any(f"{end.node}:{end.port}" in text for text in contradicted)
