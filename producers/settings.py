"""Defines the agents' settings: `ProbeSettings`, `FlowSettings` for the fleet, `NicSettings` for one NIC."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from schemas.kafka.settings import COMPRESSION, KAFKA, Compression, KafkaSettings
from schemas.socket_access import SOCKET_USERS
from schemas.strict_model import StrictModel, quantity

MAX_PATHS = 64
MAX_CLASSES = 8
ROCE_PORT = 4791
"""UDP port of RoCEv2. An RDMA NIC does not pass its packets to the kernel."""
SMALL_FLEET_FLUSH_MS, FLUSH_MS, SMALL_FLEET_NICS = 50, 100, 250
"""Interval of a NIC's batches in ms, in small and in other fleets, and the size of a small fleet. It limits
the log's message rate."""
KEY_FILE = Field(
    description="file with the fleet's probe key, 16 or 32 random bytes, readable only by its owner"
)
TOPOLOGY_FILE = Field(
    default=None,
    description="file with the fabric's names, cables and rates; none: nodes are named by addresses",
)
SILENT_S = quantity(95, (1, 86_400), "s of log time without an announcement after which a peer is dropped")
"""This field and the two before it are shared by the settings of several agents."""
_ID_PART = r"^[^\s/>:]{1,128}$"


def _is_plain_ipv4(value: str) -> bool:
    """Return whether `value` is a unicast IPv4 address in dotted-decimal notation."""
    try:
        packed = socket.inet_pton(socket.AF_INET, value)
    except (OSError, ValueError):
        return False
    return any(packed) and packed[0] >> 4 != 0b1110


def flush_ms_of(given_ms: int | None, nics: int) -> int:
    """Return the interval of each NIC's batches, ms: `given_ms`, else longer for more than a few NICs."""
    return given_ms or (SMALL_FLEET_FLUSH_MS if nics <= SMALL_FLEET_NICS else FLUSH_MS)


class ProbeClass(StrictModel):
    """A traffic class of probes: the queues in which they wait."""

    dscp: int = quantity(0, (0, 63), "DSCP of the probes, as that of the data")
    priority: int | None = quantity(
        None,
        (0, 15),
        "SO_PRIORITY of the probes, which chooses the VLAN priority and the NIC's queue; above 6 it needs "
        "CAP_NET_ADMIN; none: the kernel's choice by DSCP",
    )


