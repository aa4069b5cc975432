"""Draws incidents: the fault of a job, its culprit and its strength."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from fabrictime.bench.workload.postmortem.job import Call, Group, Job, draw_job

SHARES: Final = {
    "none": 16,
    "hang_absent": 12,
    "hang_other_group": 6,
    "dead_oom": 4,
    "dead_gpu_memory": 3,
    "dead_segfault": 3,
    "dead_node": 4,
    "mismatch_kind": 3,
    "mismatch_size": 3,
    "mismatch_order": 3,
    "straggler_rank": 16,
    "straggler_host": 6,
    "slow_nic": 8,
    "slow_rail": 3,
    "sockets_host": 3,
    "sockets_all": 2,
    "no_gpudirect": 3,
    "fewer_nics": 2,
}
"""Percent of the incidents by kind."""
VERDICTS: Final = {
    "none": "HEALTHY",
    "hang": "HANG",
    "dead": "DEAD_RANK",
    "mismatch": "PROGRAM_MISMATCH",
    "straggler": "STRAGGLER",
    "slow": "SLOW_NIC",
    "sockets": "FALLBACK",
    "no": "FALLBACK",
    "fewer": "FALLBACK",
}
SOCKET_FACTOR: Final = 0.01
"""Rate of a NIC's share of TCP over the rate of RDMA."""


@dataclass(frozen=True, slots=True, eq=False)
class Incident:
    """One incident: `slow` is the compute time added by a straggler, `factor` the rate left to slow NICs."""

    kind: str
    job: Job
    ranks: tuple[int, ...] = ()
    """Ranks that are the culprit, or that use the culprit NICs."""
    slow: float = 0.0
    period: int = 1
    factor: float = 1.0
    stop_item: int | None = None
    """Place in the step's program of the call in which the job stops."""
    deviant: tuple[str, int] | None = None
    """Kind and elements of the culprit's call where the others make another one."""

    @property
    def cause(self) -> str:
        """The cause of the incident, which is the first part of its kind."""
        return self.kind.partition("_")[0]

    @property
    def verdict(self) -> str:
        """The true verdict."""
        return VERDICTS["none" if self.kind == "none" else self.cause]

    @property
    def stops(self) -> bool:
        """Whether the job stops."""
        return self.stop_item is not None

    @property
    def stop_group(self) -> Group | None:
        """The group in which the job stops first."""
        item = None if self.stop_item is None else self.job.step[self.stop_item]
        return item.group if isinstance(item, Call) else None


def kinds(rng: Random, count: int) -> list[str]:
    """Return `count` kinds in random order, in proportion to their shares."""
    weighted = [kind for kind, percent in SHARES.items() for _ in range(percent)]
    rng.shuffle(weighted)
    repeated = [kind for kind in weighted for _ in range(-(-count // len(weighted)))]
    return repeated[:: max(1, len(repeated) // count)][:count]


def draw_incident(rng: Random, kind: str) -> Incident:
    """Draw a job and its incident."""
    job = draw_job(rng)
    if kind.startswith(("hang", "dead", "mismatch")):
        return _stopped(rng, kind, job)
    host = rng.choice(job.hosts)
    rank = rng.choice(host.ranks)
    match kind:
        case "straggler_rank" | "straggler_host":
            period = rng.choice((1, 1, 1, 2, 3))
            slow = (
                rng.uniform(0.6, 3.0)
                if period > 1
                else rng.choice((rng.uniform(0.15, 0.5), rng.uniform(0.15, 3.0)))
            )
            return Incident(kind, job, (rank,) if kind == "straggler_rank" else host.ranks, slow, period)
        case "slow_nic":
            return Incident(kind, job, (rank,), factor=rng.uniform(0.25, 0.8))
        case "slow_rail":
            rail = tuple(other.ranks[job.local(rank)] for other in job.hosts)
            return Incident(kind, job, rail, factor=rng.uniform(0.25, 0.8))
        case "sockets_host" | "no_gpudirect":
            return Incident(kind, job, host.ranks, factor=SOCKET_FACTOR if kind == "sockets_host" else 0.5)
        case "sockets_all":
            return Incident(kind, job, job.world.ranks, factor=SOCKET_FACTOR)
        case "fewer_nics":
            partner = host.ranks[(job.local(rank) + 1) % len(host.ranks)]
            return Incident(kind, job, (rank, partner), factor=0.5)
    return Incident(kind, job)


def _stopped(rng: Random, kind: str, job: Job) -> Incident:
    """Draw the call in which the job stops, and the rank that stops it."""
    levels: dict[str, list[tuple[int, Call]]] = {}
    for number, item in enumerate(job.step):
        if isinstance(item, Call) and item.kind != "send" and len(item.ranks) > 1:
            levels.setdefault(item.group.description, []).append((number, item))
    level = job.datas[0].description if kind == "mismatch_order" else rng.choice(sorted(levels))
    number, call = rng.choice(levels[level])
    rank = rng.choice(call.ranks)
    ranks = job.host(rank).ranks if kind == "dead_node" else (rank,)
    deviant = _deviant(rng, kind, call) if kind.startswith("mismatch") else None
    return Incident(kind, job, ranks, stop_item=number, deviant=deviant)


def _deviant(rng: Random, kind: str, call: Call) -> tuple[str, int]:
    """Draw the kind and elements of a call that differs from those of the other ranks."""
    if kind == "mismatch_size":
        return call.kind, call.elements * rng.choice((2, 3)) // rng.choice((1, 4))
    if kind == "mismatch_kind":
        return "broadcast" if call.kind == "all_reduce" else "all_reduce", call.elements
    return "_reduce_scatter_base" if call.kind == "_all_gather_base" else "_all_gather_base", call.elements
