"""The log of a simulated job's operations."""

from __future__ import annotations

from itertools import pairwise

from producers.sim.job_log import JobLog
from schemas.records import KeptReason
from tests.producers.sim.job_runs import job_run


def logged(run, seconds):
    log = JobLog(run, run.jobs.jobs[0], 0)
    for _ in range(round(seconds * 100)):
        run.tick()
        log.note_ended()
    return log


def test_every_operation_goes_to_every_rank_once():
    run = job_run()
    log = logged(run, 1)
    first = [each.seq for each in log.take(0)]
    assert first == list(range(run.job_state()[0]["iterations"]))
    assert [each.seq for each in log.take(1)] == first
    assert not log.take(0)


def test_single_operations_stay_within_the_budget_and_are_the_same_at_all_ranks():
    log = logged(job_run(), 3)
    kept = [each.seq for each in log.take(0) if each.reason is not None]
    assert 9 < len(kept) < 40
    assert kept == [each.seq for each in log.take(7) if each.reason is not None]


def test_single_operations_are_no_multiples_of_a_number():
    """An iteration of as many operations would be shown by one of them."""
    log = logged(job_run(), 3)
    kept = [each.seq for each in log.take(0) if each.reason == KeptReason.SAMPLED]
    assert len({later - each for each, later in pairwise(kept)}) > 2


def test_an_operation_that_hangs_runs_without_the_rank_that_is_missing():
    run = job_run("hang train:3 after 200ms")
    log = logged(run, 1)
    assert log.running() is None, "not for long"
    log = logged(run, 1)
    running = log.running()
    assert running is not None
    assert running.seq == run.job_state()[0]["iterations"]
    assert running.present.tolist() == [rank != 3 for rank in range(8)]
    assert running.times.peer_late.min() > 1e9


def test_an_operation_on_a_dead_link_runs():
    run = job_run()
    log = logged(run, 0.3)
    run.fault(f"blackhole {run.fleet.nic_ids[run.jobs.jobs[0].home[2]]}")
    for _ in range(150):
        run.tick()
        log.note_ended()
    running = log.running()
    assert running is not None
    assert running.times.network_late[2] > 1e9
    assert running.times.network_late[5] < 0.1e9
