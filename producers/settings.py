"""Settings of the agents: `ProbeSettings` and `FlowSettings` for the fleet, `NicSettings` for one NIC."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from schemas.kafka.settings import KafkaSettings

__all__ = ["ClockSettings", "FlowSettings", "NicSettings", "ProbeSettings", "flush_ms_of"]

MAX_PATHS = 64
MAX_CLASSES = 8
ROCE_PORT = 4791
"""UDP port whose packets an RDMA NIC keeps from the kernel."""
SMALL_FLEET_FLUSH_MS, FLUSH_MS, SMALL_FLEET_NICS = 50, 100, 250
"""ms between two batches of a NIC, in small and other fleets, which limits the log's message rate."""
_ID_PART = r"^[^\s/>:]{1,128}$"


def _is_plain_ipv4(value: str) -> bool:
    """Return whether a text is a unicast IPv4 address in its usual spelling."""
    try:
        packed = socket.inet_pton(socket.AF_INET, value)
    except (OSError, ValueError):
        return False
    return any(packed) and packed[0] >> 4 != 0b1110


def flush_ms_of(given_ms: int | None, nics: int) -> int:
    """Return ms between two batches of each NIC: the given value, or one by the number of NICs."""
    return given_ms or (SMALL_FLEET_FLUSH_MS if nics <= SMALL_FLEET_NICS else FLUSH_MS)


