"""Settings of a stream worker: where the log is, how windows are cut, how clocks are solved.

In: values of the application's configuration. Out: one frozen model that `streams.runtime.app.main` takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from streams.history.settings import HistorySinkSettings

__all__ = ["SolveSettings", "Stage", "StreamSettings"]

Stage = Literal["map", "solve", "links", "policy", "sink"]


class SolveSettings(BaseModel):
    """How the clocks of a shard are solved and how far they are trusted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wander_ppb_per_sqrt_s: float = Field(
        default=10.0, gt=0, le=1_000,
        description="ppb per square root of a second that clocks' rates wander, to begin with: it is learned",
    )  # fmt: skip
    asymmetry_share: float = Field(
        default=0.5, ge=0, le=1,
        description="share of the unloaded round trip's half that may hide in one direction where no loop of"
        " the mesh tells; 1: a bound that no path can break",
    )  # fmt: skip
    holdover_s: float = Field(
        default=60.0, ge=0, le=86_400, description="s that a clock without measurements is carried on"
    )
    forget_s: float = Field(
        default=600.0, ge=1, le=864_000, description="s without measurements after which a clock is dropped"
    )
    slew_max_ppb: float = Field(
        default=100.0, gt=0, le=100, description="ppb by which fabric time may be slewed towards the hosts"
    )
    slew_time_s: float = Field(
        default=20.0,
        ge=1,
        le=3600,
        description="s in which an error against the hosts' median is slewed away",
    )
    reference: str = Field(
        default="ensemble", pattern=r"^\S{1,128}$",
        description="what fabric time follows: 'ensemble' (the median of the hosts' system clocks), or the"
        " name of one clock (host/ptp0, say), which all others are then slewed to",
    )  # fmt: skip
    grace_ms: int = Field(
        default=1500, ge=0, le=60_000,
        description="ms after a window's first fits that the solver waits for the other sources",
    )  # fmt: skip


class StreamSettings(BaseModel):
    """One stream worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: str = Field(
        default="127.0.0.1:19092", pattern=r"^[^\s,:]+:\d+(,[^\s,:]+:\d+)*$",
        description="Kafka addresses, host:port, separated by commas",
    )  # fmt: skip
    schema_registry_url: str | None = Field(
        default=None, pattern=r"^https?://\S+$", description="schema registry; none: single-object encoding"
    )
    group: str = Field(
        default="fabrictime", pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="consumer group; links, policy and sink have one each, this with '-links' and so on",
    )  # fmt: skip
    stages: tuple[Stage, ...] = Field(
        default=("map", "solve", "links", "policy", "sink"), min_length=1,
        description="stages that this worker runs; links judges what is dead, policy decides what flows do,"
        " each best alone in a process; sink only where history is set",
    )  # fmt: skip
    default_shard: str = Field(
        default="fabric",
        pattern=r"^[^\s/]{1,64}$",
        description="shard of a NIC that the inventory does not know",
    )
    topology_file: Path | None = Field(
        default=None, description="file with the fabric's names, cables and rates; none: NICs' rates alone"
    )
    window_ms: int = Field(default=1000, ge=100, le=60_000, description="ms of log append time in a window")
    silence_ms: int = Field(
        default=150, ge=10, le=10_000, description="ms after which a silent partition holds no window open"
    )
    queue_slot_us: int | None = Field(
        default=None, ge=4, le=1_000_000,
        description="us of the slots that queues are told in; none: by the fastest NIC, 10 ms below 10"
        " Gbit/s, 1 ms below 40, 250 us from there",
    )  # fmt: skip
    clock_jump_us: float = Field(
        default=100.0,
        gt=0,
        le=1e9,
        description="us of a step between two flushes that is called a clock jump",
    )
    clock_jump_ppm: float = Field(
        default=1000.0, gt=0, le=1e6, description="ppm of rate against the system clock that is no jump yet"
    )
    buffer_messages: int = Field(
        default=64, ge=1, le=65_536, description="messages of one topic that wait in memory at most"
    )
    fetch_kib: int = Field(
        default=1024, ge=16, le=65_536, description="KiB that one fetch takes from one partition at most"
    )
    held_samples: int = Field(
        default=6_000_000, ge=1000, le=1_000_000_000,
        description="samples of closed windows that wait to be published before intake pauses; 32 bytes each",
    )  # fmt: skip
    commit_interval_ms: int = Field(default=1000, ge=50, le=60_000, description="ms between offset commits")
    session_timeout_s: int = Field(
        default=6, ge=2, le=300, description="s after which a silent worker's partitions go to others"
    )
    stall_s: float = Field(
        default=8.0, ge=1, le=600,
        description="s that our position may stand still while the log grows, before the worker gives up",
    )  # fmt: skip
    solve: SolveSettings = Field(default_factory=SolveSettings, description="the clock solve")
    history: HistorySinkSettings | None = Field(
        default=None, description="where the sink writes; none: no sink"
    )
