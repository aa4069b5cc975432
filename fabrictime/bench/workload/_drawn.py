"""Draws incidents of simulated jobs: the fault, its effect, and the verdicts that are right about it.

Nothing here is shared with the diagnosis. The truth comes from the fault and from the simulation's own times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from producers.sim.jobs import SimJob
from producers.sim.settings import SimSettings
from producers.sim.shape import Shape
from producers.sim.simulation import Simulation
from producers.sim.topology import Fleet, LinkKind
from producers.sim.workload import FLOW_PORT, SimFlow
from schemas.ids import cable_id, host_of
from schemas.records import Verdict
from schemas.topics import Topic

JOB, OTHER = "train", "serve"
HARMLESS: Final = 0.05
"""An iteration may take longer by this share without any verdict being due."""
Rng = np.random.Generator


@dataclass(slots=True)
class Incident:
    """An incident to plant: its faults, in `lines`, and the verdicts that are right about it."""

    kind: str
    seed: int
    verdicts: frozenset[Verdict]
    """The verdicts that count as right."""
    lines: list[str]
    subjects: frozenset[str] = frozenset()
    """Subjects of which the verdict must name at least one; if empty, it need not name any."""
    ranks: frozenset[int] = frozenset()
    jobs: frozenset[str] = frozenset()
    """Jobs that the verdict must all name."""
    is_network: bool | None = False
    """Whether the network is the cause; None if the network may be blamed or not."""
    is_decoy: bool = False
    """Whether the job is healthy, so that the faults are only decoys."""
    decoys: list[str] = field(default_factory=list)
    """Additional faults that explain nothing."""
    prepare: Callable[[Simulation], None] | None = None
    """Called when the incident begins, before its faults."""


def simulation(kind: str, seed: int, topics: Sequence[Topic[Any]], *, ranks: int = 16) -> Simulation:
    """Return a simulation with rails and two jobs, drawn from the seed; leaves have more uplinks than they
    need."""
    rng = np.random.default_rng([seed, 1])
    work = str(rng.choice(["allreduce", "rail-alltoall"]))
    work = "exchange" if kind.endswith(MESSAGES) else work
    spread = kind == "few-queue-pairs"
    ranks = max(ranks, 32) if spread else ranks
    hosts = ranks // 2
    shape = Shape(
        hosts=hosts,
        hosts_per_rack=hosts // 4,
        spines=max(4, hosts // 4),
        nics_per_host=4,
        rails=4,
        host_rate_bps=RATE_BPS,
        fabric_rate_bps=RATE_BPS,
    )
    starts = kind == "contention"
    jobs = [
        {
            "name": JOB,
            "kind": "rail-alltoall" if spread else work,
            "nics": ranks,
            "bytes": RATE_BPS / 8 * float(rng.uniform(0.003, 0.006)),
            "compute_ms": float(rng.uniform(6, 20)) / (4 if spread else 1),
            "connections": 4 if spread else 1,
            "placed": "packed" if spread else "scattered",
        },
        {
            "name": OTHER,
            "kind": "allreduce",
            "nics": ranks // 2,
            "bytes": RATE_BPS / 8 * (0.05 if starts else 0.001),
            "compute_ms": 1 if starts else float(rng.uniform(20, 40)),
            "placed": "apart",
        },
    ]
    settings = SimSettings.model_validate(
        {
            "nics": 4 * hosts,
            "seed": seed % 2**32,
            "rate_bps": RATE_BPS,
            "load": 0.0,
            "rate_pps": PROBES_PPS,
            "flush_ms": FLUSH_MS,
            "clock_wander_ppb_per_sqrt_s": 0,
            "jobs": jobs,
        }
    )
    sim = Simulation(settings, topics=topics, fleet=Fleet(shape, seed % 2**32))
    _spread(sim, rng)
    if starts:
        sim.fault(f"hang {OTHER}:0")
    return sim


MESSAGES: Final = "-messages"
"""End of the kinds of incidents of jobs whose ranks exchange messages only."""
RATE_BPS: Final = 100_000_000_000
PROBES_PPS: Final = 200.0
"""Probes per second of each NIC: the default, since fewer probes miss the queue of two flows on one link."""
FLUSH_MS: Final = 100
PORTS_TRIED: Final = 40
"""Number of source ports from which a flow's route is chosen."""


