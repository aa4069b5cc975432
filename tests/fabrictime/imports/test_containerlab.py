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


def test_aliases_and_foreign_objects_are_refused() -> None:
    for text in ("a: &a [1]\ntopology: {links: *a}", "topology: !!python/object/apply:os.system [ls]"):
        with pytest.raises(BadImport, match="not YAML"):
            read(text, Hints())


def test_an_endpoint_without_interface_is_refused() -> None:
    with pytest.raises(BadImport, match="expected node:interface"):
        read(CONTAINERLAB.replace("h1:eth1", "h1"), Hints())
