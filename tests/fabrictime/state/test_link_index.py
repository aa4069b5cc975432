"""Paths over a link."""

from __future__ import annotations

from typing import Any

from fabrictime.state.fabric_state import FabricState
from fabrictime.state.link_index import PathOnLink
from tests.fabrictime.fill import fill, number_of

S = 1_000_000_000


def test_paths_over_a_link_have_their_leg(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet())
    link = fabric.up("leaf1", 2)
    found = state.link_index.paths_over(number_of(state, link))
    near = {"h1/eth1", "h2/eth1"}
    assert {each.nic for each in found} == near
    assert {each.path for each in found} == {40_001}
    assert len(found) == 2 * 6 * 2
    assert {each.answer for each in found} == {False, True}
    first = state.link_index.paths_over(number_of(state, fabric.first("h1/eth1")))
    assert len(first) == 7 * 4 * 2
    route = state.link_index.route(PathOnLink("h1/eth1", "h8/eth1", 40_001, False))
    assert [state.cable_graph.name(each) for each in route] == fabric.hops("h1/eth1", "h8/eth1", 2)
    fill(state, ("fabric.inventory", "h1/eth1", None))
    assert {each.nic for each in state.link_index.paths_over(number_of(state, link))} == {"h2/eth1"}


def test_pairs_beyond_the_bound_still_add_their_cables(
    state: FabricState, fabric: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("fabrictime.state.link_index.MAX_PAIRS", 3)
    fill(state, *fabric.fleet())
    assert state.link_index.pairs == 3
    assert state.link_index.left_out == 53
    assert len(state.cable_graph) == 2 * 24
