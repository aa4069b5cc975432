"""Which source ports are tried, and what a NIC's ways are known by: pure, over a network in a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from producers.settings import FlowSettings
from producers.trace.candidate_ports import flow_candidate_ports
from producers.trace.flow_routes import FlowRouteTracer
from producers.trace.route_tracer import TracedNic
from producers.trace.sockets import TraceReply
from schemas import codec
from streams.runtime.flow_routes import FlowRouteTable

A, B = "10.0.0.1", "10.0.1.1"
FIRST_HOP = {"a/e": "10.1.0.0", "b/e": "10.1.0.2"}
RECORDS = {
    "a/e": {"addresses": [A], "first_hop": FIRST_HOP["a/e"]},
    "b/e": {"addresses": [B], "first_hop": FIRST_HOP["b/e"]},
}


class Network:
    """Leaf, spine by the ports, leaf, peer; answers at once. `lost`: spines that swallow what they get."""

    def __init__(self, shape: str = "UDP") -> None:
        self.shape, self.shift, self.lost = shape, 0, set[int]()
        self.waiting: list[TraceReply] = []
        self.sent: list[tuple[int, tuple[str, int], int]] = []
        self.silent_end = False

    def spine(self, sport: int, dport: int) -> int:
        return (sport * 7 + dport * 13 + self.shift + (self.shape == "TCP")) % 4

    def send(self, sport: int, target: tuple[str, int], ttl: int, seq: int) -> None:
        self.sent.append((sport, target, ttl))
        spine = self.spine(sport, target[1])
        if ttl == 1:
            hop: str | None = FIRST_HOP["a/e"]
        elif spine in self.lost:
            return
        elif ttl <= 3:
            hop = f"10.2.{ttl}.{2 * spine + 1}"
        else:
            hop = None
            if self.silent_end:
                return
        self.waiting.append(TraceReply(seq, hop))

    def replies(self) -> Iterator[TraceReply]:
        taken, self.waiting = self.waiting, []
        yield from taken

    def close(self) -> None:
        pass


class Watched:
    def __init__(self, **settings: Any) -> None:
        self.networks = {"UDP": Network(), "TCP": Network("TCP")}
        self.puts: list[tuple[str, bytes | None]] = []
        self.peers = dict(RECORDS)
        self.tracer = FlowRouteTracer(
            FlowSettings(socket="unused", **{"trace_pps": 100_000, **settings}),
            TracedNic("a/e", "fabric", A, self.put),
            peers=self.peers,
            sockets=self.networks,
            seed=1,
        )
        self.now_s = 0.0
        self.book = FlowRouteTable()

    def put(self, topic: str, key: str, value: bytes | None) -> None:
        self.puts.append((key, value))
        self.book.take(key.encode(), value)

    def run(self, seconds: float, flows: Any = ()) -> None:
        end = self.now_s + seconds
        while self.now_s < end:
            self.now_s += 0.05
            self.tracer.trace_flows(flows, self.now_s)
            self.tracer.refresh(self.now_s)
            for _ in range(20):
                self.tracer.tick(self.now_s)

    def links(self, sport: int, dport: int, shape: str = "UDP") -> tuple[str, ...]:
        spine = self.networks[shape].spine(sport, dport)
        return (
            "a:e>10.1.0.0:a.e",
            f"10.2.2.{2 * spine}:ip>10.2.2.{2 * spine + 1}:ip",
            f"10.2.3.{2 * spine}:ip>10.2.3.{2 * spine + 1}:ip",
            "10.1.0.2:b.e>b:e",
        )


def key(sport: int, dport: int = 80, protocol: str = "UDP") -> Any:
    return (protocol, A, sport, B, dport)


def test_a_flow_has_its_links_soon_and_nothing_ever_comes_to_its_peer():
    watched = Watched()
    flows = [("b/e", key(port), False) for port in range(40_000, 40_020)]
    watched.run(0.5, flows)
    for _, each, _ in flows:
        assert watched.tracer.links_of("b/e", each) == watched.links(each[2], 80)
    far = [(target, ttl) for _, target, ttl in watched.networks["UDP"].sent if ttl > 3]
    assert far
    assert {target for target, _ in far} == {(B, 33_434)}, "but to where nobody listens"
    assert watched.tracer.links_of("b/e", key(41_000)) == (), "not known, not guessed"


def test_tcp_goes_as_tcp_does():
    watched = Watched()
    watched.run(0.5, [("b/e", key(40_000, protocol="TCP"), False)])
    assert watched.tracer.links_of("b/e", key(40_000, protocol="TCP")) == watched.links(40_000, 80, "TCP")
    assert watched.tracer.links_of("b/e", key(40_000)) == (), "of the same ports, but another protocol"
    watched.run(0.5, [("b/e", key(40_000), False)])
    assert watched.tracer.links_of("b/e", key(40_000)) == watched.links(40_000, 80)


def test_without_a_socket_for_tcp_its_flows_have_no_links():
    watched = Watched()
    del watched.networks["TCP"]
    watched.run(0.5, [("b/e", key(40_000, protocol="TCP"), True)])
    assert watched.tracer.links_of("b/e", key(40_000, protocol="TCP")) == ()
    assert not watched.puts


def test_movable_flows_have_their_alternative_routes_published():
    watched = Watched()
    watched.run(2, [("b/e", key(40_000), True), ("b/e", key(40_001, 81), False)])
    found = watched.book.of("a/e", "b/e", 80)
    assert set(found) == {40_000, *flow_candidate_ports(A, B, 80, 32, 61_000)}
    assert all(route.links == watched.links(port, 80) for port, route in found.items())
    assert len({route.links for route in found.values()}) == 4, "over all spines"
    assert set(watched.book.of("a/e", "b/e", 81)) == {40_001}


def test_answers_to_a_peers_flows_are_traced():
    watched = Watched()
    rows = [
        {
            "leg": "DATA",
            "path": port,
            "peer_port": 80,
            "links": [],
            "complete": False,
            "since_ns": 1,
            "protocol": "UDP",
        }
        for port in (61_000, 61_001)
    ]
    others = [rows[0] | {"leg": "ACK", "path": 9}, rows[0] | {"peer_port": 4791}]
    watched.tracer.on_peer_routes("b/e", {"routes": [*rows, *others]}, watched.now_s)
    watched.run(2)
    (name, value) = watched.puts[-1]
    record = codec.decode(value, "FlowRoutes")
    assert name == "a/e>b/e"
    assert [(route["leg"], route["path"], route["peer_port"]) for route in record["routes"]] == [
        ("ACK", 61_000, 80),
        ("ACK", 61_001, 80),
    ]
    assert [tuple(route["links"]) for route in record["routes"]] == [
        watched.links(80, 61_000),
        watched.links(80, 61_001),
    ]


def test_a_queue_pair_goes_as_udp_does_and_nothing_ever_comes_to_its_peer():
    watched = Watched()
    pair = key(49_441, 4791, "ROCE")
    watched.run(1, [("b/e", pair, True)])
    assert watched.tracer.links_of("b/e", pair) == watched.links(49_441, 4791)
    assert {49_441, *flow_candidate_ports(A, B, 4791, 32, 61_000)} == set(watched.book.of("a/e", "b/e", 4791))
    assert not watched.networks["TCP"].sent
    assert all(ttl <= 3 for _, target, ttl in watched.networks["UDP"].sent if target == (B, 4791))


def test_a_moved_route_is_published_and_triggers_traces_of_others():
    watched = Watched()
    flows = [("b/e", key(40_000), True)]
    watched.run(2, flows)
    watched.networks["UDP"].shift = 1
    watched.run(4, flows)
    assert watched.tracer.links_of("b/e", key(40_000)) == watched.links(40_000, 80)
    for port, route in watched.book.of("a/e", "b/e", 80).items():
        assert route.links == watched.links(port, 80), "long before its own turn"


def test_a_cut_route_keeps_its_last_complete_trace():
    watched = Watched()
    flows = [("b/e", key(40_000), True)]
    watched.run(2, flows)
    before = dict(watched.book.of("a/e", "b/e", 80))
    watched.networks["UDP"].lost = {0, 1, 2, 3}
    watched.run(10, flows)
    assert watched.book.of("a/e", "b/e", 80) == before
    fresh = [*flows, ("b/e", key(40_001), True)]
    watched.run(10, fresh)
    assert watched.tracer.links_of("b/e", key(40_001)) == (), "nobody knows where it would go"


def test_routes_are_deleted_after_their_flows_ended():
    watched = Watched(routes_keep_s=5)
    watched.run(1, [("b/e", key(40_000), True)])
    assert watched.book.of("a/e", "b/e", 80)
    watched.run(20)
    assert watched.puts[-1] == ("a/e>b/e", None)
    assert not watched.book.of("a/e", "b/e", 80)
    sent = len(watched.networks["UDP"].sent)
    watched.run(60)
    assert len(watched.networks["UDP"].sent) == sent, "nobody asks"


def test_records_of_an_earlier_run_are_deleted_once_unused():
    watched = Watched(routes_keep_s=5)
    watched.tracer.on_own_routes("b/e", {"routes": [{"leg": "DATA"}]}, watched.now_s)
    watched.run(20)
    assert watched.puts == [("a/e>b/e", None)]


def test_a_peer_that_left_is_dropped_with_its_routes():
    watched = Watched()
    watched.run(1, [("b/e", key(40_000), True)])
    del watched.peers["b/e"]
    watched.tracer.on_announcement("b/e", watched.now_s)
    assert watched.puts[-1] == ("a/e>b/e", None)
    watched.run(1, [("b/e", key(40_000), True)])
    assert watched.tracer.links_of("b/e", key(40_000)) == ()


def test_the_distance_of_a_silent_peer_is_not_guessed():
    watched = Watched()
    for network in watched.networks.values():
        network.silent_end = True
    watched.run(5, [("b/e", key(40_000), True)])
    assert watched.tracer.links_of("b/e", key(40_000)) == ()
    for network in watched.networks.values():
        network.silent_end = False
    watched.run(10, [("b/e", key(40_000), True)])
    assert watched.tracer.links_of("b/e", key(40_000)) == watched.links(40_000, 80)


@pytest.mark.parametrize("limit", [40, 100])
def test_the_number_of_traced_routes_is_limited(limit, caplog):
    watched = Watched(max_routes=limit)
    watched.run(3, [("b/e", key(40_000, port), True) for port in range(80, 90)])
    found = sum(len(watched.book.of("a/e", "b/e", port)) for port in range(80, 90))
    assert found <= limit + 10
    assert "some are not traced" in caplog.text


def test_the_pace_is_kept():
    watched = Watched(trace_pps=100)
    watched.run(10, [("b/e", key(40_000, port), True) for port in range(80, 100)])
    assert len(watched.networks["UDP"].sent) <= 10 * 100 + 32 + 5
