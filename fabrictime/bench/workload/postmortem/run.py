"""Simulates the last steps of a job with its incident, and keeps each rank's calls with their true times.

All times are seconds of true time; the writers add the offset of each host's clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

from fabrictime.bench.workload.postmortem.incident import Incident
from fabrictime.bench.workload.postmortem.job import ELEMENT_BYTES, Call, Compute, Job

STEPS: Final = 12
TIMEOUT_S: Final = 600
NVLINK_BYTES_PER_S: Final = 200e9
JITTER: Final = 0.015
"""Standard deviation of a compute part's time, relative."""
RANK_SPREAD: Final = 0.006
"""Standard deviation of the constant difference between GPUs, relative."""


@dataclass(slots=True)
class Operation:
    """One call of a group: `sequence` counts the group's collectives, `p2p_sequence` its transfers."""

    call: Call
    sequence: int
    p2p_sequence: int
    step: int
    arrivals: dict[int, float] = field(default_factory=dict)
    end_s: float | None = None


@dataclass(slots=True)
class Entry:
    """A rank's part in an operation: queued by the CPU, then begun by the GPU unless an entry blocks."""

    operation: Operation
    kind: str
    elements: int
    queued_s: float
    begin_s: float | None


@dataclass(slots=True)
class Run:
    """The steps of a job by rank. `stop_s` is the time at which the incident stopped it."""

    incident: Incident
    entries: dict[int, list[Entry]]
    computes: dict[int, list[tuple[int, float, float]]]
    """Step, begin and duration of each compute part."""
    step_begins: list[float] = field(default_factory=list)
    stop_s: float | None = None
    end_s: float = 0.0

    @property
    def job(self) -> Job:
        """The job that ran."""
        return self.incident.job

    @property
    def dead(self) -> tuple[int, ...]:
        """Ranks that died in the incident."""
        return self.incident.ranks if self.incident.cause == "dead" else ()

    def local_s(self, rank: int, time_s: float) -> float:
        """Return a true time as the clock of the rank's host shows it."""
        return time_s + self.job.host(rank).offset_s


def simulate(rng: Random, incident: Incident) -> Run:
    """Run the job's last steps."""
    return _Simulator(rng, incident).run()


