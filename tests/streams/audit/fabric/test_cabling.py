"""Cables against the plan: swaps at leaves and at spines, moves, and traces that name only switches."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.testbed.audit.simulated import Simulated, railed
from producers.trace.route_names import name_path
from schemas.records import AuditStatus, Leg, Nic
from schemas.topology import End, Topology, TopologyFile
from streams.audit.fabric.cabling import Cabling, swap_text
from streams.audit.fabric.leaves import traced_cables
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET as NO_HOST
from tests.records import make

FLEET = railed(32, 4)


def found(records: FabricRecords) -> list[tuple[str, str, str]]:
    cabling = Cabling(records, traced_cables(records))
    return [
        (each.host, each.subject, each.remedy)
        for each in cabling.findings()
        if each.status is AuditStatus.FAILED
    ]


def test_no_fault_no_finding() -> None:
    records = Simulated(FLEET).records()
    only = list(Cabling(records, traced_cables(records)).findings())
    assert [(each.host, each.status) for each in only] == [(NO_HOST, AuditStatus.PASSED)]
    for kept, status in ((records, AuditStatus.SKIPPED), (Simulated(FLEET).records(paths=()), "UNKNOWN")):
        bare = FabricRecords(kept.nics, paths=kept.paths) if status == AuditStatus.SKIPPED else kept
        assert [each.status for each in Cabling(bare, traced_cables(bare)).findings()] == [status]


def test_a_swap_is_named_by_both_ports() -> None:
    records = Simulated(FLEET, swaps=[("h1/eth1", "h2/eth1")]).records()
    remedy = "swap leaf1 port swp1 and port swp2"
    assert found(records) == [("h1", "eth1", remedy), ("h2", "eth1", remedy)]
    records = Simulated(FLEET, swaps=[("h1/eth1", "h2/eth3")]).records()
    assert found(records)[0] == ("h1", "eth1", "swap leaf1 port swp1 and leaf3 port swp2")
    records = Simulated(FLEET, swaps=[("h1/eth1", "h1/eth3")]).records()
    assert found(records)[0] == ("h1", "eth1", "swap h1 port eth1 and port eth3")


def test_three_cables_in_a_circle_are_three_moves() -> None:
    records = Simulated(FLEET, swaps=[("h1/eth1", "h2/eth1"), ("h2/eth1", "h3/eth1")]).records()
    assert sorted(found(records)) == [
        (f"h{k}", "eth1", f"move the cable of h{k}:eth1 to leaf1:swp{k}") for k in (1, 2, 3)
    ]


PLAN = TopologyFile.model_validate({
    "nodes": [
        {"name": "leaf1", "kind": "leaf", "ports": {
            "up1": ["10.1.1.1"], "up2": ["10.1.2.1"], "h1": ["10.2.1.1"], "h3": ["10.2.3.1"]}},
        {"name": "leaf2", "kind": "leaf", "ports": {
            "up1": ["10.1.3.1"], "up2": ["10.1.4.1"], "h2": ["10.2.2.1"]}},
        {"name": "spine1", "kind": "spine", "ports": {"d1": ["10.1.1.0"], "d2": ["10.1.3.0"]}},
        {"name": "spine2", "kind": "spine", "ports": {"d1": ["10.1.2.0"], "d2": ["10.1.4.0"]}},
    ],
    "links": [
        {"ends": ["h1:e", "leaf1:h1"]}, {"ends": ["h2:e", "leaf2:h2"]}, {"ends": ["h3:e", "leaf1:h3"]},
        {"ends": ["leaf1:up1", "spine1:d1"]}, {"ends": ["leaf1:up2", "spine2:d1"]},
        {"ends": ["leaf2:up1", "spine1:d2"]}, {"ends": ["leaf2:up2", "spine2:d2"]},
    ],
})  # fmt: skip


def traced_by_address(routes: dict[tuple[str, str], list[list[str]]]) -> FabricRecords:
    """Name the hops as an agent with the plan does."""
    topology, paths = Topology(PLAN), []
    for (nic, peer), traces in routes.items():
        rows: list[Any] = []
        for port, hops in enumerate(traces, 9320):
            named = name_path(nic, peer, hops, True, path=port, topology=topology)
            rows.append(named.row(port, Leg.REQUEST))
        paths.append({"nic": nic, "peer": peer, "shard": "fabric", "run": 1, "traced_ns": 0, "paths": rows})
    nics = [make(Nic, nic=f"h{k}/e", host=f"h{k}", device="e") for k in (1, 2, 3)]
    return FabricRecords(nics, paths=paths, topology=topology)  # type: ignore[arg-type]


def test_cables_that_are_swapped_between_switches_are_one_cause() -> None:
    # the cables of leaf1:up1 and leaf2:up1 changed places at spine1
    records = traced_by_address({
        ("h1/e", "h2/e"): [["10.2.1.1", "10.1.3.0", "10.1.3.1"], ["10.2.1.1", "10.1.2.0", "10.1.4.1"]],
        ("h2/e", "h1/e"): [["10.2.2.1", "10.1.1.0", "10.1.1.1"]],
    })  # fmt: skip
    remedies = {remedy for _, _, remedy in found(records)}
    assert remedies == {"swap spine1 port d1 and port d2"}


def test_swapped_nics_of_which_traces_name_only_the_leaf_are_one_cause() -> None:
    # h1 and h2 changed places; their first hops answer from the addresses of their new leaves
    records = traced_by_address({
        ("h1/e", "h3/e"): [["10.2.2.1", "10.1.3.0", "10.1.1.1"]],
        ("h2/e", "h3/e"): [["10.2.1.1"]],
    })  # fmt: skip
    assert {each[:2] for each in found(records)} == {("h1", "e"), ("h2", "e")}
    assert {remedy for _, _, remedy in found(records)} == {"swap leaf1 port h1 and leaf2 port h2"}


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (End("leaf3", "swp8"), End("leaf3", "swp7"), "swap leaf3 port swp7 and port swp8"),
        (End("leaf10", "swp1"), End("leaf9", "swp2"), "swap leaf9 port swp2 and leaf10 port swp1"),
    ],
)
def test_swap_text(a: End, b: End, text: str) -> None:
    assert swap_text(a, b) == text
