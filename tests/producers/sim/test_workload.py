"""Workload: jobs, collectives and the bytes that they move."""

from __future__ import annotations

import numpy as np
import pytest

from producers.sim.settings import JobSettings
from producers.sim.simulation import Simulation
from schemas.topics import TRUTH
from tests.producers.sim.small_simulation import by_topic, settings


def test_a_job_waits_for_its_slowest_flow():
    """A ring on one leaf, where nothing collides: line rate; then one of its flows held to a tenth."""
    job = JobSettings(name="train", kind="allreduce", nics=4, bytes=1e8, compute_ms=1, placed="packed")
    run = Simulation(settings(jobs=[job]))
    alone = [row["time_ns"] for out in by_topic(run, 1)[TRUTH] for row in out.record()["jobs"]]
    ideal_ns = 2 * 3 / 4 * 1e8 * 8e9 / 4e11
    assert np.median(alone) == pytest.approx(ideal_ns, rel=0.1)
    run.set_flow_rate(run.flows()[0].flow_id, 4e10)
    by_topic(run, 0.1)
    limiting = [row["time_ns"] for out in by_topic(run, 1.9)[TRUTH] for row in out.record()["jobs"]][-3:]
    assert np.median(limiting) == pytest.approx(10 * ideal_ns, rel=0.1)


def test_alltoall_moves_every_byte_between_every_two():
    job = JobSettings(name="moe", kind="alltoall", nics=6, bytes=1e7, compute_ms=0)
    run = Simulation(settings(jobs=[job]))
    assert len(run.flows()) == 6 * 5
    by_topic(run, 1)
    (state,) = run.job_state()
    sums, _ = run.kernel.flow_sums()
    each = sums[[flow.number for flow in run.flows()], 0] / (1e7 / 5)
    assert state["iterations"] > 10
    assert (np.floor(each + 1e-6) - state["iterations"] <= 1).all()
    assert (each >= state["iterations"] - 1e-6).all()


def test_an_alltoall_within_rails_stays_within_them_and_apart_jobs_share_no_nic():
    jobs = [
        JobSettings(
            name=name, kind="rail-alltoall", nics=128, bytes=1e8, compute_ms=0, placed="apart", connections=2
        )
        for name in ("a", "b")
    ]
    run = Simulation(settings(nics=256, rate_pps=0, jobs=jobs), topics=())
    nics = {name: {flow.source for flow in run.flows() if flow.job == name} for name in ("a", "b")}
    assert len(nics["a"]) == len(nics["b"]) == 128
    assert not nics["a"] & nics["b"]
    rail = run.fleet.nic_rail
    assert all(rail[flow.source] == rail[flow.destination] for flow in run.flows())
    assert len(run.flows()) == 2 * 128 * 15 * 2
    for _ in range(20):
        run.tick()
    assert all(job["iterations"] > 2 for job in run.job_state())
    third = JobSettings(name="c", kind="rail-alltoall", nics=16, placed="apart")
    with pytest.raises(ValueError, match="job c: 16 NICs apart from other jobs"):
        Simulation(settings(nics=256, rate_pps=0, jobs=[*jobs, third]), topics=())


def test_decisions_name_flows_that_are_open():
    run = Simulation(settings(load=0.1))
    flow_id = run.flows()[0].flow_id
    for call, message in (
        (lambda: run.set_flow_path(flow_id, 0), "port 0, expected 1 to 65535"),
        (lambda: run.set_flow_rate(flow_id, 0), "0 bit/s, expected above 0"),
        (lambda: run.fault("grey 20% leaf99>spine1"), "expected a link such as leaf1>spine1"),
        (lambda: run.fault("incast 99 h1/eth1"), "incast 99: expected fewer senders"),
        (lambda: run.clear(7), "fault 7: expected one in force"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
