"""Traffic classes and ECN of probes: what leaves, what the responder returns, and what the prober counts."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from native.core.probe import Engine, open_sockets

MakeNic = Callable[..., Any]

KNOWN = 1 << 31
ECT0, CE = 2, 3
REQUEST, REPLY = 1, 2


class TosSocket:
    """A UDP socket that reads the TOS byte of each packet."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((address, 0))
        self.sock.settimeout(5)
        self.sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        self.own = self.sock.getsockname()

    def send(self, data: bytes, target: tuple[str, int], tos: int) -> None:
        self.sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        self.sock.sendto(data, target)

    def receive(self) -> tuple[bytes, int, tuple[str, int]]:
        data, found, _, sender = self.sock.recvmsg(2048, 256)
        return data, next(value[0] for _, kind, value in found if kind == socket.IP_TOS), sender


@pytest.fixture
def tos_socket() -> Iterator[Callable[[str], TosSocket]]:
    made: list[TosSocket] = []

    def make(address: str) -> TosSocket:
        made.append(TosSocket(address))
        return made[-1]

    yield make
    for each in made:
        each.sock.close()


def test_each_class_has_delays_of_its_own(make_nic: MakeNic) -> None:
    prober = make_nic("a/lo", classes=((0, None), (26, 3)), rate_pps=1000.0)
    peer = make_nic("b/lo")
    prober.engine.set_peers([peer.peer()])
    peer.start()
    prober.start()
    prober.until(lambda: prober.samples() > 200)
    counted = dict.fromkeys((0, 26), 0)
    capable = dict.fromkeys((0, 26), 0)
    for batch in prober.batches:
        for dscp, size, ecn in zip(
            batch.dscp.tolist(), np.diff(batch.start).tolist(), batch.ecn.tolist(), strict=True
        ):
            counted[dscp] += size
            capable[dscp] += ecn
    assert min(counted.values()) > 0.3 * sum(counted.values())
    assert capable == counted
    counters = prober.engine.counters()
    assert (counters["ce_forward"], counters["ce_reverse"], counters["ecn_cleared"]) == (0, 0, 0)
    assert counters["dscp_changed"] == 0  # else the prober reports a fault


@pytest.mark.parametrize(("sent", "left"), [(26 << 2 | ECT0, 26 << 2 | ECT0), (0, 0)])
def test_the_answer_leaves_in_the_class_of_its_request_and_holds_how_that_arrived(
    make_nic: MakeNic, wire: Any, tos_socket: Callable[[str], TosSocket], sent: int, left: int
) -> None:
    nic = make_nic("a/lo")
    nic.start()
    prober, target = tos_socket(nic.address), (nic.address, nic.sockets.port)
    data = wire.request(wire.KEY, prober.own, target, "a/lo", tos_field=KNOWN | sent if sent else 0)
    prober.send(data, target, sent | CE)  # as if a queue had marked it
    answer, tos, _ = prober.receive()
    assert tos == left
    assert struct.unpack_from(">I", answer, 28)[0] == KNOWN | sent | CE


def _answer(wire: Any, peer: TosSocket, field: Callable[[int, int], int], mark: Callable[[int], int]) -> None:
    """Answer requests until a packet without content comes; `mark` returns the ECN field of the answer."""
    seq = 0
    while True:
        data, tos, sender = peer.receive()
        if not data:
            return
        if data[2] & 15 != REQUEST:
            continue
        seq += 1
        body = b"FT" + bytes([0x10 | REPLY, 0]) + data[4:16] + struct.pack(">qII", 1, seq, field(seq, tos))
        reply = body + wire.mac(wire.KEY, peer.own, sender, body)
        peer.send(reply, sender, tos & ~CE | mark(seq))