def _spread(sim: Simulation, rng: Rng) -> None:
    """Choose routes on which no two flows meet at the same time, if possible, so that the job is healthy.

    Flows of different phases of an operation do not send at the same time. The connections of one NIC share
    its port evenly, by the NIC's scheduler.
    """
    load = np.zeros((1, sim.fleet.links))
    for job in sim.jobs.jobs:
        load = np.tile(load.max(axis=0), (int(job.entries.phase.max()) + 1, 1))
        for flow, pair in zip(job.flows, job.pairs, strict=True):
            entries = job.entries
            phases = np.unique(entries.phase[(entries.sender == pair[0]) & (entries.receiver == pair[1])])
            ports = rng.integers(49_152, 65_536, PORTS_TRIED).tolist()
            source, destination = [flow.source] * PORTS_TRIED, [flow.destination] * PORTS_TRIED
            paths = sim.fleet.paths(source, destination, ports, FLOW_PORT)
            routes = [paths.of(at) for at in range(PORTS_TRIED)]
            loads = [load[np.ix_(phases, route)] for route in routes]
            best = min(range(len(ports)), key=lambda at: (loads[at].max(), loads[at].sum()))
            sim.set_flow_path(flow.flow_id, ports[best])
            load[np.ix_(phases, routes[best])] += 1 / job.connections
            if job.connections > 1:
                line_bps = float(sim.fleet.rate_bps[0]) / job.connections
                sim.kernel.set_flow_line(flow.number, line_bps)


# ------------------------------------------------------------------------------------------- incidents


def _job(sim: Simulation, name: str = JOB) -> SimJob:
    return next(job for job in sim.jobs.jobs if job.name == name)


def _crossed(sim: Simulation, rng: Rng) -> tuple[SimFlow, int]:
    """Return a flow of the job and a link between leaf and spine on its route."""
    far = [flow for flow in _job(sim).flows if len(flow.links) >= 4]
    flow = far[int(rng.integers(len(far)))]
    return flow, int(flow.links[int(rng.integers(1, 3))])


def _names(sim: Simulation, link: int) -> frozenset[str]:
    name = sim.fleet.link_ids[link]
    return frozenset({name, cable_id(name)})


def _nic_names(sim: Simulation, nic: int) -> frozenset[str]:
    name = sim.fleet.nic_ids[nic]
    links = [sim.fleet.link_ids[link] for link in (2 * nic, 2 * nic + 1)]
    return frozenset({name, host_of(name), *links, cable_id(links[0])})


def _link(verdict: Verdict, text: str) -> Callable[[Simulation, Rng, int], Incident]:
    """Return a function that draws a fault of a link that the job crosses; `text` contains {share} and
    {link}."""

    def drawn(sim: Simulation, rng: Rng, seed: int) -> Incident:
        _, link = _crossed(sim, rng)
        line = text.format(share=round(float(rng.uniform(3, 25)), 1), link=sim.fleet.link_ids[link])
        return Incident("", seed, frozenset({verdict}), [line], _names(sim, link), is_network=True)

    return drawn


def _nic(verdict: Verdict, text: str, is_network: bool | None) -> Callable[[Simulation, Rng, int], Incident]:
    """Return a function that draws a fault of a NIC of the job; `text` contains {share} and {nic}."""

    def drawn(sim: Simulation, rng: Rng, seed: int) -> Incident:
        nic = _job(sim).nics[int(rng.integers(len(_job(sim).nics)))]
        line = text.format(
            share=round(float(rng.uniform(5, 25)), 1),
            nic=sim.fleet.nic_ids[nic],
            count=int(rng.integers(4, 9)),
        )
        return Incident("", seed, frozenset({verdict}), [line], _nic_names(sim, nic), is_network=is_network)

    return drawn


def _rank(verdict: Verdict, text: str) -> Callable[[Simulation, Rng, int], Incident]:
    """Return a function that draws a fault of a rank; `text` contains {ms}, {share} and {rank}."""

    def drawn(sim: Simulation, rng: Rng, seed: int) -> Incident:
        job = _job(sim)
        rank = int(rng.integers(len(job.nics)))
        line = text.format(
            ms=round(float(rng.uniform(5, 40)), 1),
            share=round(float(rng.uniform(5, 35)), 1),
            rank=f"{JOB}:{rank}",
        )
        return Incident("", seed, frozenset({verdict}), [line], ranks=frozenset({rank}))

    return drawn


