"""Digests of what outputs depend on: equal for equal content, in any process."""

from __future__ import annotations

from schemas.topology import NodeEntry, Topology, TopologyFile
from streams.runtime.digests import build_digest, settings_digest, topology_digest
from streams.runtime.settings import StreamSettings


def test_a_topology_is_known_by_its_content() -> None:
    nodes = [NodeEntry(name="leaf1"), NodeEntry(name="leaf2")]
    both = topology_digest(Topology(TopologyFile(nodes=nodes)))
    assert both == topology_digest(Topology(TopologyFile(nodes=nodes), "another file"))
    assert both != topology_digest(Topology(TopologyFile(nodes=nodes[:1])))


def test_settings_and_build_have_digests() -> None:
    assert settings_digest(StreamSettings()) == settings_digest(StreamSettings())
    assert settings_digest(StreamSettings()) != settings_digest(StreamSettings(window_ms=500))
    assert build_digest() == build_digest() != ""
