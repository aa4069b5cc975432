"""Defines `CollectiveSettings`, the settings of the service `collectives`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from schemas.kafka.settings import COMPRESSION, KAFKA, Compression, KafkaSettings
from schemas.socket_access import SOCKET_USERS
from schemas.strict_model import StrictModel, quantity


class CollectiveSettings(StrictModel):
    """Settings of the services that report the operations of jobs."""

    kafka: KafkaSettings = KAFKA
    socket: Path = Field(
        description="Unix socket where profilers connect. A process that serves several hosts opens one for "
        "each: NAME-HOST.sock beside NAME.sock"
    )
    socket_users: str = SOCKET_USERS
    processes: int = quantity(1024, (1, 65_536), "maximum processes of jobs on a host")
    segment_bytes: int = quantity(1 << 30, (1 << 20, 1 << 30), "maximum bytes of a process's shared memory")
    drain_ms: int = quantity(
        50, (5, 1000), "ms between two readings of the shared memory; shorter while events come fast"
    )
    report_ms: int = quantity(
        1000,
        (100, 60_000),
        "minimum ms between two records of a process; longer where the trace budget requires it",
    )
    trace_bytes_per_hour: int = quantity(
        1_500_000,
        (300_000, 1_000_000_000_000),
        "maximum bytes of all records of a process in any hour: with less to spare, records have fewer "
        "single operations and become less frequent",
    )
    slow_factor: float = quantity(
        3, (1.1, 1000), "an operation is published as slow above so many times the usual median of its kind"
    )
    running_s: float = quantity(
        2, (0.1, 3600), "s after which an operation that has not ended is published as running"
    )
    repeat_s: float = quantity(
        5, (0.5, 3600), "minimum s between two records with the same running operations"
    )
    heartbeat_s: float = quantity(
        10, (1, 3600), "maximum s between two records of a process without operations"
    )
    ras: str = Field(
        default="auto",
        pattern=r"^(auto|off|[0-9A-Za-z.:\[\]-]+:[0-9]{1,5})$",
        examples=["auto"],
        description="RAS services of NCCL and RCCL: auto: those of this host's jobs, by NCCL_RAS_ADDR of "
        "their processes or port 28028, with or without our profiler; off; or host:port of this host",
    )
    ras_s: float = quantity(
        5, (1, 3600), "s between two queries of a RAS service; 2 s while a job makes no progress"
    )
    flight_recorder_directory: Path | None = Field(
        default=None,
        description="folder with dumps of PyTorch's Flight Recorder, such as the folder of "
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE; none: dumps are not read",
    )
    queue_bytes: int = quantity(
        64 * 1024 * 1024,
        (1 << 20, 1 << 32),
        "bytes of records that wait while the log is down; beyond, records cover more time",
    )
    compression: Compression = COMPRESSION

    @field_validator("ras")
    @classmethod
    def _real_port(cls, value: str) -> str:
        port = value.rpartition(":")[2]
        if port.isdecimal() and not 1 <= int(port) <= 65_535:
            raise ValueError(f"{value}: expected a port from 1 to 65535")
        return value
