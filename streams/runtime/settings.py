"""Settings of a stream worker."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.kafka.settings import KafkaSettings
from streams.runtime.history_settings import HistorySinkSettings
from streams.runtime.pipeline_constants import GRACE_NS, HOLDOVER_S, SILENCE_NS, WINDOW_NS
from streams.runtime.units import NS_PER_MS

__all__ = ["SolveSettings", "Stage", "StreamSettings"]

Stage = Literal["map", "solve", "links", "policy", "sink"]


class SolveSettings(BaseModel):
    """Settings of the clock solver."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wander_ppb_per_sqrt_s: float = Field(
        default=10.0,
        gt=0,
        le=1_000,
        description="initial wander of clock rates, ppb per square root of a second; the solver learns it",
    )
    asymmetry_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="possible asymmetry of a path as a share of half its unloaded round trip, where no loop"
        " of the mesh shows it; 1: a bound that holds for every path",
    )
    holdover_s: float = Field(
        default=HOLDOVER_S,
        ge=0,
        le=86_400,
        description="s without measurements that a clock stays in holdover",
    )
    forget_s: float = Field(
        default=600.0, ge=1, le=864_000, description="s without measurements after which a clock is dropped"
    )
    slew_max_ppb: float = Field(
        default=100.0, gt=0, le=100, description="limit of slewing fabric time towards its reference, ppb"
    )
    slew_time_s: float = Field(
        default=20.0,
        ge=1,
        le=3600,
        description="time constant of slewing, s",
    )
    reference: str = Field(
        default="ensemble",
        pattern=r"^\S{1,128}$",
        description="reference of fabric time: 'ensemble' (the median of the hosts' system clocks) or the"
        " name of one clock, such as host/ptp0",
    )
    grace_ms: int = Field(
        default=GRACE_NS // NS_PER_MS,
        ge=0,
        le=60_000,
        description="ms after a window's first fits that the solver waits for other sources",
    )


class StreamSettings(BaseModel):
    """Settings of one stream worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kafka: KafkaSettings = Field(default=KafkaSettings(), description="Kafka cluster and schema registry")
    group: str = Field(
        default="fabrictime",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="consumer group; links, policy and sink append '-links' and so on",
    )
    stages: tuple[Stage, ...] = Field(
        default=("map", "solve", "links", "policy", "sink"),
        min_length=1,
        description="stages that this worker runs; links (link health) and policy should each have a process"
        " of their own; sink needs history",
    )
    default_shard: str = Field(
        default="fabric",
        pattern=r"^[^\s/]{1,64}$",
        description="shard of NICs that are not in the inventory",
    )
    topology_file: Path | None = Field(
        default=None,
        description="file with the fabric's names, cables and rates; none: only the NICs' rates are known",
    )
    window_ms: int = Field(
        default=WINDOW_NS // NS_PER_MS, ge=100, le=60_000, description="ms of log append time in a window"
    )
    silence_ms: int = Field(
        default=SILENCE_NS // NS_PER_MS,
        ge=10,
        le=10_000,
        description="ms of silence after which a partition delays no window",
    )
    queue_slot_us: int | None = Field(
        default=None,
        ge=4,
        le=1_000_000,
        description="slot length of LinkQueues, us; none: by the fastest NIC, 10 ms below 10 Gbit/s, 1 ms"
        " below 40 Gbit/s, else 250 us",
    )
    clock_jump_us: float = Field(
        default=100.0,
        gt=0,
        le=1e9,
        description="us of a step between two flushes that count as a clock jump",
    )
    clock_jump_ppm: float = Field(
        default=1000.0,
        gt=0,
        le=1e6,
        description="ppm of rate against the system clock up to which there is no jump",
    )
    buffer_messages: int = Field(
        default=64, ge=1, le=65_536, description="maximum of buffered messages per topic"
    )
    fetch_kib: int = Field(
        default=1024, ge=16, le=65_536, description="maximum of KiB per fetch and partition"
    )
    commit_interval_ms: int = Field(default=1000, ge=50, le=60_000, description="ms between offset commits")
    session_timeout_s: int = Field(
        default=6, ge=2, le=300, description="s after which a silent worker loses its partitions"
    )
    stall_s: float = Field(
        default=8.0,
        ge=1,
        le=600,
        description="s that a position may not move while the log grows, before the worker aborts",
    )
    solve: SolveSettings = Field(default_factory=SolveSettings, description="settings of the clock solve")
    history: HistorySinkSettings | None = Field(
        default=None, description="settings of the history sink; none: no sink"
    )
