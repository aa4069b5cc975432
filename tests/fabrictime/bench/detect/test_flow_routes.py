"""What the bench of flow routes follows: the first time of a flow's links, and the newest ones."""

from __future__ import annotations

import pytest

from fabrictime.bench.detect.flow_routes import _Follower
from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import FLOW_ROUTES, FLOWS
from streams.runtime.flow_routes import FlowRouteTable
from tests.records import make, make_part

S = 1_000_000_000


@pytest.fixture
def follower() -> _Follower:
    """Return a follower without a log."""
    made = _Follower.__new__(_Follower)
    made.book, made.hops = FlowRouteTable(), {}
    return made


def message(topic: str, key: str, kind: str, at_ns: int, **fields: object) -> Message:
    value = codec.encode(kind, make(kind, **fields))
    return Message(at_ns, topic, 0, 0, key, value)


def flows(at_ns: int, *links: list[str]) -> Message:
    ends = {"protocol": "UDP", "nic": "p/e", "source_port": 50_001, "peer_port": 9}
    listed = [make_part("FlowReports", "Flow", **ends, links=each) for each in links]
    return message(FLOWS.name, "p", "FlowReports", at_ns, flows=listed)


def test_the_first_links_give_the_time_and_the_newest_the_route(follower: _Follower) -> None:
    follower._take(flows(1 * S, []))
    assert follower.hops == {}
    follower._take(flows(2 * S, ["a:1>b:1"]))
    follower._take(flows(3 * S, ["a:1>c:1"]))
    follower._take(flows(4 * S, []))
    assert follower.hops == {("UDP", "p/e", 50_001, 9): (2.0, ["a:1>c:1"])}


def test_routes_that_flows_could_take_go_into_the_table(follower: _Follower) -> None:
    route = make_part(
        "FlowRoutes", "FlowRoute", leg="DATA", path=50_002, peer_port=9, links=["a:1>b:1"], complete=True
    )
    follower._take(
        message(FLOW_ROUTES.name, "p/e>q/e", "FlowRoutes", S, nic="p/e", peer="q/e", routes=[route])
    )
    assert follower.book.of("p/e", "q/e", 9)[50_002].links == ("a:1>b:1",)


def test_waiting_reads_until_it_is_so_or_too_late(follower: _Follower) -> None:
    assert follower.until(lambda: True, 0)
    assert not follower.until(lambda: False, -1)
