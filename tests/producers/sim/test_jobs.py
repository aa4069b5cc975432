"""Jobs of the simulated fleet under faults."""

from __future__ import annotations

import pytest

from schemas.topics import DECISIONS, FLOWS
from tests.producers.sim.job_runs import job_run


def done(run, seconds):
    before = run.job_state()[0]["iterations"]
    for _ in run.advance(seconds):
        pass
    return run.job_state()[0]["iterations"] - before


@pytest.mark.parametrize(
    "fault", ["straggler 20ms train:3", "launch-skew 20ms train:3", "slow-pcie 5% train:3", "paced 5% train"]
)
def test_a_fault_slows_the_job_until_it_is_cleared(fault):
    run = job_run()
    usual = done(run, 1)
    run.fault(fault)
    assert done(run, 1) < 0.7 * usual
    run.clear()
    done(run, 0.1)
    assert done(run, 1) >= usual - 3


@pytest.mark.parametrize("fault", ["hang train:3", "killed train:3", "mismatch train:3"])
def test_a_job_stops_and_goes_on(fault):
    run = job_run()
    done(run, 0.5)
    run.fault(fault)
    done(run, 0.1)
    assert done(run, 0.5) == 0
    run.clear()
    assert done(run, 0.5) > 10


def test_paced_flows_have_decisions_that_are_renewed_and_ended():
    run = job_run("paced 20% train for 6s")
    made = [out.record() for out in run.advance(7) if out.topic is DECISIONS]
    actions = [each["action"] for each in made]
    assert (actions.count("PACE"), actions.count("UNPACE")) == (16, 8)
    assert {each["rate_bps"] for each in made if each["action"] == "PACE"} == {80_000_000_000}
    assert all(flow.limit_bps is None for flow in run.flows())


def test_a_new_start_has_other_flows_and_counts_on():
    run = job_run(connections=4)
    assert done(run, 0.5) > 10
    before, known = run.job_state()[0]["iterations"], {flow.flow_id for flow in run.flows()}
    run.fault("few-queue-pairs train")
    assert len(run.flows()) == 8
    assert done(run, 0.5) > 10
    assert run.job_state()[0]["iterations"] > before
    closed = {
        row["flow_id"]
        for out in run.advance(0.01)
        if out.topic is FLOWS
        for row in out.record()["flows"]
        if row["state"] == "CLOSED"
    }
    assert not known & {flow.flow_id for flow in run.flows()}
    assert not closed


def test_a_rank_on_the_wrong_rail_sends_from_the_next_nic_of_its_host():
    run = job_run(fleet=256, nics=32)
    done(run, 0.2)
    nic = run.jobs.jobs[0].home[9]
    run.fault("wrong-rail train:9")
    assert run.jobs.jobs[0].nics[9] == nic + 1
    assert not any(nic in (flow.source, flow.destination) for flow in run.flows())
    assert done(run, 0.3) > 5