@pytest.mark.parametrize(
    ("field", "mark", "expected"),
    [
        (lambda seq, tos: KNOWN | tos | (CE if seq % 2 else 0), lambda seq: ECT0, {"ce_forward": 0.5}),
        (lambda seq, tos: KNOWN | tos, lambda seq: CE if seq % 4 == 0 else ECT0, {"ce_reverse": 0.25}),
        (lambda seq, tos: KNOWN | tos & ~CE, lambda seq: ECT0, {"ecn_cleared": 1.0}),
        (lambda seq, tos: KNOWN | tos & CE, lambda seq: ECT0, {"dscp_changed": 1.0}),
        (lambda seq, tos: 0, lambda seq: CE, {}),  # a responder of before
    ],
    ids=["requests", "replies", "cleared", "changed", "old responder"],
)
def test_marks_are_counted_by_direction(
    make_nic: MakeNic,
    wire: Any,
    tos_socket: Callable[[str], TosSocket],
    field: Callable[[int, int], int],
    mark: Callable[[int], int],
    expected: dict[str, float],
) -> None:
    nic = make_nic("a/lo", classes=((10, None),), rate_pps=500.0)
    peer = tos_socket(nic.address)
    thread = threading.Thread(target=_answer, args=(wire, peer, field, mark), daemon=True)
    thread.start()
    nic.engine.set_peers([nic.peer("b/lo", peer.own[0], peer.own[1])])
    nic.start()
    nic.until(lambda: nic.engine.counters()["replies_received"] >= 80)
    nic.stop()
    peer.sock.sendto(b"", peer.own)
    thread.join(5)
    counters = nic.engine.counters()
    replies = counters["replies_received"]
    for name in ("ce_forward", "ce_reverse", "ecn_cleared", "dscp_changed"):
        assert counters[name] == pytest.approx(expected.get(name, 0) * replies, abs=3), name


def test_stamps_are_collected_in_the_first_class(
    make_nic: MakeNic, wire: Any, tos_socket: Callable[[str], TosSocket]
) -> None:
    """The collecting packets wait in no queue of the data, whose losses and marks are those of probes."""
    nic = make_nic("a/lo", classes=((10, None), (26, 3)), rate_pps=500.0)
    peer = tos_socket(nic.address)
    collected: list[int] = []
    requested: list[int] = []

    def answer() -> None:
        seq = 0
        while True:
            data, tos, sender = peer.receive()
            if not data:
                return
            if data[2] & 15 == REQUEST:
                seq += 1
                requested.append(tos)
                body = (
                    b"FT" + bytes([0x10 | REPLY, 0]) + data[4:16] + struct.pack(">qII", 1, seq, KNOWN | tos)
                )
                peer.send(body + wire.mac(wire.KEY, peer.own, sender, body), sender, tos)
            else:
                collected.append(tos)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    nic.engine.set_peers([nic.peer("b/lo", peer.own[0], peer.own[1])])
    nic.start()
    nic.until(lambda: len(collected) >= 20)
    nic.stop()
    peer.sock.sendto(b"", peer.own)
    thread.join(5)
    assert set(collected) == {10 << 2 | ECT0}
    assert set(requested) == {10 << 2 | ECT0, 26 << 2 | ECT0}


CLASSES = ((10, None), (26, 3))
FIRST, SECOND = 10 << 2 | ECT0, 26 << 2 | ECT0


def _send_in_classes(engine: Any, own: tuple[str, int], target: tuple[str, int], *, first: int) -> None:
    """Send full-size packets in both classes in turn, each followed by a trace, from path 0."""
    for at in range(3):
        size = engine.size_packet(own, target, "b/lo", first + 10 + at, 1000)
        assert engine.send(0, size, target, traffic_class=at % 2)
        assert engine.send(0, engine.trace_packet(own, target, "b/lo", first + at, 64), target, ttl=64)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_traces_leave_in_the_first_class_and_full_sizes_in_the_stated_one(
    make_nic: MakeNic, address: str
) -> None:
    """Whatever class the probes before them had."""
    nic = make_nic("a/lo", classes=CLASSES, rate_pps=500.0, address=address)
    is_ipv6 = ":" in address
    level, kind = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if is_ipv6 else (socket.IPPROTO_IP, socket.IP_TOS)
    with socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind((address, 0))
        peer.settimeout(5)
        peer.setsockopt(level, socket.IPV6_RECVTCLASS if is_ipv6 else socket.IP_RECVTOS, 1)
        target = peer.getsockname()[:2]
        own = (address, nic.sockets.path_ports[0])
        nic.engine.set_peers([nic.peer("b/lo", *target)])  # probes leave in both classes
        nic.start()
        nic.until(lambda: nic.engine.counters()["requests_sent"] >= 20)
        _send_in_classes(nic.engine, own, target, first=1000)
        nic.stop()
        found: dict[int, set[int]] = {}
        sizes: dict[int, int] = {}
        peer.setblocking(False)
        while True:
            try:
                data, control, _, _ = peer.recvmsg(2048, 256)
            except BlockingIOError:
                break
            tos = next(value[0] for _, each, value in control if each == kind)
            if data[2] & 15 == 7:
                sizes[int.from_bytes(data[4:8], "big")] = tos
            else:
                found.setdefault(data[2] & 15, set()).add(tos)
    assert found[REQUEST] == {FIRST, SECOND}
    assert found[5] == {FIRST}
    assert sizes == {1010: FIRST, 1011: SECOND, 1012: FIRST}


