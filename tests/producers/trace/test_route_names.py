"""Names of links: from addresses, from the inventory and from a topology file."""

from __future__ import annotations

import random
from typing import Any

import pytest

from producers.trace.addressing import AddressRule
from producers.trace.route_names import name_path
from schemas.topology import Topology, TopologyFile

HOPS = ("10.0.1.1", "10.9.0.1", "10.9.0.2")


def test_both_directions_of_a_cable_are_one_cable_without_any_file() -> None:
    there, again = ("10.0.0.0", "10.9.0.1", "10.9.0.2"), ("10.0.2.0", "10.9.0.3", "10.9.0.0")
    out = name_path("a/e0", "b/e1", there, True, path=1, peer_first_hop="10.0.2.0")
    back = name_path("b/e1", "a/e0", again, True, path=1, peer_first_hop="10.0.0.0")
    assert out.links == (
        "a:e0>10.0.0.0:a.e0",
        "10.9.0.0:ip>10.9.0.1:ip",
        "10.9.0.3:ip>10.9.0.2:ip",
        "10.0.2.0:b.e1>b:e1",
    )
    assert (out.complete, out.found) == (True, "TRACED")
    assert back.links == tuple(">".join(reversed(link.split(">"))) for link in reversed(out.links))


def test_ipv6_addresses_make_ids_that_come_apart_at_colons() -> None:
    hops = ("fd00::", "fd09::1", "fd09::2")
    links = name_path("a/e0", "b/e1", hops, True, path=1, peer_first_hop="fd02::").links
    assert links[1] == "fd09--:ip>fd09--1:ip"
    assert all(end.count(":") == 1 for link in links for end in link.split(">"))


def test_a_peers_cable_is_unknown_until_its_first_hop_is_announced() -> None:
    named = name_path("a/e0", "b/e1", HOPS, True, path=1)
    assert not named.complete
    assert len(named.links) == 3


def fabric(**more: Any) -> Topology:
    """Two leaves, two spines, one host on each leaf; 10.1.x.y: leaf x's port y, 10.2.x.y: spine x's."""
    return Topology(
        TopologyFile.model_validate(
            {
                "nodes": [
                    {
                        "name": "l1",
                        "kind": "leaf",
                        "ports": {"h": ["10.1.1.0"], "s1": ["10.1.1.1"], "s2": ["10.1.1.2"]},
                    },
                    {
                        "name": "l2",
                        "kind": "leaf",
                        "ports": {"h": ["10.1.2.0"], "s1": ["10.1.2.1"], "s2": ["10.1.2.2"]},
                    },
                    {"name": "s1", "kind": "spine", "ports": {"l1": ["10.2.1.1"], "l2": ["10.2.1.2"]}},
                    {"name": "s2", "kind": "spine", "ports": {"l1": ["10.2.2.1"], "l2": ["10.2.2.2"]}},
                    {"name": "a", "kind": "host"},
                    {"name": "b", "kind": "host"},
                ],
                "links": [
                    {"ends": ["a:e0", "l1:h"], "rate_bps": 100},
                    {"ends": ["b:e1", "l2:h"], "rate_bps": 100},
                    {"ends": ["l1:s1", "s1:l1"], "rate_bps": 400},
                    {"ends": ["l1:s2", "s2:l1"], "rate_bps": 400},
                    {"ends": ["l2:s1", "s1:l2"], "rate_bps": 400},
                    {"ends": ["l2:s2", "s2:l2"], "rate_bps": 400},
                ],
                **more,
            }
        )
    )


ROUTE = ("a:e0>l1:h", "l1:s1>s1:l1", "s1:l2>l2:s1", "l2:h>b:e1")


def named(hops: tuple[str | None, ...], reached: bool = True, **more: Any) -> Any:
    return name_path("a/e0", "b/e1", hops, reached, path=1, topology=more.pop("topology", fabric()), **more)


def test_the_file_names_links_and_agrees() -> None:
    found = named(("10.1.1.0", "10.2.1.1", "10.1.2.1"))
    assert (found.links, found.complete, found.found, found.contradiction) == (ROUTE, True, "TRACED", None)


@pytest.mark.parametrize("silent", [(0,), (1,), (2,), (0, 2)])
def test_silent_switches_are_filled_in_if_the_file_has_one_route(silent: tuple[int, ...]) -> None:
    hops = tuple(None if k in silent else hop for k, hop in enumerate(("10.1.1.0", "10.2.1.1", "10.1.2.1")))
    found = named(hops)
    assert (found.links, found.complete, found.found) == (ROUTE, True, "FILLED")


def test_silent_switches_are_not_guessed_between_two_routes() -> None:
    found = named(("10.1.1.0", None, None))
    assert (found.links, found.complete) == ((ROUTE[0], ROUTE[3]), False), (
        "both hosts' own cables are certain"
    )


