"""Settings of a host's actuator: its clock page, the flow actuator and the clock discipline."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from actuators.nodes.caps import Breaker, NodeRules
from schemas.kafka.settings import KAFKA, KafkaSettings
from schemas.signing import NO_CONTROL, ControlSettings
from schemas.strict_model import StrictModel, quantity


def default_directory() -> Path:
    """Return the default runtime directory: `$XDG_RUNTIME_DIR/fabrictime`, or else `/run/fabrictime`."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (Path(runtime) if runtime else Path("/run")) / "fabrictime"


class DisciplineSettings(StrictModel):
    """The clock of this host to discipline, and the limits of the servo."""

    mode: Literal["off", "dry-run", "on"] = Field(
        default="off", description="dry-run: logs what it would do and changes nothing; on needs CAP_SYS_TIME"
    )
    clock: str = Field(
        default="system", pattern=r"^(system|ptp\d{1,3})$", description="system, or ptpN for /dev/ptpN"
    )
    time_constant_s: float = quantity(
        60.0,
        (10, 3600),
        "s in which an offset is corrected; far above a window, so that the clock stage sees a steady clock",
    )
    interval_s: float = quantity(1.0, (0.1, 60), "s between two corrections")
    offset_max_us: float = Field(
        default=500.0,
        gt=0,
        le=100_000,
        description="us of offset above which the clock is left alone with a log line: it is never stepped",
    )
    bound_max_us: float = Field(
        default=100.0,
        gt=0,
        le=100_000,
        description="us of fabric time's bound above which the clock is left alone",
    )
    rate_max_ppm: float = Field(
        default=50.0,
        gt=0,
        le=500,
        description="ppm by which the clock's rate may differ from its original rate",
    )

    @model_validator(mode="after")
    def _slow(self) -> DisciplineSettings:
        if self.interval_s > self.time_constant_s / 5:
            raise ValueError(
                f"interval_s {self.interval_s:g}: expected at most a fifth of time_constant_s,"
                f" {self.time_constant_s / 5:g}"
            )
        return self


class NodeRuleSettings(StrictModel):
    """Rules of drains and resumes in a group of nodes."""

    max_out_share: float = quantity(
        0.1,
        (0, 0.5),
        "share of nodes that may be out at once, also by others (circuit breaker); a drain beyond it is "
        "suppressed",
    )
    min_in: int = quantity(1, (1, 1_000_000), "nodes that stay in")
    failed_runs: int = quantity(1, (1, 10), "runs in which a check must fail, one after another, for a drain")
    clean_runs: int = quantity(
        1, (1, 10), "runs after a drain in which its checks must pass, one after another, for a resume"
    )
    observe: bool = Field(default=False, description="whether actions are only reported, whatever the mode")
    checks: list[str] = Field(
        default=["*"], description="checks of severity error that drain, with * and ? as in a shell"
    )
    max_jobs: int | None = quantity(
        None, (0, 10_000), "jobs that may run on a node at its drain; with more, the drain waits; none: any"
    )
    max_per_rack: int = quantity(2, (1, 1_000_000), "nodes of a rack that may be out at once, also by others")
    max_per_rail: int = quantity(2, (1, 1_000_000), "drains in force for NICs of one rail")
    max_per_hour: int = quantity(10, (1, 1_000_000), "drains within an hour")
    network_wait_s: float = quantity(
        60.0,
        (0, 86_400),
        "s for which a failed check of the network waits for the results of other hosts; one that hosts of "
        "the same leaf switch share never drains",
    )
    unit: Literal["node", "rack"] = Field(
        default="node",
        description="nodes that are drained and resumed as one; rack: those of the inventory's rack (NVL72)",
    )


class NodeGroupSettings(NodeRuleSettings):
    """Rules of a group of nodes; keys that are not set have the values of [actuators.nodes]."""

    nodes: list[str] = Field(min_length=1, description="names of the nodes, with * and ? as in a shell")


