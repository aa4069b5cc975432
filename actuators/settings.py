"""Settings of a host's actuator: where its clock page lies, how fabric time is carried on, what is steered.

In: values of the application's configuration. Out: frozen models that `actuators.service.main` takes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["ActuatorSettings", "DisciplineSettings", "HostSettings", "TestClockSettings", "default_directory"]


def default_directory() -> Path:
    """Return `$XDG_RUNTIME_DIR/fabrictime`, or `/run/fabrictime`."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (Path(runtime) if runtime else Path("/run")) / "fabrictime"


class DisciplineSettings(BaseModel):
    """Whether a clock of this host is steered towards fabric time, and within which limits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["off", "dry-run", "on"] = Field(
        default="off", description="dry-run: says what it would do and changes nothing; on needs CAP_SYS_TIME"
    )
    clock: str = Field(
        default="system", pattern=r"^(system|ptp\d{1,3})$", description="system, or ptpN for /dev/ptpN"
    )
    time_constant_s: float = Field(
        default=60.0, ge=10, le=3600,
        description="s in which an offset is worked off; far above a window, so that the solver sees a steady"
        " clock",
    )  # fmt: skip
    interval_s: float = Field(default=1.0, ge=0.1, le=60, description="s between two corrections")
    offset_max_us: float = Field(
        default=500.0, gt=0, le=100_000,
        description="us of offset beyond which nothing is done but to say so: steps are not ours to make",
    )  # fmt: skip
    bound_max_us: float = Field(
        default=100.0,
        gt=0,
        le=100_000,
        description="us of fabric time's own bound beyond which nothing is done",
    )
    rate_max_ppm: float = Field(
        default=50.0,
        gt=0,
        le=500,
        description="ppm by which the clock's rate may be changed from where it was",
    )

    @model_validator(mode="after")
    def _slow(self) -> DisciplineSettings:
        if self.interval_s > self.time_constant_s / 5:
            raise ValueError(
                f"interval_s {self.interval_s:g}: expected at most a fifth of time_constant_s,"
                f" {self.time_constant_s / 5:g}"
            )
        return self


class ActuatorSettings(BaseModel):
    """The actuator of a host: its clock page, and the hand that acts on its flows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: str = Field(
        default="127.0.0.1:19092", pattern=r"^[^\s,:]+:\d+(,[^\s,:]+:\d+)*$",
        description="Kafka addresses, host:port, separated by commas",
    )  # fmt: skip
    schema_registry_url: str | None = Field(
        default=None, pattern=r"^https?://\S+$", description="schema registry; none: single-object encoding"
    )
    window_ms: int = Field(default=1000, ge=100, le=60_000, description="ms of log append time in a window")
    host: str | None = Field(
        default=None, pattern=r"^[^\s/>]{1,128}$",
        description="this host's name in the inventory; without it the system's",
    )  # fmt: skip
    clock_file: Path | None = Field(
        default=None,
        description="the clock page of this host; without it 'clock' in $XDG_RUNTIME_DIR/fabrictime, or in"
        " /run/fabrictime",
    )
    readable: Literal["owner", "group", "all"] = Field(
        default="owner", description="who besides its owner may read a page"
    )
    refresh_ms: int = Field(
        default=200, ge=20, le=1000, description="ms between two readings of this host's clocks"
    )
    wander_ppb_per_sqrt_s: float = Field(
        default=3.0, ge=0, le=10_000,
        description="ppb per square root of a second that a clock's rate may wander; the bound grows by it",
    )  # fmt: skip
    holdover_after_s: float = Field(
        default=10.0, ge=1, le=3600, description="s without a new window after which SYNCED becomes HOLDOVER"
    )
    expires_s: float = Field(
        default=60.0,
        ge=2,
        le=86_400,
        description="s without a new window after which fabric time is UNSYNCED",
    )
    join_s: float = Field(
        default=0.5, ge=0.05, le=60,
        description="s in which the difference of a new window's line to the last one is slewed away",
    )  # fmt: skip
    join_max_ppm: float = Field(
        default=50.0, gt=0, le=1000, description="ppm of fabric time's rate that this slewing may take"
    )
    step_us: float = Field(
        default=100.0,
        gt=0,
        le=1e9,
        description="us of difference beyond which it steps instead, and is counted",
    )
    control_socket: Path | None = Field(
        default=None,
        description="Unix socket that the owners of flows come to, owner-only; without it 'control.sock' in"
        " $XDG_RUNTIME_DIR/fabrictime, or in /run/fabrictime; the programs find it in FABRICTIME_CONTROL",
    )
    local_repair_socket: Path | None = Field(
        default=None,
        description="Unix socket on which probers tell which paths are dead, owner-only; without it"
        " 'reflex.sock' beside the control socket",
    )
    acts_file: Path | None = Field(
        default=None,
        description="file in which is noted what is in force, for after a kill; without it 'acts.jsonl'"
        " beside the control socket",
    )
    answer_ms: int = Field(
        default=200, ge=10, le=10_000, description="ms within which the owner of a flow answers a command"
    )
    settle_ms: int = Field(
        default=1500, ge=0, le=60_000,
        description="ms after the start in which owners come back: decisions wait so long for theirs",
    )  # fmt: skip
    reflex_ms: int | None = Field(
        default=30, ge=0, le=10_000,
        description="ms for which a decision is waited for when probers declare a flow's path dead, before it"
        " is led to the first of its fallbacks that lives; none: never",
    )  # fmt: skip
    kernel_nics: dict[str, int] = Field(
        default_factory=dict,
        description="NICs, by device, with bit/s of their links, at which the kernel (HTB) paces flows that"
        " no owner paces; one whose root is not of the kernel's own kinds is left alone. Needs CAP_NET_ADMIN,"
        " and flows.kernel_pacing",
    )
    discipline: DisciplineSettings = Field(
        default_factory=DisciplineSettings, description="steering a clock of this host"
    )

    @model_validator(mode="after")
    def _in_order(self) -> ActuatorSettings:
        if self.expires_s < self.holdover_after_s:
            raise ValueError(
                f"expires_s {self.expires_s:g}: expected at least holdover_after_s, {self.holdover_after_s:g}"
            )
        for device, rate_bps in self.kernel_nics.items():
            if not 0 < len(device) < 16 or rate_bps < 1_000_000:
                raise ValueError(
                    f"kernel_nics {device!r}: {rate_bps} bit/s, expected a device and 1000000 at least"
                )
        return self

    @property
    def control_path(self) -> Path:
        """Where owners of flows come to."""
        return self.control_socket or default_directory() / "control.sock"

    @property
    def reflex_path(self) -> Path:
        """Where words of probers come in."""
        return self.local_repair_socket or self.control_path.with_name("reflex.sock")

    @property
    def acts_path(self) -> Path:
        """Where is noted what is in force."""
        return self.acts_file or self.control_path.with_name("acts.jsonl")


