"""Measures two concurrent all-to-alls on a non-blocking fabric: ECMP against steering, seed by seed.

Each job has every other host, half of them on either leaf, as GPUs are assigned to jobs. The jobs meet in the
fabric only, and the optimum is the capacity of all NICs. One figure is goodput with decisions carried out
over goodput in OBSERVE, another the same goodput over the optimum (`testbed/jobs/optimum.py`). Others are the
share that optimal source ports reach, flows that returned to links that they had left, and the time until
`fabrictime pause` has stopped all action. Each seed draws new source ports. To run only this part:
`fabrictime bench control alltoall [--quick]`.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench.control.failover import watched_fabric
from fabrictime.bench.control.live_fabric import JobRun
from fabrictime.bench.control.watch import Watch
from fabrictime.commands.config import pause
from fabrictime.commands.config.live_config import LiveRecords
from fabrictime.testbed.control import ControlClient
from fabrictime.testbed.jobs.optimum import choose_ports, shape_of
from fabrictime.testbed.jobs.plan import make_job_plan
from schemas.records import ReasonKind

RATE_BPS: Final = 20_000_000
SIZE_BYTES: Final = 500_000
CONNECTIONS: Final = 4
JOBS: Final = 2
SEEDS, QUICK_SEEDS = 10, 1
BEFORE_S: Final = 9.0
STEER_S: Final = 10.0
AFTER_S: Final = 9.0
CHOSEN_S: Final = 15.0
CHOSEN_PORT: Final = 42_000
CANDIDATES: Final = 300
READY_S: Final = 60.0


def _job(
    control: ControlClient, name: str, hosts: Sequence[str], seed: int, duration_s: float, **ports: Any
) -> JobRun:
    """Start an all-to-all job among `hosts`."""
    return JobRun(
        control,
        kind="alltoall",
        hosts=hosts,
        connections=CONNECTIONS,
        size_bytes=SIZE_BYTES,
        duration_s=duration_s,
        seed=seed,
        job=name,
        slot_s=0,
        **ports,
    )


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about seven minutes, or two with `quick`."""
    with watched_fabric(progress, RATE_BPS) as (control, bootstrap, _, watch):
        return _seeds(control, bootstrap, watch, progress, QUICK_SEEDS if quick else SEEDS)


def _seeds(
    control: ControlClient, bootstrap: str, watch: Watch, progress: Progress, seeds: int
) -> dict[str, Value]:
    gains, ecmp, best, stopped, moved = [], [], [], [], []
    hosts = sorted(nic["host"] for nic in control.ask("show")["nics"])
    for number in range(seeds):
        seed = random.SystemRandom().randrange(2**31)
        stopped.append(pause.pause(LiveRecords(bootstrap), revert=False).took_ms)
        total_s = READY_S + BEFORE_S + STEER_S + AFTER_S
        jobs = [
            _job(control, f"a2a-{number}-{which}", hosts[which::JOBS], seed + which, total_s)
            for which in range(JOBS)
        ]
        flows = sum(len(job.started["connections"]) for job in jobs)
        watch.until(lambda flows=flows: watch.movable >= flows, READY_S / 2, "ways of all connections")  # type: ignore[misc]
        began_s = time.monotonic()
        time.sleep(BEFORE_S)
        decided = len(watch.decisions)
        pause.resume(LiveRecords(bootstrap))
        time.sleep(STEER_S)
        acted_s = time.monotonic()
        time.sleep(AFTER_S)
        stopped.append(pause.pause(LiveRecords(bootstrap), revert=False).took_ms)
        pause.resume(LiveRecords(bootstrap))
        before = sum(job.goodput_bps((began_s, began_s + BEFORE_S)) for job in jobs)
        after = sum(job.goodput_bps((acted_s, acted_s + AFTER_S)) for job in jobs)
        maximum = sum(job.started["best_goodput_bps"] for job in jobs)
        moves = len(watch.decisions) - decided
        gains.append(after / before if before else 0.0)
        ecmp.append(before / maximum)
        best.append(after / maximum)
        moved.append(moves / flows)
        progress(
            f"alltoall: seed {seed}: ECMP {before / 1e6:.1f} Mbit/s, steered {after / 1e6:.1f}, "
            f"{gains[-1]:.3f} times, best {maximum / 1e6:.1f}; {moves} decisions on {flows} flows"
        )
        for job in jobs:
            job.leave()
        watch.soon(lambda: not watch.movable, 15)
    back = _steered_back(watch)
    goodput_share = _with_chosen_ports(control, bootstrap, hosts)
    return {
        "two_alltoall_throughput_vs_ecmp": Figure(
            float(np.median(gains)), note=f"worst {min(gains):.3f}, best {max(gains):.3f} of {seeds} seeds"
        ),
        "two_alltoall_vs_optimum": Figure(float(np.median(best)), note=f"worst {min(best):.3f}"),
        "two_alltoall_ecmp_vs_best": Figure(float(np.median(ecmp)), "1", f"worst {min(ecmp):.3f}"),
        "two_alltoall_chosen_ports_vs_best": Figure(goodput_share, "1", "no assignment carries more here"),
        "flows_moved_share": Figure(float(np.median(moved)), "1"),
        "oscillations_10min": Figure(
            float(len(back)),
            note=f"in {seeds * (STEER_S + AFTER_S) / 60:.1f} min of acting",
        ),
        "pause_stops_within_ms": Figure(float(max(stopped)), note=f"median {np.median(stopped):.0f}"),
    }


