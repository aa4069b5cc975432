"""Settings of the simulated fleet: its size, probes, jobs, background traffic and faults."""

from __future__ import annotations

import re
from typing import Final, Literal

from pydantic import Field, field_validator, model_validator

from producers.sim.fault_grammar import parse_fault
from schemas.kafka.settings import KAFKA, KafkaSettings
from schemas.strict_model import StrictModel, quantity

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


MAX_ALLTOALL_NICS: Final = 64
"""Maximum number of NICs of an all-to-all, or of one rail of an all-to-all within rails. It has a flow
between every two NICs, and each flow is reported every second."""


class JobSettings(StrictModel):
    """A simulated job: its NICs, and the data that it moves in each iteration."""

    name: str = Field(pattern=_NAME, description="its name in flow reports")
    kind: Literal["allreduce", "alltoall", "rail-alltoall", "exchange"] = Field(
        default="allreduce",
        description="allreduce: one ring per rail; alltoall: every NIC to every other, in rounds; "
        "rail-alltoall: to every other NIC of its rail, in steps that a NIC begins after "
        "completing the last; exchange: as messages, to the next NIC of its rail",
    )
    nics: int = quantity(16, (2, 16_384), "NICs that it runs on")
    placed: Literal["scattered", "packed", "apart"] = Field(
        default="scattered",
        description="scattered: random hosts of the fleet; packed: neighbouring hosts; apart: scattered, "
        "but not on the hosts of earlier jobs",
    )
    bytes: float = Field(
        default=100e6,
        gt=0,
        le=1e13,
        description="bytes that a NIC reduces, or sends to all others, per iteration",
    )
    compute_ms: float = quantity(5, (0, 3_600_000), "ms between two iterations, without traffic")
    tenant: str | None = Field(default=None, pattern=_NAME, description="its tenant")
    connections: int = quantity(1, (1, 16), "flows between two NICs, each with an equal share of the data")


