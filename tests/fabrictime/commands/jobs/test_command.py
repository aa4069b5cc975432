"""`explain` and `jobs` on a real log: jobs by name, two runs, jobs that no one knows."""

import json
import time

import pytest

from schemas import codec
from schemas.topics import DIAGNOSES
from tests.fabrictime.commands.action_records import S, fabrictime, produce
from tests.fabrictime.commands.jobs.job_diagnoses import contended, healthy


@pytest.fixture
def filled(log):
    """A log with two running jobs: A contended since a while, B healthy; its address and a time."""
    now_ns = time.time_ns()
    records = [healthy("A", n, now_ns - (10 - n) * 5 * S) for n in range(8)]
    records += [contended("A", n, now_ns - (10 - n) * 5 * S, since_ns=now_ns - 15 * S) for n in (8, 9, 10)]
    records += [healthy("B", n, now_ns - (10 - n) * 5 * S) for n in (9, 10, 10)]
    produce(log, *((DIAGNOSES, each["job"], each) for each in records))
    return log


def test_a_log_without_jobs_is_reported(log):
    found = fabrictime(log, "jobs")
    assert (found.exit_code, found.output) == (0, "no job published collectives within 2 min\n")
    assert "jobs seen: none" in fabrictime(log, "explain", "A").output


def test_ended_jobs_are_listed_on_demand_and_unreadable_records_left_out(log):
    now_ns = time.time_ns()
    produce(log, (DIAGNOSES, "old", healthy("old", 1, now_ns - 600 * S)))
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": log, "log_level": 0})
    producer.produce(DIAGNOSES.name, b"nonsense", "old")
    producer.produce(DIAGNOSES.name, codec.encode(DIAGNOSES.record, healthy("x", 1, now_ns)), "other")
    assert producer.flush(10) == 0
    assert "1 ended, --all lists them" in fabrictime(log, "jobs").output
    assert "ended" in fabrictime(log, "jobs", "--all").output


def test_a_job_is_explained_by_its_name_and_a_check_fails_unless_it_is_healthy(filled):
    found = fabrictime(filled, "explain", "A", "--json")
    assert found.exit_code == 0, found.output
    story = json.loads(found.output)
    assert story["diagnosis"]["verdict"] == "CONTENTION"
    assert [each["verdict"] for each in story["verdicts"]] == ["HEALTHY", "CONTENTION"]
    text = fabrictime(filled, "explain", "A", "--check")
    assert text.exit_code == 1
    assert "CONTENTION since" in text.output
    assert "fabrictime: job A: CONTENTION: job B shares leaf2 to spine3" in text.output
    assert fabrictime(filled, "explain", "B", "--check").exit_code == 0


def test_two_jobs_and_two_intervals_are_compared(filled):
    found = fabrictime(filled, "explain", "A", "--between", "B", "A", "--json")
    assert found.exit_code == 0, found.output
    compared = json.loads(found.output)
    assert (compared["slower"], [each["job"] for each in compared["runs"]]) == (2, ["B", "A"])
    text = fabrictime(filled, "explain", "A", "--between", "1m..20s", "12s..now")
    assert text.exit_code == 0, text.output
    assert text.output.startswith("run 2: 190 of 360 Gbit/s; h3/mlx5_0 to h0/mlx5_0 saw 94.0 µs")


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (("A", "nobody"), "--between nobody: no diagnosis of that run is in the log"),
        (("2h..1h", "A"), "--between 2h..1h: no diagnosis of that run is in the log"),
        (("now..1h", "A"), "--between now..1h: expected FROM..TO with FROM before TO"),
        (("yesterday..now", "A"), "time 'yesterday': expected"),
    ],
)
def test_runs_that_cannot_be_compared_are_named(filled, runs, message):
    found = fabrictime(filled, "explain", "A", "--between", *runs)
    assert found.exit_code == 2
    assert message in found.output


def test_a_name_that_is_neither_job_nor_flow_lists_the_jobs(filled):
    found = fabrictime(filled, "explain", "C")
    assert found.exit_code == 2
    assert "flow 'C': no such flow" in found.output
    assert "job 'C': no job of that name published anything; jobs seen: A, B" in found.output


def test_jobs_lists_the_unhealthy_ones_first_and_checks_them(filled):
    rows = json.loads(fabrictime(filled, "jobs", "--json").output)
    assert [(row["job"], row["verdict"], row["runs"]) for row in rows] == [
        ("A", "CONTENTION", True),
        ("B", "HEALTHY", True),
    ]
    found = fabrictime(filled, "jobs", "--check")
    assert found.exit_code == 1
    assert "fabrictime: job A: CONTENTION" in found.output
    assert "190 Gbit/s" in found.output