def _whole(
    verdict: Verdict, text: str, is_network: bool | None = False
) -> Callable[[Simulation, Rng, int], Incident]:
    """Return a function that draws a fault of the whole job; `text` contains {share} and {us}."""

    def drawn(sim: Simulation, rng: Rng, seed: int) -> Incident:
        line = text.format(
            share=round(float(rng.uniform(8, 35)), 1), us=round(float(rng.uniform(250, 600))), job=JOB
        )
        return Incident("", seed, frozenset({verdict}), [line], is_network=is_network)

    return drawn


def _collide(sim: Simulation, rng: Rng, flows: Sequence[SimFlow], link: int) -> None:
    """Move those flows that can cross a link onto routes over this link."""
    for flow in flows:
        for port in rng.integers(49_152, 65_536, 60).tolist():
            if link in sim.fleet.paths(flow.source, flow.destination, port, FLOW_PORT).of(0):
                sim.set_flow_path(flow.flow_id, port)
                break


def _contention(sim: Simulation, rng: Rng, seed: int) -> Incident:
    """Start the second job, so that one of its flows shares a fabric link with one of the first job's."""
    ends = [
        (flow, place, int(sim.fleet.nic_leaf[(flow.source, flow.destination)[place - 1]]))
        for flow in _job(sim, OTHER).flows
        if len(flow.links) >= 4
        for place in (1, 2)
    ]
    candidates = [
        (flow, other, place)
        for other, place, leaf in ends
        for flow in _job(sim).flows
        if len(flow.links) >= 4
        and int(sim.fleet.nic_leaf[(flow.source, flow.destination)[place - 1]]) == leaf
    ]
    if not candidates:
        raise LookupError(f"seed {seed}: the jobs share no leaf")
    flow, other, place = candidates[int(rng.integers(len(candidates)))]
    link = int(flow.links[place])

    verdicts = frozenset({Verdict.CONTENTION})
    incident = Incident("", seed, verdicts, [], jobs=frozenset({OTHER}), is_network=True)

    def prepare(run: Simulation) -> None:
        _collide(run, rng, [other], link)
        run.clear(f"hang {OTHER}:0")
        shared = _crossed_by(run, JOB) & _crossed_by(run, OTHER)
        incident.subjects = frozenset[str]().union(*(_names(run, link) for link in shared))

    incident.prepare = prepare
    return incident


def _crossed_by(sim: Simulation, job: str) -> set[int]:
    """Return the links between switches that a job's flows cross."""
    return {int(link) for flow in _job(sim, job).flows for link in flow.links[1:-1]}


def _healthy(text: str) -> Callable[[Simulation, Rng, int], Incident]:
    """Return a function that draws a fault which does not harm the job."""

    def drawn(sim: Simulation, rng: Rng, seed: int) -> Incident:
        lines = [] if not text else [FAULTS_ELSEWHERE[text](sim, rng)]
        return Incident("", seed, frozenset({Verdict.HEALTHY}), lines, is_decoy=True)

    return drawn


def _unreported(sim: Simulation, rng: Rng) -> str:
    return f"unreported {JOB}:{int(rng.integers(len(_job(sim).nics)))}"


def _unsynced(sim: Simulation, rng: Rng) -> str:
    return f"unsynced {JOB}:{int(rng.integers(len(_job(sim).nics)))}"


def _fault_elsewhere(sim: Simulation, rng: Rng) -> str:
    """Return the line of a fault of a link between leaf and spine that no flow of the job crosses."""
    used = {int(link) ^ side for flow in _job(sim).flows for link in flow.links for side in (0, 1)}
    kinds = (LinkKind.LEAF_UP, LinkKind.SPINE_DOWN)
    free = [link for link in range(sim.fleet.links) if link not in used and sim.fleet.kind[link] in kinds]
    link = sim.fleet.link_ids[free[int(rng.integers(len(free)))]]
    return str(rng.choice([f"blackhole {link}", f"grey 15% {link}"]))


