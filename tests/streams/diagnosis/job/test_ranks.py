"""The ranks of a job: replaced, silent, late and disputed ones."""

from __future__ import annotations

from streams.diagnosis.job.columns import hash_of
from streams.diagnosis.job.ranks import ranks_of
from streams.diagnosis.job.view import JobView
from tests.streams.diagnosis.scenario import BEGIN, JOB, MS, Job, S, nic


def view_of(*jobs: Job, late_s: dict[int, int] | None = None) -> JobView:
    view = JobView(JOB)
    for job in jobs:
        for rank, record in enumerate(job.run(100 * MS)):
            view.take(record, record["end_ns"] + (late_s or {}).get(rank, 0) * S)
    return view


def test_ranks_have_hosts_and_nics() -> None:
    found = ranks_of(view_of(Job(ranks=4)), BEGIN, BEGIN + S)
    assert [(rank.number, rank.host, rank.nic) for rank in found] == [
        (at, f"h{at}", nic(at)) for at in range(4)
    ]
    assert (found.total, len(found.hosts), len(found.reported)) == (4, 4, 4)
    rank = found.of(hash_of("0xc0ffee"), 2)
    assert rank is not None
    assert rank.name == "rank 2 on h2"
    assert found.of(hash_of("other"), 2) is None


def test_a_restarted_process_replaces_the_former_one() -> None:
    first = Job(ranks=2)
    view = view_of(first)
    again = Job(ranks=2, at_ns=first.at_ns + S)
    for rank, record in enumerate(again.run(100 * MS)):
        record["process"] = f"{900 + rank}-7"
        view.take(record, record["end_ns"])
    found = ranks_of(view, again.at_ns - 100 * MS, again.at_ns)
    assert len(list(found)) == 2
    assert not found.conflicts


def test_two_living_processes_that_claim_one_rank_are_a_conflict() -> None:
    first, second = Job(ranks=2), Job(ranks=2)
    view = view_of(first)
    for record in second.run(100 * MS):
        record["host"] = "x" + record["host"]
        view.take(record, record["end_ns"])
    found = ranks_of(view, BEGIN, BEGIN + S)
    assert len(found.conflicts) == 2
    assert "rank 0 of communicator 0xc0ffee is claimed by" in found.conflicts[0]


def test_records_that_come_a_day_late_are_noted() -> None:
    found = ranks_of(view_of(Job(ranks=4), late_s={2: 86_400}), BEGIN, BEGIN + S)
    assert [rank.late_ns > 0 for rank in found] == [False, False, True, False]


def test_dropped_events_count_within_the_interval() -> None:
    job, view = Job(ranks=1), JobView(JOB)
    for dropped in (5, 5, 12):
        [record] = job.run(100 * MS)
        record["events_dropped"] = dropped
        view.take(record, record["end_ns"])
    begin_ns = job.at_ns - 90 * MS
    [rank] = ranks_of(view, begin_ns, job.at_ns)
    assert rank.dropped == 7


def test_a_rank_without_records_in_the_interval_has_not_reported() -> None:
    found = ranks_of(view_of(Job(ranks=2)), BEGIN + 10 * S, BEGIN + 11 * S)
    assert [rank.reported for rank in found] == [False, False]


def test_ranks_follow_each_change_of_processes_and_memberships() -> None:
    job, other = Job(ranks=4), Job(ranks=4, communicator="0xbeef")
    records = job.run(100 * MS) + other.run(100 * MS) + job.run(100 * MS)
    records[5]["communicators"][0]["nics"] = ["h1/n0", "h1/n7"]
    records[6]["communicators"][0]["ranks"] = 16
    records[7]["process"] = "904-1"
    records[9]["communicators"][0]["rank"] = 7
    view = JobView(JOB, keep_ns=6)
    for at_ns, record in enumerate(records):
        view.take(record, at_ns)
        view.forget(at_ns)
        fresh = JobView(JOB)
        for number, again in enumerate(records[: at_ns + 1]):
            fresh.take(again, number)
        fresh.keep_ns = 6
        fresh.forget(at_ns)
        assert ranks_of(view, BEGIN, BEGIN + S) == ranks_of(fresh, BEGIN, BEGIN + S), at_ns
