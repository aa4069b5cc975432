"""Settings of the RDMA probers: `RdmaProbeSettings` for the fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from producers.settings import FLUSH_MS
from schemas.kafka.settings import KafkaSettings

__all__ = ["RdmaProbeSettings"]


class RdmaProbeSettings(BaseModel):
    """Settings of probes over RDMA datagrams (UD queue pairs), in addition to UDP probes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: where a NIC has an RDMA device and pyverbs is installed; off: nowhere",
    )
    kafka: KafkaSettings = Field(default=KafkaSettings(), description="Kafka cluster and schema registry")
    key_file: Path = Field(
        description="file with the fleet's probe key, 16 or 32 random bytes, readable only by its owner"
    )
    verbs_python: str | None = Field(
        default=None,
        description="interpreter with pyverbs, such as /usr/bin/python3 with Debian's python3-pyverbs; "
        "none: this one",
    )
    port: int = Field(default=0, ge=0, le=255, description="port of the device; 0: its first active one")
    paths: int = Field(default=4, ge=1, le=64, description="paths probed to each peer, one queue pair each")
    first_path_port: int = Field(
        default=50_176,
        ge=49_152,
        le=65_472,
        description="UDP source port of path 0, followed by those of the other paths, where the flow "
        "label sets it (mlx5, hns); other devices choose their own",
    )
    peers: int = Field(default=10, ge=1, le=256, description="random peers that a NIC probes")
    peers_seed: int = Field(
        default=0, ge=0, le=2**63 - 1, description="seed of the choice of peers, the same for the whole fleet"
    )
    rate_pps: float = Field(
        default=200,
        ge=0.1,
        le=5_000,
        description="requests per second of a NIC, all peers together: each costs both ends about 100 us "
        "of a processor",
    )
    answer_max_pps: float = Field(
        default=10_000, ge=1, le=1_000_000, description="maximum packets per second that a NIC answers"
    )
    dscp: int = Field(
        default=0,
        ge=0,
        le=63,
        description="DSCP of the probes, as that of the data: the queue pairs' traffic class",
    )
    ecn: bool = Field(
        default=True, description="probes leave ECN-capable (ECT(0)), so that queues mark them as the data"
    )
    timeout_ms: float = Field(
        default=100, ge=1, le=10_000, description="ms after which a request without a reply is lost"
    )
    hardware_stamps: bool = Field(
        default=True, description="use the NIC's completion timestamps if it has them"
    )
    max_age_s: float = Field(
        default=300,
        ge=1,
        le=31_536_000,
        description="maximum difference in s between a prober's system clock and ours: an older request "
        "is a replay and gets no answer",
    )
    flush_ms: int | None = Field(
        default=None, ge=10, le=10_000, description=f"ms between two batches; not set: {FLUSH_MS}"
    )
    announce_s: float = Field(
        default=30, ge=0.1, le=30, description="s between two announcements of a NIC to the inventory"
    )
    silent_s: float = Field(
        default=95,
        ge=1,
        le=86_400,
        description="s of log time without an announcement after which a peer is dropped",
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

    @property
    def traffic_class(self) -> int:
        """The byte of DSCP and ECN in the queue pairs' packets."""
        return self.dscp << 2 | (2 if self.ecn else 0)

    @model_validator(mode="after")
    def _ports_end(self) -> RdmaProbeSettings:
        last = self.first_path_port + self.paths - 1
        if last > 65535:
            raise ValueError(
                f"first_path_port {self.first_path_port}: path ports end at {last}, expected <= 65535"
            )
        return self
