"""Traces, names of links, floors and the choice of ports, without a network; and what error queues may
hold."""

from __future__ import annotations

import random
import socket
import struct
from typing import Any

import numpy as np
import pytest

from native.core.columns import ProbeColumns
from producers.trace.known_route import KnownRoute
from producers.trace.path_changes import PathChangeDetector
from producers.trace.route_names import name_path, partner_of
from producers.trace.sockets import error_of
from producers.trace.source_ports import candidates_for, choose_ports, coverage_of
from producers.trace.tracer import Trace, TracedFlow, Tracer
from producers.trace.uplinks import TokenBucket, pause_s, uplink_routes
from schemas.topology import Topology, TopologyFile

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


def test_a_change_is_believed_when_two_traces_agree() -> None:
    known = KnownRoute(HOPS, True, 1)
    moved = Trace(FLOW, (HOPS[0], "10.9.0.9", HOPS[2]), True)
    assert known.update(moved, 2)
    assert known.hops == HOPS
    assert not known.update(Trace(FLOW, HOPS, True), 3), "it was a slip"
    assert known.update(moved, 4)
    assert not known.update(moved, 5)
    assert (known.hops, known.changes, known.since_ns) == (moved.hops, 1, 5)


def test_an_expected_change_is_accepted_after_one_complete_trace() -> None:
    other = (HOPS[0], "10.9.9.1", "10.9.9.2")
    known = KnownRoute(HOPS, True, 1)
    assert known.update(Trace(FLOW, (HOPS[0], None, other[2]), True), 2, expected=True), (
        "not whole: once more"
    )
    assert known.update(Trace(FLOW, other[:2], False), 2, expected=True)
    assert known.hops == HOPS
    assert not known.update(Trace(FLOW, other, True), 3, expected=True)
    assert (known.hops, known.since_ns, known.changes) == (other, 3, 1)


def test_a_dead_path_keeps_its_route() -> None:
    """Whoever looks for the dead link needs the way as it was."""
    known = KnownRoute(HOPS, True, 1)
    for cut in ((), HOPS[:1], (HOPS[0], None)):
        assert not known.update(Trace(FLOW, cut, False), 2)
    assert (known.hops, known.reached, known.changes) == (HOPS, True, 0)


def test_a_hop_that_falls_silent_is_unknown_after_some_traces_and_comes_back() -> None:
    known = KnownRoute(HOPS, True, 1)
    quiet = Trace(FLOW, (HOPS[0], None, HOPS[2]), True)
    for _ in range(2):
        known.update(quiet, 2)
    assert known.hops == HOPS
    known.update(quiet, 2)
    assert known.hops == quiet.hops
    known.update(Trace(FLOW, HOPS, True), 3)
    assert (known.hops, known.changes) == (HOPS, 0)


# ---- names


def test_uplink_routes_end_at_the_apex() -> None:
    found = uplink_routes(
        [
            ("two tiers", ("leaf1", "spine1", "leaf2")),
            ("the same way", ("leaf1", "spine1", "leaf3")),
            ("another spine", ("leaf1", "spine2", "leaf2")),
            ("three tiers", ("leaf1", "agg1", "core1", "agg3", "leaf7")),
            ("silent leaf", (None, "spine3", "leaf2")),
            ("silent spine", ("leaf1", None, "leaf2")),
            ("below one switch", ("leaf1",)),
            ("no hops", ()),
        ]
    )
    assert found == {
        ("leaf1", "spine1"): ["two tiers", "the same way"],
        ("leaf1", "spine2"): ["another spine"],
        ("leaf1", "agg1", "core1"): ["three tiers"],
        (None, "spine3"): ["silent leaf"],
    }


@pytest.mark.parametrize(("nics", "routes"), [(8, 1), (1024, 1), (1024, 2), (2, 1), (65_536, 4)])
def test_uplink_checks_respect_the_limit_per_switch(nics: int, routes: int) -> None:
    pause = pause_s(nics, routes, 64)
    assert nics * routes / pause <= 64 * (1 + 1e-9)
    assert pause >= 0.125
    with pytest.raises(ValueError, match=r"switch_pps: 0, expected more than 0"):
        pause_s(8, 1, 0)


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


def test_reasons_without_end_trace_every_path_once_in_a_rest_and_a_spine_that_goes_is_no_such_thing() -> None:
    again, paths = TokenBucket(5.0, 4), 56
    assert all(again.take(paths, 100.0) for _ in range(40)), "the paths over a spine, twice each"
    taken = sum(again.take(paths, 101 + n / 1000) for n in range(60_000))
    assert taken <= paths * (4 + 60 / 5) + 1
    assert all(again.take(paths, 1000.0) for _ in range(4 * paths)), "after a rest all may be traced again"
    assert not again.take(0, 2000.0), "of nothing there is nothing to trace"


