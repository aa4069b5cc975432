"""The Prescriptive Topology Manager's topology.dot."""

from __future__ import annotations

import pytest

from fabrictime.imports.base import BadImport, Hints
from fabrictime.imports.ptm import read
from tests.fabrictime.imports.samples import PTM


def test_edges_with_and_without_quotes_but_no_comments() -> None:
    assert [cable.ends for cable in read(PTM, Hints()).cables] == [
        (("h1", "eth0"), ("leaf1", "swp1")),
        (("leaf1", "swp49"), ("spine1", "swp1")),
    ]


def test_functions_are_kinds() -> None:
    text = """graph dc1 {
 "leaf01" [function="leaf" os="http://host/image" memory="2048"]
 "server01" [function="host"]
 "oob-mgmt-switch" [function="oob-switch"]
 "leaf01":"swp1" -- "server01":"eth1" // a comment
 "oob-mgmt-switch":"swp1" -- "leaf01":"eth0" }"""
    part = read(text, Hints())
    assert (part.kinds, part.hosts) == ({"leaf01": "leaf"}, {"server01"})
    assert [cable.place for cable in part.cables] == ["line 5", "line 6"]


def test_a_graph_without_ports_is_refused() -> None:
    with pytest.raises(BadImport, match="no edge"):
        read("graph G { a -- b; }", Hints())
