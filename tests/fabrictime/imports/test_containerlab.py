"""containerlab's topology file."""

from __future__ import annotations

import pytest

from fabrictime.imports.base import BadImport, Hints, merged
from fabrictime.imports.containerlab import read
from schemas.topology import Topology
from tests.fabrictime.imports.samples import CONTAINERLAB


def test_both_forms_of_links() -> None:
    topology = Topology(merged([read(CONTAINERLAB, Hints())]))
    assert topology.cable_ids() == {
        "h1:eth1<>leaf1:e1-1",
        "leaf1:e1-49<>spine1:e1-1",
        "h2:eth1<>spine1:ethernet-1/3",
    }
    assert [topology.tier(name) for name in ("h1", "leaf1", "spine1")] == [0, 1, 2]


def test_foreign_objects_and_growing_tables_are_refused() -> None:
    levels = [f"l{n}: &l{n} {{<<: [*l{n - 1}, *l{n - 1}, *l{n - 1}, *l{n - 1}]}}" for n in range(1, 20)]
    bomb = "\n".join(["l0: &l0 {a: 1, b: 2}", *levels, "topology: {links: *l19}"])
    for text in (bomb, "topology: !!python/object/apply:os.system [ls]"):
        with pytest.raises(BadImport, match="not YAML"):
            read(text, Hints())


def test_a_node_has_the_kind_of_its_group_and_the_role_of_its_labels() -> None:
    text = """
common: &frr {kind: linux, image: "quay.io/frrouting/frr:9.1"}
topology:
  defaults: {kind: nokia_srlinux}
  groups:
    clients: {kind: linux}
    spine: {}
  nodes:
    gpu1: {group: clients}
    leaf1: {<<: *frr}
    s1: {group: spine}
    l2: {labels: {role: leaf}}
    eos: {group: clients, kind: arista_ceos}
  links:
    - endpoints: ["gpu1:eth1", "leaf1:eth1"]
    - endpoints: ["leaf1:eth2", "s1:e1-1"]
    - endpoints: ["l2:e1-1", "s1:e1-2"]
    - endpoints: ["eos:eth1", "gpu1:eth2"]
"""
    kinds = {name: node.kind for name, node in Topology(merged([read(text, Hints())])).nodes.items()}
    assert kinds == {"gpu1": "host", "leaf1": "leaf", "s1": "spine", "l2": "leaf", "eos": "leaf"}


def test_an_endpoint_without_interface_is_refused() -> None:
    with pytest.raises(BadImport, match="expected node:interface"):
        read(CONTAINERLAB.replace("h1:eth1", "h1"), Hints())