def test_a_short_uplink_check_differs_only_at_a_differing_hop() -> None:
    known = KnownRoute(HOPS, True, 1)
    assert not known.differs_from(HOPS[:2])
    assert not known.differs_from((HOPS[0], None))
    assert not known.differs_from(())
    assert known.differs_from((HOPS[0], "10.9.9.9"))


def test_both_directions_of_a_cable_are_one_cable_without_any_file() -> None:
    there, again = ("10.0.0.0", "10.9.0.1", "10.9.0.2"), ("10.0.2.0", "10.9.0.3", "10.9.0.0")
    out = name_path("a/e0", "b/e1", there, True, path=1, peer_first_hop="10.0.2.0")
    back = name_path("b/e1", "a/e0", again, True, path=1, peer_first_hop="10.0.0.0")
    assert out.links == (
        "a:e0>10.0.0.0:a.e0",
        "10.9.0.0:ip>10.9.0.1:ip",
        "10.9.0.3:ip>10.9.0.2:ip",
        "10.0.2.0:b.e1>b:e1",
    )
    assert (out.complete, out.found) == (True, "TRACED")
    assert back.links == tuple(">".join(reversed(link.split(">"))) for link in reversed(out.links))


def test_ipv6_addresses_make_ids_that_come_apart_at_colons() -> None:
    hops = ("fd00::", "fd09::1", "fd09::2")
    links = name_path("a/e0", "b/e1", hops, True, path=1, peer_first_hop="fd02::").links
    assert links[1] == "fd09--:ip>fd09--1:ip"
    assert all(end.count(":") == 1 for link in links for end in link.split(">"))


@pytest.mark.parametrize(
    ("address", "prefix", "partner"),
    [
        ("10.0.0.0", 31, "10.0.0.1"),
        ("10.0.0.3", 31, "10.0.0.2"),
        ("10.0.0.1", 30, "10.0.0.2"),
        ("10.0.0.4", 30, None),
        ("10.0.0.9", 0, None),
        ("fd00::1", 31, "fd00::"),
    ],
)
def test_the_other_address_of_a_cable(address: str, prefix: Any, partner: str | None) -> None:
    assert partner_of(address, prefix) == partner


def test_a_peers_cable_is_unknown_until_its_first_hop_is_announced() -> None:
    named = name_path("a/e0", "b/e1", HOPS, True, path=1)
    assert not named.complete
    assert len(named.links) == 3


def fabric(**more: Any) -> Topology:
    """Two leaves, two spines, one host on each leaf; 10.1.x.y: leaf x's port y, 10.2.x.y: spine x's."""
    return Topology(
        TopologyFile.model_validate(
            {
                "nodes": [
                    {
                        "name": "l1",
                        "kind": "leaf",
                        "ports": {"h": ["10.1.1.0"], "s1": ["10.1.1.1"], "s2": ["10.1.1.2"]},
                    },
                    {
                        "name": "l2",
                        "kind": "leaf",
                        "ports": {"h": ["10.1.2.0"], "s1": ["10.1.2.1"], "s2": ["10.1.2.2"]},
                    },
                    {"name": "s1", "kind": "spine", "ports": {"l1": ["10.2.1.1"], "l2": ["10.2.1.2"]}},
                    {"name": "s2", "kind": "spine", "ports": {"l1": ["10.2.2.1"], "l2": ["10.2.2.2"]}},
                    {"name": "a", "kind": "host"},
                    {"name": "b", "kind": "host"},
                ],
                "links": [
                    {"ends": ["a:e0", "l1:h"], "rate_bps": 100},
                    {"ends": ["b:e1", "l2:h"], "rate_bps": 100},
                    {"ends": ["l1:s1", "s1:l1"], "rate_bps": 400},
                    {"ends": ["l1:s2", "s2:l1"], "rate_bps": 400},
                    {"ends": ["l2:s1", "s1:l2"], "rate_bps": 400},
                    {"ends": ["l2:s2", "s2:l2"], "rate_bps": 400},
                ],
                **more,
            }
        )
    )


ROUTE = ("a:e0>l1:h", "l1:s1>s1:l1", "s1:l2>l2:s1", "l2:h>b:e1")


def named(hops: tuple[str | None, ...], reached: bool = True, **more: Any) -> Any:
    return name_path("a/e0", "b/e1", hops, reached, path=1, topology=more.pop("topology", fabric()), **more)


