"""Frames of links: past hour, unknown rates."""

from __future__ import annotations

from typing import Any

from fabrictime.state.fabric_state import FabricState
from fabrictime.web.tabs.fabric import frames as fabric_frames
from tests.fabrictime.fill import fill, fill_health, number_of

S = 1_000_000_000


def test_a_link_of_unknown_rate_shows_delays_instead_of_bytes(state: FabricState, fabric: Any) -> None:
    link = fabric.up("leaf1", 1)
    fill(
        state,
        ("fabric.queues", "fabric", fabric.queues({link: {"rate_bps": 0, "depth_mean_bytes": 1_250.0}})),
    )
    figures = fabric_frames.direction_figures(state, number_of(state, link))
    assert figures.depth == "10.0 µs (link rate unknown)"


def test_a_trouble_of_a_shard_is_named_by_its_kind(state: FabricState, fabric: Any) -> None:
    record = fabric.health(fabric.up("leaf1", 1), "GREY")
    record |= {"subject": "losses@sim", "kind": "PATHS", "shard": "sim", "links": []}
    fill(state, ("fabric.link-health", record["subject"], record))
    (row,) = fabric_frames.trouble_rows(state)
    assert row["subject"] == "Loss without a located cause: shard sim"


def test_the_past_hour_shows_state_changes_and_flaps(state: FabricState, fabric: Any) -> None:
    link, now = fabric.up("leaf1", 1), fabric.now_ns
    frame = fabric_frames.hour_frame(state, state.cable_graph.number(link) or 0, now)
    assert (frame["states"], frame["flaps"]) == ([], [])
    flaps = [now - 4_000 * S, now - 600 * S]
    fill_health(state, fabric, link, "DOWN", since_ns=now - 600 * S, flap_ns=flaps)
    fill_health(state, fabric, link, "UP", before="DOWN", since_ns=now - 300 * S, flap_ns=flaps)
    frame = fabric_frames.hour_frame(state, number_of(state, link), now)
    spans = [(round((end - begin) / 1000), kind) for begin, end, kind in frame["states"]]
    assert spans == [(3_000, 1), (300, 4), (300, 1)]
    assert len(frame["flaps"]) == 1, "the older one is more than an hour ago"


def test_a_rack_lists_its_nics_with_their_cables_the_worst_first(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet())
    fill_health(state, fabric, fabric.first("h4/eth1"), "DOWN")
    drawn = fabric_frames.draw_plan(state.plan())
    rows = fabric_frames.rack_rows(state, drawn, "r2")
    assert [(row["port"], row["far"], row["state"]) for row in rows] == [
        ("h4/eth1", "leaf2:swp2", "DOWN"),
        ("h3/eth1", "leaf2:swp1", "UNKNOWN"),
    ]
    assert rows[1]["id"] == fabric.first("h3/eth1")
    assert fabric_frames.rack_rows(state, drawn, "r9") == []
    host = fabric.health(fabric.first("h3/eth1"), "DOWN") | {"subject": "h3", "kind": "HOST", "links": []}
    fill(state, ("fabric.link-health", "h3", host))  # red in the map, too
    assert [row["state"] for row in fabric_frames.rack_rows(state, drawn, "r2")] == ["DOWN", "DOWN"]
    assert [row["state"] for row in fabric_frames.node_rows(state, drawn, "h3")] == ["DOWN"]