class SimSettings(StrictModel):
    """The simulated fleet: `fabrictime up --fleet sim:N` runs N NICs of it."""

    kafka: KafkaSettings = KAFKA
    nics: int = quantity(64, (2, 65_536), "NICs of the fleet; `--fleet sim:1024` sets it")
    rate_bps: int = quantity(
        400_000_000_000, (1_000_000, 10**13), "bit/s of every link between a NIC and its leaf"
    )
    fabric_rate_bps: int | None = quantity(
        None, (1_000_000, 10**13), "bit/s of links between switches; none: as the NICs'"
    )
    oversubscription: float = quantity(1.0, (0.1, 64), "ratio of a leaf's rate down to its rate up")
    seed: int = quantity(1, (0, 2**32 - 1), "seed of all random numbers")
    shard: str = Field(
        default="sim", pattern=r"^[^\s/]{1,64}$", description="the shard that solves for the fleet"
    )
    peers: int = quantity(10, (1, 256), "random peers that a NIC probes")
    peers_seed: int = quantity(0, (0, 2**63 - 1), "seed of the choice of peers, the same for the whole fleet")
    paths: int = quantity(4, (1, 64), "paths probed to each peer, one source port each")
    first_path_port: int = quantity(9320, (0, 65472), "source port of path 0; 0: 9320")
    rate_pps: float = quantity(200, (0, 100_000), "requests per second of a NIC, all peers together")
    spacing_ns: int = quantity(
        20_000, (0, 10_000_000), "ns between the two probes of a coded pair; 0: single probes"
    )
    timeout_ms: float = quantity(100, (1, 300), "ms after which a request without a reply is lost")
    flush_ms: int | None = Field(
        default=None,
        ge=10,
        le=10_000,
        multiple_of=10,
        description="ms between two batches of a NIC; not set: by the number of NICs, as for real probers",
    )
    retrace_s: float = quantity(1.0, (0.01, 3600), "s after which agents have traced a path that moved")
    candidate_ports: int = quantity(
        32,
        (0, 1024),
        "source ports whose routes are published for each pair of NICs with flows, as by real reporters",
    )
    route_pairs: int = quantity(
        1024, (0, 1_000_000), "maximum pairs whose routes are published; those with flows come first"
    )
    announce_s: float = quantity(30, (0.1, 30), "s between two announcements of a NIC")
    load: float = quantity(0.2, (0, 1), "share of its line rate that every NIC sends in addition to the jobs")
    flows_per_nic: int = quantity(2, (1, 64), "flows that make up this traffic")
    flow_s: float = Field(
        default=30, gt=0, le=86_400, description="mean s until such a flow ends and another begins"
    )
    flowlet_us: float = quantity(
        0,
        (0, 1e6),
        "us without data after which switches send a flow over any route; 0: it keeps its route (ECMP)",
    )
    jobs: tuple[JobSettings, ...] = Field(default=(), description="jobs; one table [[sim.jobs]] each")
    faults: tuple[str, ...] = Field(
        default=(),
        description='faults, as in "grey 20% leaf1>spine2 after 5s for 10s"; at run time: `fabrictime sim '
        "fault`",
    )
    step_us: int | None = quantity(
        None, (10, 10_000), "us per simulation step of flows and queues; none: 100, and 200 above 256 NICs"
    )
    lossless: bool = Field(
        default=True,
        description="true: bytes beyond a buffer wait at their sender, as with priority flow control; "
        "false: they are lost and sent again",
    )
    packet_bytes: int = quantity(4170, (64, 16_384), "bytes of a flow's packet on the wire")
    probe_bytes: int = quantity(128, (64, 4096), "bytes of a probe on the wire")
    clock_offset_max_ns: int = quantity(
        5_000_000, (0, 10**15), "maximum ns between each NIC's clock and the truth at the start"
    )
    clock_drift_max_ppb: float = quantity(15_000, (0, 1e6), "maximum drift of each NIC's clock in ppb")
    clock_wander_ppb_per_sqrt_s: float = quantity(
        1.0, (0, 1e5), "ppb per square root of a second of the random walk of its rate"
    )
    clock_epoch_ns: int = quantity(
        0, (0, 2**62), "ns since the Unix epoch from which drift counts; 0: the start"
    )
    stamp_noise_ns: float = quantity(4, (0, 1e6), "rms noise of a timestamp in ns")
    stamp_step_ns: int = quantity(8, (1, 10**6), "resolution of clocks in ns")

    @field_validator("faults")
    @classmethod
    def _right_faults(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        for line in lines:
            parse_fault(line)
        return lines

    @model_validator(mode="after")
    def _fits(self) -> SimSettings:
        names = [job.name for job in self.jobs]
        for job in self.jobs:
            if job.nics > self.nics:
                raise ValueError(f"job {job.name}: {job.nics} NICs, expected at most the fleet's {self.nics}")
            maximum = MAX_ALLTOALL_NICS * (8 if job.kind == "rail-alltoall" else 1)
            if job.kind.endswith("alltoall") and job.nics > maximum:
                raise ValueError(
                    f"job {job.name}: {job.nics} NICs, expected at most {maximum} for {job.kind}"
                )
            if names.count(job.name) > 1:
                raise ValueError(f"job {job.name}: expected one of that name")
        if 10_000_000 % self.step_ns:
            raise ValueError(f"step_us {self.step_us}: expected a divisor of 10000")
        return self

    @property
    def step_ns(self) -> int:
        """Length of a simulation step, ns."""
        return (self.step_us or (100 if self.nics <= 256 else 200)) * 1000


def _parse_job(text: str, number: int) -> dict[str, object]:
    """Return a job's settings from `KIND:NICS[:NAME]`; `number` is its number. Raises ValueError."""
    tokens = text.split(":")
    if len(tokens) not in (2, 3) or not tokens[1].isdecimal():
        raise ValueError(f"fleet sim: job={text}: expected KIND:NICS or KIND:NICS:NAME")
    name = tokens[2] if len(tokens) == 3 else f"{tokens[0]}-{number}"
    return {"kind": tokens[0], "nics": int(tokens[1]), "name": name}


def parse_fleet(text: str) -> dict[str, object]:
    """Return the settings in the text after `sim:`, such as `1024,job=allreduce:256:train,load=0.3`.

    `job=KIND:NICS[:NAME]` and `fault=LINE` may recur; other keys are settings. Raises ValueError.
    """
    count, *parts = text.split(",")
    if not re.fullmatch(r"[1-9]\d{0,5}", count.strip()):
        raise ValueError(f"fleet sim:{text}: expected a number of NICs first, as in sim:1024")
    values: dict[str, object] = {"nics": int(count)}
    jobs: list[dict[str, object]] = []
    faults: list[str] = []
    plain = set(SimSettings.model_fields) - {
        "nics",
        "jobs",
        "faults",
        "kafka",
        "clock_epoch_ns",
    }
    for part in parts:
        key, mark, value = (token.strip() for token in part.partition("="))
        if key == "job" and mark:
            jobs.append(_parse_job(value, len(jobs) + 1))
        elif key == "fault" and mark:
            faults.append(value)
        elif key in plain and mark:
            values[key] = value
        else:
            names = ", ".join(sorted(plain))
            raise ValueError(f"fleet sim: {part!r}: expected job=, fault= or one of {names}, with =")
    if jobs:
        values["jobs"] = jobs
    if faults:
        values["faults"] = faults
    return values
