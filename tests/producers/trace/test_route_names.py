"""Names of links: from addresses, from the inventory and from a topology file."""

from __future__ import annotations

import random
from typing import Any

import pytest

from producers.trace.route_names import name_path, partner_of
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


@pytest.mark.parametrize(
    ("address", "prefix", "partner"),
    [
        ("10.0.0.0", 31, "10.0.0.1"),
        ("10.0.0.3", 31, "10.0.0.2"),
        ("10.0.0.1", 30, "10.0.0.2"),
        ("10.0.0.4", 30, None),
        ("10.0.0.9", 0, None),
        ("fd00::1", 31, "fd00::"),
    ],
)
def test_the_other_address_of_a_cable(address: str, prefix: Any, partner: str | None) -> None:
    assert partner_of(address, prefix) == partner


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
            link_prefix=rng.choice([31, 30, 0]),
            peer_first_hop=rng.choice(["10.1.2.0", "9.9.9.9", None]),
        )
        if found.complete:
            assert found.links[0].startswith("a:e0>")
            assert found.links[-1].endswith(">b:e1")