def _queue_elsewhere(sim: Simulation, rng: Rng) -> str:
    """Return the line of a slow receiver outside the job, whose queue no flow of the job meets."""
    nics = _job(sim, OTHER).nics
    return f"slow-receiver 15% {sim.fleet.nic_ids[nics[int(rng.integers(len(nics)))]]}"


FAULTS_ELSEWHERE: Final[dict[str, Callable[[Simulation, Rng], str]]] = {
    "unreported": _unreported,
    "unsynced": _unsynced,
    "fault-elsewhere": _fault_elsewhere,
    "queue-elsewhere": _queue_elsewhere,
}
"""Functions that draw faults which explain nothing about the job, by name."""

KINDS: Final[dict[str, Callable[[Simulation, Rng, int], Incident]]] = {
    "down": _link(Verdict.DEAD_LINK, "down {link}"),
    "blackhole": _link(Verdict.DEAD_LINK, "blackhole {link}"),
    "grey": _link(Verdict.GREY_LINK, "grey {share}% {link}"),
    "flap": _link(Verdict.FLAPPING_LINK, "flap 40 {link} every 1s"),
    "dead-nic": _nic(Verdict.DEAD_LINK, "blackhole {nic}", True),
    "contention": _contention,
    "incast": _nic(Verdict.CONTENTION, "incast {count} {nic}", True),
    "slow-receiver": _nic(Verdict.SLOW_RECEIVER, "slow-receiver {share}% {nic}", False),
    "slow-sender": _nic(Verdict.SLOW_SENDER, "slow-sender {share}% {nic}", False),
    "pause-storm": _nic(Verdict.PAUSE_STORM, "pause-storm {nic}", None),
    "straggler": _rank(Verdict.STRAGGLER, "straggler {ms}ms {rank}"),
    "launch-skew": _rank(Verdict.LAUNCH_SKEW, "launch-skew {ms}ms {rank}"),
    "slow-pcie": _rank(Verdict.PCIE_LIMIT, "slow-pcie {share}% {rank}"),
    "hang": _rank(Verdict.HANG, "hang {rank}"),
    "killed": _rank(Verdict.DEAD_RANK, "killed {rank}"),
    "mismatch": _rank(Verdict.PROGRAM_MISMATCH, "mismatch {rank}"),
    "wrong-rail": _rank(Verdict.RAIL_MISMATCH, "wrong-rail {rank}"),
    "few-queue-pairs": _whole(Verdict.FEW_QUEUE_PAIRS, "few-queue-pairs {job}", None),
    "wrong-class": _whole(Verdict.DELAY_MISMATCH, "wrong-class {us}us {job}"),
    "paced": _whole(Verdict.OWN_PACING, "paced {share}% {job}"),
    "healthy": _healthy(""),
    "unreported": _healthy("unreported"),
    "unsynced": _healthy("unsynced"),
    "fault-elsewhere": _healthy("fault-elsewhere"),
    "queue-elsewhere": _healthy("queue-elsewhere"),
    f"straggler{MESSAGES}": _rank(Verdict.STRAGGLER, "straggler {ms}ms {rank}"),
    f"healthy{MESSAGES}": _healthy(""),
}
"""Functions that draw incidents, by the kind of incident."""

REROUTED: Final = ("wrong-rail", "few-queue-pairs")
"""Kinds of incidents that give the job's flows other routes, which may cross any link."""
DECOY_SHARE: Final = 0.2
"""Share of the incidents that have an additional fault that explains nothing."""


def draw(kind: str, sim: Simulation, seed: int) -> Incident:
    """Draw an incident of a kind for a running simulation.

    Raises ValueError for an unknown kind, LookupError if the fleet has no place for it.
    """
    if kind not in KINDS:
        raise ValueError(f"incident {kind!r}: expected one of {', '.join(KINDS)}")
    rng = np.random.default_rng([seed, 2])
    incident = KINDS[kind](sim, rng, seed)
    incident.kind = kind
    if not incident.is_decoy and rng.random() < DECOY_SHARE:
        names = ["unsynced", "queue-elsewhere", *([] if kind in REROUTED else ["fault-elsewhere"])]
        name = str(rng.choice(names))
        line = FAULTS_ELSEWHERE[name](sim, rng)
        if not any(line == f"unsynced {JOB}:{rank}" for rank in incident.ranks):
            incident.decoys.append(line)
    return incident
