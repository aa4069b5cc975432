"""The jobs of the simulated fleet: their members, their flows and phases in the kernel, and their faults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from producers.sim.fault_grammar import FaultSpec
from producers.sim.faults import Target
from producers.sim.job_conditions import JobConditions, conditions_of, moved_nics
from producers.sim.settings import JobSettings
from producers.sim.workload import Phase, SimFlow, job_ends, job_members, job_phases
from schemas.ids import host_of
from schemas.records import Decision, FlowAction, ReasonKind, TrueJob
from schemas.topics import COLLECTIVES, DECISIONS

if TYPE_CHECKING:
    from producers.sim.simulation import Simulation

_NOTHING_BPS: Final = 1.0
"""Demand of a connection whose program is gone."""
_LEASE_NS: Final = 10_000_000_000
"""Duration of a limit's lease. It is renewed after half of it."""
Times = NDArray[np.float64]


class JobState(TypedDict):
    """A job, the number of its completed iterations, and the duration of the last iteration."""

    job: str
    kind: str
    nics: int
    iterations: int
    time_ns: int | None
    """Duration of the last iteration, ns; None if none has ended."""


@dataclass(frozen=True, slots=True)
class EndedIteration:
    """An iteration that ended; times are ns since the start."""

    number: int
    begin_ns: float
    end_ns: float
    times: Times | None
    """[2, entries] begin and end of each of `SimJob.entries`; None if not traced."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The transfers in an iteration of a job, one row each, in the kernel's order."""

    sender: NDArray[np.int64]
    """Rank of the sender."""
    receiver: NDArray[np.int64]
    phase: NDArray[np.int64]
    bytes: NDArray[np.float64]
    concurrent: int
    """Maximum number of connections of one NIC that send at the same time."""