def test_answers_to_traces_and_full_sizes_leave_in_the_first_class(
    make_nic: MakeNic, wire: Any, tos_socket: Callable[[str], TosSocket]
) -> None:
    nic, asking = make_nic("a/lo", classes=CLASSES), make_nic("b/lo", classes=CLASSES)
    nic.start()
    peer, target = tos_socket(nic.address), (nic.address, nic.sockets.port)
    request = wire.request(wire.KEY, peer.own, target, "a/lo", tos_field=KNOWN | SECOND)
    trace = asking.engine.trace_packet(peer.own, target, "a/lo", 5, 64)
    size = asking.engine.size_packet(peer.own, target, "a/lo", 6, 900)
    for data, left in ((request, SECOND), (trace, FIRST), (request, SECOND), (size, FIRST)):
        peer.send(data, target, SECOND)
        answer, tos, _ = peer.receive()
        assert tos == left, answer[2] & 15


def test_a_socket_of_a_port_search_leaves_in_the_first_class(make_nic: MakeNic) -> None:
    nic = make_nic("a/lo", classes=((26, 3), (10, None)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        nic.engine.use_first_class(sock)
        assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == SECOND
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 3


def test_losses_are_counted_by_class(
    make_nic: MakeNic, wire: Any, tos_socket: Callable[[str], TosSocket]
) -> None:
    """A peer that answers one class only: the evidence counts losses there, and answers of the other."""
    nic = make_nic("a/lo", classes=CLASSES, rate_pps=500.0)
    peer = tos_socket(nic.address)

    def answer() -> None:
        while True:
            data, tos, sender = peer.receive()
            if not data:
                return
            if data[2] & 15 == REQUEST and tos == FIRST:
                body = b"FT" + bytes([0x10 | REPLY, 0]) + data[4:16] + struct.pack(">qII", 1, 1, KNOWN | tos)
                peer.send(body + wire.mac(wire.KEY, peer.own, sender, body), sender, tos)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    nic.engine.set_peers([nic.peer("b/lo", peer.own[0], peer.own[1])])
    nic.start()
    nic.until(lambda: nic.engine.counters()["lost"] >= 50)
    nic.stop()
    peer.sock.sendto(b"", peer.own)
    thread.join(5)
    paths = nic.engine.evidence().paths
    totals = {dscp: [0, 0] for dscp in (10, 26)}
    for path in paths:
        assert sum(each.lost for each in path.classes) == path.lost
        assert sum(each.answered for each in path.classes) == path.answered
        for each in path.classes:
            totals[each.dscp][0] += each.lost - each.late
            totals[each.dscp][1] += each.answered
    assert totals[26][0] >= 50
    assert totals[26][1] == 0 < totals[10][1]
    assert totals[10][0] <= 2


@pytest.mark.parametrize(
    ("classes", "text"), [(((64, None),), "dscp 64"), (((0, 16),), "priority 16"), ((), "classes 0")]
)
def test_classes_that_do_not_fit_are_refused(classes: Any, text: str) -> None:
    sockets = open_sockets("127.0.0.1", 0, 0, 1)
    try:
        with pytest.raises(ValueError, match=text):
            Engine(sockets, nic="a/lo", key=bytes(16), classes=classes)
    finally:
        sockets.close()