def test_a_path_that_nothing_traces_is_the_files() -> None:
    found = named((), False)
    assert (found.links, found.complete, found.found) == ((ROUTE[0], ROUTE[3]), False, "TOPOLOGY")
    listed = fabric(paths=[{"nic": "a/e0", "peer": "b/e1", "path": 1, "links": ROUTE}])
    found = named((), False, topology=listed)
    assert (found.links, found.complete, found.found) == (ROUTE, True, "TOPOLOGY")
    assert named((None, None, None), True).found == "TOPOLOGY"
    assert name_path("a/e0", "b/e1", (), False, path=1).found == "UNKNOWN"


def test_a_contradicting_file_never_gives_a_wrong_link() -> None:
    crossed = named(("10.1.1.0", "10.2.1.1", "10.1.2.2"))
    assert "l2:s2" in str(crossed.contradiction)
    assert not crossed.complete
    wrong_leaf = named(("10.1.2.0", "10.2.1.2", "10.1.1.1"))
    assert "hop 1 is l2" in str(wrong_leaf.contradiction)
    stranger = named(("10.1.1.0", "10.7.7.7", "10.1.2.1"))
    assert "10.7.7.7" in str(stranger.contradiction)
    listed = fabric(paths=[{"nic": "a/e0", "peer": "b/e1", "links": ROUTE}])
    other = named(("10.1.1.0", "10.2.2.1", "10.1.2.2"), topology=listed)
    assert other.complete
    assert "lists another path, from link 2" in str(other.contradiction)
    loop = named(("10.1.1.0", "10.2.1.1", "10.1.1.1", "10.2.1.1", "10.1.2.1"))
    assert loop.contradiction == "a link is crossed twice"


def test_names_never_fail_whatever_answers() -> None:
    rng = random.Random(11)
    pool = ["10.1.1.0", "10.2.1.1", "10.1.2.1", "10.2.2.2", "1.2.3.4", "fd00::1", None]
    for _ in range(3000):
        hops = tuple(rng.choice(pool) for _ in range(rng.randrange(7)))
        found = named(
            hops,
            rng.random() < 0.5,
            topology=rng.choice([fabric(), Topology()]),
            rule=AddressRule(rng.choice([31, 30, 24, 0]), (1, 2), frozenset(rng.sample(pool[:5], 2))),
            peer_first_hop=rng.choice(["10.1.2.0", "9.9.9.9", None]),
        )
        if found.complete:
            assert found.links[0].startswith("a:e0>")
            assert found.links[-1].endswith(">b:e1")


GATEWAY = "10.99.0.1"


def test_loopbacks_name_a_link_by_both_switches() -> None:
    hops = ("10.255.0.1", "10.255.0.11", "10.255.0.2")
    out = name_path("a/e0", "b/e1", hops, True, path=1, peer_first_hop=hops[-1], rule=AddressRule(0))
    back = name_path("b/e1", "a/e0", hops[::-1], True, path=1, peer_first_hop=hops[0], rule=AddressRule(0))
    assert out.links[1:3] == ("10.255.0.1:ip>10.255.0.11:ip", "10.255.0.11:ip>10.255.0.2:ip")
    assert back.links == tuple(">".join(reversed(link.split(">"))) for link in reversed(out.links))


def test_a_gateway_of_all_leaves_is_a_switch_of_each_nic() -> None:
    rule = AddressRule(0, anycast=frozenset({GATEWAY}))
    hops = (GATEWAY, "10.255.0.11", GATEWAY)
    out = name_path("a/e0", "b/e1", hops, True, path=1, peer_first_hop=GATEWAY, rule=rule)
    assert out.links == (
        f"a:e0>{GATEWAY}:a.e0",
        f"{GATEWAY}@a.e0:ip>10.255.0.11:ip",
        f"10.255.0.11:ip>{GATEWAY}@b.e1:ip",
        f"{GATEWAY}:b.e1>b:e1",
    )
    assert out.complete
    middle = name_path("a/e0", "b/e1", ("10.0.0.1", GATEWAY, "10.0.0.3"), True, path=1, rule=rule)
    assert (middle.links, middle.complete) == (("a:e0>10.0.0.1:a.e0",), False), "the gateway may be any leaf"


def test_nics_of_one_subnet_have_a_cable_each_into_an_unknown_layer_2() -> None:
    found = name_path("a/e0", "b/e1", (), True, path=1)
    assert (found.links, found.complete) == (("a:e0>layer-2:a.e0", "layer-2:b.e1>b:e1"), True)


