"""Drawn incidents: their faults fit the fleet, and concern the job or do not."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench.workload._drawn import FAULTS_ELSEWHERE, JOB, KINDS, OTHER, draw, simulation
from schemas.records import Verdict


def drawn(kind, seed=1):
    while True:
        sim = simulation(kind, seed, ())
        try:
            return sim, draw(kind, sim, seed)
        except LookupError:
            seed += 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_planted_and_is_the_same_for_its_seed(kind):
    sim, incident = drawn(kind)
    again = drawn(kind)[1]
    assert (incident.lines, incident.decoys, incident.seed) == (again.lines, again.decoys, again.seed)
    for line in (*incident.decoys, *incident.lines):
        sim.fault(line)
    if incident.prepare is not None:
        incident.prepare(sim)
    for _ in sim.advance(0.1):
        pass
    assert incident.is_decoy == (incident.verdicts == {Verdict.HEALTHY})


@pytest.mark.parametrize("kind", ["down", "blackhole", "grey", "flap"])
def test_a_link_fault_is_on_a_route_of_the_job(kind):
    sim, incident = drawn(kind)
    crossed = {sim.fleet.link_ids[link] for flow in sim.jobs.jobs[0].flows for link in flow.links.tolist()}
    assert incident.subjects & crossed


def test_a_fault_elsewhere_is_not():
    sim, _ = drawn("fault-elsewhere")
    for seed in range(5):
        link = FAULTS_ELSEWHERE["fault-elsewhere"](sim, np.random.default_rng(seed))
        crossed = {sim.fleet.link_ids[n] for flow in sim.jobs.jobs[0].flows for n in flow.links.tolist()}
        assert link.split()[-1] not in crossed


def test_jobs_that_contend_share_a_link_from_then_on():
    sim, incident = drawn("contention")
    incident.prepare(sim)
    crossed = {
        job.name: {sim.fleet.link_ids[link] for flow in job.flows for link in flow.links.tolist()}
        for job in sim.jobs.jobs
    }
    assert incident.subjects & crossed[JOB] & crossed[OTHER]
    assert not sim.jobs.jobs[1].conditions.stops


def test_at_the_begin_no_flow_shares_an_uplink():
    sim, _ = drawn("straggler")
    links = [int(link) for flow in sim.jobs.jobs[0].flows for link in flow.links.tolist()]
    assert len(links) == len(set(links)) or sim.jobs.jobs[0].settings.kind == "rail-alltoall"
