"""A job's records: any order, any number of times, bounded memory."""

from __future__ import annotations

import random

import numpy as np
import pytest

from schemas.records import Verdict
from streams.diagnosis.job import view as job_view
from streams.diagnosis.job.view import Causes, JobView, Latest, Stalls
from tests.streams.diagnosis.scenario import BEGIN, JOB, MS, Job, S, nic


def test_records_count_once_in_any_order() -> None:
    records = Job(ranks=4).run(100 * MS) + Job(ranks=4).run(100 * MS)
    first, second = JobView(JOB), JobView(JOB)
    for each in records:
        first.take(each, BEGIN)
    random.Random(1).shuffle(records)
    for each in records + records:
        second.take(each, BEGIN)
    assert len(first) == len(second) == 4
    one, other = first.columns(BEGIN, BEGIN + S), second.columns(BEGIN, BEGIN + S)
    assert np.array_equal(one.operations, other.operations)
    assert first.nics == second.nics == {nic(host) for host in range(4)}


def test_old_records_are_forgotten() -> None:
    job, view = Job(ranks=2), JobView(JOB, keep_ns=S)
    for at in range(5):
        for each in job.run(100 * MS):
            view.take(each, BEGIN + at * S)
    view.forget(BEGIN + 4 * S)
    assert len(view) == 4


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_view, "MAX_OPERATIONS", 100)
    monkeypatch.setattr(job_view, "MAX_SUMMARIES", 0)
    job, view = Job(ranks=2), JobView(JOB)
    for _ in range(10):
        for each in job.run(200 * MS):
            view.take(each, BEGIN)
    assert len(view.columns(BEGIN, BEGIN + 100 * S).operations) <= 100
    assert view.forgotten > 0


def test_a_record_of_another_job_is_refused() -> None:
    with pytest.raises(ValueError, match="record of job 'other', expected 'train'"):
        JobView(JOB).take(Job(ranks=1, name="other").run(20 * MS)[0], BEGIN)


def test_operations_that_run_stay_visible_after_their_record() -> None:
    job, view = Job(ranks=1), JobView(JOB)
    [record] = job.run(30 * MS)
    record["operations"][-1]["end_ns"] = None
    view.take(record, BEGIN)
    assert len(view.columns(record["end_ns"] + S, record["end_ns"] + 2 * S).operations) == 1


def test_the_newest_record_sets_a_communicators_rank() -> None:
    job, view = Job(ranks=1), JobView(JOB)
    records = [job.run(20 * MS)[0] for _ in range(2)]
    records[1]["communicators"][0]["nics"] = []
    for each in records[::-1]:
        view.take(each, BEGIN)
    [process] = view.processes.values()
    [member] = process.members
    assert (member.rank, member.nics) == (0, (nic(0),))
    assert view.newest_ns == records[1]["end_ns"]
    assert not view.has_ended


def test_a_cause_is_as_old_as_its_first_evidence() -> None:
    causes = Causes(10 * S)
    assert causes.began(Verdict.CONTENTION, "a", 5 * S) == 5 * S
    causes.note([(Verdict.CONTENTION, "a", 5 * S)], 8 * S)
    assert causes.began(Verdict.CONTENTION, "a", 18 * S) == 5 * S
    assert causes.began(Verdict.CONTENTION, "a", 19 * S) == 19 * S
    assert causes.began(Verdict.CONTENTION, "b", 18 * S) == 18 * S
    assert causes.began(Verdict.GREY_LINK, "a", 18 * S) == 18 * S
    assert causes.began(Verdict.CONTENTION, "a", 2 * S) == 2 * S


def test_a_cause_without_evidence_is_forgotten() -> None:
    causes = Causes(10 * S)
    causes.note([(Verdict.CONTENTION, "a", 5 * S)], 8 * S)
    causes.note([], 18 * S)
    assert causes.began(Verdict.CONTENTION, "a", 18 * S) == 5 * S
    causes.note([], 19 * S)
    assert causes.began(Verdict.CONTENTION, "a", 18 * S) == 18 * S


def test_a_cause_is_new_after_a_fast_time() -> None:
    causes = Causes(10 * S)
    causes.note([(Verdict.CONTENTION, "a", 5 * S)], 8 * S)
    causes.clear()
    assert causes.began(Verdict.CONTENTION, "a", 9 * S) == 9 * S


def test_a_stall_counts_once_it_is_over() -> None:
    stalls = Stalls()
    for age_ns in (S, 2 * S, 3 * S):
        stalls.note(7, 1, age_ns)
    assert stalls.longest_ns == 0
    stalls.note(0, 0, 0)
    assert stalls.longest_ns == 3 * S


def test_a_result_is_kept_until_its_inputs_change() -> None:
    latest = Latest[list[int]]()
    first = latest.of(("a", 1), lambda: [1])
    assert latest.of(("a", 1), lambda: [2]) is first
    assert latest.of(("a", 2), lambda: [3]) == [3]
    assert latest.of(("a", 1), lambda: [4]) == [4]
