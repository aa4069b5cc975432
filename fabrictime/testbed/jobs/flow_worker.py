"""Runs one bulk flow between two namespaces, as a small process bounded in time.

The input is one JSON line on standard input (the fields of `_Order`). The output is one JSON line at the
start of the flow and one with the received amount at its end. The flow ends when its time is up, at a line or
the end of standard input, or at SIGTERM, so it never outlives its starter. Sender and receiver share one
thread that never blocks. An actuator may move the flow to another source port, and pace it, while it runs.
"""

from __future__ import annotations

import ctypes
import json
import select
import signal
import socket
import sys
import time
from array import array
from dataclasses import dataclass
from typing import Any

from fabrictime.testbed.jobs.connections import Carried, Connections, Place
from fabrictime.testbed.jobs.plan import ENDLESS_BYTES, make_job_plan
from fabrictime.testbed.processes import userns
from fabrictime.testbed.processes.scheduling_priority import apply_priority
from fabrictime_client import FlowEndpoint
from native.jobs.streams import Streams

_PR_SET_TIMERSLACK = 29
_UDP_OVERHEAD_BYTES = 42  # Ethernet, IP and UDP headers: rates are those of the frames
_TICK_NS = 150_000  # several packets are sent together where they are due closer than this
_CATCH_UP_PACKETS = 48
_DRAIN_S = 0.5
_REPORT_NS = 100_000_000
_CHECK_NS = 20_000_000
_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True)
class _Order:
    source_host: str
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
    dscp: int
    registrations: str | None
    control: str | None


class _Meter:
    """Counts received bytes: in total, and per slot of `interval_s`."""

    def __init__(self, interval_s: float) -> None:
        self.interval_ns = max(1, int(interval_s * 1e9))
        self.begin_ns = time.monotonic_ns()
        self.packets = 0
        self.bytes = 0
        self.first_ns = 0
        self.last_ns = 0
        self.slots: list[int] = []

    def add(self, packets: int, size: int) -> None:
        """Count `packets` packets of `size` bytes in total that have just arrived."""
        now = time.monotonic_ns()
        slot = (now - self.begin_ns) // self.interval_ns
        if slot >= len(self.slots):
            self.slots.extend([0] * (slot + 1 - len(self.slots)))
        self.slots[slot] += size
        self.packets += packets
        self.bytes += size
        self.first_ns = self.first_ns or now
        self.last_ns = now


class _Stop:
    """Checks cheaply whether the flow must end, because its starter exited or sent a line."""

    def __init__(self) -> None:
        self.is_stopping = False
        self.poll = select.poll()
        self.poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signal)

    def _signal(self, number: int, frame: object) -> None:
        self.is_stopping = True

    def check(self) -> bool:
        """Return whether the flow must end now."""
        if not self.is_stopping and self.poll.poll(0):
            self.is_stopping = True
        return self.is_stopping


def main() -> int:
    """Run the flow that the JSON line on standard input describes; return the exit code."""
    apply_priority("job")
    line = sys.stdin.readline()
    if not line:  # the starter is gone
        return 0
    order = _Order(**json.loads(line))
    stop = _Stop()
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    endpoint = FlowEndpoint(order.registrations or "", order.control or "")
    try:
        result = (_udp if order.protocol == "udp" else _tcp)(order, stop, endpoint)
    except OSError as error:
        _report({"error": f"flow to {order.destination_address}: {error}"})
        return 1
    finally:
        endpoint.close()
    _report(result)
    return 0


