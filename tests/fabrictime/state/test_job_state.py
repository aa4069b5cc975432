"""Diagnoses of the past hour: order, repetition, and limits of memory."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state import job_state
from fabrictime.state.fabric_state import FabricState
from fabrictime.state.job_state import JobState
from schemas import codec
from tests.fabrictime.fill import fill
from tests.fabrictime.job_records import INTERVAL_NS, JobRecords, head_of

S = 1_000_000_000


@pytest.fixture
def made(fabric: Any) -> JobRecords:
    return JobRecords(fabric)


def take(jobs: JobState, record: Any) -> None:
    jobs.take(head_of(record), codec.encode("Diagnosis", record))


def test_the_newest_record_counts_and_a_repeated_one_does_not(
    made: JobRecords, state: FabricState, fabric: Any
) -> None:
    records = [made.diagnosis(k, fabric.now_ns + k * INTERVAL_NS, 2 if k == 2 else None) for k in range(3)]
    for record in (records[0], records[2], records[1], records[2]):
        fill(state, ("fabric.diagnoses", "llama", record))
    job = state.jobs.jobs["llama"]
    assert [each.verdict for each in job.intervals] == ["HEALTHY", "HEALTHY", "SLOW_FLOW"]
    assert job.head["verdict"] == "SLOW_FLOW"
    assert "time_splits" not in job.head
    assert job.is_running(fabric.now_ns)
    assert not job.is_running(fabric.now_ns + 60 * S)
    found = state.jobs.message("llama")
    assert found is not None
    assert codec.decode(found[1], "Diagnosis")["ranks"] == [2]
    assert state.jobs.message("llama", job.intervals[0].key) is not None
    assert state.jobs.message("llama", "1-1") is state.jobs.message("other") is None
    assert state.versions["jobs"] == 4


def test_a_verdict_that_changes_within_an_interval_is_a_record_of_its_own(
    made: JobRecords, fabric: Any
) -> None:
    jobs = JobState()
    for number, slow in ((1, None), (2, 3)):
        take(jobs, made.diagnosis(number, fabric.now_ns, slow))
    assert [each.verdict for each in jobs.jobs["llama"].intervals] == ["HEALTHY", "SLOW_FLOW"]


def test_intervals_older_than_an_hour_and_messages_beyond_the_limit_are_dropped(
    made: JobRecords, fabric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = JobState()
    take(jobs, made.diagnosis(0, fabric.now_ns - 3_700 * S))
    for k in range(1, 5):
        take(jobs, made.diagnosis(k, fabric.now_ns + k * INTERVAL_NS))
    job = jobs.jobs["llama"]
    assert len(job.intervals) == len(job.messages) == 4
    monkeypatch.setattr(job_state, "MAX_BYTES", job.size + 64)
    take(jobs, made.diagnosis(5, fabric.now_ns + 5 * INTERVAL_NS))
    assert len(job.intervals) == 5
    assert len(job.messages) == 4
    assert jobs.message("llama", job.intervals[0].key) is None, "its figures stay"
    assert job.size == sum(map(len, job.messages.values()))


def test_the_job_without_a_record_for_longest_leaves(fabric: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_state, "MAX_JOBS", 2)
    jobs = JobState()
    for k, name in enumerate(("a", "b", "a", "c")):
        take(jobs, JobRecords(fabric, name, ranks=1).diagnosis(k, fabric.now_ns + k * S))
    assert list(jobs.jobs) == ["a", "c"]


def test_earlier_messages_of_a_job_come_newest_first(made: JobRecords, fabric: Any) -> None:
    jobs = JobState()
    records = [made.diagnosis(k, fabric.now_ns + k * INTERVAL_NS) for k in range(3)]
    for record in records:
        take(jobs, record)
    keys = [each.key for each in jobs.jobs["llama"].intervals]

    assert [codec.decode(value, "Diagnosis")["number"] for value in jobs.earlier("llama", keys[2])] == [1, 0]
    assert (
        jobs.earlier("llama", keys[0]) == jobs.earlier("llama", "1-1") == jobs.earlier("other", "1-1") == []
    )