class NodeSettings(NodeRuleSettings):
    """Settings of drains and resumes of a scheduler's nodes.

    They apply to the service `drains` and to `fabrictime audit act`. `fabric.config` sets the mode.
    """

    scheduler: Literal["none", "slurm", "kubernetes", "slinky"] = Field(
        default="none",
        description="scheduler of the nodes; slinky is Slurm on Kubernetes; both need the extra kubernetes",
    )
    groups: dict[str, NodeGroupSettings] = Field(
        default_factory=dict,
        description="groups of nodes with rules of their own, as [actuators.nodes.groups.NAME]; the first "
        "that names a node counts",
    )
    breaker_drains: int = quantity(
        8, (1, 1_000_000), "drains within breaker_window_s that stop all drains, until a person allows them"
    )
    breaker_window_s: float = quantity(600.0, (1, 604_800), "s in which breaker_drains are counted")
    max_age_s: int = quantity(
        7200,
        (60, 604_800),
        "s after which an audit result does not count any more; twice the agents' schedule",
    )
    check_s: float = quantity(10.0, (1, 600), "s between two looks at the scheduler, besides those for news")
    hosts: dict[str, str] = Field(
        default_factory=dict, description="host in the inventory of a node, where their names differ"
    )
    kubeconfig: Path | None = Field(
        default=None, description="kubeconfig file; default: ~/.kube/config, else the pod's account"
    )
    context: str | None = Field(default=None, description="context in that file; default: its current one")
    limit_s: float = quantity(10.0, (1, 120), "s within which the scheduler must answer a command")

    @property
    def breaker(self) -> Breaker:
        """The circuit breaker with the configured limits, not reset yet."""
        return Breaker(self.breaker_drains, round(self.breaker_window_s * 1e9))

    def rules_of(self, node: str) -> NodeRules:
        """Return the rules that apply to a node."""
        for name, group in self.groups.items():
            if any(fnmatchcase(node, pattern) for pattern in group.nodes):
                own = group.model_dump(include=group.model_fields_set - {"nodes"})
                return _rules(self.model_copy(update=own), name)
        return _rules(self, "")


def _rules(settings: NodeRuleSettings, group: str) -> NodeRules:
    fields = settings.model_dump(
        include=set(NodeRuleSettings.model_fields) - {"checks", "network_wait_s", "unit"}
    )
    return NodeRules(
        **fields,
        group=group,
        checks=tuple(settings.checks),
        network_wait_ns=round(settings.network_wait_s * 1e9),
        is_rack_unit=settings.unit == "rack",
    )


