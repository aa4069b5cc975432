"""Diagnoses read from a log: a job's own records, whole ones of the newest and of the telling record."""

import time

from fabrictime.commands.jobs.records import newest_of_jobs, run_of
from schemas.kafka.start import back
from schemas.topics import DIAGNOSES
from tests.fabrictime.commands.action_records import S, produce
from tests.fabrictime.commands.jobs.job_diagnoses import contended, healthy


def test_a_run_has_the_heads_of_one_job_and_two_whole_records(log):
    now_ns = time.time_ns()
    records = [
        healthy("read", 1, now_ns),
        contended("read", 2, now_ns + S),
        healthy("read", 3, now_ns + 2 * S),
    ]
    others = [healthy(f"other{n}", 9, now_ns) for n in range(20)]
    produce(log, *((DIAGNOSES, each["job"], each) for each in (*records, *records, *others)))
    run = run_of(log, "read", back(60))
    assert run is not None
    assert [head["number"] for head in run.heads] == [1, 2, 3]
    assert "flows" not in run.heads[0]
    assert [(each["number"], len(each["time_splits"])) for each in run.full_records] == [(2, 8), (3, 8)]
    late = run_of(log, "read", back(60), is_of_run=lambda head: head["number"] == 1)
    assert late is not None
    assert [head["number"] for head in late.heads] == [1]
    assert run_of(log, "nobody", back(60)) is None
    assert newest_of_jobs(log, 60)["read"]["number"] == 3
    assert newest_of_jobs(log, None)["other7"]["number"] == 9


def test_a_record_without_ranks_and_flows_has_those_of_the_nearest_record_before(log):
    now_ns = time.time_ns()
    brief = {"time_splits": [], "flows": []}
    records = [
        healthy("brief", 1, now_ns),
        contended("brief", 2, now_ns + S),
        *({**contended("brief", n, now_ns + n * S), **brief} for n in range(3, 6)),
    ]
    produce(log, *((DIAGNOSES, each["job"], each) for each in records))

    run = run_of(log, "brief", back(60))

    assert run is not None
    newest = run.full_records[-1]
    assert newest["number"] == 5
    assert newest["flows"] == records[1]["flows"]
    assert newest["time_splits"] == records[1]["time_splits"]