@dataclass(slots=True)
class SimJob:
    """The present state of a job. `number` is its number in the kernel."""

    settings: JobSettings
    home: list[int]
    """The NIC assigned to each rank; `nics` holds those that the ranks use now."""
    nics: list[int]
    members: list[list[int]]
    """Ranks in groups; the ranks of a group reduce together."""
    number: int = -1
    earlier: int = 0
    """Number of iterations before the job's last start."""
    connections: int = 1
    flows: list[SimFlow] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """Ranks of sender and receiver of each flow."""
    entries: Entries = field(default_factory=lambda: entries_of([([(0, 0)], 1.0)], 1, 1))
    conditions: JobConditions = field(default_factory=JobConditions)
    done: int = 0
    last_ns: int | None = None
    """Duration of the last iteration, ns; None if none has ended."""
    ended_ns: float = 0.0
    """End of the last iteration, ns since the start."""
    ended: list[EndedIteration] = field(default_factory=list)
    """Iterations that ended in the last tick."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.settings.name


class SimJobs:
    """All jobs of one simulation, and their flows in the kernel."""

    def __init__(self, sim: Simulation, rng: np.random.Generator) -> None:
        self._sim, self._rng = sim, rng
        self.jobs: list[SimJob] = []
        self._of_number: dict[int, SimJob] = {}
        self._taken: set[int] = set()
        """NICs used by jobs."""
        self._decisions = 0
        self._traced = COLLECTIVES.name in sim.topic_names
        for settings in sim.settings.jobs:
            self._add(settings)

    def nics(self) -> dict[str, Sequence[int]]:
        """Return the NICs of each job by rank, by the job's name."""
        return {job.name: job.home for job in self.jobs}

    def state(self) -> list[JobState]:
        """Return the completed iterations and last duration of each job."""
        return [
            {
                "job": job.name,
                "kind": job.settings.kind,
                "nics": job.settings.nics,
                "iterations": job.done,
                "time_ns": job.last_ns,
            }
            for job in self.jobs
        ]

    def collect(self) -> list[TrueJob]:
        """Read the iterations that ended in the last tick from the kernel; return their true times."""
        for job in self.jobs:
            job.ended.clear()
        true_jobs: list[TrueJob] = []
        for number, iteration, began, end, times in self._sim.kernel.iterations():
            job = self._of_number[number]
            if job.number != number:
                continue  # ended by a new start
            at = job.earlier + iteration
            job.done, job.last_ns, job.ended_ns = at + 1, round(end - began), end
            job.ended.append(EndedIteration(at, began, end, times))
            true_jobs.append(
                {
                    "job": job.name,
                    "iteration": at,
                    "end_ns": self._sim.start_ns + round(end),
                    "time_ns": round(end - began),
                }
            )
        return true_jobs

    # --- start ---

    def _add(self, settings: JobSettings) -> None:
        fleet = self._sim.fleet
        groups = job_members(settings, fleet, self._rng, self._taken)
        self._taken.update(nic for group in groups for nic in group)
        # ranks count through the NICs of a host, then through the hosts, as launchers number them
        rank = np.arange(sum(map(len, groups))).reshape(-1, len(groups)).T
        home = [0] * rank.size
        for group, ranks in zip(groups, rank.tolist(), strict=True):
            for nic, at in zip(group, ranks, strict=True):
                home[at] = nic
        job = SimJob(settings, home, list(home), rank.tolist())
        self.jobs.append(job)
        self._start(job, settings.connections, 0.0)

    def _start(self, job: SimJob, connections: int, begin_ns: float) -> None:
        """Open the job's flows and pass its phases to the kernel."""
        sim, settings = self._sim, job.settings
        of = job.nics
        ranks = job_phases(settings, job.members, float(sim.fleet.rate_bps[0]), sim.step_ns)
        opened: dict[tuple[int, int], list[SimFlow]] = {}
        for a, b in dict.fromkeys(pair for pairs, _ in ranks for pair in pairs):
            opened[a, b] = [
                sim.book.open(
                    of[a],
                    of[b],
                    int(self._rng.integers(49_152, 65_536)),
                    job=job.name,
                    tenant=settings.tenant,
                    endless=False,
                    living=sim.living(),
                )
                for _ in range(connections)
            ]
        job.connections = connections
        job.flows = [flow for flows in opened.values() for flow in flows]
        job.pairs = [pair for pair, flows in opened.items() for _ in flows]
        same = settings.model_copy(update={"connections": connections})
        job.number = sim.kernel.add_job(
            [
                ([f.number for pair in pairs for f in opened[pair]], size / connections)
                for pairs, size in ranks
            ],
            job.conditions.gap_ns(settings.compute_ms * 1e6),
            begin_ns,
            ends=job_ends(same, job.members, ranks) if settings.kind == "rail-alltoall" else None,
        )
        self._of_number[job.number] = job
        job.entries = entries_of(ranks, connections, len(of))
        if self._traced:
            sim.kernel.trace_job(job.number)

    # --- faults ---

    def apply(self, faults: Iterable[tuple[FaultSpec, Target]]) -> None:
        """Apply the faults in force that affect jobs; ignore all other faults."""
        in_force = [(spec, target) for spec, target in faults if target.job]
        for job in self.jobs:
            conditions = conditions_of(job.name, in_force)
            if conditions != job.conditions:
                self._apply(job, conditions)

    def _apply(self, job: SimJob, conditions: JobConditions) -> None:
        sim, before = self._sim, job.conditions
        job.conditions = conditions
        connections = 1 if conditions.single else job.settings.connections
        nics = moved_nics(job.home, conditions.moved, sim.fleet.shape.nics_per_host)
        if connections != job.connections or nics != job.nics:
            sim.kernel.stop_job(job.number)
            for flow in job.flows:
                sim.book.close(flow)
                sim.note_flow(flow)
            job.nics, job.earlier = nics, job.done
            self._start(job, connections, sim.kernel.now_ns)
            for flow in job.flows:
                sim.note_flow(flow)
        sim.kernel.set_job_gap(job.number, conditions.gap_ns(job.settings.compute_ms * 1e6))
        for flow, (sender, receiver) in zip(job.flows, job.pairs, strict=True):
            line_bps = float(sim.fleet.rate_bps[2 * flow.source])
            sim.kernel.set_flow_line(flow.number, conditions.line_bps(line_bps))
            share = conditions.pcie_share.get(sender)
            demand_bps = None if share is None else share * line_bps / job.entries.concurrent
            if sender in conditions.killed or receiver in conditions.killed:
                demand_bps = _NOTHING_BPS
            flow.demand_bps = demand_bps
            sim.kernel.set_flow_limits(flow.number, demand_bps, flow.limit_bps)
        if conditions.paced_share != before.paced_share:
            self._pace(job)

    def _pace(self, job: SimJob) -> None:
        """Limit the rate of a job's flows like the action PACE, with a decision per flow that is renewed."""
        sim, share = self._sim, job.conditions.paced_share
        for flow in job.flows:
            line_bps = float(sim.fleet.rate_bps[2 * flow.source])
            rate_bps = None if share is None else share * line_bps / job.entries.concurrent
            if flow.limit_bps != rate_bps:
                sim.set_flow_rate(flow.flow_id, rate_bps)
            self._publish_decision(flow, rate_bps)
        if share is not None:
            sim.at(_LEASE_NS / 2e9, partial(self._renew, job, share))

    def _renew(self, job: SimJob, share: float) -> None:
        if job.conditions.paced_share == share:
            self._pace(job)

    def _publish_decision(self, flow: SimFlow, rate_bps: float | None) -> None:
        sim = self._sim
        if DECISIONS.name not in sim.topic_names:
            return
        host = host_of(sim.fleet.nic_ids[flow.source])
        at_ns = sim.system_ns()
        self._decisions += 1
        record: Decision = {
            "decision_id": f"{sim.settings.shard}/1/{self._decisions}",
            "shard": sim.settings.shard,
            "epoch": 1,
            "seq": self._decisions,
            "at_ns": at_ns,
            "host": host,
            "action": FlowAction.UNPACE if rate_bps is None else FlowAction.PACE,
            "flow_id": flow.flow_id,
            "from_path": flow.port,
            "to_path": None,
            "rate_bps": None if rate_bps is None else round(rate_bps),
            "expires_at_ns": at_ns + _LEASE_NS,
            "reason": _REASON,
            "config_version": 0,
            "signature": b"",
            "text": "paced by a planted decision",
        }
        sim.publish(DECISIONS, host, at_ns, record)


_REASON: Final[Any] = {"kind": ReasonKind.INCAST, "subject": "", "seq": None, "window_id": None}


def entries_of(phases: Sequence[Phase], connections: int, ranks: int) -> Entries:
    """Return one row for each transfer of these phases, with the ranks of sender and receiver."""
    counts = [len(pairs) * connections for pairs, _ in phases]
    pairs = np.array([pair for pairs, _ in phases for pair in pairs for _ in range(connections)], np.int64)
    size = np.repeat([size / connections for _, size in phases], counts)
    first = phases[0][0]
    max_flows = int(np.bincount([a for a, _ in first], minlength=ranks).max())
    return Entries(
        pairs[:, 0], pairs[:, 1], np.repeat(np.arange(len(phases)), counts), size, max_flows * connections
    )
