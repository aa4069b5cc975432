"""Type declarations of the extension module probe.pyx."""

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from native.core.columns import ProbeColumns

__all__ = [
    "Engine",
    "Evidence",
    "Link",
    "PathEvidence",
    "Peer",
    "Prober",
    "SizeHit",
    "Sockets",
    "TestClock",
    "TraceHit",
    "link_of",
    "open_socket",
    "open_sockets",
    "siphash24",
]

@dataclass(frozen=True, slots=True)
class Peer:
    nic: str
    address: str
    port: int

@dataclass(frozen=True, slots=True)
class TraceHit:
    path: int
    target: tuple[str, int]
    hop: str | None
    type: int
    code: int
    seq: int | None

@dataclass(frozen=True, slots=True)
class SizeHit:
    arrived: bool
    path: int
    target: tuple[str, int]
    hop: str | None
    mtu_bytes: int
    seq: int | None

@dataclass(frozen=True, slots=True)
class Prober:
    address: str
    port: int
    seen_s: float
    traced_s: float | None
    probed_s: float | None = None

@dataclass(frozen=True, slots=True)
class Link:
    speed_bps: int | None
    mtu_bytes: int | None

class ClassEvidence(NamedTuple):
    dscp: int
    lost: int
    answered: int
    late: int
    forward_dscp: int | None = None
    reverse_dscp: int | None = None

class PathEvidence(NamedTuple):
    peer: str
    path: int
    lost: int
    answered: int
    late: int
    delayed: int
    loss_streak: int
    first_lost_age_ns: int
    last_lost_age_ns: int
    answered_age_ns: int
    arrived_age_ns: int
    timeout_ns: int
    classes: tuple[ClassEvidence, ...] = ()

@dataclass(frozen=True, slots=True)
class Evidence:
    clock_ns: int
    system_ns: int
    interval_ns: int
    late_ns: int
    queue_ns: int
    missed_timers: int
    stuck: int
    receive_drops: int
    capped: int
    paths: list[PathEvidence]

@dataclass(frozen=True, slots=True)
class Sockets:
    responder: socket.socket
    paths: tuple[socket.socket, ...]
    def close(self) -> None: ...
    @property
    def port(self) -> int: ...
    @property
    def path_ports(self) -> tuple[int, ...]: ...

def open_socket(
    address: str, port: int, buffer_bytes: int = ..., *, device: str | None = ...
) -> socket.socket: ...
def open_sockets(
    address: str,
    port: int,
    first_path_port: int,
    paths: int,
    buffer_bytes: int = ...,
    *,
    spare: int = ...,
    device: str | None = ...,
) -> Sockets: ...
def link_of(sock: socket.socket, device: str) -> Link: ...
def siphash24(key: bytes, data: bytes) -> int: ...

class TestClock:
    __test__: bool
    parameters: tuple[int, float, float, int, int, int, int]
    def __init__(
        self,
        offset_ns: int = 0,
        drift_ppb: float = 0.0,
        wander_ppb_per_sqrt_s: float = 0.0,
        epoch_ns: int = 0,
        seed: int = 0,
        step_ns: int = 0,
        step_at_ns: int = 0,
    ) -> None: ...
    def reading(self, realtime_ns: int) -> int: ...
    def offset_at(self, realtime_ns: int) -> int: ...

class Engine:
    nic: str
    run_id: int
    def __init__(
        self,
        sockets: Sockets,
        *,
        nic: str,
        key: bytes,
        run: int | None = None,
        rate_pps: float = 1000.0,
        max_pps: float = 100_000.0,
        answer_max_pps: float = 200_000.0,
        spacing_ns: int = 20_000,
        singles: int = 0,
        spare: int = 0,
        flow_pps: float = 0.0,
        timeout_ms: float = 100.0,
        overdue_ms: float = 2.0,
        cpu_starved_ms: float = 5.0,
        collect_delay_ms: float = 20.0,
        collect_period_ms: float = 0.0,
        drain_ms: float = 5.0,
        max_age_s: float = 86_400.0,
        clock: TestClock | None = None,
        device: str | None = None,
        seed: int | None = None,
        max_peers: int = 64,
        classes: Sequence[tuple[int, int | None]] = ((0, None),),
        ecn: bool = True,
        device_index: int = 0,
    ) -> None: ...
    @property
    def phc_index(self) -> int | None: ...
    @property
    def path_ports(self) -> tuple[int, ...]: ...
    @property
    def all_ports(self) -> tuple[int, ...]: ...
    @property
    def peers(self) -> list[Peer]: ...
    @property
    def responder_socket(self) -> socket.socket: ...
    @property
    def responder_port(self) -> int: ...
    @property
    def class_dscps(self) -> tuple[int, ...]: ...
    def send(
        self, path: int, data: bytes, target: tuple[str, int], *, ttl: int = 0, traffic_class: int = 0
    ) -> bool: ...
    def use_first_class(self, sock: socket.socket) -> None: ...
    def set_path(self, path: int, sock: socket.socket) -> None: ...
    def trace_packet(
        self, source: tuple[str, int], target: tuple[str, int], nic: str, seq: int, ttl: int
    ) -> bytes: ...
    def traced_seq(self, data: bytes, sender: tuple[str, int], own: tuple[str, int]) -> int | None: ...
    def trace_hits(self) -> list[TraceHit]: ...
    def size_packet(
        self, source: tuple[str, int], target: tuple[str, int], nic: str, seq: int, size: int
    ) -> bytes: ...
    def size_hits(self) -> list[SizeHit]: ...
    def probers(self) -> list[Prober]: ...
    def run(self, seconds: float | None = None) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def set_peers(self, peers: Iterable[Peer]) -> None: ...
    def set_rate(self, rate_pps: float) -> None: ...
    def set_schedule(
        self, at_ns: int, length_ns: float, probes_per_slot: int, paths: Sequence[tuple[str, int]]
    ) -> None: ...
    def set_flow_probing(
        self, length_ns: float, probes_per_slot: int, paths: Sequence[tuple[str, int] | None]
    ) -> None: ...
    def shift_schedule(self, at_ns: int) -> None: ...
    def clock_now(self) -> tuple[int, int]: ...
    def step_clock(self, step_ns: int) -> None: ...
    def counters(self) -> dict[str, float]: ...
    @property
    def evidence_fd(self) -> int: ...
    def clocks(self) -> tuple[int, int]: ...
    def evidence(self, max_paths: int = ...) -> Evidence: ...
    def drain(self) -> ProbeColumns: ...
    def inject(self, path: int, data: bytes, address: str, port: int) -> None: ...