class ProbeClass(BaseModel):
    """A traffic class of probes: the queues in which they wait."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dscp: int = Field(default=0, ge=0, le=63, description="DSCP of the probes, as that of the data")
    priority: int | None = Field(
        default=None,
        ge=0,
        le=15,
        description="SO_PRIORITY of the probes, which chooses the VLAN priority and the NIC's queue; above 6 "
        "it needs CAP_NET_ADMIN; none: the kernel's choice by DSCP",
    )


class ProbeSettings(BaseModel):
    """Settings of all probers of the fleet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kafka: KafkaSettings = Field(default=KafkaSettings(), description="Kafka cluster and schema registry")
    key_file: Path = Field(
        description="file with the fleet's probe key, 16 or 32 random bytes, readable only by its owner"
    )
    publish: Literal["raw", "reduced"] = Field(
        default="raw", description="raw: samples; reduced: fits and delays per window, computed by the prober"
    )
    udp_port: int = Field(
        default=9319, ge=0, le=65535, description="UDP port that answers probes; 0: any free one"
    )
    first_path_port: int = Field(
        default=9320,
        ge=0,
        le=65472,
        description="source port of path 0, followed by those of the other paths; 0: any free ones",
    )
    paths: int = Field(default=4, ge=1, le=64, description="paths probed to each peer, one source port each")
    path_candidates: int = Field(
        default=64,
        ge=0,
        le=1024,
        description="source ports from first_path_port on that are traced to choose the paths' ports, so "
        "that they use every spine; with at most `paths` there is no search",
    )
    trace: bool = Field(
        default=True,
        description="trace the links of probes; without traces, routes come from the topology file alone",
    )
    trace_pps: float = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="maximum trace packets per second of a NIC, because switches answer few",
    )
    trace_max_hops: int = Field(default=8, ge=1, le=64, description="links of the longest traced path")
    uplink_check_switch_pps: float = Field(
        default=64,
        ge=0,
        le=100_000,
        description="maximum packets per second that a switch at the apex of routes answers for uplink "
        "checks of all NICs; they find paths that switches move without loss; 0: no checks, "
        "the next trace finds the move",
    )
    retrace_s: float = Field(
        default=60,
        ge=0.5,
        le=86_400,
        description="s between two traces of a path without signs of a move, spread by a quarter",
    )
    link_prefix: Literal["auto", 31, 30, 0] = Field(
        default="auto",
        description="length of the IPv4 prefix that both ends of a cable share (31 also for IPv6 /127, 30"
        " for /126), to name ends that no topology file names; 0: switches answer from loopbacks; auto: as"
        " the traces show",
    )
    topology_file: Path | None = Field(
        default=None,
        description="file with the fabric's names, cables and rates; none: nodes are named by addresses",
    )
    path_status_socket: Path | None = Field(
        default=None,
        description="Unix socket of the host's flow actuator for path status reports; none: no reports",
    )
    peers: int = Field(default=10, ge=1, le=256, description="random peers that a NIC probes")
    peers_seed: int = Field(
        default=0, ge=0, le=2**63 - 1, description="seed of the choice of peers, the same for the whole fleet"
    )
    rate_pps: float = Field(
        default=1000,
        ge=0.1,
        le=1_000_000,
        description="requests per second of a NIC, all peers together",
    )
    max_pps: float = Field(
        default=20_000,
        ge=1,
        le=1_000_000,
        description="maximum packets per second that a NIC's prober sends; slows it down, never stops it",
    )
    answer_max_pps: float = Field(
        default=100_000,
        ge=1,
        le=1_000_000,
        description="maximum packets per second that a NIC answers; slows it down, never stops it",
    )
    spacing_ns: int = Field(
        default=20_000,
        ge=0,
        le=10_000_000,
        description="ns between the two probes of a coded pair, best below the time of a full packet on "
        "the slowest link; 0: single probes",
    )
    singles: int = Field(
        default=3,
        ge=0,
        le=8,
        description="single probes sent along with each coded pair, to all peers and paths in turn: more "
        "probes per wake-up",
    )
    scheduled: bool = Field(
        default=True,
        description="follow the probe schedule (fabric.probe-schedules), so that all NICs together probe "
        "every link at even intervals; without a schedule, probe at random times",
    )
    flow_pps: float = Field(
        default=500,
        ge=0,
        le=1_000_000,
        description="maximum additional probes per second of a NIC along the routes of its own live "
        "flows, so that each route is probed every flow_gap_ms; 0: none",
    )
    flow_gap_ms: float = Field(
        default=5,
        ge=1,
        le=10_000,
        description="ms between probes on the route of a live flow; longer for all routes if flow_pps "
        "does not suffice",
    )
    flow_paths: int = Field(
        default=4,
        ge=0,
        le=63,
        description="additional source ports for flows' routes that no port of `paths` takes, probed only"
        " for flows; at most 64 ports in total",
    )
    size_pps: float = Field(
        default=2,
        ge=0,
        le=1000,
        description="packets of the NIC's MTU per second, all paths of a NIC in turn, to find paths that "
        "drop large packets; more on up to four paths for some seconds after one is lost; 0: none",
    )
    classes: tuple[ProbeClass, ...] = Field(
        default=(ProbeClass(),),
        min_length=1,
        max_length=MAX_CLASSES,
        description="traffic classes, which the probes of each path take in turn at the same rate in total; "
        "answers come in the class of their request",
    )
    ecn: bool = Field(
        default=True,
        description="probes leave ECN-capable (ECT(0)), so that queues mark them as they mark the data",
    )
    timeout_ms: float = Field(
        default=100, ge=1, le=10_000, description="ms after which a request without a reply is lost"
    )
    overdue_ms: float = Field(
        default=2,
        ge=0.1,
        le=10_000,
        description="minimum ms after which a request may be declared lost in fabric.links, or four times"
        " its path's p99 if that is more",
    )
    evidence_ms: float = Field(
        default=5, ge=1, le=1000, description="minimum ms between two events about new losses in fabric.links"
    )
    evidence_calm_ms: float = Field(
        default=1000, ge=10, le=60_000, description="ms between two events while no probe is lost"
    )
    cpu_starved_ms: float = Field(
        default=5,
        ge=0.1,
        le=10_000,
        description="ms by which the prober's thread or an answer must be late to count as starved of CPU",
    )
    counters_s: float = Field(
        default=1, ge=0.1, le=3600, description="s between two readings of the port's error counters"
    )
    verbs_python: str | None = Field(
        default=None,
        description="interpreter with pyverbs, for the events of RDMA devices, such as /usr/bin/python3 "
        "with Debian's python3-pyverbs; none: this one",
    )
    flush_ms: int | None = Field(
        default=None,
        ge=10,
        le=10_000,
        description=f"ms between two batches; not set: {SMALL_FLEET_FLUSH_MS} up to {SMALL_FLEET_NICS} "
        f"NICs, else {FLUSH_MS}",
    )
    window_ms: int = Field(
        default=1000,
        ge=100,
        le=60_000,
        description="ms of log append time per window, with publish = reduced",
    )
    retention_hours: float = Field(
        default=24, gt=0, le=24 * 3650, description="hours that fabric.probes keeps raw samples"
    )
    queue_messages: int = Field(
        default=1200,
        ge=10,
        le=1_000_000,
        description="messages that wait while the log is down; beyond, the oldest are dropped",
    )
    queue_bytes: int = Field(
        default=32 * 1024 * 1024, ge=1 << 20, le=1 << 32, description="bytes of these messages together"
    )
    compression: Literal["none", "lz4", "zstd"] = Field(default="none", description="compression of messages")
    announce_s: float = Field(
        default=30, ge=0.1, le=30, description="s between two announcements of a NIC to the inventory"
    )
    silent_s: float = Field(
        default=95,
        ge=1,
        le=86_400,
        description="s of log time without an announcement after which a peer is dropped",
    )
    max_age_s: float = Field(
        default=300,
        ge=1,
        le=31_536_000,
        description="maximum difference in s between a prober's system clock and ours, so all hosts must "
        "agree within it: an older request is a replay and gets no answer",
    )
    hardware_stamps: bool = Field(default=True, description="use a NIC's hardware timestamps if it has them")

    @property
    def spare_paths(self) -> int:
        """Paths that are probed only for flows."""
        return min(self.flow_paths, MAX_PATHS - self.paths) if self.flow_pps else 0

    @model_validator(mode="after")
    def _classes_apart(self) -> ProbeSettings:
        dscps = [each.dscp for each in self.classes]
        if len(set(dscps)) < len(dscps):
            raise ValueError(f"classes: DSCP {dscps}, expected each once: a reader knows a class by its DSCP")
        return self

    @model_validator(mode="after")
    def _ports_apart(self) -> ProbeSettings:
        last = self.first_path_port + max(self.paths, self.path_candidates) - 1
        if self.udp_port == ROCE_PORT or self.first_path_port <= ROCE_PORT <= last:
            raise ValueError(
                f"udp_port {self.udp_port}, path ports {self.first_path_port} to {last}: expected without "
                f"{ROCE_PORT}, whose packets RDMA NICs keep"
            )
        if self.first_path_port and self.first_path_port <= self.udp_port <= last:
            raise ValueError(
                f"udp_port {self.udp_port}: expected outside the paths' candidates, "
                f"{self.first_path_port} to {last}"
            )
        if last > 65535:
            raise ValueError(
                f"first_path_port {self.first_path_port}: path ports end at {last}, expected <= 65535"
            )
        return self