def _with_chosen_ports(control: ControlClient, bootstrap: str, hosts: Sequence[str]) -> float:
    """Return the goodput over the optimal goodput, with source ports that spread each step evenly."""
    pause.pause(LiveRecords(bootstrap), revert=False)
    links = [link.split(">") for link in control.ask("show")["links"]]
    leaf_of = {a.split(":")[0]: b.split(":")[0] for a, b in links if a.split(":")[0] in hosts}
    spines = sorted({b.split(":")[0] for _, b in links if b.startswith("spine")})
    shape = shape_of(leaf_of, len(spines), RATE_BPS, RATE_BPS)
    jobs = []
    for which in range(JOBS):
        job_hosts, peer_port = hosts[which::JOBS], CHOSEN_PORT + which

        @cache
        def spine_of(source: str, peer: str, port: int, peer_port: int = peer_port) -> int | None:
            route = control.tcp_route(source, peer, port, peer_port)
            route_nodes = (link.split(">")[1].split(":")[0] for link in route)
            return next((spines.index(node) for node in route_nodes if node in spines), None)

        plan = make_job_plan("alltoall", len(job_hosts), CONNECTIONS, SIZE_BYTES)
        candidates = range(CHOSEN_PORT + JOBS, CHOSEN_PORT + JOBS + CANDIDATES)
        ports = choose_ports(shape, plan, job_hosts, spine_of, candidates)
        jobs.append(
            _job(control, f"a2a-chosen-{which}", job_hosts, which, CHOSEN_S, sports=ports, dport=peer_port)
        )
    began_s = time.monotonic()
    time.sleep(CHOSEN_S - 3)
    got = sum(job.goodput_bps((began_s + 2, time.monotonic())) for job in jobs)
    for job in jobs:
        job.leave()
    pause.resume(LiveRecords(bootstrap))
    best_bps: float = sum(job.started["best_goodput_bps"] for job in jobs)
    return got / best_bps


def _steered_back(watch: Watch) -> list[str]:
    """Return the ids of the flows that were steered to other links and later back to their first links."""
    paths_by_flow: dict[str, set[int]] = defaultdict(set)
    returned_flows = []
    for decision in sorted(
        watch.decisions.values(), key=lambda decision: (decision["epoch"], decision["seq"])
    ):
        from_path = decision["from_path"]
        if decision["reason"]["kind"] == ReasonKind.COLLISION and from_path is not None:
            paths_by_flow[decision["flow_id"]].add(from_path)
            if decision["to_path"] in paths_by_flow[decision["flow_id"]]:
                returned_flows.append(decision["flow_id"])
    return returned_flows
