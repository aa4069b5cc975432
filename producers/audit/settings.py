"""Settings of the auditors: `AuditSettings` for the fleet."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.kafka.settings import KafkaSettings

__all__ = ["AuditSettings"]


class AuditSettings(BaseModel):
    """Settings of the auditors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kafka: KafkaSettings = Field(default=KafkaSettings(), description="Kafka cluster and schema registry")
    every_s: float = Field(
        default=3600,
        ge=0,
        le=7 * 86_400,
        description="s between two scheduled runs of the passive checks; 0: on request only",
    )
    first_run_s: float = Field(
        default=60,
        ge=0,
        le=86_400,
        description="s after the start over which the first scheduled runs of the fleet's hosts are spread",
    )
    scheduled_limit_s: int = Field(
        default=300, ge=1, le=86_400, description="s after which a scheduled run ends"
    )
    hosts_at_once: int = Field(
        default=4, ge=1, le=256, description="hosts that one auditor checks at the same time"
    )
    sku: str = Field(
        default="", max_length=64, description="machine type of the hosts, such as h100; empty: unknown"
    )
    queue_messages: int = Field(
        default=20_000,
        ge=10,
        le=1_000_000,
        description="results that wait while the log is down; beyond, the oldest are dropped",
    )
    queue_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1 << 20, le=1 << 32, description="bytes of these results together"
    )
    compression: Literal["none", "lz4", "zstd"] = Field(default="none", description="compression of messages")
