"""One bulk flow between two namespaces: a small process of its own, bounded in time.

In: one JSON line on standard input (the fields of `_Order`). Out: one JSON line when the flow starts, one
with what arrived when it ends. It ends at its time, at a line or the end of standard input, or at SIGTERM,
and so it never outlives whoever started it. Sender and receiver share one thread that never blocks: one
process, little CPU.
"""

from __future__ import annotations

import ctypes
import json
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabrictime.testbed import userns
from producers.local_socket import connect

__all__ = ["main"]

_SO_MAX_PACING_RATE = 47
_PR_SET_TIMERSLACK = 29
_TCPI_TOTAL_RETRANS_AT = 100  # offset in struct tcp_info
_UDP_OVERHEAD_BYTES = 42  # Ethernet, IP and UDP headers: rates are those of the frames
_TICK_NS = 150_000  # several packets are sent together where they are due closer than this
_CATCH_UP_PACKETS = 48
_DRAIN_S = 0.5
_SO_COOKIE = 57
_TELL_NS = 100_000_000
_RETRY_NS = 1_000_000_000
_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True)
class _Order:
    source_netns: str | None
    source_address: str
    destination_netns: str | None
    destination_address: str
    protocol: str
    rate_bps: int
    duration_s: float
    sport: int
    dport: int
    payload_bytes: int
    congestion: str
    interval_s: float
    job: str | None
    tenant: str | None
    registrations: str | None


class _Meter:
    """Counts what arrives: in all, and a slot of `interval_s` each."""

    def __init__(self, interval_s: float) -> None:
        self.interval_ns = max(1, int(interval_s * 1e9))
        self.begin_ns = time.monotonic_ns()
        self.packets = 0
        self.bytes = 0
        self.first_ns = 0
        self.last_ns = 0
        self.slots: list[int] = []

    def add(self, packets: int, size: int) -> None:
        """Count `packets` of `size` bytes together as having arrived now."""
        now = time.monotonic_ns()
        slot = (now - self.begin_ns) // self.interval_ns
        if slot >= len(self.slots):
            self.slots.extend([0] * (slot + 1 - len(self.slots)))
        self.slots[slot] += size
        self.packets += packets
        self.bytes += size
        self.first_ns = self.first_ns or now
        self.last_ns = now


class _Registration:
    """Tells the host's flow reporter whose flow this is and, for UDP, what was sent.

    A reporter that is not there yet, or comes back, is found again; the flow never waits for it.
    """

    def __init__(self, order: _Order, sender: socket.socket, receiver: socket.socket) -> None:
        source, peer = sender.getsockname(), receiver.getsockname()
        self._said: dict[str, Any] = {
            "protocol": order.protocol, "source_address": source[0], "source_port": source[1],
            "peer_address": peer[0], "peer_port": peer[1], "job": order.job, "tenant": order.tenant,
        }  # fmt: skip
        self._counts = order.protocol == "udp"
        if self._counts:
            cookie = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8))[0]
            self._said |= {"cookie": cookie, "rate_limit_bps": order.rate_bps}
        self._path = Path(order.registrations) if order.registrations else None
        self._connection: socket.socket | None = None
        self._due_ns = 0

    def tell(self, now_ns: int, sent_bytes: int) -> None:
        """Say what is so now, where it is time to; `sent_bytes` of frames since the flow began."""
        if self._path is None or now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _TELL_NS
        if self._connection is not None and not self._counts:
            return
        if self._counts:
            self._said |= {"sent_bytes": sent_bytes, "at_ns": now_ns}
        try:
            if self._connection is None:
                self._connection = connect(self._path, 0)
            self._connection.send(json.dumps(self._said).encode() + b"\n")
        except BlockingIOError:
            return
        except OSError:
            if self._connection is not None:
                self._connection.close()
            self._connection, self._due_ns = None, now_ns + _RETRY_NS

    def end(self, sent_bytes: int) -> None:
        """Say the last figures and hang up."""
        self._due_ns = 0
        self.tell(time.monotonic_ns(), sent_bytes)
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Stop:
    """Tells, cheaply, whether somebody wants the flow to end: the starter left, or says so."""

    def __init__(self) -> None:
        self.wanted = False
        self.poll = select.poll()
        self.poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signal)

    def _signal(self, number: int, frame: object) -> None:
        self.wanted = True

    def check(self) -> bool:
        """Return whether to end now."""
        if not self.wanted and self.poll.poll(0):
            self.wanted = True
        return self.wanted