class FlowSettings(BaseModel):
    """Settings of the flow reporters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kafka: KafkaSettings = Field(default=KafkaSettings(), description="Kafka cluster and schema registry")
    socket: Path = Field(
        description="Unix socket where programs register their flows; only its owner may connect"
    )
    poll_ms: int = Field(
        default=100,
        ge=10,
        le=10_000,
        description="ms between two readings of the flows, which delays a reported change",
    )
    whole_ms: int = Field(default=1000, ge=100, le=60_000, description="ms between two reports of all flows")
    min_bytes: int = Field(
        default=65_536,
        ge=0,
        le=2**40,
        description="minimum payload in bytes that an unregistered flow must have sent to be reported",
    )
    changed_share: float = Field(
        default=0.25, gt=0, le=100, description="share by which a rate must change to be reported at once"
    )
    min_changed_kbps: float = Field(
        default=1000.0, gt=0, le=1e9, description="kbit/s by which it must also change"
    )
    kernel_pacing: bool = Field(
        default=False,
        description="report that flows can be paced even if their programs do not: this host's actuator "
        "has the kernel pace them (actuators.kernel_nics)",
    )
    trace: bool = Field(
        default=True,
        description="trace the links that flows take with their own ports, and would take from others",
    )
    trace_pps: float = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="maximum trace packets per second of a NIC for flows, in addition to the prober's",
    )
    trace_max_hops: int = Field(default=8, ge=1, le=64, description="links of the longest traced path")
    retrace_own_s: float = Field(
        default=2,
        ge=0.1,
        le=86_400,
        description="s between two traces of a live flow's route without signs of a move; longer if the "
        "routes need more than half of trace_pps",
    )
    retrace_s: float = Field(
        default=60,
        ge=0.5,
        le=86_400,
        description="the same for routes that flows would take from other ports",
    )
    trace_tcp_with_udp: bool = Field(
        default=False,
        description="trace TCP flows with UDP packets: correct only if no switch hashes the protocol. "
        "Without CAP_NET_RAW, TCP flows are traced only this way",
    )
    flow_candidate_ports: int = Field(
        default=32,
        ge=0,
        le=1024,
        description="source ports traced for the movable flows of a NIC to a port of a peer; 8 times the "
        "number of spines finds each spine several times",
    )
    first_candidate_port: int = Field(
        default=61_000,
        ge=1024,
        le=65_535,
        description="flows may be moved to source ports from this one to 65535, which the kernel must not"
        " assign to sockets (net.ipv4.ip_local_port_range must end below)",
    )
    max_routes: int = Field(default=16_384, ge=1, le=1_000_000, description="maximum routes traced for a NIC")
    routes_keep_s: float = Field(
        default=300,
        ge=1,
        le=86_400,
        description="s that routes are kept after the last flow that needed them",
    )
    link_prefix: Literal["auto", 31, 30, 0] = Field(
        default="auto",
        description="length of the IPv4 prefix that both ends of a cable share, as for probes",
    )
    topology_file: Path | None = Field(
        default=None,
        description="file with the fabric's names, cables and rates; none: nodes are named by addresses",
    )
    queue_messages: int = Field(
        default=600,
        ge=10,
        le=1_000_000,
        description="messages that wait while the log is down; beyond, the oldest are dropped",
    )
    queue_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1 << 20, le=1 << 32, description="bytes of these messages together"
    )
    compression: Literal["none", "lz4", "zstd"] = Field(default="none", description="compression of messages")


class ClockSettings(BaseModel):
    """A test clock of a NIC; see `native.core.TestClock`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    offset_ns: int = Field(default=0, ge=-(10**18), le=10**18, description="ns ahead of the system clock")
    drift_ppb: float = Field(default=0, ge=-1e6, le=1e6, description="ppb by which it runs fast")
    wander_ppb_per_sqrt_s: float = Field(
        default=0, ge=0, le=1e5, description="ppb per square root of a second of the random walk of its rate"
    )
    epoch_ns: int = Field(
        default=0,
        ge=0,
        le=2**62,
        description="ns since the Unix epoch from which drift counts; 0: the prober's start",
    )
    seed: int = Field(default=0, ge=0, le=2**64 - 1, description="seed of the wander")
    step_ns: int = Field(default=0, ge=-(10**18), le=10**18, description="ns by which it jumps at step_at_ns")
    step_at_ns: int = Field(default=0, ge=0, le=2**62, description="ns since the Unix epoch of that jump")


