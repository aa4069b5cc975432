"""Simulated jobs, and what their ranks publish."""

from __future__ import annotations

from producers.sim.settings import JobSettings, SimSettings
from producers.sim.simulation import Simulation
from schemas import codec
from schemas.topics import COLLECTIVES, DECISIONS, FLOWS

PARTS = ("launch_ns", "gpu_late_ns", "peer_late_ns", "network_late_ns", "flush_ns")


def job_run(*faults, kind="allreduce", nics=8, fleet=16, **more):
    job = JobSettings(name="train", kind=kind, nics=nics, bytes=5e7, compute_ms=8, **more)
    given = SimSettings(nics=fleet, load=0, rate_pps=0, jobs=(job,), faults=faults)
    return Simulation(given, topics=(COLLECTIVES, DECISIONS, FLOWS))


def batches(run, seconds):
    """Every record of the job in an interval, decoded as a reader does, by rank."""
    found = {}
    for out in run.advance(seconds):
        if out.topic is COLLECTIVES:
            record = codec.decode(out.value(), COLLECTIVES.record)
            found.setdefault(record["communicators"][0]["rank"], []).append(record)
    return found


def parts_of(record):
    """The parts of the time of all operations of a record, as shares of the time."""
    [summary] = record["summaries"]
    return {part: summary[part] / summary["busy_ns"] for part in PARTS}
