"""The watch of a control loop: flows as last reported, complete routes, and waiting within a time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.control.watch import Watch
from schemas import codec
from tests.records import make, make_part


@pytest.fixture
def watch() -> Watch:
    """Return a watch without a log."""
    made = Watch.__new__(Watch)
    made.flows, made.routes, made.health, made.decisions = {}, {}, {}, {}
    made.health_records, made.actions, made.movable = [], [], 0
    made._lock = threading.Lock()
    return made


def encoded(kind: str, **fields: Any) -> bytes:
    return codec.encode(kind, make(kind, **fields))


def report(host: str, *flows: tuple[str, str], whole: bool = False) -> bytes:
    listed = [make_part("FlowReports", "Flow", flow_id=name, state=state) for name, state in flows]
    return encoded("FlowReports", host=host, whole=whole, flows=listed)


def test_flows_are_those_that_are_open_and_in_the_last_whole_report(watch: Watch) -> None:
    watch._take_flows(report("h1", ("h1/a", "OPEN"), ("h1/b", "OPEN")))
    watch._take_flows(report("h10", ("h10/a", "OPEN")))
    watch._take_flows(report("h1", ("h1/a", "CLOSED"), ("h1/never", "CLOSED")))
    assert list(watch.flows) == ["h1/b", "h10/a"]
    watch._take_flows(report("h1", whole=True))
    assert list(watch.flows) == ["h10/a"], "another host's flows stay"


def test_a_route_is_known_in_both_directions_once_it_is_complete(watch: Watch) -> None:
    def routes(nic: str, peer: str, leg: str, links: list[str], complete: bool = True) -> bytes:
        ends = {"leg": leg, "path": 50_007, "peer_port": 9}
        one = make_part("FlowRoutes", "FlowRoute", **ends, links=links, complete=complete)
        return encoded("FlowRoutes", nic=nic, peer=peer, routes=[one])

    flow: Any = {"nic": "p/e", "peer": "q/e", "source_port": 50_007, "peer_port": 9, "links": ["x:1>y:1"]}
    watch._take_routes(routes("p/e", "q/e", "DATA", ["a:1>b:1"], complete=False))
    assert watch.route_of(flow, 50_007) == ()
    watch._take_routes(routes("p/e", "q/e", "DATA", ["a:1>b:1"]))
    watch._take_routes(routes("q/e", "p/e", "ACK", ["b:1>a:1"]))
    assert watch.route_of(flow, 50_007) == ("a:1>b:1", "b:1>a:1")
    assert watch.links_of(flow) == ("x:1>y:1", "b:1>a:1")
    assert watch.route_of(flow, 50_008) == ()


def test_health_decisions_actions_and_cycles_are_kept(watch: Watch) -> None:
    for state in ("DOWN", "UP"):
        watch._take_health(encoded("LinkHealth", subject="a:1<>b:1", state=state))
    watch._take_decision(encoded("Decision", decision_id="d"))
    watch._take_action(encoded("ActionReport", decision_id="d"))
    watch._take_cycles(encoded("PolicyCycles", movable=12))
    assert (watch.health["a:1<>b:1"]["state"], len(watch.health_records)) == ("UP", 2)
    assert (list(watch.decisions), len(watch.actions), watch.movable) == (["d"], 1, 12)


def test_only_flows_of_the_jobs_with_known_links_count(watch: Watch) -> None:
    flows: Any = {
        "a": {"job": "gold-3", "links": ["x"]},
        "b": {"job": "greedy-3", "links": ["x"]},
        "c": {"job": "greedy-3", "links": []},
        "d": {"job": "gold-2", "links": ["x"]},
        "e": {"job": None, "links": ["x"]},
    }
    watch.flows = flows
    assert watch.flows_of("gold-3", "greedy-3").keys() == {"a", "b"}
    assert watch.flows_of("gold-1") == {}


def test_waiting_ends_in_time_and_names_the_missing_parts(watch: Watch) -> None:
    assert watch.soon(lambda: True, 0)
    assert not watch.soon(lambda: False, 0)
    with pytest.raises(CannotRun, match="flows: not within 0 s"):
        watch.until(lambda: False, 0, "flows")
