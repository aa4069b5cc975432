"""Traces of single paths over a simulated network: hops, silence, loss and pace."""

from __future__ import annotations

import random
from typing import Any

from producers.trace.tracer import Trace, TracedFlow, Tracer

FLOW = TracedFlow("REQUEST", "b/e", 9320, ("10.0.2.2", 9319), 0)
HOPS = ("10.0.1.1", "10.9.0.1", "10.9.0.2")


class Network:
    """Answers trace packets: `hops` by TTL, None for a silent one; `lose` says which packets vanish."""

    def __init__(self, hops: tuple[str | None, ...] = HOPS, *, dead: int | None = None) -> None:
        self.hops, self.dead = hops, dead
        self.lose = lambda packet: False
        self.sent: list[Any] = []

    def play(self, tracer: Tracer, seconds: float = 10.0, step_s: float = 0.01) -> list[Trace]:
        ended = []
        for at in range(int(seconds / step_s)):
            packets, traces = tracer.step(at * step_s)
            ended += traces
            self.sent += packets
            for packet in packets:
                if self.lose(packet):
                    continue
                if self.dead is not None and packet.ttl > self.dead:
                    continue
                if packet.ttl <= len(self.hops):
                    hop = self.hops[packet.ttl - 1]
                    if hop is not None:
                        tracer.on_hop(packet.seq, hop)
                else:
                    tracer.on_arrival(packet.seq)
        return ended


def test_a_trace_finds_every_hop_and_where_the_path_ends() -> None:
    tracer, network = Tracer(1000, 8), Network()
    tracer.schedule(FLOW)
    assert network.play(tracer, 1) == [Trace(FLOW, HOPS, True)]
    assert len(network.sent) == 5, "one of each TTL, and one that tells whether anything gets through"
    assert not tracer.busy


def test_a_path_longer_than_the_first_guess_is_followed_to_its_end_and_the_next_trace_knows() -> None:
    tracer, network = Tracer(1000, 12), Network(tuple(f"10.0.0.{n}" for n in range(1, 8)))
    tracer.schedule(FLOW)
    assert network.play(tracer)[0].hops == network.hops
    network.sent.clear()
    tracer.schedule(FLOW)
    assert network.play(tracer)[0].hops == network.hops
    assert [packet.ttl for packet in network.sent] == [*range(1, 9), 12]


def test_a_silent_hop_is_asked_again_and_then_stays_unknown() -> None:
    tracer, network = Tracer(1000, 8), Network((HOPS[0], None, HOPS[2]))
    tracer.schedule(FLOW)
    assert network.play(tracer) == [Trace(FLOW, (HOPS[0], None, HOPS[2]), True)]
    assert sum(packet.ttl == 2 for packet in network.sent) == 3


def test_lost_packets_are_made_good() -> None:
    tracer, network, rng = Tracer(1000, 8), Network(), random.Random(5)
    first: set[tuple[TracedFlow, int]] = set()

    def lose(packet: Any) -> bool:
        fresh = (packet.flow, packet.ttl) not in first
        first.add((packet.flow, packet.ttl))
        return fresh and rng.random() < 0.5

    network.lose = lose
    flows = [FLOW._replace(port=port) for port in range(9320, 9340)]
    for flow in flows:
        tracer.schedule(flow)
    assert sorted(
        trace.flow.port for trace in network.play(tracer) if trace == Trace(trace.flow, HOPS, True)
    ) == [flow.port for flow in flows]


def test_a_dead_path_ends_where_the_last_hop_answered() -> None:
    tracer, network = Tracer(1000, 8), Network(dead=2)
    tracer.schedule(FLOW)
    assert network.play(tracer) == [Trace(FLOW, HOPS[:2], False)]
    assert len(network.sent) <= 15


def test_packets_are_paced() -> None:
    tracer, network = Tracer(100, 8), Network()
    for port in range(100):
        tracer.schedule(FLOW._replace(port=port))
    network.play(tracer, 2.0)
    assert 200 <= len(network.sent) <= 240


def test_an_unquoted_error_counts_if_only_one_packet_can_be_meant() -> None:
    """Old switches quote eight bytes: then TTLs are tried one by one."""
    tracer = Tracer(1000, 3)
    tracer.schedule(FLOW)
    ended: list[Trace] = []
    for at in range(1000):
        packets, traces = tracer.step(at * 0.01)
        ended += traces
        for packet in packets:
            if packet.ttl <= 2:
                tracer.on_unquoted_hop(0, FLOW.target, HOPS[packet.ttl - 1])
            else:
                tracer.on_arrival(packet.seq)
    assert ended == [Trace(FLOW, HOPS[:2], True)]


def test_an_answer_of_nobodys_trace_changes_nothing() -> None:
    tracer = Tracer(1000, 8)
    tracer.on_hop(7, "1.2.3.4")
    tracer.on_arrival(8)
    tracer.on_unquoted_hop(0, ("1.2.3.4", 5), "1.2.3.4")
    assert tracer.unmatched == 3
    assert tracer.step(0.0) == ([], [])


def test_an_uplink_check_is_one_packet_even_without_an_answer() -> None:
    uplink_check = FLOW._replace(max_ttl=2, uplink_check=True)
    tracer, network = Tracer(1000, 8), Network()
    tracer.schedule(uplink_check)
    assert network.play(tracer, 1) == [Trace(uplink_check, (None, HOPS[1]), False)]
    tracer, silent = Tracer(1000, 8), Network((HOPS[0], None, HOPS[2]))
    tracer.schedule(uplink_check)
    assert silent.play(tracer, 1) == [Trace(uplink_check, (), False)]
    assert [packet.ttl for packet in network.sent + silent.sent] == [2, 2]


def test_an_ambiguous_unquoted_error_is_ignored() -> None:
    """What a spine says of the look would become the silent third hop of the trace."""
    tracer = Tracer(1000, 8)
    tracer.schedule(FLOW)
    packets, _ = tracer.step(0.0)
    for packet in packets:
        if packet.ttl <= 2:
            tracer.on_hop(packet.seq, HOPS[packet.ttl - 1])
        elif packet.ttl > 3:
            tracer.on_arrival(packet.seq)
    tracer.schedule(FLOW._replace(max_ttl=2, uplink_check=True))
    tracer.step(0.01)
    tracer.on_unquoted_hop(FLOW.socket, FLOW.target, HOPS[1])
    assert tracer.unmatched == 1
    ended = [
        trace for n in range(300) for trace in tracer.step(0.02 + n / 100)[1] if not trace.flow.uplink_check
    ]
    assert [trace.hops for trace in ended] == [(HOPS[0], HOPS[1], None)]