class _Simulator:
    def __init__(self, rng: Random, incident: Incident) -> None:
        job = incident.job
        ranks = job.world.ranks
        self._rng = rng
        self._incident = incident
        self._run = Run(incident, {rank: [] for rank in ranks}, {rank: [] for rank in ranks})
        self._clocks = [job.began_s + 600 + rng.uniform(0, 0.01) for _ in ranks]
        self._speeds = [max(0.98, rng.gauss(1, RANK_SPREAD)) for _ in ranks]
        counts = Counter((item.group, item.kind == "send") for item in job.step if isinstance(item, Call))
        self._sequences = Counter({key: count * job.first_step for key, count in counts.items()})
        self._blocked: dict[int, int] = {}
        """Number of operations that each blocked rank queued since."""
        self._gone: set[int] = set()
        self._ahead = rng.choice((0, 0, 2, 4))
        self._pause = rng.randrange(2, STEPS - 1) if rng.random() < 0.3 else None
        self._pausing = (0,) if rng.random() < 0.5 else ranks

    def run(self) -> Run:
        job, result = self._incident.job, self._run
        for step in range(STEPS):
            result.step_begins.append(max(self._clocks))
            if step == self._pause:
                length_s = self._rng.uniform(3, 20)
                for rank in self._pausing:
                    self._clocks[rank] += length_s * self._rng.uniform(0.95, 1.05)
            for number, item in enumerate(job.step):
                if isinstance(item, Compute):
                    self._compute(step, item)
                else:
                    self._call(step, item, step == STEPS - 1 and number == self._incident.stop_item)
        result.end_s = max(self._clocks)
        return result

    def _compute(self, step: int, part: Compute) -> None:
        for rank in part.ranks:
            if rank in self._blocked or rank in self._gone:
                continue
            time_s = part.share * self._incident.job.compute_s * self._factor(step, rank)
            self._run.computes[rank].append((step, self._clocks[rank], time_s))
            self._clocks[rank] += time_s

    def _factor(self, step: int, rank: int) -> float:
        incident = self._incident
        factor = self._speeds[rank] * max(0.9, self._rng.gauss(1, JITTER))
        if self._rng.random() < 0.003:
            factor *= self._rng.uniform(1.2, 2)
        if incident.job.first_step == 0 and step == 0:
            factor *= self._rng.uniform(2, 4)
        if incident.cause == "straggler" and rank in incident.ranks and step % incident.period == 0:
            factor *= 1 + incident.slow
        return factor

    def _call(self, step: int, call: Call, stops: bool) -> None:
        send = call.kind == "send"
        self._sequences[call.group, send] += 1
        operation = Operation(
            call, self._sequences[call.group, False], self._sequences[call.group, True], step
        )
        if stops:
            self._stop(step)
        for rank in call.ranks:
            self._enter(operation, rank, stops)
        if len(operation.arrivals) < len(call.ranks) or (stops and self._incident.deviant):
            self._blocked.update(dict.fromkeys(operation.arrivals, 0))
            return
        operation.end_s = max(operation.arrivals.values()) + self._transfer_s(call)
        for rank in call.ranks:
            self._clocks[rank] = operation.end_s

    def _stop(self, step: int) -> None:
        """Remove the culprits from the program, unless they enter a different call of their own."""
        incident = self._incident
        self._run.stop_s = max(self._clocks[rank] for rank in incident.ranks)
        if incident.deviant is None:
            self._gone.update(incident.ranks)
        if incident.kind == "hang_other_group":
            rank = incident.ranks[0]
            group = incident.job.checkpoint
            call = Call(group, "all_reduce", 1, "Float", group.ranks)
            operation = Operation(
                call, 1 + incident.job.first_step // 100, 0, step, {rank: self._clocks[rank]}
            )
            at_s = self._clocks[rank]
            self._run.entries[rank].append(Entry(operation, call.kind, call.elements, at_s - 1e-4, at_s))

    def _enter(self, operation: Operation, rank: int, stops: bool) -> None:
        if rank in self._gone:
            return
        kind, elements = operation.call.kind, operation.call.elements
        if stops and self._incident.deviant and rank in self._incident.ranks:
            kind, elements = self._incident.deviant
        if kind == "send" and rank != operation.call.ranks[0]:
            kind = "recv"
        now_s = self._clocks[rank]
        begin_s = None if rank in self._blocked else now_s
        if begin_s is None:
            if self._blocked[rank] >= self._ahead:
                return
            self._blocked[rank] += 1
        else:
            operation.arrivals[rank] = now_s
        queued_s = max(self._run.step_begins[-1] - 0.001, now_s - self._rng.uniform(2e-4, 0.015))
        self._run.entries[rank].append(Entry(operation, kind, elements, queued_s, begin_s))

    def _transfer_s(self, call: Call) -> float:
        """Return the time of the transfer itself: ring algorithms, with all NICs of the group in parallel."""
        time_s = (
            call.elements
            * ELEMENT_BYTES[call.dtype]
            * bus_scale(call)
            / group_rate(self._incident, call.ranks)
        )
        noise = max(0.95, self._rng.gauss(1, 0.03)) * (1.3 if self._rng.random() < 0.01 else 1)
        return time_s * noise + self._rng.uniform(15e-6, 25e-6) * len(call.ranks)


def bus_scale(call: Call) -> float:
    """Return the bus bytes that a rank sends per byte of the call, as nccl-tests counts them."""
    size = len(call.ranks)
    return {"all_reduce": 2 * (size - 1) / size, "send": 1.0}.get(call.kind, (size - 1) / size)


def group_rate(incident: Incident, ranks: tuple[int, ...]) -> float:
    """Return the rate, bytes/s, of a collective of these ranks."""
    job = incident.job
    hosts = {job.host(rank).number for rank in ranks}
    if len(hosts) == 1:
        return NVLINK_BYTES_PER_S
    slowest = incident.factor if any(rank in incident.ranks for rank in ranks) else 1.0
    return job.nic_bytes_per_s * slowest * max(1, len(ranks) // len(hosts))