def _udp(order: _Order, stop: _Stop, endpoint: FlowEndpoint) -> dict[str, Any]:
    receiver = userns.in_netns(
        order.destination_netns, lambda: _socket(order.destination_address, order.dport)
    )
    target = receiver.getsockname()

    def dial(sport: int) -> socket.socket:
        sock = userns.in_netns(order.source_netns, lambda: _socket(order.source_address, sport, order.dscp))
        sock.connect(target)
        return sock

    sender = dial(order.sport)
    _started(sender.getsockname()[1], target[1])
    frame_bytes = order.payload_bytes + _UDP_OVERHEAD_BYTES
    begin = time.monotonic_ns()
    end = begin + int(order.duration_s * 1e9)
    due = float(begin)
    gap_ns, together = 0.0, 1

    def move(sport: int) -> None:
        nonlocal sender
        fresh = dial(sport)
        sender.close()
        sender = fresh
        flow.moved(sender)

    def pace(rate_bps: int) -> int:
        nonlocal gap_ns, together, due
        limit_bps = min(rate_bps or order.rate_bps, order.rate_bps)
        gap_ns = frame_bytes * 8e9 / max(1, limit_bps)
        together = max(1, int(_TICK_NS / gap_ns))
        due = min(due, time.monotonic_ns() + gap_ns)
        return limit_bps

    flow = endpoint.add(
        sender, job=order.job, tenant=order.tenant, move=move, pace=pace, host=order.source_host
    )
    flow.paced(pace(order.rate_bps))
    payload = bytes(order.payload_bytes)
    meter = _Meter(order.interval_s)
    scratch = bytearray(65536)
    sent = refused = skipped = 0
    checked = reported = begin
    has_command = False
    while (now := time.monotonic_ns()) < end:
        if has_command or now - checked > _CHECK_NS:
            checked = now
            if now - reported > _REPORT_NS:
                reported = now
                flow.sent(sent * frame_bytes)
            endpoint.poll()
            if stop.check():
                break
        ready = int((now - due) / gap_ns) + 1 if now >= due else 0
        if ready > _CATCH_UP_PACKETS:  # delayed too long: overdue packets are not sent as one burst
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
        has_command = False
        wait_ns = due + (together - 1) * gap_ns - time.monotonic_ns()
        if wait_ns > 0:
            has_command = bool(select.select([endpoint], [], [], min(wait_ns, _CHECK_NS) / 1e9)[0])
    elapsed_ns = time.monotonic_ns() - begin
    flow.sent(sent * frame_bytes)
    deadline = time.monotonic_ns() + int(_DRAIN_S * 1e9)
    quiet = select.poll()
    quiet.register(receiver, select.POLLIN)
    while meter.packets < sent and time.monotonic_ns() < deadline and quiet.poll(100):
        _drain_udp(receiver, scratch, meter)
    sender.close()
    receiver.close()
    return {
        "sport": flow.source_port,
        "dport": target[1],
        "elapsed_s": elapsed_ns / 1e9,
        "received_packets": meter.packets,
        "received_bytes": meter.bytes,
        "receiving_s": max(0, meter.last_ns - meter.first_ns) / 1e9,
        "interval_s": order.interval_s,
        "interval_bytes": meter.slots,
        "begin_monotonic_ns": meter.begin_ns,
        "cpu_s": time.process_time(),
        "retransmits": None,
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


def _tcp(order: _Order, stop: _Stop, endpoint: FlowEndpoint) -> dict[str, Any]:
    plan = make_job_plan("bulk", 2, 1, ENDLESS_BYTES)
    interval_ns = max(1, int(order.interval_s * 1e9))
    streams = Streams(
        2, plan.ends, plan.parts, slot_ns=interval_ns, slots_max=int(order.duration_s / order.interval_s) + 2
    )
    source = Place(order.source_host, order.source_netns, order.source_address)
    peer = Place("", order.destination_netns, order.destination_address)
    one = Carried(0, source, peer, order.sport, pace_bps=order.rate_bps, own_pace_bps=order.rate_bps)
    connections = Connections(
        streams,
        [one],
        order.dport,
        endpoint,
        congestion=order.congestion,
        job=order.job,
        tenant=order.tenant,
        dscp=order.dscp,
    )
    try:
        if not connections.open(time.monotonic_ns() + int(order.duration_s * 1e9), stop.check):
            target = f"{order.destination_address}:{connections.peer_port}"
            raise OSError(110, f"no connection to {target} within {order.duration_s:g} s")
        _started(one.port, connections.peer_port)
        duration_ns = int(order.duration_s * 1e9)
        end = time.monotonic_ns() + duration_ns
        while time.monotonic_ns() < end and not stop.check():
            connections.run(end)
            end = streams.begin_ns + duration_ns  # the first run sets the begin
        elapsed_ns = time.monotonic_ns() - streams.begin_ns
        slots = array("I", streams.slots(0))
        filled = [at for at, size in enumerate(slots) if size]
        return {
            "sport": one.port,
            "dport": connections.peer_port,
            "elapsed_s": elapsed_ns / 1e9,
            "received_packets": None,
            "received_bytes": streams.got(0),
            "receiving_s": min(elapsed_ns, (filled[-1] - filled[0] + 1) * interval_ns) / 1e9
            if filled
            else 0.0,
            "interval_s": order.interval_s,
            "interval_bytes": slots.tolist(),
            "begin_monotonic_ns": streams.begin_ns,
            "cpu_s": time.process_time(),
            "retransmits": connections.retransmits(),
            "sent_packets": None,
            "sent_bytes": streams.sent(0),
            "refused_packets": 0,
            "skipped_packets": 0,
        }
    finally:
        connections.close()


def _socket(address: str, port: int, dscp: int = 0) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        sock.bind((address, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _started(sport: int, dport: int) -> None:
    _report({"started": True, "sport": sport, "dport": dport})


def _report(message: dict[str, Any]) -> None:
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