class TestClockSettings(BaseModel):
    """A clock that a test gave to a NIC of a host; see `native.core.TestClock`."""

    __test__ = False
    model_config = ConfigDict(extra="forbid", frozen=True)

    offset_ns: int = Field(default=0, description="ns ahead of the system clock")
    drift_ppb: float = Field(default=0, description="ppb that it runs fast")
    wander_ppb_per_sqrt_s: float = Field(default=0, ge=0, description="random walk of its rate")
    epoch_ns: int = Field(default=0, ge=0, description="ns since the Unix epoch, where drift counts from")
    seed: int = Field(default=0, ge=0, description="seed of the wander")
    step_ns: int = Field(default=0, description="ns that it jumps at step_at_ns")
    step_at_ns: int = Field(default=0, ge=0, description="ns since the Unix epoch of that jump")


class HostSettings(BaseModel):
    """One host whose page is kept: this one, or on a testbed each of those that live here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(pattern=r"^[^\s/>]{1,128}$", description="its name in the inventory")
    clock_file: Path = Field(description="its page")
    netns: Path | None = Field(
        default=None, description="network namespace where its NICs are; none: where the actuator runs"
    )
    test_clocks: dict[str, TestClockSettings] = Field(
        default_factory=dict, description="its test clocks, by the device whose clock they are"
    )
