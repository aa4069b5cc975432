"""Size probes: who confirms them, how large the answer is, and what a kernel's cached path MTU changes."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from native.core.probe import siphash24

MakeNic = Callable[..., Any]
SIZE, SIZED = 7, 8


def size_packet(
    wire: Any, own: Any, target: Any, nic: str, size: int, stated: int = 0, **other: Any
) -> bytes:
    """Return a size probe, written a second time from the words in engine.c."""
    at_ns = other.get("at_ns", time.time_ns())
    name = siphash24(bytes(16), nic.encode()) & 0xFFFFFFFF
    body = wire.head(SIZE, 0, 5, 1) + struct.pack(">qII", at_ns, name, stated or size)
    data = body + wire.mac(other.get("key", wire.KEY), own, target, body)
    return data + bytes(size - len(data))


@pytest.fixture
def sock() -> Any:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.settimeout(5)
        yield made


@pytest.mark.parametrize("size", [40, 41, 408, 409, 1472, 8972])
def test_a_packet_of_any_size_is_confirmed_by_forty_bytes(
    make_nic: MakeNic, wire: Any, sock: Any, size: int
) -> None:
    nic = make_nic("a/lo")
    nic.start()
    sock.bind((nic.address, 0))
    own, target = sock.getsockname(), (nic.address, nic.sockets.port)
    sock.sendto(size_packet(wire, own, target, "a/lo", size), target)
    answer = sock.recv(65535)
    assert len(answer) == 40 <= size
    assert answer[2] == 0x10 | SIZED
    assert struct.unpack_from(">I", answer, 28)[0] == size
    assert answer[-8:] == wire.mac(wire.KEY, target, own, answer[:-8])


@pytest.mark.parametrize(
    ("change", "counter"),
    [
        ({"stated": 1000}, "malformed"),  # the size that arrived is another one
        ({"key": bytes(16)}, "bad_mac"),
        ({"nic": "b/lo"}, "wrong_nic"),
        ({"at_ns": 1}, "stale_time"),
    ],
)
def test_a_packet_of_a_stranger_gets_no_answer(
    make_nic: MakeNic, wire: Any, sock: Any, change: dict[str, Any], counter: str
) -> None:
    nic = make_nic("a/lo", max_age_s=60.0)
    nic.start()
    sock.bind((nic.address, 0))
    own, target = sock.getsockname(), (nic.address, nic.sockets.port)
    fields = {"nic": "a/lo", "size": 1472, **change}
    sock.sendto(size_packet(wire, own, target, **fields), target)
    nic.until(lambda: nic.engine.counters()[counter] == 1)
    assert nic.engine.counters()["sizes_answered"] == 0
    sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        sock.recv(2048)


def test_the_engine_confirms_its_own_size_probes_once_each(make_nic: MakeNic) -> None:
    prober, peer = make_nic("a/lo"), make_nic("b/lo")
    prober.start()
    peer.start()
    target, path = (peer.address, peer.sockets.port), prober.sockets.paths[1]
    hits: list[Any] = []
    for seq, size in enumerate((40, 1472, 60_000)):
        data = prober.engine.size_packet(path.getsockname(), target, "b/lo", seq, size)
        assert len(data) == size
        path.sendto(data, target)

    def all_there() -> bool:
        hits.extend(prober.engine.size_hits())
        return len(hits) >= 3

    prober.until(all_there)
    assert [(hit.arrived, hit.path, hit.target, hit.seq) for hit in hits] == [
        (True, 1, target, n) for n in range(3)
    ]
    assert peer.engine.counters()["sizes_answered"] == 3
    counters = peer.engine.counters()
    assert counters["bytes_answered"] < counters["bytes_asked"]


def test_answers_of_others_are_none(make_nic: MakeNic, wire: Any) -> None:
    prober, peer = make_nic("a/lo"), make_nic("b/lo")
    own, target = prober.sockets.paths[0].getsockname(), (peer.address, peer.sockets.port)
    body = wire.head(SIZED, 0, 5, prober.engine.run_id) + struct.pack(">qII", 0, 0, 1472)
    good = body + wire.mac(wire.KEY, target, own, body)
    for data in (good[:-1], good + b"x", good[:-1] + bytes([good[-1] ^ 1])):
        prober.engine.inject(0, data, *target)
    assert prober.engine.size_hits() == []
    prober.engine.inject(0, good, *target)
    assert [hit.seq for hit in prober.engine.size_hits()] == [5]


@pytest.mark.parametrize("size", [39, 65_508])
def test_sizes_that_udp_cannot_carry_are_refused(make_nic: MakeNic, size: int) -> None:
    nic = make_nic("a/lo")
    with pytest.raises(ValueError, match="size"):
        nic.engine.size_packet((nic.address, 1), (nic.address, 2), "a/lo", 1, size)


def test_packets_of_a_path_are_never_cut_by_the_kernel(make_nic: MakeNic) -> None:
    nic = make_nic("a/lo")
    assert [sock.getsockopt(socket.IPPROTO_IP, 10) for sock in nic.sockets.paths] == [3, 3]
