"""The plan: every host reaches every other by its routes, names and addresses never clash."""

from __future__ import annotations

import ipaddress

import pytest
from pydantic import ValidationError

from fabrictime.testbed.fabric.topology import Plan, make_plan
from fabrictime.testbed.settings import FabricSettings

SHAPES = [
    {},
    {"hosts": 2, "leaves": 2, "spines": 2},
    {"hosts": 64, "leaves": 16, "spines": 8},
    {"hosts": 6, "leaves": 4, "spines": 2, "nics_per_host": 2, "links_per_leaf_spine": 2},
    {"hosts": 3, "leaves": 8, "spines": 1},
]


def walk(plan: Plan, source: str, destination: str) -> set[int]:
    """Follow every equal path from host to host; return the lengths found. Fails on a missing route."""
    target = plan.nodes[destination].ports[0].address
    lengths = set()
    todo = [(source, 0)]
    while todo:
        name, hops = todo.pop()
        assert hops < 6
        if name == destination:
            lengths.add(hops)
            continue
        node = plan.nodes[name]
        direct = [p for p in node.ports if plan.far[name, p.name].address == target]
        if direct:
            todo.append((destination, hops + 1))
            continue
        routes = [
            r
            for r in node.routes
            if r.table is None
            and (
                r.destination == "default"
                or ipaddress.ip_address(target) in ipaddress.ip_network(r.destination)
            )
        ]
        assert routes, f"no route from {name} to {destination}"
        for hop in routes[0].nexthops:
            far = plan.far[name, hop.port]
            assert far.address == hop.gateway
            todo.append((far.node, hops + 1))
    return lengths


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_host_reaches_every_other_over_four_links_or_fewer(shape):
    plan = make_plan(FabricSettings(**shape))
    hosts = [n.name for n in plan.nodes.values() if n.kind == "host"]
    for source in hosts[:4]:
        for destination in hosts:
            if source != destination:
                assert walk(plan, source, destination) <= {2, 4}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_names_addresses_and_macs_are_unique_private_and_repeatable(shape):
    settings = FabricSettings(**shape)
    plan, again = make_plan(settings), make_plan(settings)
    ports = [p for n in plan.nodes.values() for p in n.ports]
    assert ports == [p for n in again.nodes.values() for p in n.ports]
    for field in ("address", "mac"):
        values = [getattr(p, field) for p in ports]
        assert len(set(values)) == len(values)
    assert all(ipaddress.ip_address(p.address).is_private for p in ports)
    assert all(len(p.name) > 1 for p in ports), "iproute2 takes one letter for a keyword"
    assert len(plan.links()) == len(ports)


def test_hosts_spread_evenly_and_rails_go_to_their_own_leaf():
    plan = make_plan(FabricSettings(hosts=8, leaves=4, spines=2, nics_per_host=2))
    leaf_of = {(port.node, rail): far.node for port, far, rail in plan.nics()}
    assert leaf_of["h1", 0] == "leaf1"
    assert leaf_of["h1", 1] == "leaf2"
    assert leaf_of["h8", 0] == "leaf3"
    assert leaf_of["h8", 1] == "leaf4"
    assert plan.nodes["h1"].rules


@pytest.mark.parametrize(
    ("wrong", "error_text"),
    [
        ({"hosts": 0}, "hosts"),
        ({"leaves": 3, "nics_per_host": 2}, "multiple of nics_per_host"),
        ({"hosts": 300, "leaves": 2}, "127 a leaf"),
        ({"host_rate_bps": 1000}, "host_rate_bps 1000"),
        ({"buffer_bytes": 3000, "host_rate_bps": 1_000_000_000}, "buffer_bytes 3000"),
        ({"clock_drift_max_ppb": float("nan")}, "finite"),
        ({"host": 8}, "host"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_named(wrong, error_text):
    with pytest.raises(ValidationError, match=error_text):
        FabricSettings(**wrong)