class ActuatorSettings(StrictModel):
    """Settings of a host's actuator: its clock page, and the flow actuator."""

    kafka: KafkaSettings = KAFKA
    control: ControlSettings = NO_CONTROL
    window_ms: int = quantity(1000, (100, 60_000), "ms of log append time in a window")
    host: str | None = Field(
        default=None,
        pattern=r"^[^\s/>]{1,128}$",
        description="this host's name in the inventory; default: the system's host name",
    )
    clock_file: Path | None = Field(
        default=None,
        description="the clock page of this host; default: 'clock' in $XDG_RUNTIME_DIR/fabrictime, or in "
        "/run/fabrictime",
    )
    readable: Literal["owner", "group", "all"] = Field(
        default="owner", description="readers of a page, besides its owner"
    )
    refresh_ms: int = quantity(200, (20, 1000), "ms between two readings of this host's clocks")
    wander_ppb_per_sqrt_s: float = quantity(
        3.0,
        (0, 10_000),
        "ppb per square root of a second that a clock's rate may wander; the bound grows with it",
    )
    holdover_after_s: float = quantity(
        10.0, (1, 3600), "s without a new window after which SYNCED becomes HOLDOVER"
    )
    expires_s: float = quantity(
        60.0, (2, 86_400), "s without a new window after which fabric time is UNSYNCED"
    )
    slew_s: float = quantity(
        0.5, (0.05, 60), "s in which the difference between a new model and the last one is slewed away"
    )
    slew_max_ppm: float = Field(
        default=50.0, gt=0, le=1000, description="ppm by which slewing may change the rate of fabric time"
    )
    step_us: float = Field(
        default=100.0,
        gt=0,
        le=1e9,
        description="us of difference above which the time steps instead, and the step is counted",
    )
    control_socket: Path | None = Field(
        default=None,
        description="Unix socket that flow endpoints connect to, owner-only; default: 'control.sock' in "
        "$XDG_RUNTIME_DIR/fabrictime, or in /run/fabrictime; programs find it in "
        "FABRICTIME_CONTROL",
    )
    path_status_socket: Path | None = Field(
        default=None,
        description="Unix socket for path status reports of probers, owner-only; default: "
        "'path-status.sock' beside the control socket",
    )
    journal_file: Path | None = Field(
        default=None,
        description="file with the actions in force, for the restart after a crash; default: "
        "'journal.jsonl' beside the control socket",
    )
    answer_ms: int = quantity(200, (10, 10_000), "ms within which a flow endpoint must answer a command")
    settle_ms: int = quantity(
        1500, (0, 60_000), "ms after the start for endpoints to reconnect; decisions for their flows wait"
    )
    local_repair_ms: int | None = quantity(
        30,
        (0, 10_000),
        "ms to wait for a decision after probers declared a flow's path dead, before the flow moves to its "
        "first living fallback; none: never",
    )
    kernel_nics: dict[str, int] = Field(
        default_factory=dict,
        description="NICs, by device, with bit/s of their links, at which the kernel (HTB) paces flows that "
        "no endpoint paces; a NIC with a foreign root qdisc stays untouched. Needs "
        "CAP_NET_ADMIN, and flows.kernel_pacing",
    )
    discipline: DisciplineSettings = Field(
        default_factory=DisciplineSettings, description="clock discipline of this host"
    )

    nodes: NodeSettings = Field(
        default_factory=NodeSettings, description="drains of unfit nodes in Slurm or Kubernetes"
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
                    f"kernel_nics {device!r}: {rate_bps} bit/s, expected a device and at least 1000000"
                )
        return self

    @property
    def control_path(self) -> Path:
        """Path of the control socket for flow endpoints."""
        return self.control_socket or default_directory() / "control.sock"

    @property
    def path_status_path(self) -> Path:
        """Path of the socket for path status reports."""
        return self.path_status_socket or self.control_path.with_name("path-status.sock")

    @property
    def journal_path(self) -> Path:
        """Path of the journal of actions in force."""
        return self.journal_file or self.control_path.with_name("journal.jsonl")

    @property
    def node_lock_path(self) -> Path:
        """Path of the lock that allows only one process of this machine to act on nodes."""
        return self.journal_path.with_name("nodes.lock")


class TestClockSettings(StrictModel):
    """Settings of the test clock of a NIC; see `native.core.TestClock`."""

    __test__ = False
    offset_ns: int = Field(default=0, description="ns ahead of the system clock")
    drift_ppb: float = Field(default=0, description="ppb by which it runs fast")
    wander_ppb_per_sqrt_s: float = Field(default=0, ge=0, description="random walk of its rate")
    epoch_ns: int = Field(default=0, ge=0, description="ns since the Unix epoch at which its drift is zero")
    seed: int = Field(default=0, ge=0, description="seed of the wander")
    step_ns: int = Field(default=0, description="ns by which it jumps at step_at_ns")
    step_at_ns: int = Field(default=0, ge=0, description="ns since the Unix epoch at which it jumps")


class HostSettings(StrictModel):
    """Settings of a host with a clock page: this host, or one of the hosts of a testbed."""

    host: str = Field(pattern=r"^[^\s/>]{1,128}$", description="its name in the inventory")
    clock_file: Path = Field(description="its page")
    netns: Path | None = Field(
        default=None, description="network namespace of its NICs; none: that of the actuator"
    )
    test_clocks: dict[str, TestClockSettings] = Field(
        default_factory=dict, description="its test clocks, by NIC device"
    )
