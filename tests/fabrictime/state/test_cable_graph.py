"""Cable graph and plan: tiers, racks, malformed ids."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state.cable_graph import ends_of
from fabrictime.state.fabric_state import FabricState
from tests.fabrictime.fill import fill, fill_health

S = 1_000_000_000


def test_plans_of_nothing_one_nic_and_a_fabric(state: FabricState, fabric: Any) -> None:
    assert (state.plan().nodes, state.plan().cables, state.cable_counts()["UP"]) == ([], [], 0)
    fill(state, ("fabric.inventory", "h1/eth1", fabric.nic("h1/eth1")))
    plan = state.plan()
    assert plan.nodes == [("h1", 0)]
    assert plan.nics == [("h1/eth1", 0, 0, -1, -1, -1)]
    fill(state, *fabric.fleet())
    plan = state.plan()
    tiers = dict(plan.nodes)
    assert {name for name, tier in tiers.items() if tier == 1} == {f"leaf{k}" for k in range(1, 5)}
    assert {name for name, tier in tiers.items() if tier == 2} == {f"spine{k}" for k in range(1, 5)}
    assert len(plan.cables) == 8 + 16
    assert all(plan.nodes[low][1] + 1 == plan.nodes[high][1] for low, _, high, _ in plan.cables)
    assert plan.racks == ["r1", "r2", "r3", "r4"]
    assert all(nic[4] >= 0 and plan.cables[nic[4]][0] == nic[1] for nic in plan.nics)
    for k, (low, port, high, far) in enumerate(plan.cables):
        up = f"{plan.nodes[low][0]}:{port}>{plan.nodes[high][0]}:{far}"
        assert state.cable_graph.name(plan.links[2 * k]) == up
        assert state.cable_graph.name(plan.links[2 * k + 1]) == fabric.back(up)
    assert state.plan() is plan


def test_three_tiers_and_hosts_grouped_by_leaf_without_a_rack(state: FabricState, fabric: Any) -> None:
    route = ["h1:e>l1:1", "l1:2>s1:1", "s1:2>c1:1", "c1:2>s2:2", "s2:1>l2:2", "l2:1>h2:e"]
    maps = fabric.paths("h1/eth1", "h2/eth1", ports=1)
    for path in maps["paths"]:
        path["links"] = route
    for nic in ("h1/eth1", "h2/eth1"):
        fill(state, ("fabric.inventory", nic, fabric.nic(nic, rack=None, device="e")))
    fill(state, ("fabric.paths", "h1/eth1>h2/eth1", maps))
    plan = state.plan()
    assert dict(plan.nodes) == {"h1": 0, "h2": 0, "l1": 1, "l2": 1, "s1": 2, "s2": 2, "c1": 3}
    assert plan.racks == ["under l1", "under l2"]


@pytest.mark.parametrize("link", ["", "a", "a>b", "a:1>b", ":1>b:2", "a:1>b:2>c:3", "a:1<>b", "a:>"])
def test_malformed_link_ids_are_not_drawn(state: FabricState, fabric: Any, link: str) -> None:
    assert state.cable_graph.number(link) is None
    fill_health(state, fabric, fabric.up("leaf1", 1), "DOWN", subject=link or "x", links=[link])
    fill(state, ("fabric.queues", "fabric", fabric.queues({link: {}})))
    assert state.plan().cables == []


def test_node_names_may_be_addresses() -> None:
    assert ends_of("10.0.0.1:ip>[fe80::1]:ip") == (("10.0.0.1", "ip"), ("fe80::1", "ip"))
