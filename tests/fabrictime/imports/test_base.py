"""Files of many hosts and switches become one topology file."""

from __future__ import annotations

import pytest

from fabrictime.imports.base import BadImport, Found, Hints, expanded, merged, text_of, xml_root, yaml_content
from schemas.topology import Topology


def found(*cables: tuple[str, str, str, str], hosts: tuple[str, ...] = ()) -> Found:
    one = Found(hosts=set(hosts))
    for node, port, far, far_port in cables:
        one.connect((node, port), (far, far_port))
    return one


def test_a_cable_that_both_ends_report_is_one() -> None:
    first = found(("leaf1", "1", "spine1", "2"))
    second = Found()
    second.connect(("spine1", "2"), ("leaf1", "1"), 100)
    file = merged([first, second])
    assert [(link.ends, link.rate_bps) for link in file.links] == [(("leaf1:1", "spine1:2"), 100)]


def test_switches_get_their_tier_by_the_distance_from_hosts() -> None:
    cables = [("h1", "e", "leaf1", "1"), ("leaf1", "2", "spine1", "1"), ("spine1", "2", "core1", "1")]
    cables += [("core1", "2", "edge", "1"), ("lost1", "1", "lost2", "1")]
    topology = Topology(merged([found(*cables, hosts=("h1",))]))
    kinds = {name: node.kind for name, node in topology.nodes.items()}
    assert kinds == {
        "h1": "host", "leaf1": "leaf", "spine1": "spine", "core1": "core", "edge": "switch",
        "lost1": "switch", "lost2": "switch",
    }  # fmt: skip


def test_hosts_may_be_named_by_a_pattern() -> None:
    topology = Topology(
        merged([found(("gpu1", "e", "leaf1", "1"), ("leaf1", "2", "s1", "1"))], Hints(hosts="gpu*"))
    )
    assert [topology.tier(name) for name in ("gpu1", "leaf1", "s1")] == [0, 1, 2]


def test_a_stated_kind_wins() -> None:
    one = found(("h1", "e", "leaf1", "1"), hosts=("h1",))
    one.kinds["leaf1"] = "spine"
    assert Topology(merged([one])).tier("leaf1") == 2


def test_a_port_that_is_wired_twice_is_named() -> None:
    with pytest.raises(BadImport, match=r"a:1 is wired to b:1 and to c:1"):
        merged([found(("a", "1", "b", "1")), found(("c", "1", "a", "1"))])


def test_a_cable_on_a_used_port_is_left_out_on_request() -> None:
    one, conflicts = Found(), list[str]()
    one.connect(("a", "1"), ("b", "1"), place="line 3")
    one.connect(("c", "1"), ("a", "1"), place="line 9")
    one.connect(("a", "1"), ("b", "1"), place="line 12")
    file = merged([one], conflicts=conflicts)
    assert [link.ends for link in file.links] == [("a:1", "b:1")]
    assert conflicts == ["a:1 is wired to b:1 (line 3) and to c:1 (line 9)"]


def test_nodes_are_left_out_by_pattern() -> None:
    one = found(("h1", "e", "leaf1", "1"), ("h1", "m", "oob-sw", "1"), ("oob-sw", "2", "leaf1", "m"))
    one.kinds["oob-sw"], one.hosts = "leaf", {"h1", "oob-host"}
    topology = Topology(merged([one], Hints(without=("oob-*",))))
    assert set(topology.nodes) == {"h1", "leaf1"}
    assert topology.cable_ids() == {"h1:e<>leaf1:1"}


def test_a_loop_plug_is_no_cable() -> None:
    assert merged([found(("a", "1", "a", "2"))]).links == ()


def test_an_impossible_name_is_refused() -> None:
    with pytest.raises(BadImport, match="node 'a>b'"):
        found(("a>b", "1", "c", "1"))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("h1", ["h1"]),
        ("h[1-3],g1", ["h1", "h2", "h3", "g1"]),
        ("h[08-10,2]x", ["h08x", "h09x", "h10x", "h2x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
    ],
)
def test_host_lists(pattern: str, names: list[str]) -> None:
    assert list(expanded(pattern)) == names


@pytest.mark.parametrize("pattern", ["h[1-999999999]", "h[a-b]", "h[1-]"])
def test_host_lists_that_cannot_be(pattern: str) -> None:
    with pytest.raises(BadImport, match="host list"):
        list(expanded(pattern))


def test_entities_are_refused() -> None:
    with pytest.raises(BadImport, match="document type"):
        xml_root('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>')


def test_names_are_text() -> None:
    assert [text_of(value) for value in (" a ", 7, True, None, [], 1.5)] == ["a", "7", "", "", "", ""]
    assert Hints().device == "eth0"


@pytest.mark.parametrize("value", ["!!timestamp x", "!!int ''", "!!bool x", "!!float ''"])
def test_a_tag_with_a_value_of_another_form_is_refused(value: str) -> None:
    with pytest.raises(BadImport, match="not YAML"):
        yaml_content(f"topology: {value}")


def test_a_number_that_is_too_long_to_print_is_refused() -> None:
    with pytest.raises(BadImport, match="a number: Exceeds the limit"):
        text_of(16**6000)
