"""Digests of what outputs depend on: equal for equal content, in any process."""

from __future__ import annotations

from schemas.topology import NodeEntry, Topology, TopologyFile
from streams.runtime.digests import TRANSPORT_SETTINGS, build_digest, settings_digest, topology_digest
from streams.runtime.settings import StreamSettings


def test_a_topology_is_known_by_its_content() -> None:
    nodes = [NodeEntry(name="leaf1"), NodeEntry(name="leaf2")]
    both = topology_digest(Topology(TopologyFile(nodes=nodes)))
    assert both == topology_digest(Topology(TopologyFile(nodes=nodes), "another file"))
    assert both != topology_digest(Topology(TopologyFile(nodes=nodes[:1])))


def test_settings_and_build_have_digests() -> None:
    assert settings_digest(StreamSettings()) == settings_digest(StreamSettings())
    assert settings_digest(StreamSettings()) != settings_digest(StreamSettings(window_ms=500))
    assert settings_digest(StreamSettings()) == settings_digest(
        StreamSettings(group="other", stages=("map",))
    )
    assert build_digest() == build_digest() != ""


def test_every_setting_counts_but_those_of_the_transport() -> None:
    names = set(StreamSettings.model_fields)
    assert names >= TRANSPORT_SETTINGS
    assert names - TRANSPORT_SETTINGS == {
        *("default_shard", "window_ms", "silence_ms", "queue_slot_us"),
        *("clock_jump_us", "clock_jump_ppm", "solve"),
    }, "a new setting: do outputs depend on it?"