def test_the_file_names_the_switches_of_one_subnet() -> None:
    wired = Topology(
        TopologyFile.model_validate(
            {
                "links": [
                    {"ends": ["a:e0", "sw1:p1"]},
                    {"ends": ["b:e1", "sw1:p2"]},
                    {"ends": ["c:e0", "sw2:p1"]},
                ]
            }
        )
    )
    found = name_path("a/e0", "b/e1", (), True, path=1, topology=wired)
    assert (found.links, found.complete, found.found) == (("a:e0>sw1:p1", "sw1:p2>b:e1"), True, "TOPOLOGY")
    assert name_path("a/e0", "c/e0", (), True, path=1, topology=wired).links == (), "no wiring leads there"
    listed = fabric(paths=[{"nic": "a/e0", "peer": "b/e1", "path": 1, "links": ROUTE}])
    found = named((), topology=listed)
    assert (found.links, found.contradiction) == (ROUTE, None)


def test_a_shared_address_in_the_file_is_the_neighbours() -> None:
    nodes = [
        {"name": leaf, "ports": {"vlan10": [GATEWAY], "up": [f"10.2.{k}.2"]}}
        for k, leaf in enumerate(("l1", "l2"))
    ]
    nodes.append({"name": "s1", "ports": {"p1": ["10.2.0.1"], "p2": ["10.2.1.1"]}})
    links = [("a:e0", "l1:h"), ("b:e1", "l2:h"), ("l1:up", "s1:p1"), ("l2:up", "s1:p2")]
    shared = Topology(
        TopologyFile.model_validate({"nodes": nodes, "links": [{"ends": each} for each in links]})
    )
    found = named((GATEWAY, "10.2.0.1", "10.2.1.2"), topology=shared)
    assert (found.links, found.contradiction) == (
        ("a:e0>l1:h", "l1:up>s1:p1", "s1:p2>l2:up", "l2:h>b:e1"),
        None,
    )
    assert named((GATEWAY, "10.2.0.1", GATEWAY), topology=shared).links == found.links


def bonded() -> Topology:
    """Two pairs of leaves and two spines; each host has a bond over its pair."""
    pairs = {"a": ("l1", "l2"), "b": ("l3", "l4")}
    nodes: list[dict[str, Any]] = [{"name": host, "kind": "host"} for host in pairs]
    links: list[dict[str, Any]] = []
    for leaf in range(1, 5):
        ports = {"h": [f"10.1.{leaf}.0"], "s1": [f"10.1.{leaf}.1"], "s2": [f"10.1.{leaf}.2"]}
        nodes.append({"name": f"l{leaf}", "kind": "leaf", "ports": ports})
        links += [{"ends": [f"l{leaf}:s{spine}", f"s{spine}:l{leaf}"]} for spine in (1, 2)]
    for spine in (1, 2):
        ports = {f"l{leaf}": [f"10.2.{spine}.{leaf}"] for leaf in range(1, 5)}
        nodes.append({"name": f"s{spine}", "kind": "spine", "ports": ports})
    links += [{"ends": [f"{host}:bond0", f"{leaf}:h"]} for host, leaves in pairs.items() for leaf in leaves]
    return Topology(TopologyFile.model_validate({"nodes": nodes, "links": links}))


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("last", [3, 4])
@pytest.mark.parametrize("announced", [None, "10.1.3.0"])
def test_each_member_of_a_bond_is_a_cable_of_its_own(first: int, last: int, announced: str | None) -> None:
    hops = (f"10.1.{first}.0", f"10.2.1.{first}", f"10.1.{last}.1")
    named = name_path("a/bond0", "b/bond0", hops, True, path=1, peer_first_hop=announced, topology=bonded())
    assert named.links == (
        f"a:bond0>l{first}:h",
        f"l{first}:s1>s1:l{first}",
        f"s1:l{last}>l{last}:s1",
        f"l{last}:h>b:bond0",
    )
    assert (named.complete, named.contradiction) == (True, None)


def test_a_member_is_not_guessed_where_its_leaf_is_silent() -> None:
    silent_first = name_path("a/bond0", "b/bond0", (None, None, "10.1.3.1"), True, path=1, topology=bonded())
    assert not silent_first.complete
    assert not any(link.startswith("a:bond0>") for link in silent_first.links)
    silent_last = name_path(
        "a/bond0", "b/bond0", ("10.1.1.0", "10.2.1.1", None), True, path=1, topology=bonded()
    )
    assert not silent_last.complete
    assert not any(link.endswith(">b:bond0") for link in silent_last.links)


def test_a_bond_at_a_leaf_that_is_not_its_own_contradicts_the_file() -> None:
    hops = ("10.1.4.0", "10.2.1.4", "10.1.3.1")
    named = name_path("a/bond0", "b/bond0", hops, True, path=1, topology=bonded())
    assert named.contradiction is not None
    assert "hop 1 is l4, and the file wires a:bond0 to l1:h" in named.contradiction
