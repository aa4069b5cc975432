"""Open flows from the newest reports."""

from __future__ import annotations

from typing import Any

from fabrictime.state.fabric_state import FabricState
from fabrictime.state.flow_cache import FlowCache
from fabrictime.web.tabs.fabric import frames as fabric_frames
from tests.fabrictime.fill import fill

S = 1_000_000_000


def test_flows_come_from_the_newest_reports_without_closed_ones(state: FabricState, fabric: Any) -> None:
    one, two = fabric.flow(1, "h1/eth1", "h5/eth1", job="a"), fabric.flow(2, "h1/eth1", "h7/eth1", spine=2)
    other = fabric.flow(3, "h3/eth1", "h5/eth1", job="b")
    fill(state, ("fabric.flows", "h1", fabric.flows("h1", [one, two])), at_ns=S)
    fill(state, ("fabric.flows", "h3", fabric.flows("h3", [other])), at_ns=S)
    closed = {**two, "state": "CLOSED"}
    fill(state, ("fabric.flows", "h1", fabric.flows("h1", [closed], whole=False)), at_ns=2 * S)
    assert set(state.flows.flows()) == {one["flow_id"], other["flow_id"]}
    assert fabric_frames.links_of_job(state.flows.flows(), "a", state) == set()
    fill(state, *fabric.fleet())
    lit = fabric_frames.links_of_job(state.flows.flows(), "a", state)
    assert {state.cable_graph.name(each) for each in lit} == set(one["links"])
    fill(state, ("fabric.flows", "h1", fabric.flows("h1", [])), at_ns=9 * S)
    assert state.flows.flows() == {}, "h3 has not reported for 8 s"


def test_flow_reports_are_bounded_and_unreadable_ones_skipped(
    state: FabricState, fabric: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("fabrictime.state.flow_cache.MAX_BYTES", 2_000)
    for number in range(50):
        flow = fabric.flow(number, "h1/eth1", "h5/eth1")
        fill(state, ("fabric.flows", f"host{number}", fabric.flows(f"host{number}", [flow])))
    state.take_flows("host49", b"no record", S)
    assert 1 <= len(state.flows.flows()) < 10
    assert f"host{49}" in {flow["host"] for flow in state.flows.flows().values()}
    assert state.flows.unreadable >= 1


def test_late_reports_of_another_partition_are_ignored() -> None:
    """The consumer reads partitions one after the other at its start, and after an outage of the log."""
    cache = FlowCache(lambda value: {"whole": True, "flows": [{"flow_id": value.decode(), "state": "OPEN"}]})
    cache.take("h1", b"one", 100 * S)
    cache.take("h2", b"two", 92 * S)
    assert set(cache.flows()) == {"one"}
    cache.take("h2", b"two", 98 * S)
    assert set(cache.flows()) == {"one", "two"}
    cache.take("h1", b"one", 110 * S)
    assert set(cache.flows()) == {"one"}


def test_flows_stay_after_log_time_was_ahead_and_silent_hosts_still_leave(
    state: FabricState, fabric: Any
) -> None:
    one = fabric.flow(1, "h1/eth1", "h5/eth1")
    other = fabric.flow(3, "h3/eth1", "h5/eth1")
    for second in (100, 101, 102 + 8 * 3600, 103, 104, 105):
        fill(state, ("fabric.flows", "h1", fabric.flows("h1", [one])), at_ns=second * S)
        if second != 105:
            fill(state, ("fabric.flows", "h3", fabric.flows("h3", [other])), at_ns=second * S)
    assert set(state.flows.flows()) == {one["flow_id"], other["flow_id"]}
    for second in range(106, 200):
        fill(state, ("fabric.flows", "h1", fabric.flows("h1", [one])), at_ns=second * S)
    assert set(state.flows.flows()) == {one["flow_id"]}
