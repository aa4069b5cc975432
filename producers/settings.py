"""Settings of the agents: `ProbeSettings` and `FlowSettings` for the fleet, `NicSettings` for one NIC.

In: values of the application's configuration. Out: frozen models that `producers.probe.service.main` and
`producers.flows.service.main` take.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = ["ClockSettings", "FlowSettings", "NicSettings", "ProbeSettings", "flush_ms_of"]

MOST_PATHS = 64
SOON_MS, LATER_MS, FEW_NICS = 50, 100, 250
"""ms between two batches of a NIC, the first up to so many NICs: a log takes but so many messages."""
_ID_PART = r"^[^\s/>]{1,128}$"


def flush_ms_of(given_ms: int | None, nics: int) -> int:
    """Return ms between two batches of each NIC of a fleet of `nics`, as set or as its size has it."""
    return given_ms or (SOON_MS if nics <= FEW_NICS else LATER_MS)


class ProbeSettings(BaseModel):
    """How every prober of the fleet probes and publishes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: str = Field(
        default="127.0.0.1:19092",
        pattern=r"^[^\s,:]+:\d+(,[^\s,:]+:\d+)*$",
        description="Kafka addresses, host:port, separated by commas",
    )
    schema_registry_url: str | None = Field(
        default=None, pattern=r"^https?://\S+$", description="schema registry; none: single-object encoding"
    )
    key_file: Path = Field(
        description="file with the fleet's probe key, 16 or 32 random bytes, readable by its owner alone"
    )
    publish: Literal["raw", "reduced"] = Field(
        default="raw", description="raw: samples; reduced: each window's fits and delays, made by the prober"
    )
    udp_port: int = Field(
        default=9319, ge=0, le=65535, description="UDP port that answers probes; 0 takes a free one"
    )
    first_path_port: int = Field(
        default=9320,
        ge=0,
        le=65472,
        description="source port of path 0, further paths follow; 0: any free ones",
    )
    paths: int = Field(default=4, ge=1, le=64, description="paths probed to each peer, a source port each")
    path_candidates: int = Field(
        default=64,
        ge=0,
        le=1024,
        description="source ports from first_path_port on that are traced to choose the paths' from, so that"
        " they go over every spine; at most `paths`: none are looked for",
    )
    trace: bool = Field(
        default=True, description="trace which links probes take; without it the topology file alone tells"
    )
    trace_pps: float = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="trace packets a second that a NIC sends at most: switches answer few",
    )
    trace_max_hops: int = Field(
        default=8, ge=1, le=64, description="links of the longest path that is traced"
    )
    uplink_check_switch_pps: float = Field(
        default=64,
        ge=0,
        le=100_000,
        description="packets a second that a switch where ways turn is asked to answer at most, by all NICs"
        " together, so that paths are seen to move where switches lead them elsewhere and lose nothing;"
        " 0: none, and the next trace tells",
    )
    retrace_s: float = Field(
        default=60,
        ge=0.5,
        le=86_400,
        description="s between two traces of a path that shows no sign of having moved, give or take a"
        " quarter",
    )
    link_prefix: Literal[31, 30, 0] = Field(
        default=31,
        description="length of the IPv4 prefix that both ends of a cable share (31 also for IPv6 /127, 30 for"
        " /126), to name ends that no topology file names; 0: cables share none",
    )
    topology_file: Path | None = Field(
        default=None, description="file with the fabric's names, cables and rates; none: names are addresses"
    )
    local_repair_socket: Path | None = Field(
        default=None,
        description="Unix socket of the host's actuator, told at once which paths are dead; none: it is not",
    )
    peers: int = Field(default=10, ge=1, le=256, description="random peers that a NIC probes")
    peers_seed: int = Field(
        default=0, ge=0, le=2**63 - 1, description="seed of the choice of peers, one a fleet"
    )
    rate_pps: float = Field(
        default=1000,
        ge=0.1,
        le=1_000_000,
        description="requests a second that a NIC sends, all peers together",
    )
    max_pps: float = Field(
        default=20_000,
        ge=1,
        le=1_000_000,
        description="cap on packets a second that a NIC asks; slows, never stops",
    )
    answer_max_pps: float = Field(
        default=100_000,
        ge=1,
        le=1_000_000,
        description="cap on packets a second that a NIC answers; slows, never stops",
    )
    spacing_ns: int = Field(
        default=20_000,
        ge=0,
        le=10_000_000,
        description="ns between the two probes of a coded pair, best below one full packet's time on the"
        " slowest link; 0: single probes",
    )
    singles: int = Field(
        default=3,
        ge=0,
        le=8,
        description="single probes that go out along with each coded pair, to all peers and paths in turn:"
        " many looks at many paths for few wakings",
    )
    turns: bool = Field(
        default=True,
        description="probe when and where the solve stage says (fabric.probe-schedules), so that all NICs together look"
        " at every link in even steps; else, and until it says, at random",
    )
    flow_pps: float = Field(
        default=500,
        ge=0,
        le=1_000_000,
        description="single probes a second, on top of rate_pps, that a NIC sends at most for the ways of its"
        " own live flows, so that each is crossed every flow_gap_ms; 0: none",
    )
    flow_gap_ms: float = Field(
        default=5,
        ge=1,
        le=10_000,
        description="ms from probe to probe on the way of a live flow; where flow_pps does not suffice, as"
        " few more for all",
    )
    flow_paths: int = Field(
        default=4,
        ge=0,
        le=63,
        description="source ports beside `paths` for flows' ways that none of these goes, probed for them"
        " alone; 64 in all at most",
    )
    timeout_ms: float = Field(
        default=100, ge=1, le=10_000, description="ms after which a request without a reply is lost"
    )
    overdue_ms: float = Field(
        default=2,
        ge=0.1,
        le=10_000,
        description="least ms after which a request may be told lost to fabric.links already, four times its"
        " path's 99th percentile where that is more",
    )
    evidence_ms: float = Field(
        default=5, ge=1, le=1000, description="least ms between two tellings of new losses to fabric.links"
    )
    evidence_calm_ms: float = Field(
        default=1000, ge=10, le=60_000, description="ms between two tellings while nothing is lost"
    )
    cpu_starved_ms: float = Field(
        default=5,
        ge=0.1,
        le=10_000,
        description="ms that the prober's thread, or an answer of it, comes late for it to be called starved",
    )
    counters_s: float = Field(
        default=1, ge=0.1, le=3600, description="s between two readings of the port's error counters"
    )
    verbs_python: str | None = Field(
        default=None,
        description="interpreter that has pyverbs, for the events of RDMA devices, such as /usr/bin/python3"
        " with Debian's python3-pyverbs; none: this one",
    )
    flush_ms: int | None = Field(
        default=None,
        ge=10,
        le=10_000,
        description=f"ms between two batches; not set: {SOON_MS} up to {FEW_NICS} NICs, else {LATER_MS}",
    )
    window_ms: int = Field(
        default=1000,
        ge=100,
        le=60_000,
        description="ms of log append time in a window, where publish is reduced",
    )
    retention_hours: float = Field(
        default=24, gt=0, le=24 * 3650, description="h that fabric.probes keeps raw samples"
    )
    queue_messages: int = Field(
        default=1200,
        ge=10,
        le=1_000_000,
        description="messages that wait while the log is down; then the oldest go",
    )
    queue_bytes: int = Field(
        default=32 * 1024 * 1024, ge=1 << 20, le=1 << 32, description="bytes of those messages together"
    )
    compression: Literal["none", "lz4", "zstd"] = Field(
        default="none", description="how messages are compressed on their way to the log"
    )
    announce_s: float = Field(
        default=30, ge=0.1, le=30, description="s between two announcements of a NIC to the inventory"
    )
    silent_s: float = Field(
        default=95,
        ge=1,
        le=86_400,
        description="s of log time without an announcement after which a peer is left",
    )
    max_age_s: float = Field(
        default=300,
        ge=1,
        le=31_536_000,
        description="s that an asker's system clock may differ from ours, so all hosts' must agree within it:"
        " a request from further away is a replay and gets no answer",
    )
    hardware_stamps: bool = Field(default=True, description="take a NIC's own stamps where it offers them")

    @property
    def spare_paths(self) -> int:
        """Paths that are probed for flows alone."""
        return min(self.flow_paths, MOST_PATHS - self.paths) if self.flow_pps else 0

    @model_validator(mode="after")
    def _ports_apart(self) -> ProbeSettings:
        last = self.first_path_port + max(self.paths, self.path_candidates) - 1
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
    """How a host's flows are reported."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: str = Field(
        default="127.0.0.1:19092",
        pattern=r"^[^\s,:]+:\d+(,[^\s,:]+:\d+)*$",
        description="Kafka addresses, host:port, separated by commas",
    )
    schema_registry_url: str | None = Field(
        default=None, pattern=r"^https?://\S+$", description="schema registry; none: single-object encoding"
    )
    socket: Path = Field(description="Unix socket where programs say whose their flows are; made owner-only")
    poll_ms: int = Field(
        default=100,
        ge=10,
        le=10_000,
        description="ms between two looks at the flows, so what a change is told late by",
    )
    whole_ms: int = Field(default=1000, ge=100, le=60_000, description="ms between two reports of all flows")
    least_bytes: int = Field(
        default=65_536,
        ge=0,
        le=2**40,
        description="bytes of payload that a flow nobody registered must have sent to be reported",
    )
    changed_share: float = Field(
        default=0.25, gt=0, le=100, description="share by which a rate must move to be reported at once"
    )
    min_changed_kbps: float = Field(
        default=1000.0, gt=0, le=1e9, description="kbit/s by which it must move besides"
    )
    kernel_pacing: bool = Field(
        default=False,
        description="say of flows whose owner does not pace them that they can be: this host's actuator has"
        " the kernel do it (actuators.kernel_nics)",
    )
    trace: bool = Field(
        default=True,
        description="trace which links flows take with their own ports, and would take from others",
    )
    trace_pps: float = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="trace packets a second that a NIC sends for flows at most, beside the prober's own",
    )
    trace_max_hops: int = Field(
        default=8, ge=1, le=64, description="links of the longest path that is traced"
    )
    retrace_own_s: float = Field(
        default=2,
        ge=0.1,
        le=86_400,
        description="s between two traces of a live flow's way that shows no sign of having moved; longer"
        " where there are more than half of trace_pps allows",
    )
    retrace_s: float = Field(
        default=60, ge=0.5, le=86_400, description="the same of ways that flows would take from other ports"
    )
    trace_tcp_with_udp: bool = Field(
        default=False,
        description="trace TCP flows by UDP packets: right only where no switch hashes the protocol. Without"
        " CAP_NET_RAW, TCP flows are traced only so",
    )
    ways: int = Field(
        default=32,
        ge=0,
        le=1024,
        description="source ports traced for the flows of a NIC to a peer's port that may be moved; 8 times"
        " the number of spines sees each several times",
    )
    first_candidate_port: int = Field(
        default=61_000,
        ge=1024,
        le=65_535,
        description="source ports that flows may be moved to are this one to 65535: none that the kernel"
        " gives away by itself (net.ipv4.ip_local_port_range ends before)",
    )
    max_routes: int = Field(
        default=16_384, ge=1, le=1_000_000, description="ways that are traced for a NIC at most"
    )
    routes_keep_s: float = Field(
        default=300,
        ge=1,
        le=86_400,
        description="s that ways are kept after the last flow that asked for them",
    )
    link_prefix: Literal[31, 30, 0] = Field(
        default=31,
        description="length of the IPv4 prefix that both ends of a cable share, as for probes",
    )
    topology_file: Path | None = Field(
        default=None, description="file with the fabric's names, cables and rates; none: names are addresses"
    )
    queue_messages: int = Field(
        default=600,
        ge=10,
        le=1_000_000,
        description="messages that wait while the log is down; then the oldest go",
    )
    queue_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1 << 20, le=1 << 32, description="bytes of those messages together"
    )
    compression: Literal["none", "lz4", "zstd"] = Field(
        default="none", description="how messages are compressed on their way to the log"
    )


class ClockSettings(BaseModel):
    """A clock that a test gives to a NIC; see `native.core.TestClock`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    offset_ns: int = Field(default=0, ge=-(10**18), le=10**18, description="ns ahead of the system clock")
    drift_ppb: float = Field(default=0, ge=-1e6, le=1e6, description="ppb that it runs fast")
    wander_ppb_per_sqrt_s: float = Field(
        default=0, ge=0, le=1e5, description="ppb per square root of a second of the random walk of its rate"
    )
    epoch_ns: int = Field(
        default=0,
        ge=0,
        le=2**62,
        description="ns since the Unix epoch, where drift counts from; 0: prober's start",
    )
    seed: int = Field(default=0, ge=0, le=2**64 - 1, description="seed of the wander")
    step_ns: int = Field(default=0, ge=-(10**18), le=10**18, description="ns that it jumps at step_at_ns")
    step_at_ns: int = Field(default=0, ge=0, le=2**62, description="ns since the Unix epoch of that jump")


class NicSettings(BaseModel):
    """One NIC and its place in the fleet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(pattern=_ID_PART, description="the host's name")
    device: str = Field(pattern=_ID_PART, description="the interface on that host")
    address: str = Field(description="IP address of the interface that asks and answers")
    netns: str | None = Field(
        default=None, description="path of the network namespace; none: the process's own"
    )
    rdma_device: str | None = Field(
        default=None,
        pattern=_ID_PART,
        description="the RDMA device on that interface, probed over its own datagrams too; none: it is found",
    )
    shard: str = Field(
        default="fabric", pattern=r"^[^\s/]{1,64}$", description="the shard that solves for it"
    )
    rail: int | None = Field(default=None, ge=0, le=65535, description="rail number, where there are rails")
    rack: str | None = Field(default=None, max_length=128, description="rack name, where known")
    clock: ClockSettings | None = Field(default=None, description="a test clock; none: the real one")

    @field_validator("address")
    @classmethod
    def _real_address(cls, value: str) -> str:
        try:
            address = ipaddress.ip_address(value)
        except ValueError as error:
            raise ValueError(f"expected an IPv4 or IPv6 address, {error}") from None
        if address.is_unspecified or address.is_multicast:
            raise ValueError("expected one interface's own address")
        return value
