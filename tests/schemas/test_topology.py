"""The topology file: what it says, and one line for what cannot be."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from schemas.topology import End, Topology, TopologyError, TopologyFile, TopologySource, load_topology
from streams.runtime.route_table import link_rate_bps

GOOD = """
[[nodes]]
name = "leaf1"
kind = "leaf"
rail = 0
addresses = ["10.255.0.1"]
ports = { p1 = ["10.0.0.1", "fd00::0001"], p2 = [] }
[[nodes]]
name = "h1"
kind = "host"
[[links]]
ends = ["h1:eth1", "leaf1:p1"]
rate_bps = 100_000_000_000
[[links]]
ends = ["h2:eth1", "leaf1:p2"]
[[paths]]
nic = "h1/eth1"
peer = "h2/eth1"
links = ["h1:eth1>leaf1:p1", "leaf1:p2>h2:eth1"]
"""


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_file_defines_names_cables_rates_and_paths(tmp_path: Path, suffix: str) -> None:
    import tomllib

    path = tmp_path / f"fabric.{suffix}"
    path.write_text(GOOD if suffix == "toml" else json.dumps(tomllib.loads(GOOD)))
    found = load_topology(path)
    assert found.at("10.0.0.1") == ("leaf1", "p1")
    assert found.at("fd00:0::1") == ("leaf1", "p1")
    assert found.at("10.255.0.1") == ("leaf1", None)
    assert found.at("10.9.9.9") is None
    assert found.rate_bps("leaf1:p1>h1:eth1") == found.rate_bps("h1:eth1>leaf1:p1") == 100_000_000_000
    assert found.rate_bps("h2:eth1>leaf1:p2") == found.rate_bps("what:ever>else:where") == 0
    assert found.listed("h1/eth1", "h2/eth1", 5) == ("h1:eth1>leaf1:p1", "leaf1:p2>h2:eth1")
    assert (found.tier("leaf1"), found.tier("h1"), found.tier("h2")) == (1, 0, None)
    assert found.cable_ids() == {"h1:eth1<>leaf1:p1", "h2:eth1<>leaf1:p2"}
    speeds = {"h2/eth1": 7, "h1/eth1": 8}
    assert link_rate_bps("h2:eth1>leaf1:p2", found, speeds) == 7
    assert link_rate_bps("leaf1:p1>h1:eth1", found, speeds) == 100_000_000_000
    assert link_rate_bps("leaf1:p9>spine1:p1", found, speeds) == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nodes = 3", "nodes: "),
        ("surprise = 1", "surprise: "),
        ('[[nodes]]\nkind = "leaf"', "nodes[1].name: "),
        ('[[nodes]]\nname = "a"\nkind = "hub"', "nodes[1].kind: "),
        ('[[nodes]]\nname = "a>b"', "nodes[1].name: "),
        ('[[nodes]]\nname = "a"\n[[nodes]]\nname = "a"', "nodes[2].name: 'a' is listed twice"),
        ('[[nodes]]\nname = "a"\nports = { "x>y" = [] }', "nodes[1].ports: "),
        ('[[nodes]]\nname = "a"\naddresses = ["10.0.0"]', "nodes[1]: address '10.0.0'"),
        ('[[links]]\nends = ["a:1", "b"]', "links[1].ends: end 'b': expected node:port"),
        ('[[links]]\nends = ["a:1"]', "links[1].ends"),
        ('[[links]]\nends = ["a:1", "a:2"]', "links[1].ends: both at a"),
        ('[[links]]\nends = ["a:1", "b:1"]\nrate_bps = -1', "links[1].rate_bps: "),
        (
            '[[links]]\nends = ["a:1", "b:1"]\n[[links]]\nends = ["b:1", "a:1"]',
            "links[2].ends: b:1 is wired twice, by links[1] too (for a bond, list b as a host)",
        ),
        ('[[paths]]\nnic = "a"\npeer = "b/e"\nlinks = ["a:e>b:e"]', "paths[1].nic: "),
        ('[[paths]]\nnic = "a/e"\npeer = "b/e"\nlinks = ["a:e"]', "paths[1].links: 'a:e'"),
        ('[[paths]]\nnic = "a/e"\npeer = "b/e"\nlinks = ["x:1>b:e"]', "begins at x, expected a"),
        ('[[paths]]\nnic = "a/e"\npeer = "b/e"\nlinks = ["a:e>x:1"]', "they end at x, expected b"),
        ("[[nodes", "not a TOML file: "),
        ("\x00", "not a TOML file: "),
    ],
)
def test_a_file_that_cannot_be_is_one_line_that_names_the_place(
    tmp_path: Path, text: str, error: str
) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(text)
    with pytest.raises(TopologyError) as refused:
        load_topology(path)
    line = str(refused.value)
    assert line.startswith(f"topology file {path}: ")
    assert error in line
    assert "\n" not in line


def test_a_bond_has_a_cable_of_each_member() -> None:
    leaves = [{"name": name, "kind": "leaf"} for name in ("leaf1", "leaf2")]
    cables = [{"ends": ["gpu01:bond0", f"leaf{number}:7"], "rate_bps": number} for number in (1, 2)]
    for nodes in (leaves, [*leaves, {"name": "gpu01", "kind": "host"}]):
        found = Topology(TopologyFile.model_validate({"nodes": nodes, "links": cables}))
        assert found.cable_ids() == {"gpu01:bond0<>leaf1:7", "gpu01:bond0<>leaf2:7"}
        assert found.far(End("gpu01", "bond0")) is None, "there is no single one"
        assert found.fars(End("gpu01", "bond0")) == (End("leaf1", "7"), End("leaf2", "7"))
        assert found.rate_bps("leaf2:7>gpu01:bond0") == 2
        assert found.routes(End("gpu01", "bond0"), "leaf2") == [("gpu01:bond0>leaf2:7",)]


def test_a_switch_port_has_one_cable() -> None:
    nodes = [{"name": "leaf1", "kind": "leaf"}]
    cables = [{"ends": [f"h{number}:eth0", "leaf1:7"]} for number in (1, 2)]
    with pytest.raises(TopologyError, match="leaf1:7 is wired twice, by links"):
        Topology(TopologyFile.model_validate({"nodes": nodes, "links": cables}))


def test_a_file_that_is_not_there_or_not_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="No such file"):
        load_topology(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopologyError, match="not UTF-8 at byte 0"):
        load_topology(tmp_path / "binary.toml")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(TopologyError):
        load_topology(tmp_path / "deep.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(TopologyError, match="expected tables"):
        load_topology(tmp_path / "list.json")


def test_whatever_a_file_holds_it_is_understood_or_refused(tmp_path: Path) -> None:
    rng = random.Random(4)
    path = tmp_path / "fabric.json"
    values: list[Any] = [
        "a",
        "a:1",
        "b:2",
        "a/e",
        "",
        "1.2.3.4",
        "leaf",
        None,
        3,
        -1,
        1e9,
        True,
        [],
        {},
        "x:1>y:2",
    ]

    def value(depth: int) -> Any:
        kind = rng.random()
        if depth > 3 or kind < 0.4:
            return rng.choice(values)
        if kind < 0.7:
            return [value(depth + 1) for _ in range(rng.randrange(3))]
        keys = [
            "name",
            "kind",
            "rail",
            "addresses",
            "ports",
            "ends",
            "rate_bps",
            "nic",
            "peer",
            "path",
            "links",
        ]
        return {rng.choice(keys): value(depth + 1) for _ in range(rng.randrange(5))}

    for _ in range(1500):
        tables = {key: [value(1) for _ in range(rng.randrange(3))] for key in ("nodes", "links", "paths")}
        path.write_text(json.dumps(tables))
        with contextlib.suppress(TopologyError):
            load_topology(path)


def test_routes_have_the_fewest_links_and_cross_no_host() -> None:
    ends = [("h1:a", "l1:1"), ("h1:b", "l2:1"), ("h2:a", "l1:2"), ("h3:a", "l2:2")]
    ends += [(f"l{leaf}:s{spine}", f"s{spine}:l{leaf}") for leaf in (1, 2) for spine in (1, 2, 3)]
    found = Topology(TopologyFile.model_validate({
        "nodes": [{"name": f"h{n}", "kind": "host"} for n in (1, 2, 3)],
        "links": [{"ends": each} for each in ends],
    }))  # fmt: skip
    routes = found.routes("h2", "h3")
    assert len(routes) == 3
    assert all(len(route) == 4 and route[0] == "h2:a>l1:2" and route[-1] == "l2:2>h3:a" for route in routes)
    assert found.routes("h2", "h2") == found.routes("h2", "nowhere") == []
    assert found.routes("l1", "s1", 1) == [("l1:s1>s1:l1",)]


def test_a_changed_file_is_read_again_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(GOOD)
    source = TopologySource(path)
    assert not source.refresh()
    path.write_text(GOOD.replace("100_000_000_000", "25"))
    assert source.refresh()
    assert source.topology.rate_bps("h1:eth1>leaf1:p1") == 25
    path.write_text("nodes = 1  # and longer than before")
    with pytest.raises(TopologyError):
        source.refresh()
    assert not source.refresh(), "it is said once"
    assert source.topology.rate_bps("h1:eth1>leaf1:p1") == 25
    assert not TopologySource(None).refresh()


def test_an_address_of_several_ports_is_the_nodes_and_of_several_nodes_nobodys() -> None:
    found = Topology(
        TopologyFile.model_validate(
            {
                "nodes": [
                    {
                        "name": "leaf1",
                        "ports": {"vlan10": ["10.1.0.1"], "p1": ["fe80::1"], "p2": ["fe80:0::1"]},
                    },
                    {"name": "leaf2", "ports": {"vlan10": ["10.1.0.1"]}},
                ]
            }
        )
    )
    assert found.at("fe80::1") == ("leaf1", None)
    assert found.at("10.1.0.1") is None
    assert found.holders("10.1.0.1") == [("leaf1", "vlan10"), ("leaf2", "vlan10")]
    assert list(found.holders("10.9.9.9")) == []