class ProbeSettings(StrictModel):
    """Settings of all probers of the fleet."""

    kafka: KafkaSettings = KAFKA
    key_file: Path = KEY_FILE
    publish: Literal["raw", "reduced"] = Field(
        default="raw", description="raw: samples; reduced: fits and delays per window, computed by the prober"
    )
    udp_port: int = quantity(9319, (0, 65535), "UDP port that answers probes; 0: any free one")
    first_path_port: int = quantity(
        9320, (0, 65472), "source port of path 0, followed by those of the other paths; 0: any free ones"
    )
    paths: int = quantity(4, (1, 64), "paths probed to each peer, one source port each")
    path_candidates: int = quantity(
        64,
        (0, 1024),
        "source ports from first_path_port on that are traced to choose the paths' ports, so that they use "
        "every spine; with at most `paths` there is no search",
    )
    trace: bool = Field(
        default=True,
        description="trace the links of probes; without traces, routes come from the topology file alone",
    )
    trace_pps: float = quantity(
        1000, (1, 100_000), "maximum trace packets per second of a NIC, because switches answer few"
    )
    trace_max_hops: int = quantity(8, (1, 64), "links of the longest traced path")
    uplink_check_switch_pps: float = quantity(
        64,
        (0, 100_000),
        "maximum packets per second that a switch at the apex of routes answers for uplink checks of all "
        "NICs; they find paths that switches move without loss; 0: no checks, the next trace finds the move",
    )
    retrace_s: float = quantity(
        60, (0.5, 86_400), "s between two traces of a path without signs of a move, spread by a quarter"
    )
    link_prefix: Literal["auto", 31, 30, 0] = Field(
        default="auto",
        description="length of the IPv4 prefix that both ends of a cable share (31 also for IPv6 /127, 30 "
        "for /126), to name ends that no topology file names; 0: switches answer from "
        "loopbacks; auto: as the traces show",
    )
    topology_file: Path | None = TOPOLOGY_FILE
    path_status_socket: Path | None = Field(
        default=None,
        description="Unix socket of the host's flow actuator for path status reports; none: no reports",
    )
    peers: int = quantity(10, (1, 256), "random peers that a NIC probes")
    peers_seed: int = quantity(0, (0, 2**63 - 1), "seed of the choice of peers, the same for the whole fleet")
    rate_pps: float = quantity(1000, (0.1, 1_000_000), "requests per second of a NIC, all peers together")
    max_pps: float = quantity(
        20_000,
        (1, 1_000_000),
        "maximum packets per second that a NIC's prober sends; slows it down, never stops it",
    )
    answer_max_pps: float = quantity(
        100_000,
        (1, 1_000_000),
        "maximum packets per second that a NIC answers; slows it down, never stops it",
    )
    spacing_ns: int = quantity(
        20_000,
        (0, 10_000_000),
        "ns between the two probes of a coded pair, best below the time of a full packet on the slowest "
        "link; 0: single probes",
    )
    singles: int = quantity(
        3,
        (0, 8),
        "single probes sent along with each coded pair, to all peers and paths in turn: more probes per "
        "wake-up",
    )
    scheduled: bool = Field(
        default=True,
        description="follow the probe schedule (fabric.probe-schedules), so that all NICs together probe "
        "every link at even intervals; without a schedule, probe at random times",
    )
    flow_pps: float = quantity(
        500,
        (0, 1_000_000),
        "maximum additional probes per second of a NIC along the routes of its own live flows, so that each "
        "route is probed every flow_gap_ms; 0: none",
    )
    flow_gap_ms: float = quantity(
        5,
        (1, 10_000),
        "ms between probes on the route of a live flow; longer for all routes if flow_pps does not suffice",
    )
    flow_paths: int = quantity(
        4,
        (0, 63),
        "additional source ports for flows' routes that no port of `paths` takes, probed only for flows; at "
        "most 64 ports in total",
    )
    size_pps: float = quantity(
        2,
        (0, 1000),
        "packets of the NIC's MTU per second, all paths of a NIC in turn, to find paths that drop large "
        "packets; more on up to four paths for some seconds after one is lost; 0: none",
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
    timeout_ms: float = quantity(100, (1, 10_000), "ms after which a request without a reply is lost")
    overdue_ms: float = quantity(
        2,
        (0.1, 10_000),
        "minimum ms after which a request may be declared lost in fabric.links, or four times its path's "
        "p99 if that is more",
    )
    evidence_ms: float = quantity(
        5, (1, 1000), "minimum ms between two events about new losses in fabric.links"
    )
    evidence_calm_ms: float = quantity(1000, (10, 60_000), "ms between two events while no probe is lost")
    cpu_starved_ms: float = quantity(
        5,
        (0.1, 10_000),
        "ms by which the prober's thread or an answer must be late to count as starved of CPU",
    )
    counters_s: float = quantity(1, (0.1, 3600), "s between two readings of the port's error counters")
    verbs_python: str | None = Field(
        default=None,
        description="interpreter with pyverbs, for the events of RDMA devices, such as /usr/bin/python3 "
        "with Debian's python3-pyverbs; none: this one",
    )
    flush_ms: int | None = quantity(
        None,
        (10, 10_000),
        f"ms between two batches; not set: {SMALL_FLEET_FLUSH_MS} up to {SMALL_FLEET_NICS} "
        f"NICs, else {FLUSH_MS}",
    )
    window_ms: int = quantity(1000, (100, 60_000), "ms of log append time per window, with publish = reduced")
    retention_hours: float = Field(
        default=24, gt=0, le=24 * 3650, description="hours that fabric.probes keeps raw samples"
    )
    queue_messages: int = quantity(
        1200, (10, 1_000_000), "messages that wait while the log is down; beyond, the oldest are dropped"
    )
    queue_bytes: int = quantity(32 * 1024 * 1024, (1 << 20, 1 << 32), "bytes of these messages together")
    compression: Compression = COMPRESSION
    announce_s: float = quantity(30, (0.1, 30), "s between two announcements of a NIC to the inventory")
    silent_s: float = SILENT_S
    max_age_s: float = quantity(
        300,
        (1, 31_536_000),
        "maximum difference in s between a prober's system clock and ours, so all hosts must agree within "
        "it: an older request is a replay and gets no answer",
    )
    hardware_stamps: bool = Field(default=True, description="use a NIC's hardware timestamps if it has them")

    @property
    def spare_paths(self) -> int:
        """Number of paths that are probed only if live flows take their routes."""
        return min(self.flow_paths, MAX_PATHS - self.paths) if self.flow_pps else 0

    @model_validator(mode="after")
    def _classes_apart(self) -> ProbeSettings:
        dscps = [traffic_class.dscp for traffic_class in self.classes]
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


class FlowSettings(StrictModel):
    """Settings of the flow reporters."""

    kafka: KafkaSettings = KAFKA
    socket: Path = Field(description="Unix socket where programs register their flows")
    socket_users: str = SOCKET_USERS
    poll_ms: int = quantity(
        100, (10, 10_000), "ms between two readings of the flows, which delays a reported change"
    )
    whole_ms: int = quantity(1000, (100, 60_000), "ms between two reports of all flows")
    min_bytes: int = quantity(
        65_536, (0, 2**40), "minimum payload in bytes that an unregistered flow must have sent to be reported"
    )
    changed_share: float = Field(
        default=0.25, gt=0, le=100, description="share by which a rate must change to be reported at once"
    )
    min_changed_kbps: float = Field(
        default=1000.0, gt=0, le=1e9, description="kbit/s by which it must also change"
    )
    kernel_pacing: bool = Field(
        default=False,
        description="report that flows can be paced even if their programs do not: this host's actuator has "
        "the kernel pace them (actuators.kernel_nics)",
    )
    trace: bool = Field(
        default=True,
        description="trace the links that flows take with their own ports, and would take from others",
    )
    trace_pps: float = quantity(
        1000, (1, 100_000), "maximum trace packets per second of a NIC for flows, in addition to the prober's"
    )
    trace_max_hops: int = quantity(8, (1, 64), "links of the longest traced path")
    retrace_own_s: float = quantity(
        2,
        (0.1, 86_400),
        "s between two traces of a live flow's route without signs of a move; longer if the routes need "
        "more than half of trace_pps",
    )
    retrace_s: float = quantity(
        60, (0.5, 86_400), "the same for routes that flows would take from other ports"
    )
    trace_tcp_with_udp: bool = Field(
        default=False,
        description="trace TCP flows with UDP packets: correct only if no switch hashes the protocol. "
        "Without CAP_NET_RAW, TCP flows are traced only this way",
    )
    flow_candidate_ports: int = quantity(
        32,
        (0, 1024),
        "source ports traced for the movable flows of a NIC to a port of a peer; 8 times the number of "
        "spines finds each spine several times",
    )
    first_candidate_port: int = quantity(
        61_000,
        (1024, 65_535),
        "flows may be moved to source ports from this one to 65535, which the kernel must not assign to "
        "sockets (net.ipv4.ip_local_port_range must end below)",
    )
    max_routes: int = quantity(16_384, (1, 1_000_000), "maximum routes traced for a NIC")
    routes_keep_s: float = quantity(
        300, (1, 86_400), "s that routes are kept after the last flow that needed them"
    )
    link_prefix: Literal["auto", 31, 30, 0] = Field(
        default="auto", description="length of the IPv4 prefix that both ends of a cable share, as for probes"
    )
    topology_file: Path | None = TOPOLOGY_FILE
    queue_messages: int = quantity(
        600, (10, 1_000_000), "messages that wait while the log is down; beyond, the oldest are dropped"
    )
    queue_bytes: int = quantity(16 * 1024 * 1024, (1 << 20, 1 << 32), "bytes of these messages together")
    compression: Compression = COMPRESSION


class ClockSettings(StrictModel):
    """A test clock of a NIC; see `native.core.TestClock`."""

    offset_ns: int = quantity(0, (-(10**18), 10**18), "ns ahead of the system clock")
    drift_ppb: float = quantity(0, (-1e6, 1e6), "ppb by which it runs fast")
    wander_ppb_per_sqrt_s: float = quantity(
        0, (0, 1e5), "ppb per square root of a second of the random walk of its rate"
    )
    epoch_ns: int = quantity(
        0, (0, 2**62), "ns since the Unix epoch from which drift counts; 0: the prober's start"
    )
    seed: int = quantity(0, (0, 2**64 - 1), "seed of the wander")
    step_ns: int = quantity(0, (-(10**18), 10**18), "ns by which it jumps at step_at_ns")
    step_at_ns: int = quantity(0, (0, 2**62), "ns since the Unix epoch of that jump")


class NicSettings(StrictModel):
    """One NIC and its place in the fleet."""

    host: str = Field(pattern=_ID_PART, description="the host's name")
    device: str = Field(pattern=_ID_PART, description="the interface on that host")
    address: str = Field(
        description="IP address of the interface that sends and answers probes; a link-local one reaches "
        "NICs with such addresses in the same layer 2"
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
    rail: int | None = quantity(None, (0, 65535), "rail number, if there are rails")
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
