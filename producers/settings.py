"""Settings of the probers: `ProbeSettings` for the fleet, `NicSettings` for one NIC.

In: values of the application's configuration. Out: frozen models that `producers.prober.main` takes.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = ["ClockSettings", "NicSettings", "ProbeSettings"]

_ID_PART = r"^[^\s/>]{1,128}$"


class ProbeSettings(BaseModel):
    """How every prober of the fleet probes and publishes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: str = Field(
        default="127.0.0.1:19092", pattern=r"^[^\s,:]+:\d+(,[^\s,:]+:\d+)*$",
        description="Kafka addresses, host:port, separated by commas",
    )  # fmt: skip
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
        default=100_000, ge=1, le=1_000_000,
        description="cap on packets a second that a NIC answers; slows, never stops",
    )  # fmt: skip
    spacing_ns: int = Field(
        default=20_000, ge=0, le=10_000_000,
        description="ns between the two probes of a coded pair, best below one full packet's time on the"
        " slowest link; 0: single probes",
    )  # fmt: skip
    timeout_ms: float = Field(
        default=100, ge=1, le=10_000, description="ms after which a request without a reply is lost"
    )
    flush_ms: int = Field(default=100, ge=10, le=10_000, description="ms between two batches")
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
        default=600,
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
        default=300, ge=1, le=31_536_000,
        description="s that an asker's system clock may differ from ours, so all hosts' must agree within it:"
        " a request from further away is a replay and gets no answer",
    )  # fmt: skip
    hardware_stamps: bool = Field(default=True, description="take a NIC's own stamps where it offers them")

    @model_validator(mode="after")
    def _ports_apart(self) -> ProbeSettings:
        last = self.first_path_port + self.paths - 1
        if self.first_path_port and self.first_path_port <= self.udp_port <= last:
            raise ValueError(
                f"udp_port {self.udp_port}: expected outside the paths' {self.first_path_port} to {last}"
            )
        if last > 65535:
            raise ValueError(
                f"first_path_port {self.first_path_port}: path ports end at {last}, expected <= 65535"
            )
        return self


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
