"""Settings of the auditors: `AuditSettings` for the fleet, and the part that checks read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from schemas.kafka.settings import COMPRESSION, KAFKA, Compression, KafkaSettings
from schemas.strict_model import StrictModel, quantity


class TrafficSettings(StrictModel):
    """Load between audited hosts (`fabrictime audit traffic`), and the limits of its figures."""

    port: int = quantity(9318, (1, 65535), "TCP port that receives load, open during a round only")
    seconds: float = quantity(2, (0.1, 10), "s of load in a round; no request can lengthen it")
    rate_mbps: float = quantity(
        1000, (1, 400_000), "maximum Mbit/s that a NIC sends in a round; no request can raise it"
    )
    meet_s: float = quantity(5, (0.5, 30), "s that a host waits for its partner before it gives up")
    key_file: Path | None = Field(
        default=None,
        description="file with the fleet's probe key, by which partners prove themselves; none: partners "
        "are known by their address alone",
    )
    max_variation: float = Field(
        default=0.05,
        gt=0,
        le=10,
        description="maximum standard deviation of the pairs' rates in a round, as a share of their mean",
    )
    max_slower: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="share by which a pair's rate may be below the median; beyond, and beyond 3.5 sigma by "
        "MAD, the pair is slow",
    )
    max_loaded_factor: float = quantity(
        3, (1, 1000), "maximum p99 of a pair's round trips under load, as a multiple of the fleet's median"
    )
    max_loaded_growth_ms: float = Field(
        default=20,
        gt=0,
        le=10_000,
        description="maximum ms by which load raises the p99 of a pair's round trips above its idle one",
    )
    min_across_share: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="minimum rate across leaves, as a share of that within leaves (medians of the pairs)",
    )
    straggler_ms: float = Field(
        default=5, gt=0, le=10_000, description="ms of a hop in a ring from which on it is a straggler's"
    )


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r}: {error}, expected a regular expression") from None
    return text


class CheckSettings(StrictModel):
    """Settings that checks read through their host."""

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
    volume_limit_s: int = quantity(60, (1, 900), "s until the volume is bound")


class AuditSettings(CheckSettings):
    """Settings of the auditors."""

    kafka: KafkaSettings = KAFKA
    every_s: float = quantity(
        3600, (0, 7 * 86_400), "s between two scheduled runs of the passive checks; 0: on request only"
    )
    first_run_s: float = quantity(
        60,
        (0, 86_400),
        "s after the start over which the first scheduled runs of the fleet's hosts are spread",
    )
    scheduled_limit_s: int = quantity(300, (1, 86_400), "s after which a scheduled run ends")
    hosts_at_once: int = quantity(4, (1, 256), "hosts that one auditor checks at the same time")
    sku: str = Field(
        default="", max_length=64, description="machine type of the hosts, such as h100; empty: unknown"
    )
    traffic: TrafficSettings = Field(
        default_factory=TrafficSettings, description="load between hosts, on request only"
    )
    queue_messages: int = quantity(
        20_000, (10, 1_000_000), "results that wait while the log is down; beyond, the oldest are dropped"
    )
    queue_bytes: int = quantity(16 * 1024 * 1024, (1 << 20, 1 << 32), "bytes of these results together")
    compression: Compression = COMPRESSION