def main() -> int:
    """Run the flow that standard input orders."""
    order = _Order(**json.loads(sys.stdin.readline()))
    stop = _Stop()
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    try:
        result = _udp(order, stop) if order.protocol == "udp" else _tcp(order, stop)
    except OSError as error:
        _say({"error": f"flow to {order.destination_address}: {error}"})
        return 1
    _say(result)
    return 0


def _udp(order: _Order, stop: _Stop) -> dict[str, Any]:
    kind = socket.SOCK_DGRAM
    receiver = userns.in_netns(
        order.destination_netns, lambda: _socket(kind, order.destination_address, order.dport)
    )
    sender = userns.in_netns(order.source_netns, lambda: _socket(kind, order.source_address, order.sport))
    sender.connect(receiver.getsockname())
    _started(sender, receiver)
    registration = _Registration(order, sender, receiver)
    frame_bytes = order.payload_bytes + _UDP_OVERHEAD_BYTES
    payload = bytes(order.payload_bytes)
    gap_ns = frame_bytes * 8e9 / order.rate_bps
    together = max(1, int(_TICK_NS / gap_ns))
    meter = _Meter(order.interval_s)
    scratch = bytearray(65536)
    begin = time.monotonic_ns()
    end = begin + int(order.duration_s * 1e9)
    sent = refused = skipped = 0
    due = float(begin)
    checked = begin
    while (now := time.monotonic_ns()) < end:
        if now - checked > 20_000_000:
            checked = now
            registration.tell(now, sent * frame_bytes)
            if stop.check():
                break
        ready = int((now - due) / gap_ns) + 1 if now >= due else 0
        if ready > _CATCH_UP_PACKETS:  # held up too long: what was due then is not sent in one burst now
            skipped += ready - _CATCH_UP_PACKETS
            due += (ready - _CATCH_UP_PACKETS) * gap_ns
            ready = _CATCH_UP_PACKETS
        for _ in range(ready):
            try:
                sender.send(payload)
                sent += 1
            except (BlockingIOError, ConnectionRefusedError):
                refused += 1
            except OSError:  # no route or no carrier, as a fault makes it: the packet is lost here
                refused += 1
        due += ready * gap_ns
        _drain_udp(receiver, scratch, meter)
        wait_ns = due + (together - 1) * gap_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(min(wait_ns, 20_000_000) / 1e9)
    elapsed_ns = time.monotonic_ns() - begin
    registration.end(sent * frame_bytes)
    deadline = time.monotonic_ns() + int(_DRAIN_S * 1e9)
    quiet = select.poll()
    quiet.register(receiver, select.POLLIN)
    while meter.packets < sent and time.monotonic_ns() < deadline and quiet.poll(100):
        _drain_udp(receiver, scratch, meter)
    return _result(order, sender, receiver, meter, elapsed_ns) | {
        "sent_packets": sent,
        "sent_bytes": sent * order.payload_bytes,
        "refused_packets": refused,
        "skipped_packets": skipped,
    }


def _drain_udp(receiver: socket.socket, scratch: bytearray, meter: _Meter) -> None:
    packets = size = 0
    try:
        while True:
            size += receiver.recv_into(scratch)
            packets += 1
    except BlockingIOError:
        if packets:
            meter.add(packets, size)