def test_the_file_names_links_and_agrees() -> None:
    found = named(("10.1.1.0", "10.2.1.1", "10.1.2.1"))
    assert (found.links, found.complete, found.found, found.contradiction) == (ROUTE, True, "TRACED", None)


@pytest.mark.parametrize("silent", [(0,), (1,), (2,), (0, 2)])
def test_silent_switches_are_filled_in_if_the_file_has_one_route(silent: tuple[int, ...]) -> None:
    hops = tuple(None if k in silent else hop for k, hop in enumerate(("10.1.1.0", "10.2.1.1", "10.1.2.1")))
    found = named(hops)
    assert (found.links, found.complete, found.found) == (ROUTE, True, "FILLED")


def test_silent_switches_are_not_guessed_between_two_routes() -> None:
    found = named(("10.1.1.0", None, None))
    assert (found.links, found.complete) == ((ROUTE[0], ROUTE[3]), False), (
        "both hosts' own cables are certain"
    )


def test_a_path_that_nothing_traces_is_the_files() -> None:
    found = named((), False)
    assert (found.links, found.complete, found.found) == ((ROUTE[0], ROUTE[3]), False, "TOPOLOGY")
    listed = fabric(paths=[{"nic": "a/e0", "peer": "b/e1", "path": 1, "links": ROUTE}])
    found = named((), False, topology=listed)
    assert (found.links, found.complete, found.found) == (ROUTE, True, "TOPOLOGY")
    assert named((None, None, None), True).found == "TOPOLOGY"
    assert name_path("a/e0", "b/e1", (), False, path=1).found == "UNKNOWN"


def test_a_contradicting_file_never_gives_a_wrong_link() -> None:
    crossed = named(("10.1.1.0", "10.2.1.1", "10.1.2.2"))
    assert "l2:s2" in str(crossed.contradiction)
    assert not crossed.complete
    wrong_leaf = named(("10.1.2.0", "10.2.1.2", "10.1.1.1"))
    assert "hop 1 is l2" in str(wrong_leaf.contradiction)
    stranger = named(("10.1.1.0", "10.7.7.7", "10.1.2.1"))
    assert "10.7.7.7" in str(stranger.contradiction)
    listed = fabric(paths=[{"nic": "a/e0", "peer": "b/e1", "links": ROUTE}])
    other = named(("10.1.1.0", "10.2.2.1", "10.1.2.2"), topology=listed)
    assert other.complete
    assert "lists another path, from link 2" in str(other.contradiction)
    loop = named(("10.1.1.0", "10.2.1.1", "10.1.1.1", "10.2.1.1", "10.1.2.1"))
    assert loop.contradiction == "a link is crossed twice"


def test_names_never_fail_whatever_answers() -> None:
    rng = random.Random(11)
    pool = ["10.1.1.0", "10.2.1.1", "10.1.2.1", "10.2.2.2", "1.2.3.4", "fd00::1", None]
    for _ in range(3000):
        hops = tuple(rng.choice(pool) for _ in range(rng.randrange(7)))
        found = named(
            hops,
            rng.random() < 0.5,
            topology=rng.choice([fabric(), Topology()]),
            link_prefix=rng.choice([31, 30, 0]),
            peer_first_hop=rng.choice(["10.1.2.0", "9.9.9.9", None]),
        )
        if found.complete:
            assert found.links[0].startswith("a:e0>")
            assert found.links[-1].endswith(">b:e1")


# ---- ports


def test_enough_candidates_see_every_route() -> None:
    assert candidates_for(8, 0.01) == 54
    rng, routes, missed = random.Random(3), 8, 0
    for _ in range(2000):
        missed += len({rng.randrange(routes) for _ in range(candidates_for(routes, 0.05))}) < routes
    assert missed / 2000 <= 0.06


def lots(ports: int, peers: int, spines: int, seed: int) -> dict[int, dict[str, int]]:
    rng = random.Random(seed)
    return {
        9320 + port: {f"p{peer}": rng.randrange(spines) for peer in range(peers)} for port in range(ports)
    }


@pytest.mark.parametrize("seed", range(5))
def test_few_ports_cover_every_spine_better_than_any_would(seed: int) -> None:
    routes = lots(64, 10, 4, seed)
    chosen = choose_ports(routes, 4)
    best, first = coverage_of(chosen, routes), coverage_of(list(routes)[:4], routes)
    assert best.routes == 4
    assert best.distinct >= first.distinct
    assert best.distinct >= 32, "of 40; 27 by lot"


