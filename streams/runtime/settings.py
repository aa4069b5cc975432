"""Settings of a stream worker, including those of its clock solver."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from schemas.kafka.settings import KAFKA, KafkaSettings
from schemas.signing import NO_CONTROL, ControlSettings
from schemas.strict_model import StrictModel, quantity
from streams.runtime.history_settings import HistorySinkSettings
from streams.runtime.pipeline_constants import GRACE_NS, HOLDOVER_S, SILENCE_NS, WINDOW_NS
from streams.runtime.units import NS_PER_MS

Stage = Literal["map", "solve", "links", "policy", "sink"]


class SolveSettings(StrictModel):
    """Settings of the clock solver: error model, slewing, holdover and time limits."""

    wander_ppb_per_sqrt_s: float = Field(
        default=10.0,
        gt=0,
        le=1_000,
        description="initial wander of clock rates, ppb per square root of a second; the solver learns it",
    )
    asymmetry_share: float = quantity(
        0.5,
        (0, 1),
        "possible asymmetry of a path as a share of half its unloaded round trip, where no loop of the mesh "
        "shows it; 1: a bound that holds for every path",
    )
    holdover_s: float = quantity(
        HOLDOVER_S, (0, 86_400), "s without measurements that a clock stays in holdover"
    )
    forget_s: float = quantity(600.0, (1, 864_000), "s without measurements after which a clock is dropped")
    slew_max_ppb: float = Field(
        default=100.0, gt=0, le=100, description="limit of slewing fabric time towards its reference, ppb"
    )
    slew_time_s: float = quantity(20.0, (1, 3600), "time constant of slewing, s")
    reference: str = Field(
        default="ensemble",
        pattern=r"^\S{1,128}$",
        description="reference of fabric time: 'ensemble' (the median of the hosts' system clocks) or the "
        "name of one clock, such as host/ptp0",
    )
    grace_ms: int = quantity(
        GRACE_NS // NS_PER_MS,
        (0, 60_000),
        "ms after a window's first fits that the solver waits for other sources",
    )


class StreamSettings(StrictModel):
    """Settings of one stream worker."""

    kafka: KafkaSettings = KAFKA
    control: ControlSettings = Field(
        default=NO_CONTROL, description="keys that sign decisions and config, and whether they are required"
    )
    group: str = Field(
        default="fabrictime",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="consumer group; links, policy and sink append '-links' and so on",
    )
    stages: tuple[Stage, ...] = Field(
        default=("map", "solve", "links", "policy", "sink"),
        min_length=1,
        description="stages that this worker runs; links (link health) and policy should each have a "
        "process of their own; sink needs history",
    )
    default_shard: str = Field(
        default="fabric", pattern=r"^[^\s/]{1,64}$", description="shard of NICs that are not in the inventory"
    )
    topology_file: Path | None = Field(
        default=None,
        description="file with the fabric's names, cables and rates; none: only the NICs' rates are known",
    )
    window_ms: int = quantity(WINDOW_NS // NS_PER_MS, (100, 60_000), "ms of log append time in a window")
    silence_ms: int = quantity(
        SILENCE_NS // NS_PER_MS, (10, 10_000), "ms of silence after which a partition delays no window"
    )
    queue_slot_us: int | None = quantity(
        None,
        (4, 1_000_000),
        "slot length of LinkQueues, us; none: by the fastest NIC, 10 ms below 10 Gbit/s, 1 ms below 40 "
        "Gbit/s, else 250 us",
    )
    clock_jump_us: float = Field(
        default=100.0, gt=0, le=1e9, description="us of a step between two flushes that count as a clock jump"
    )
    clock_jump_ppm: float = Field(
        default=1000.0,
        gt=0,
        le=1e6,
        description="ppm of rate against the system clock up to which there is no jump",
    )
    buffer_messages: int = quantity(64, (1, 65_536), "maximum of buffered messages per topic")
    fetch_kib: int = quantity(1024, (16, 65_536), "maximum of KiB per fetch and partition")
    commit_interval_ms: int = quantity(1000, (50, 60_000), "ms between offset commits")
    session_timeout_s: int = quantity(6, (2, 300), "s after which a silent worker loses its partitions")
    stall_s: float = quantity(
        8.0, (1, 600), "s that a position may not move while the log grows, before the worker aborts"
    )
    solve: SolveSettings = Field(default_factory=SolveSettings, description="settings of the clock solve")
    history: HistorySinkSettings | None = Field(
        default=None, description="settings of the history sink; none: no sink"
    )