def _tcp(order: _Order, stop: _Stop) -> dict[str, Any]:
    kind = socket.SOCK_STREAM
    listener = userns.in_netns(
        order.destination_netns, lambda: _socket(kind, order.destination_address, order.dport)
    )
    sender = userns.in_netns(order.source_netns, lambda: _socket(kind, order.source_address, order.sport))
    for sock in (listener, sender):
        _congestion(sock, order.congestion)
    listener.listen(1)
    if order.rate_bps:
        sender.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", order.rate_bps // 8))
    begin = time.monotonic_ns()
    end = begin + int(order.duration_s * 1e9)
    target = listener.getsockname()
    receiver: socket.socket | None = None
    code = sender.connect_ex(target)
    if code not in (0, 115):  # EINPROGRESS
        raise OSError(code, f"connect to {target[0]}:{target[1]} failed")
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while receiver is None:
        if poll.poll(50):
            receiver = listener.accept()[0]
        elif time.monotonic_ns() > end or stop.check():
            raise OSError(110, f"no connection to {target[0]}:{target[1]} within {order.duration_s:g} s")
    receiver.setblocking(False)
    _started(sender, receiver)
    begin = time.monotonic_ns()
    end = begin + int(order.duration_s * 1e9)
    meter = _Meter(order.interval_s)
    poll = select.poll()
    poll.register(sender, select.POLLOUT)
    poll.register(receiver, select.POLLIN)
    chunk, scratch = memoryview(bytes(262_144)), bytearray(1 << 20)
    sent = 0
    checked = begin
    registration = _Registration(order, sender, listener)
    while (now := time.monotonic_ns()) < end:
        if now - checked > 20_000_000:
            checked = now
            registration.tell(now, sent)
            if stop.check():
                break
        for fd, event in poll.poll(20):
            if event & (select.POLLERR | select.POLLHUP) and fd == sender.fileno():
                code = sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                raise OSError(code, "the connection broke")
            if fd == sender.fileno():
                try:
                    sent += sender.send(chunk)
                except BlockingIOError:
                    continue
            else:
                try:
                    meter.add(0, receiver.recv_into(scratch))
                except BlockingIOError:
                    continue
    elapsed_ns = time.monotonic_ns() - begin
    registration.end(sent)
    info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    result = _result(order, sender, receiver, meter, elapsed_ns) | {
        "sent_packets": None,
        "sent_bytes": sent,
        "received_packets": None,
        "refused_packets": 0,
        "skipped_packets": 0,
        "retransmits": struct.unpack_from("=I", info, _TCPI_TOTAL_RETRANS_AT)[0],
    }
    for sock in (sender, receiver):  # a reset, so that the port is free again at once
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    listener.close()
    return result


def _socket(kind: socket.SocketKind, address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    if kind == socket.SOCK_STREAM:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    sock.bind((address, port))
    return sock


def _congestion(sock: socket.socket, name: str) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError as error:
        raise OSError(error.errno, f"congestion control {name!r} is not in this kernel") from None


def _started(sender: socket.socket, receiver: socket.socket) -> None:
    _say({"started": True, "sport": sender.getsockname()[1], "dport": receiver.getsockname()[1]})


def _result(
    order: _Order, sender: socket.socket, receiver: socket.socket, meter: _Meter, elapsed_ns: int
) -> dict[str, Any]:
    return {
        "sport": sender.getsockname()[1],
        "dport": receiver.getsockname()[1],
        "elapsed_s": elapsed_ns / 1e9,
        "received_packets": meter.packets,
        "received_bytes": meter.bytes,
        "receiving_s": max(0, meter.last_ns - meter.first_ns) / 1e9,
        "interval_s": order.interval_s,
        "interval_bytes": meter.slots,
        "begin_monotonic_ns": meter.begin_ns,
        "cpu_s": time.process_time(),
        "retransmits": None,
    }


def _say(message: dict[str, Any]) -> None:
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