class NicSettings(BaseModel):
    """One NIC and its place in the fleet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(pattern=_ID_PART, description="the host's name")
    device: str = Field(pattern=_ID_PART, description="the interface on that host")
    address: str = Field(
        description="IP address of the interface that sends and answers probes; a link-local one "
        "reaches NICs with such addresses in the same layer 2"
    )
    netns: str | None = Field(
        default=None, description="path of the network namespace; none: the process's own"
    )
    rdma_device: str | None = Field(
        default=None,
        pattern=_ID_PART,
        description="the RDMA device on that interface, probed over its own datagrams too; none: found "
        "automatically",
    )
    shard: str = Field(
        default="fabric", pattern=r"^[^\s/]{1,64}$", description="the shard that solves for the NIC"
    )
    rail: int | None = Field(default=None, ge=0, le=65535, description="rail number, if there are rails")
    rack: str | None = Field(default=None, max_length=128, description="rack name, if known")
    clock: ClockSettings | None = Field(default=None, description="a test clock; none: the real one")

    @field_validator("address")
    @classmethod
    def _real_address(cls, value: str, info: ValidationInfo) -> str:
        if _is_plain_ipv4(value):  # nearly all of a large fleet; the full check takes 10 times as long
            return value
        try:
            address = ipaddress.ip_address(value)
        except ValueError as error:
            raise ValueError(f"expected an IPv4 or IPv6 address, {error}") from None
        address = getattr(address, "ipv4_mapped", None) or address  # as show_gids prints an IPv4 address
        if address.is_unspecified or address.is_multicast:
            raise ValueError("expected the address of one interface")
        scope, device = getattr(address, "scope_id", None), info.data.get("device")
        if scope is not None and scope != device:
            raise ValueError(f"scope {scope}, expected the NIC's device, {device}")
        return str(address).partition("%")[0]  # the device is the scope
