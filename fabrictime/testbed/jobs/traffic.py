"""Runs bulk UDP and TCP flows on a testbed, one process each.

A flow can be awaited or stopped, and FlowResult has its received bytes. Every flow ends when its time is up,
with the testbed, or with its starter.
"""

from __future__ import annotations

import re
import threading
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from fabrictime.testbed.fabric.fabric import FabricError
from fabrictime.testbed.processes.fork_server import Worker
from fabrictime.testbed.processes.workers import Workers, check_fields, end, read

_RATE_UNIT = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_START_TIMEOUT_S = 10.0
_END_GRACE_S = 5.0
_UDP_PAYLOAD_MAX = 1472


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """The parameters of one flow from NIC to NIC (or host to host).

    `rate_bps`: with UDP the rate of its frames, paced in the sender; with TCP the limit of its pacing, 0 for
    none. If a port is 0, the kernel chooses it. `congestion`: TCP's congestion control, set explicitly
    because machines differ. `dscp`: the traffic class of its packets, without ECN. `job`, `tenant`: its owner
    in flow reports.
    """

    source: str
    destination: str
    rate_bps: int
    duration_s: float = 10.0
    protocol: Literal["udp", "tcp"] = "udp"
    sport: int = 0
    dport: int = 0
    payload_bytes: int = _UDP_PAYLOAD_MAX
    congestion: str = "cubic"
    interval_s: float = 0.1
    job: str | None = None
    tenant: str | None = None
    dscp: int = 0

    def check(self) -> Self:
        """Check the spec and return it. Raises ValueError with the field and its accepted values."""
        minimum = 0 if self.protocol == "tcp" else 10_000
        bounds: dict[str, tuple[float, float]] = {
            "rate_bps": (minimum, 100_000_000_000),
            "duration_s": (0.01, 86_400),
            "sport": (0, 65535),
            "dport": (0, 65535),
            "payload_bytes": (1, _UDP_PAYLOAD_MAX),
            "interval_s": (0.001, 60),
            "dscp": (0, 63),
        }
        if self.protocol not in ("udp", "tcp"):
            raise ValueError(f"protocol {self.protocol!r}: expected udp or tcp")
        check_fields(self, bounds)
        return self


@dataclass(frozen=True, slots=True)
class FlowResult:
    """The result of a flow.

    Bytes are payload. Loss and packets are None for TCP, retransmits are None for UDP. `interval_bytes[i]`
    has the payload that arrived in [begin_monotonic_ns + i * interval_s, + interval_s). `refused_packets`
    were refused by the sender's own kernel; `skipped_packets` were not sent, as the sender was late.
    """

    spec: FlowSpec
    sport: int
    dport: int
    elapsed_s: float
    receiving_s: float
    sent_bytes: int
    received_bytes: int
    sent_packets: int | None
    received_packets: int | None
    refused_packets: int
    skipped_packets: int
    retransmits: int | None
    interval_s: float
    interval_bytes: list[int]
    begin_monotonic_ns: int
    cpu_s: float

    @property
    def goodput_bps(self) -> float:
        """Rate of received payload, bit/s, over the flow's duration or, if longer, the time of arrivals."""
        took_s = max(self.elapsed_s, self.receiving_s)
        return self.received_bytes * 8 / took_s if took_s else 0.0

    @property
    def loss(self) -> float | None:
        """Share of sent packets that did not arrive, 0 to 1; None for TCP, or if no packet was sent."""
        if self.sent_packets is None or self.received_packets is None or not self.sent_packets:
            return None
        return max(0.0, 1 - self.received_packets / self.sent_packets)


class Flow:
    """A running flow: wait for its end with `wait`, or end it early with `stop`."""

    def __init__(self, number: int, spec: FlowSpec, worker: Worker, started: dict[str, Any]) -> None:
        self.number = number
        self.spec = spec
        self.sport: int = started["sport"]
        self.dport: int = started["dport"]
        self._worker = worker
        self._result: FlowResult | None = None
        self._lock = threading.Lock()

    @property
    def running(self) -> bool:
        """Whether the flow's process is still running."""
        return self._worker.running

    def stop(self) -> FlowResult:
        """End the flow now and return its result."""
        self._worker.hang_up()
        return self.wait()

    def wait(self) -> FlowResult:
        """Wait until the flow has ended by itself; return its result. Raises FabricError if it failed."""
        with self._lock:
            if self._result is None:
                self._result = self._collect()
            return self._result

    def kill(self) -> None:
        """Kill the flow's process, without a result."""
        end(self._worker)

    def _collect(self) -> FlowResult:
        limit_s = self.spec.duration_s + _END_GRACE_S
        answer = read(self._worker, limit_s)
        end(self._worker)
        if answer is None or "error" in answer:
            raise FabricError(f"flow {self.number}: {(answer or {}).get('error', 'ended without a result')}")
        return FlowResult(spec=self.spec, **answer)


class Traffic(Workers[Flow]):
    """Starts flows on one testbed."""

    def start(self, spec: FlowSpec) -> Flow:
        """Start a flow; return it once it sends. Raises ValueError for a bad spec, else FabricError."""
        spec.check()
        source, destination = self._fabric.nic(spec.source), self._fabric.nic(spec.destination)
        if source.host == destination.host:
            raise ValueError(f"flow {spec.source} to {spec.destination}: expected two hosts")
        order = asdict(spec)
        del order["source"], order["destination"]
        order |= {
            "source_host": source.host,
            "source_netns": source.netns,
            "source_address": source.address,
            "destination_netns": destination.netns,
            "destination_address": destination.address,
        }
        return self._begin(
            "flow",
            f"flow {spec.source} to {spec.destination}",
            order,
            spec.duration_s + _START_TIMEOUT_S,
            lambda number, worker, started: Flow(number, spec, worker, started),
        )


def parse_rate(text: str) -> int:
    """Return a rate such as `70mbit`, `1.5gbit`, `200k` or `1000000` in bit/s. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:bit|bps|bit/s)?", text.strip().lower())
    if match is None:
        raise ValueError(f"rate {text!r}: expected a number and kbit, mbit or gbit, as in 70mbit")
    return round(float(match[1]) * _RATE_UNIT[match[2]])
