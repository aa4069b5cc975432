"""Settings of the service `collectives`: `CollectiveSettings`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from schemas.kafka.settings import KafkaSettings

__all__ = ["CollectiveSettings"]


class CollectiveSettings(BaseModel):
    """Settings of the services that report the operations of jobs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kafka: KafkaSettings = Field(default=KafkaSettings(), description="Kafka cluster and schema registry")
    socket: Path = Field(
        description="Unix socket where profilers connect; only its owner may connect. A process that serves "
        "several hosts opens one for each: NAME-HOST.sock beside NAME.sock"
    )
    processes: int = Field(default=1024, ge=1, le=65_536, description="maximum processes of jobs on a host")
    segment_bytes: int = Field(
        default=1 << 30, ge=1 << 20, le=1 << 30, description="maximum bytes of a process's shared memory"
    )
    drain_ms: int = Field(
        default=50,
        ge=5,
        le=1000,
        description="ms between two readings of the shared memory; shorter while events come fast",
    )
    report_ms: int = Field(
        default=1000,
        ge=100,
        le=60_000,
        description="minimum ms between two records of a process; longer where the trace budget requires it",
    )
    trace_bytes_per_hour: int = Field(
        default=1_500_000,
        ge=300_000,
        le=1_000_000_000_000,
        description="maximum bytes of all records of a process in any hour: with less to spare, records have "
        "fewer single operations and become less frequent",
    )
    slow_factor: float = Field(
        default=3,
        ge=1.1,
        le=1000,
        description="an operation is published as slow above so many times the usual median of its kind",
    )
    running_s: float = Field(
        default=2,
        ge=0.1,
        le=3600,
        description="s after which an operation that has not ended is published as running",
    )
    repeat_s: float = Field(
        default=5,
        ge=0.5,
        le=3600,
        description="minimum s between two records with the same running operations",
    )
    heartbeat_s: float = Field(
        default=10, ge=1, le=3600, description="maximum s between two records of a process without operations"
    )
    ras: str = Field(
        default="auto",
        pattern=r"^(auto|off|[0-9A-Za-z.:\[\]-]+:[0-9]{1,5})$",
        examples=["auto"],
        description="NCCL's RAS service: auto: port 28028 of the loopback while a job of NCCL is connected; "
        "off; or host:port of this host",
    )
    ras_s: float = Field(default=10, ge=1, le=3600, description="s between two queries of the RAS service")
    flight_recorder_directory: Path | None = Field(
        default=None,
        description="folder with dumps of PyTorch's Flight Recorder, such as the folder of "
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE; none: dumps are not read",
    )
    queue_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1 << 20,
        le=1 << 32,
        description="bytes of records that wait while the log is down; beyond, records cover more time",
    )
    compression: Literal["none", "lz4", "zstd"] = Field(default="none", description="compression of messages")

    @field_validator("ras")
    @classmethod
    def _real_port(cls, value: str) -> str:
        port = value.rpartition(":")[2]
        if port.isdecimal() and not 1 <= int(port) <= 65_535:
            raise ValueError(f"{value}: expected a port from 1 to 65535")
        return value