def test_ports_stay_unless_others_are_clearly_better() -> None:
    routes = lots(64, 10, 4, 1)
    chosen = choose_ports(routes, 4)
    assert choose_ports(routes, 4, chosen) == chosen
    routes[9320 + 64] = {f"p{peer}": 0 for peer in range(10)}
    assert choose_ports(routes, 4, chosen) == chosen
    blind = [9320 + 64, *chosen[1:]]
    changed = choose_ports(routes, 4, blind)
    assert coverage_of(changed, routes).distinct >= coverage_of(blind, routes).distinct
    assert choose_ports({}, 4, chosen) == chosen


def test_a_port_that_stays_keeps_its_place() -> None:
    routes = {1: {"p": "x"}, 2: {"p": "x"}, 3: {"p": "y"}}
    assert choose_ports(routes, 2, [2, 1]) in ([2, 3], [3, 1])


# ---- signs


def batch(rtt_ns: int | None, lost: int = 0, path: int = 9320) -> ProbeColumns:
    count = 0 if rtt_ns is None else 3
    half = np.full(count, (rtt_ns or 0) // 2, np.int64)
    return ProbeColumns(
        nic="a/e",
        run=1,
        batch=0,
        clock_ns=0,
        system_ns=0,
        peers=["b/e"],
        path=np.array([path], np.int32),
        spacing_ns=np.array([0], np.int32),
        lost=np.array([lost], np.int32),
        no_t3=np.array([0], np.int32),
        start=np.array([0, count], np.int64),
        sent=half,
        forward=half,
        turnaround=half,
        reverse=half,
    )


def watched(*figures: tuple[int | None, int]) -> list[int]:
    """Return at which second a path was said to have moved."""
    watch, rng = PathChangeDetector(), random.Random(2)
    reported = []
    for second, (rtt_ns, lost) in enumerate(figures):
        for tenth in range(10):
            noisy = None if rtt_ns is None else rtt_ns + rng.randrange(200)
            if watch.observe(batch(noisy, lost if not tenth else 0), second + tenth / 10):
                reported.append(second)
    return reported


def test_a_floor_that_shifts_is_a_sign_and_noise_is_none() -> None:
    assert watched(*[(20_000, 0)] * 40) == []
    reported = watched(*[(20_000, 0)] * 10, *[(26_000, 0)] * 20)
    assert len(reported) == 1
    assert 11 <= reported[0] <= 15
    assert len(watched(*[(20_000, 0)] * 10, *[(12_000, 0)] * 20)) == 1


def test_a_path_that_was_dead_is_traced_as_soon_as_it_lives() -> None:
    assert watched(*[(20_000, 0)] * 8, *[(None, 5)] * 3, *[(20_000, 0)] * 8) == [11]


def test_a_grey_path_is_not_traced_all_the_time() -> None:
    assert len(watched(*[(20_000, 2)] * 60)) <= 7


# ---- the error queue


def sock_error(origin: int, type_: int, code: int, offender: bytes) -> bytes:
    return struct.pack("=IBBBBII", 113, origin, type_, code, 0, 0, 0) + offender


def test_icmp_errors_are_read_from_the_error_queue() -> None:
    v4 = struct.pack("=H2x4s8x", socket.AF_INET, socket.inet_aton("10.0.0.1"))
    found = error_of([(socket.SOL_SOCKET, 37, b"x" * 48), (socket.SOL_IP, 11, sock_error(2, 11, 0, v4))])
    assert found is not None
    assert (found.type, found.hop) == (11, "10.0.0.1")
    v6 = struct.pack("=HHI16sI", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, "fd00::7"), 0)
    found = error_of([(socket.IPPROTO_IPV6, 25, sock_error(3, 3, 0, v6))])
    assert found is not None
    assert (found.type, found.hop) == (3, "fd00::7")
    assert error_of([(socket.SOL_IP, 11, sock_error(4, 0, 0, b""))]) is None, "a transmit stamp"


def test_no_bytes_in_the_error_queue_do_any_harm() -> None:
    rng = random.Random(9)
    levels = [(socket.SOL_IP, 11), (socket.IPPROTO_IPV6, 25), (socket.SOL_SOCKET, 37), (0, 0)]
    for _ in range(5000):
        messages = [(*rng.choice(levels), rng.randbytes(rng.randrange(60))) for _ in range(rng.randrange(4))]
        found = error_of(messages)
        assert (
            found is None
            or found.hop is None
            or socket.inet_pton(socket.AF_INET6 if ":" in found.hop else socket.AF_INET, found.hop)
        )
