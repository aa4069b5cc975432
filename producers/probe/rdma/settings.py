"""Defines `RdmaProbeSettings`, the fleet's settings of RDMA probers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from producers.settings import FLUSH_MS, KEY_FILE, SILENT_S
from schemas.kafka.settings import COMPRESSION, KAFKA, Compression, KafkaSettings
from schemas.strict_model import StrictModel, quantity


class RdmaProbeSettings(StrictModel):
    """Settings of probes over RDMA datagrams (UD queue pairs), in addition to UDP probes."""

    enabled: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: where a NIC has an RDMA device and pyverbs is installed; off: nowhere",
    )
    kafka: KafkaSettings = KAFKA
    key_file: Path = KEY_FILE
    verbs_python: str | None = Field(
        default=None,
        description="interpreter with pyverbs, such as /usr/bin/python3 with Debian's python3-pyverbs; "
        "none: this one",
    )
    port: int = quantity(0, (0, 255), "port of the device; 0: its first active one")
    paths: int = quantity(4, (1, 64), "paths probed to each peer, one queue pair each")
    first_path_port: int = quantity(
        50_176,
        (49_152, 65_472),
        "UDP source port of path 0, followed by those of the other paths, where the flow label sets it "
        "(mlx5, hns); other devices choose their own",
    )
    peers: int = quantity(10, (1, 256), "random peers that a NIC probes")
    peers_seed: int = quantity(0, (0, 2**63 - 1), "seed of the choice of peers, the same for the whole fleet")
    rate_pps: float = quantity(
        200,
        (0.1, 5_000),
        "requests per second of a NIC, all peers together: each costs both ends about 100 us of a processor",
    )
    answer_max_pps: float = quantity(10_000, (1, 1_000_000), "maximum packets per second that a NIC answers")
    dscp: int = quantity(
        0, (0, 63), "DSCP of the probes, as that of the data: the queue pairs' traffic class"
    )
    ecn: bool = Field(
        default=True, description="probes leave ECN-capable (ECT(0)), so that queues mark them as the data"
    )
    timeout_ms: float = quantity(100, (1, 10_000), "ms after which a request without a reply is lost")
    hardware_stamps: bool = Field(
        default=True, description="use the NIC's completion timestamps if it has them"
    )
    max_age_s: float = quantity(
        300,
        (1, 31_536_000),
        "maximum difference in s between a prober's system clock and ours: an older request is a replay and "
        "gets no answer",
    )
    flush_ms: int | None = quantity(None, (10, 10_000), f"ms between two batches; not set: {FLUSH_MS}")
    announce_s: float = quantity(30, (0.1, 30), "s between two announcements of a NIC to the inventory")
    silent_s: float = SILENT_S
    queue_messages: int = quantity(
        600, (10, 1_000_000), "messages that wait while the log is down; beyond, the oldest are dropped"
    )
    queue_bytes: int = quantity(16 * 1024 * 1024, (1 << 20, 1 << 32), "bytes of these messages together")
    compression: Compression = COMPRESSION

    @property
    def traffic_class(self) -> int:
        """The GRH's traffic class byte in probe packets: DSCP and ECN."""
        return self.dscp << 2 | (2 if self.ecn else 0)

    @model_validator(mode="after")
    def _ports_end(self) -> RdmaProbeSettings:
        last = self.first_path_port + self.paths - 1
        if last > 65535:
            raise ValueError(
                f"first_path_port {self.first_path_port}: path ports end at {last}, expected <= 65535"
            )
        return self
