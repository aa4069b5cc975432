"""Settings of the auditors: `AuditSettings` for the fleet, and the part that checks read."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from schemas.kafka.settings import KafkaSettings

__all__ = ["AuditSettings", "CheckSettings"]


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r}: {error}, expected a regular expression") from None
    return text


class CheckSettings(BaseModel):
    """Settings that checks read through their host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    known_lines: tuple[Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_pattern)], ...] = (
        Field(
            default=(),
            max_length=1000,
            description="regular expressions of warnings and errors in the kernel log that are harmless",
        )
    )
    torch_python: str = Field(
        default="",
        max_length=256,
        description="Python interpreter that has torch, for the training run; empty: fabrictime's own",
    )
    volume_namespace: str = Field(
        default="",
        max_length=63,
        pattern="^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$",
        description="namespace of Kubernetes in which an active audit claims a small volume; empty: none",
    )
    volume_class: str = Field(
        default="", max_length=253, description="storage class of this volume; empty: the cluster's default"
    )
    volume_limit_s: int = Field(default=60, ge=1, le=900, description="s until the volume is bound")


class AuditSettings(CheckSettings):
    """Settings of the auditors."""

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
