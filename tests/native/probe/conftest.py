"""Two or more engines on loopback addresses of their own, run by threads, and a wait with a deadline."""

from __future__ import annotations

import itertools
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from native.core.columns import ProbeColumns
from native.core.probe import Engine, Peer, Sockets, open_sockets, siphash24

KEY = bytes(range(16))
_numbers = itertools.count(2)


class Nic:
    """An engine with its thread; `until` drains and keeps every batch."""

    def __init__(self, name: str, **settings: Any) -> None:
        # An address of this test process alone, so that parallel tests never meet.
        own = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}.{next(_numbers)}"
        self.address: str = settings.pop("address", own)
        self.sockets: Sockets = open_sockets(self.address, 0, 0, settings.pop("paths", 2))
        self.name = name
        self.engine = Engine(self.sockets, nic=name, **{"key": KEY, "rate_pps": 4000.0, **settings})
        self.batches: list[ProbeColumns] = []
        self.thread: threading.Thread | None = None

    def peer(self, name: str | None = None, address: str | None = None, port: int | None = None) -> Peer:
        return Peer(name or self.name, address or self.address, port or self.sockets.port)

    def start(self) -> None:
        self.thread = threading.Thread(target=self.engine.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        if self.thread is not None:
            self.engine.stop()
            self.thread.join(10)
            assert not self.thread.is_alive()
            self.thread = None

    def until(self, done: Callable[[], bool], timeout_s: float = 10.0) -> None:
        end = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < end, f"{self.name}: not in {timeout_s} s: {self.engine.counters()}"
            self.batches.append(self.engine.drain())
            threading.Event().wait(0.01)

    def samples(self) -> int:
        return sum(int(batch.start[-1]) for batch in self.batches)

    def lost(self) -> int:
        return sum(int(batch.lost.sum()) for batch in self.batches)


@pytest.fixture
def make_nic() -> Iterator[Callable[..., Nic]]:
    made: list[Nic] = []

    def make(name: str, **settings: Any) -> Nic:
        made.append(Nic(name, **settings))
        return made[-1]

    yield make
    for nic in made:
        nic.stop()
        nic.engine.close()


REQUEST, REPLY, COLLECT, FOLLOWUP = 1, 2, 3, 4
HEAD, MAC = 16, 8
Address = tuple[str, int]


def mac(key: bytes, source: Address, target: Address, body: bytes) -> bytes:
    """The packet's authentication, written a second time from the words in engine.c."""
    block = b""
    for address, _ in (source, target):
        block += bytes(10) + b"\xff\xff" + socket.inet_aton(address)
    block += struct.pack(">HH", source[1], target[1]) + bytes(4)
    return siphash24(key, block + body).to_bytes(8, "big")


def head(kind: int, count: int, seq: int, run: int) -> bytes:
    return b"FT" + bytes([0x10 | kind, count]) + struct.pack(">IQ", seq, run)


def nic_hash(nic: str) -> int:
    return siphash24(bytes(16), nic.encode()) & 0xFFFFFFFF


def request(
    key: bytes,
    source: Address,
    target: Address,
    nic: str,
    seq: int = 0,
    run: int = 1,
    at_ns: int = 0,
    tos_field: int = 0,
) -> bytes:
    body = head(REQUEST, 0, seq, run) + struct.pack(">qII", at_ns or time.time_ns(), nic_hash(nic), tos_field)
    return body + mac(key, source, target, body)


def collect(
    key: bytes, source: Address, target: Address, tickets: list[tuple[int, int]], run: int = 1
) -> bytes:
    body = head(COLLECT, len(tickets), 0, run)
    body += b"".join(struct.pack(">III", seq, ticket, 0) for seq, ticket in tickets)
    return body + mac(key, source, target, body)


class ScriptedResponder:
    """A responder in Python that treats the engine badly: drops, doubles and reorders packets, by seed."""

    def __init__(
        self,
        address: str,
        *,
        drop: float = 0,
        double: float = 0,
        reorder: float = 0,
        no_followup: float = 0,
        run: int | None = None,
        seed: int = 1,
        t2_ns: int | None = None,
        t3_ns: int | None = None,
    ) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((address, 0))
        self.sock.settimeout(0.02)
        self.address: Address = self.sock.getsockname()
        self.odds = {"drop": drop, "double": double, "reorder": reorder, "no_followup": no_followup}
        self.run, self.random = run, random.Random(seed)
        self.lie = (t2_ns, t3_ns)
        self.t3: dict[int, int] = {}
        self.delayed: list[tuple[bytes, Address]] = []
        self.dropped = self.asked = self.collects = 0
        self.stopping = False
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.stopping = True
        self.thread.join(5)
        self.sock.close()

    def _luck(self, fault: str) -> bool:
        return self.random.random() < self.odds[fault]

    def _serve(self) -> None:
        while not self.stopping:
            try:
                data, prober = self.sock.recvfrom(2048)
            except TimeoutError:
                self._let_go()
                continue
            assert data[-MAC:] == mac(KEY, prober, self.address, data[:-MAC])
            seq, run = struct.unpack(">IQ", data[4:HEAD])
            if data[2] & 15 == REQUEST:
                self._reply(seq, self.run or run, prober)
            else:
                self._follow_up(data, run, prober)

    def _reply(self, seq: int, run: int, prober: Address) -> None:
        self.asked += 1
        if self._luck("drop"):
            self.dropped += 1
            return
        t2 = time.time_ns()
        self.t3[seq] = t2 + 1000 if self.lie[1] is None else self.lie[1]
        t2 = t2 if self.lie[0] is None else self.lie[0]
        body = head(REPLY, 0, seq, run) + struct.pack(">qII", t2, seq ^ 0x5555, 0)
        self._send(body, prober)

    def _follow_up(self, data: bytes, run: int, prober: Address) -> None:
        self.collects += 1
        if self._luck("no_followup"):
            return
        body = head(FOLLOWUP, data[3], 0, run)
        for i in range(data[3]):
            seq, ticket, _ = struct.unpack_from(">III", data, HEAD + 12 * i)
            assert ticket == seq ^ 0x5555
            body += struct.pack(">Iq", seq, self.t3[seq])
        self._send(body, prober)

    def _send(self, body: bytes, prober: Address) -> None:
        packet = body + mac(KEY, self.address, prober, body)
        if self._luck("reorder"):
            self.delayed.append((packet, prober))
            return
        self.sock.sendto(packet, prober)
        if self._luck("double"):
            self.sock.sendto(packet, prober)
        if len(self.delayed) > 8:
            self._let_go()

    def _let_go(self) -> None:
        self.random.shuffle(self.delayed)
        while self.delayed:
            self.sock.sendto(*self.delayed.pop())


@pytest.fixture
def make_responder() -> Iterator[Callable[..., ScriptedResponder]]:
    made: list[ScriptedResponder] = []

    def make(address: str, **odds: Any) -> ScriptedResponder:
        made.append(ScriptedResponder(address, **odds))
        return made[-1]

    yield make
    for responder in made:
        responder.close()


class Wire:
    """The wire format for tests, as this folder writes it a second time."""

    KEY = KEY
    mac = staticmethod(mac)
    head = staticmethod(head)
    request = staticmethod(request)
    collect = staticmethod(collect)


@pytest.fixture
def wire() -> type[Wire]:
    return Wire
