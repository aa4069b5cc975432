"""Settings of the embedded log: data directory, address and retention."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from schemas.strict_model import StrictModel, quantity
from schemas.topics import MAX_MESSAGE_BYTES

MIB = 1024 * 1024


class LogSettings(StrictModel):
    """The `[log]` table of the configuration: data directory, address and retention."""

    directory: Path = Field(description="where topics, offsets and the lock file are kept; made owner-only")
    host: str = Field(default="127.0.0.1", description="loopback address to listen on")
    port: int = quantity(19092, (0, 65535), "TCP port to listen on; 0 takes a free one")
    partitions: int = quantity(4, (1, 1024), "partitions of the data topics, which meet in one agent")
    create_topics: bool = Field(default=True, description="create the project's topics at the start")
    auto_create_topics: bool = Field(
        default=False, description="create a topic of the contract when a client requests it"
    )
    retention_hours: dict[str, Annotated[float, Field(gt=0, le=24 * 3650)]] = Field(
        default_factory=dict,
        description="hours a topic is kept, by the name of its retention setting (probes.retention_hours)",
    )
    total_bytes: int = Field(
        default=16 * 1024 * MIB,
        ge=64 * MIB,
        description="cap on all topics together: beyond it the oldest segments of uncompacted topics go",
    )
    segment_bytes: int = quantity(
        64 * MIB, (1024, 2**31 - 1), "a segment file of a partition is closed at this size"
    )
    segment_ms: int = Field(
        default=3_600_000, ge=1000, description="a segment file is closed at this age in milliseconds"
    )
    min_free_bytes: int = Field(
        default=256 * MIB,
        ge=0,
        description="messages are refused while the file system has less free space than this",
    )
    fsync_interval_ms: int = quantity(
        0,
        (0, 3_600_000),
        "interval of writing dirty files to the disk (0: never); bounds the loss after a power failure. A "
        "killed process loses nothing either way",
    )
    housekeeping_ms: int = quantity(
        1000, (50, 600_000), "how often retention, compaction and free space are looked at"
    )
    max_message_bytes: int = quantity(
        MAX_MESSAGE_BYTES,
        (1024, 64 * MIB),
        "largest record batch that a topic without a setting of its own takes",
    )
    max_request_bytes: int = quantity(
        32 * MIB, (64 * 1024, 256 * MIB), "a longer request closes its connection"
    )
    max_connections: int = quantity(512, (1, 10_000), "connections beyond this are refused")
    buffer_bytes: int = Field(
        default=96 * MIB, ge=MIB, description="receive buffers of all connections together"
    )
    group_join_delay_ms: int = quantity(200, (0, 60_000), "how long an empty group waits for more members")
    max_group_session_ms: int = Field(
        default=1_800_000, ge=1000, description="longest session time-out that a member may request"
    )
    compaction_bytes: int = Field(
        default=4 * MIB, ge=0, description="a compacted partition is cleaned when this much of it is new"
    )
    compaction_keys: int = Field(
        default=500_000, ge=1, description="most keys that one compaction pass remembers"
    )

    @field_validator("host")
    @classmethod
    def _loopback(cls, host: str) -> str:
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise ValueError(f"{host!r}: expected a loopback address such as 127.0.0.1")
        return host
