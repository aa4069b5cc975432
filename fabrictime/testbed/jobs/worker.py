"""Runs one job's traffic between namespaces, as a process bounded in time.

The input is one JSON line on standard input (the fields of `_Order`), then `{"move": [connection, port]}` and
`{"pace": [connection, bit/s]}` for callers without an actuator. The output is JSON lines: the connections
once all are open, iterations as they end, and the received bytes over time at the end. The job ends when its
time is up, after its iterations, at the line `stop` or the end of standard input, or at SIGTERM, so it never
outlives its starter.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import random
import select
import signal
import sys
import time
import zlib
from dataclasses import dataclass
from typing import Any

from fabrictime.testbed.jobs.connections import Carried, Connections, Place
from fabrictime.testbed.jobs.plan import JobPlan, Kind, make_job_plan
from fabrictime.testbed.processes.scheduling_priority import apply_priority
from fabrictime_client import FlowEndpoint
from native.jobs.streams import DONE, Streams

_PR_SET_TIMERSLACK = 29
_OPEN_S = 10.0
_REPORT_NS = 50_000_000
_PORTS = (20_000, 60_000)
_TRIES = 20


@dataclass(frozen=True)
class _Order:
    kind: Kind
    ranks: list[dict[str, Any]]  # of `Place`
    connections: int
    size_bytes: int
    iterations: int
    duration_s: float
    gap_s: float
    slot_s: float
    congestion: str
    seed: int
    sports: list[int] | None
    dport: int
    dscp: int
    check: bool
    job: str | None
    tenant: str | None
    registrations: str | None
    control: str | None


class _Orders:
    """Receives the starter's commands while the job runs; end of input, or a signal, ends the job."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._waiting = b""
        self._poll = select.poll()
        self._poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signal)

    def _signal(self, number: int, frame: object) -> None:
        self.is_stopping = True

    def take(self) -> list[dict[str, Any]]:
        """Return the commands that have arrived."""
        orders: list[dict[str, Any]] = []
        while self._poll.poll(0):
            data = os.read(sys.stdin.fileno(), 65536)
            if not data:
                self.is_stopping = True
                break
            *lines, self._waiting = (self._waiting + data).split(b"\n")
            for line in lines:
                if line.strip() == b"stop":
                    self.is_stopping = True
                elif line.strip():
                    orders.append(json.loads(line))
        return orders

    def ended(self) -> bool:
        """Return whether the job must end now; discard other commands, which came before the job's start."""
        self.take()
        return self.is_stopping


def main() -> int:
    """Run the job that the JSON line on standard input describes; return the exit code."""
    apply_priority("job")
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:  # the starter is gone
            return 0
        line += byte
    order = _Order(**json.loads(line))
    orders = _Orders()
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    endpoint = FlowEndpoint(order.registrations or "", order.control or "")
    try:
        _run(order, orders, endpoint)
    except (OSError, ValueError) as error:
        _report({"error": str(error)})
        return 1
    finally:
        endpoint.close()
    return 0


def _run(order: _Order, orders: _Orders, endpoint: FlowEndpoint) -> None:
    plan = make_job_plan(order.kind, len(order.ranks), order.connections, order.size_bytes)
    slot_ns = int(order.slot_s * 1e9)
    streams = Streams(
        plan.ranks,
        plan.ends,
        plan.parts,
        iterations=order.iterations,
        gap_ns=int(order.gap_s * 1e9),
        slot_ns=slot_ns,
        slots_max=int(order.duration_s / order.slot_s) + 1 if slot_ns else 0,
        check=order.check,
    )
    connections = _connect(order, plan, streams, endpoint)
    try:
        if not connections.open(time.monotonic_ns() + int(_OPEN_S * 1e9), orders.ended):
            raise OSError(110, f"not all connections of the job stood within {_OPEN_S:g} s")
        _report(
            {
                "started": True,
                "dport": connections.peer_port,
                "begin_monotonic_ns": time.monotonic_ns(),
                "begin_wall_ns": time.time_ns(),
                "iteration_bytes": plan.iteration_bytes,
                "connections": [
                    {
                        "number": one.stream,
                        "source": one.source.host,
                        "destination": one.peer.host,
                        "source_port": one.port,
                        "peer_port": connections.peer_port,
                        "flow": None if one.flow is None else one.flow.key,
                    }
                    for one in connections.carried
                ],
            }
        )
        _loop(order, orders, streams, connections)
        _report(_result(streams, connections, endpoint, slot_ns))
    finally:
        connections.close()


def _loop(order: _Order, orders: _Orders, streams: Streams, connections: Connections) -> None:
    duration_ns = int(order.duration_s * 1e9)
    end_ns = time.monotonic_ns() + duration_ns
    by_number = {one.stream: one for one in connections.carried}
    reported_ns = 0
    why = -1
    while why != DONE and (now_ns := time.monotonic_ns()) < end_ns:
        why = connections.run(end_ns)
        end_ns = streams.begin_ns + duration_ns  # the first run sets the begin
        if now_ns - reported_ns > _REPORT_NS or why == DONE:
            reported_ns = now_ns
            if iterations := streams.iterations():
                _report({"iterations": iterations})
            for lines in orders.take():
                for verb, (number, value) in lines.items():
                    with contextlib.suppress(OSError):
                        (connections.move if verb == "move" else connections.pace)(by_number[number], value)
            if orders.is_stopping:
                break
    if iterations := streams.iterations():
        _report({"iterations": iterations})


def _connect(order: _Order, plan: JobPlan, streams: Streams, endpoint: FlowEndpoint) -> Connections:
    """Return the job's connections, with the ports in the order or else ports drawn from the seed."""
    draw = random.Random(order.seed)  # noqa: S311  # repeatable, and no secret
    places = [Place(**rank) for rank in order.ranks]
    for tries in range(_TRIES):
        sports = order.sports or draw.sample(range(*_PORTS), len(plan.routes))
        carried = [
            Carried(route.stream, places[route.sender], places[route.receiver], sport, route.back)
            for route, sport in zip(plan.routes, sports, strict=True)
        ]
        dport = order.dport or draw.randrange(*_PORTS)
        try:
            return Connections(
                streams,
                carried,
                dport,
                endpoint,
                congestion=order.congestion,
                dscp=order.dscp,
                job=order.job,
                tenant=order.tenant,
                seed=order.seed,
            )
        except OSError as error:
            if order.dport or error.errno != 98 or tries == _TRIES - 1:  # EADDRINUSE
                raise
    raise AssertionError("unreachable")


def _result(
    streams: Streams, connections: Connections, endpoint: FlowEndpoint, slot_ns: int
) -> dict[str, Any]:
    usage = os.times()
    return {
        "ended": True,
        "elapsed_ns": time.monotonic_ns() - streams.begin_ns,
        "begin_monotonic_ns": streams.begin_ns,
        "begin_wall_ns": time.time_ns() - time.monotonic_ns() + streams.begin_ns,
        "received_bytes": [streams.got(stream) for stream in range(streams.count)],
        "slot_ns": slot_ns,
        "slots": [
            base64.b64encode(zlib.compress(streams.slots(stream), 1)).decode() if slot_ns else ""
            for stream in range(streams.count)
        ],
        "moves": connections.moves,
        "lost_connections": connections.lost,
        "retransmits": connections.retransmits(),
        "spoilt_bytes": streams.spoilt,
        "refused": endpoint.refused,
        "cpu_s": usage.user + usage.system,
        "cpu_user_s": usage.user,
    }


def _report(message: dict[str, Any]) -> None:
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
