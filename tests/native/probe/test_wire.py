"""What goes over the wire: who gets an answer, how large it is, and what bad packets and bad networks do."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from native.core import decode_probe_batch, encode_probe_batch
from native.core.probe import Peer, siphash24

MakeNic = Callable[..., Any]
MakeResponder = Callable[..., Any]

# SipHash-2-4 of 0, 1, … n - 1 under the key 00 01 … 0f: some of the published 64-bit vectors, with the
# worked example of its paper (15 bytes).
VECTORS = {
    0: 0x726FDB47DD0E0E31,
    1: 0x74F839C593DC67FD,
    2: 0x0D6C8009D9A94F5A,
    3: 0x85676696D7FB7E2D,
    4: 0xCF2794E0277187B7,
    5: 0x18765564CD99A68D,
    6: 0xCBC9466E58FEE3CE,
    7: 0xAB0200F58B01D137,
    8: 0x93F5F5799A932462,
    15: 0xA129CA6149BE45E5,
    63: 0x958A324CEB064572,
}


@pytest.mark.parametrize(("size", "expected"), VECTORS.items())
def test_siphash_gives_the_published_vectors(size: int, expected: int) -> None:
    assert siphash24(bytes(range(16)), bytes(range(size))) == expected


def test_a_key_of_32_bytes_uses_all_of_them() -> None:
    key = bytes(range(32))
    hashes = {siphash24(key, b"x"), siphash24(key[:16], b"x")}
    hashes |= {siphash24(key[:i] + b"\xff" + key[i + 1 :], b"x") for i in range(32)}
    assert len(hashes) == 34


NO_STAMP = -(2**63)


class Prober:
    """A plain socket that asks a responder."""

    def __init__(self, nic: Any) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((nic.address, 0))
        self.target = (nic.address, nic.sockets.port)
        self.own = self.sock.getsockname()

    def ask(self, data: bytes, timeout_s: float = 5.0) -> bytes | None:
        self.sock.settimeout(timeout_s)
        self.sock.sendto(data, self.target)
        try:
            return self.sock.recv(2048)
        except TimeoutError:
            return None


def test_an_answer_is_never_larger_than_its_question(make_nic: MakeNic, wire: Any) -> None:
    nic = make_nic("a/lo")
    nic.start()
    prober = Prober(nic)
    question = wire.request(wire.KEY, prober.own, prober.target, "a/lo", seq=5)
    asked, t2, end = 0, NO_STAMP, time.monotonic() + 10
    while t2 == NO_STAMP:  # the kernel may begin to stamp arrivals a moment after the socket asked for it
        assert time.monotonic() < end
        answer = prober.ask(question)
        asked += 1
        assert answer is not None
        assert len(answer) <= len(question)
        assert answer[:4] == b"FT\x12\x00"
        assert answer[-8:] == wire.mac(wire.KEY, prober.target, prober.own, answer[:-8])
        t2, ticket, _ = struct.unpack(">qII", answer[16:32])
    for count in (1, 2, 32):
        question = wire.collect(wire.KEY, prober.own, prober.target, [(5, ticket)] * count)
        t3, end = NO_STAMP, time.monotonic() + 10
        while t3 == NO_STAMP:  # the kernel has not given it yet
            assert time.monotonic() < end
            answer = prober.ask(question)
            asked += 1
            assert answer is not None
            assert len(answer) == len(question)
            seq, t3 = struct.unpack_from(">Iq", answer, 16)
            assert seq == 5
        assert t2 < t3 < t2 + 10_000_000_000
    prober.sock.settimeout(0.1)
    with pytest.raises(TimeoutError):
        prober.sock.recv(2048)
    prober.sock.close()
    counters = nic.engine.counters()
    assert counters["bytes_answered"] <= counters["bytes_asked"]
    assert counters["replies_sent"] + counters["followups_sent"] == asked


def test_a_stamp_is_sent_to_its_prober_alone(make_nic: MakeNic, wire: Any) -> None:
    nic = make_nic("a/lo")
    nic.start()
    prober = Prober(nic)
    answer = prober.ask(wire.request(wire.KEY, prober.own, prober.target, "a/lo", seq=5))
    assert answer is not None
    ticket = struct.unpack_from(">I", answer, 24)[0]
    for seq, run in ((5, 2), (6, 1)):
        answer = prober.ask(wire.collect(wire.KEY, prober.own, prober.target, [(seq, ticket)], run=run))
        assert answer is not None
        assert struct.unpack_from(">q", answer, 20)[0] == NO_STAMP
    prober.sock.close()


def test_strangers_get_no_answer_and_are_counted(make_nic: MakeNic, wire: Any) -> None:
    nic = make_nic("a/lo", max_age_s=60)
    nic.start()
    prober, other = Prober(nic), Prober(nic)
    good = wire.request(wire.KEY, prober.own, prober.target, "a/lo")
    flipped = bytearray(good)
    flipped[20] ^= 1
    old = time.time_ns() - 120 * 10**9
    strange = {
        "other key": (wire.request(bytes(16), prober.own, prober.target, "a/lo"), "bad_mac"),
        "one bit": (bytes(flipped), "bad_mac"),
        "another NIC": (wire.request(wire.KEY, prober.own, prober.target, "b/lo"), "wrong_nic"),
        "too old": (wire.request(wire.KEY, prober.own, prober.target, "a/lo", at_ns=old), "stale_time"),
        "cut": (good[:-1], "malformed"),
        "longer": (good + b"\0", "malformed"),
        "foreign": (b"GET / HTTP/1.0\r\n\r\n", "malformed"),
        "a reply": (b"FT\x12\0" + good[4:], "malformed"),
        "empty": (b"", "malformed"),
        "other version": (b"FT\x21\0" + good[4:], "malformed"),
    }
    for case, (data, counter) in strange.items():
        before = nic.engine.counters()[counter]
        prober.sock.sendto(data, prober.target)
        end = time.monotonic() + 5
        while nic.engine.counters()[counter] == before:
            assert time.monotonic() < end, f"{case}: not counted under {counter}"
    before = nic.engine.counters()["bad_mac"]
    other.sock.sendto(good, other.target)  # a true packet replayed from another port
    end = time.monotonic() + 5
    while nic.engine.counters()["bad_mac"] == before:
        assert time.monotonic() < end
    assert nic.engine.counters()["replies_sent"] == 0
    assert prober.ask(good) is not None
    prober.sock.close()
    other.sock.close()


def test_loss_duplicates_and_reordering_are_distinguished(
    make_nic: MakeNic, make_responder: MakeResponder
) -> None:
    nic = make_nic("a/lo", rate_pps=1000.0, timeout_ms=1500)
    far = make_responder(nic.address, drop=0.1, double=0.2, reorder=0.1)
    nic.engine.set_peers([Peer("far/lo", *far.address)])
    nic.start()
    nic.until(lambda: nic.samples() > 800 and nic.lost() > 40, 30)
    nic.engine.set_peers([])
    nic.until(lambda: nic.samples() + nic.lost() >= nic.engine.counters()["requests_sent"], 30)
    counters = nic.engine.counters()
    assert counters["duplicates"] > 50
    assert counters["lost"] == far.dropped
    assert counters["samples"] == far.asked - far.dropped
    assert counters["no_t3"] == 0


def test_a_lost_follow_up_is_asked_for_again_and_never_a_loss(
    make_nic: MakeNic, make_responder: MakeResponder
) -> None:
    nic = make_nic("a/lo", rate_pps=500.0, timeout_ms=300, collect_delay_ms=2.0, drain_ms=1.0)
    far = make_responder(nic.address, no_followup=0.5)
    nic.engine.set_peers([Peer("far/lo", *far.address)])
    nic.start()
    nic.until(lambda: nic.engine.counters()["no_t3"] > 20 and nic.samples() > 200, 30)
    counters = nic.engine.counters()
    assert counters["lost"] == 0
    assert counters["no_t3"] < counters["samples"]
    assert sum(int(batch.no_t3.sum()) for batch in nic.batches) > 0


def test_one_packet_collects_from_a_peer_for_all_paths_in_each_period(make_nic: MakeNic) -> None:
    nic = make_nic(
        "a/lo", paths=4, rate_pps=400.0, spacing_ns=0, collect_delay_ms=10.0, collect_period_ms=50.0
    )
    far = make_nic("b/lo")
    far.start()
    nic.engine.set_peers([far.peer()])
    begin_s = time.monotonic()
    nic.start()
    nic.until(lambda: nic.samples() > 400, 30)
    periods = (time.monotonic() - begin_s) / 0.05
    counters = nic.engine.counters()
    assert counters["no_t3"] == 0
    # One collect a period, and one more for each 32 replies that a stall of the test lets pile up.
    assert counters["collects_sent"] <= periods + nic.samples() / 32 + 2


@pytest.mark.parametrize(
    "lie", [{"t2_ns": 2**63 - 1}, {"t2_ns": -(2**63) + 1}, {"t3_ns": 2**63 - 1}, {"t3_ns": -(2**62)}]
)
def test_a_peers_absurd_stamps_do_not_spoil_the_batch(
    make_nic: MakeNic, make_responder: MakeResponder, lie: dict[str, int]
) -> None:
    nic, honest = make_nic("a/lo", spacing_ns=0), make_nic("b/lo")
    falseticker = make_responder(nic.address, **lie)
    honest.start()
    nic.engine.set_peers([honest.peer(), honest.peer("liar/lo", *falseticker.address)])
    nic.start()
    nic.until(lambda: nic.samples() > 100 and nic.engine.counters()["no_t3"] > 20)
    for batch in nic.batches:
        assert decode_probe_batch(encode_probe_batch(batch)).batch == batch.batch
        assert all(batch.start[g] == batch.start[g + 1] for g, p in enumerate(batch.peers) if p != "b/lo")
    assert nic.lost() == 0


def test_answers_to_another_run_are_left(make_nic: MakeNic, make_responder: MakeResponder) -> None:
    nic = make_nic("a/lo", timeout_ms=20)
    far = make_responder(nic.address, run=77)
    nic.engine.set_peers([Peer("far/lo", *far.address)])
    nic.start()
    nic.until(lambda: nic.lost() > 20)
    assert nic.engine.counters()["stale_run"] > 0
    assert nic.samples() == 0


def test_the_parser_takes_any_bytes(make_nic: MakeNic, wire: Any) -> None:
    nic = make_nic("a/lo", paths=1)
    draw = random.Random(20240229)
    source = (nic.address, 4242)
    target = (nic.address, nic.sockets.port)
    nic.engine.set_peers([Peer("b/lo", *source)])
    run = nic.engine.run_id
    for _ in range(20_000):
        kind = draw.randrange(6)
        count = draw.choice((0, 1, 32, 33, 255, draw.randrange(256)))
        body = wire.head(kind, count, draw.randrange(2**32), draw.choice((run, 1)))
        body += draw.randbytes(draw.choice((0, 4, 12, 16, count * 12, draw.randrange(600))))
        path = draw.randrange(-1, 1)
        to = target if path < 0 else (nic.address, nic.sockets.path_ports[0])
        body += wire.mac(wire.KEY, source, to, body) if draw.random() < 0.7 else draw.randbytes(8)
        if draw.random() < 0.2:
            body = draw.randbytes(draw.randrange(700))
        nic.engine.inject(path, body, *source)
    counters = nic.engine.counters()
    assert counters["malformed"] > 1000
    assert counters["bad_mac"] > 10
    assert counters["samples"] == 0
    assert nic.engine.drain().start[-1] == 0


def taken(nic: Any, counter: str) -> Callable[[], bool]:
    return lambda: nic.engine.counters()[counter] > 0


def test_a_trace_that_arrives_is_answered_and_counts_as_nothing_else(make_nic: MakeNic) -> None:
    """Either way: to the port that answers, and from it to a port that asks."""
    a, b = make_nic("a/lo"), make_nic("b/lo")
    a.start()
    b.start()
    a.engine.set_peers([b.peer()])
    b.until(lambda: len(b.engine.probers()) == len(a.engine.path_ports))
    assert {(k.address, k.port, k.traced_s) for k in b.engine.probers()} == {
        (a.address, port, None) for port in a.engine.path_ports
    }
    there, here = (b.address, b.sockets.port), (a.address, a.sockets.port)
    port = a.engine.path_ports[1]
    packet = a.engine.trace_packet((a.address, port), there, "b/lo", 77, 3)
    assert len(packet) == 40
    a.sockets.paths[1].sendto(packet, there)
    back = b.engine.trace_packet(there, (a.address, port), "a/lo", 78, 3)
    b.sockets.responder.sendto(back, (a.address, port))
    hits: dict[str, list[Any]] = {"a": [], "b": []}

    def both() -> bool:
        hits["a"] += a.engine.trace_hits()
        hits["b"] += b.engine.trace_hits()
        return bool(hits["a"] and hits["b"])

    a.until(both)
    assert [(h.path, h.target, h.hop, h.seq) for h in hits["a"]] == [(1, there, None, 77)]
    assert [(h.path, h.target, h.hop, h.seq) for h in hits["b"]] == [(-1, (a.address, port), None, 78)]
    traced = [k for k in b.engine.probers() if k.traced_s is not None]
    assert [(k.address, k.port) for k in traced] == [(a.address, port)]
    assert here not in {(k.address, k.port) for k in a.engine.probers()}, "an answer's trace is no question"
    for nic in (a, b):
        counters = nic.engine.counters()
        assert counters["traces_received"] == counters["traces_answered"] == 1
        assert counters["malformed"] == counters["bad_mac"] == counters["stale_run"] == 0
    assert b.engine.counters()["bytes_answered"] <= b.engine.counters()["bytes_asked"]


def test_strangers_traces_get_no_answer(make_nic: MakeNic, wire: Any) -> None:
    nic, other = make_nic("a/lo", max_age_s=60), make_nic("x/lo", key=bytes(16))
    nic.start()
    prober = Prober(nic)
    wrong_key = other.engine.trace_packet(prober.own, prober.target, "a/lo", 1, 3)
    other_nic = nic.engine.trace_packet(prober.own, prober.target, "b/lo", 1, 3)
    good = nic.engine.trace_packet(prober.own, prober.target, "a/lo", 1, 3)
    for data, counter in ((wrong_key, "bad_mac"), (other_nic, "wrong_nic"), (good[:39], "malformed")):
        prober.sock.sendto(data, prober.target)
        nic.until(taken(nic, counter))
    assert nic.engine.counters()["traces_answered"] == 0
    answer = prober.ask(good)
    assert answer is not None
    assert len(answer) == len(good)
    assert nic.engine.traced_seq(answer, prober.target, prober.own) == 1
    assert other.engine.traced_seq(answer, prober.target, prober.own) is None
    assert nic.engine.traced_seq(answer[:-1], prober.target, prober.own) is None
    prober.sock.close()


def test_another_socket_for_a_path_is_neither_loss_nor_a_sample_too_many(make_nic: MakeNic) -> None:
    from native.core.probe import open_socket

    nic, far = make_nic("a/lo", timeout_ms=5000), make_nic("b/lo")
    far.start()
    nic.engine.set_peers([far.peer()])
    nic.start()
    nic.until(lambda: nic.samples() > 200)
    before = nic.engine.path_ports
    for _ in range(5):
        sock = open_socket(nic.address, 0)
        port = sock.getsockname()[1]
        nic.engine.set_path(1, sock)
        assert nic.engine.path_ports == (before[0], port)
        had, seen = nic.samples(), len(nic.batches)
        nic.until(lambda had=had: nic.samples() > had + 200)  # type: ignore[misc]
        assert port in {path for batch in nic.batches[seen:] for path in batch.path.tolist()}
    assert nic.lost() == 0
    with pytest.raises(ValueError, match="path 2"):
        nic.engine.set_path(2, sock)


def test_errors_of_the_network_are_handed_on_and_fail_no_probe(make_nic: MakeNic) -> None:
    """A port where nobody listens answers each packet with an error, which fails whatever call comes next."""
    nic, far = make_nic("a/lo"), make_nic("b/lo")
    far.start()
    gone = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    gone.bind((far.address, 0))
    target = gone.getsockname()
    gone.close()
    nic.engine.set_peers([far.peer()])
    nic.start()
    hits: list[Any] = []

    def seen() -> bool:
        own = (nic.address, nic.engine.path_ports[0])
        packet = nic.engine.trace_packet(own, target, "b/lo", 9, 1)
        with contextlib.suppress(OSError):
            nic.sockets.paths[0].sendto(packet, target)
        hits.extend(nic.engine.trace_hits())
        return len(hits) > 50 and nic.samples() > 500

    nic.until(seen)
    assert {(h.path, h.target, h.hop, h.type, h.code, h.seq) for h in hits} == {
        (0, target, far.address, 3, 3, 9)
    }
    assert nic.lost() == 0
    assert nic.engine.counters()["unreachable"] == 0
