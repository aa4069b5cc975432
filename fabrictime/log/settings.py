"""Settings of the embedded log: data directory, address and retention."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from schemas.topics import MAX_MESSAGE_BYTES

MIB = 1024 * 1024


class LogSettings(BaseModel):
    """The `[log]` part of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Path = Field(description="where topics, offsets and the lock file are kept; made owner-only")
    host: str = Field(default="127.0.0.1", description="loopback address to listen on")
    port: int = Field(default=19092, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one")
    partitions: int = Field(
        default=4, ge=1, le=1024, description="partitions of the data topics, which meet in one agent"
    )
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
    segment_bytes: int = Field(
        default=64 * MIB,
        ge=1024,
        le=2**31 - 1,
        description="a segment file of a partition is closed at this size",
    )
    segment_ms: int = Field(
        default=3_600_000, ge=1000, description="a segment file is closed at this age in milliseconds"
    )
    min_free_bytes: int = Field(
        default=256 * MIB,
        ge=0,
        description="messages are refused while the file system has less free space than this",
    )
    fsync_interval_ms: int = Field(
        default=0,
        ge=0,
        le=3_600_000,
        description=(
            "interval of writing dirty files to the disk (0: never); bounds the loss after a power "
            "failure. A killed process loses nothing either way"
        ),
    )
    housekeeping_ms: int = Field(
        default=1000,
        ge=50,
        le=600_000,
        description="how often retention, compaction and free space are looked at",
    )
    max_message_bytes: int = Field(
        default=MAX_MESSAGE_BYTES,
        ge=1024,
        le=64 * MIB,
        description="largest record batch that a topic without a setting of its own takes",
    )
    max_request_bytes: int = Field(
        default=32 * MIB, ge=64 * 1024, le=256 * MIB, description="a longer request closes its connection"
    )
    max_connections: int = Field(
        default=512, ge=1, le=10_000, description="connections beyond this are refused"
    )
    buffer_bytes: int = Field(
        default=96 * MIB, ge=MIB, description="receive buffers of all connections together"
    )
    group_join_delay_ms: int = Field(
        default=200, ge=0, le=60_000, description="how long an empty group waits for more members"
    )
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
