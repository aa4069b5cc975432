"""Jobs without our profiler, from the discovery of their RAS services to the verdict about them."""

from __future__ import annotations

import os
import selectors
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from producers.boot import boot_id
from producers.collectives.host import HostReporter, ReportedHost
from producers.collectives.ras.jobs import Place, RasJobs
from producers.collectives.settings import CollectiveSettings
from producers.collectives.timeline import ClockReading
from producers.settings import NicSettings
from schemas import codec
from schemas.kafka.message import Message
from schemas.records import ClockSync, CollectiveBatch, Diagnosis
from schemas.topics import COLLECTIVES
from streams.diagnosis.inputs import DiagnosisInputs
from tests.producers.collectives.ras.responder import communicator, missing, rank
from tests.producers.collectives.ras.services import Services, Started
from tests.producers.collectives.segments import Segment, Traced, ended
from tests.waiting import wait_until

S = 1_000_000_000
NIC = NicSettings(host="h1", device="lo", address="127.0.0.1", shard="s0")


class Host:
    """The reporter of h1, and the diagnosis of what it publishes at the times of publication."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        path = folder / "c.sock"
        self._selector = selectors.DefaultSelector()
        place = ReportedHost("h1", boot_id(), [NIC], path, folder / "clock")
        given = CollectiveSettings(socket=path, **{"ras_s": 1, **settings})
        self.reporter = HostReporter(given, place, self._selector)
        self.records: list[CollectiveBatch] = []
        self._inputs = DiagnosisInputs(0)
        self.diagnoses: list[Diagnosis] = []

    def put(self, job: str, value: bytes, acknowledged: Callable[[], None]) -> None:
        self.records.append(codec.decode(value, CollectiveBatch))
        self._inputs.add(
            Message(
                append_ns=(now_ns := time.time_ns()),
                log_ns=now_ns,
                topic=COLLECTIVES.name,
                partition=0,
                offset=len(self.records),
                key=job,
                value=value,
            )
        )
        acknowledged()

    def until(self, holds: Callable[[], Any]) -> Any:
        """Run the reporter and the diagnosis until a condition holds; return its value."""

        def step() -> Any:
            for key, _ in self._selector.select(0):
                key.data(key.fd)
            self.reporter.step(time.monotonic(), self.put, lambda: True)
            self.diagnoses += self._inputs.evaluate(time.time_ns())
            return holds()

        return wait_until(step)

    def verdict(self, job: str, verdict: str) -> Diagnosis:
        """Return the first diagnosis of a job with a verdict."""
        found: Diagnosis = self.until(
            lambda: next(
                (one for one in self.diagnoses if one["job"] == job and one["verdict"] == verdict), None
            )
        )
        return found

    def of_job(self, job: str) -> list[CollectiveBatch]:
        return [record for record in self.records if record["job"] == job]

    def close(self) -> None:
        self.reporter.close()
        self._selector.close()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with Services(tmp_path) as started:
        yield started


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def name() -> str:
    return f"ras-test-{uuid.uuid4().hex[:8]}"


def job_of(*counts: int, **fields: Any) -> dict[str, Any]:
    """Return a communicator whose first rank is the responder; `counts`: all-reduces by rank."""
    ranks = [
        rank(n, {"AllReduce": count}, pid="self" if n == 0 else 4000 + n) for n, count in enumerate(counts)
    ]
    return communicator("0xab", ranks, **fields)


def progress(service: Started, host: Host, job: str) -> None:
    """Let a job's counts grow over some reports."""
    for step in range(1, 5):
        service.report(job_of(*[1000 * step] * 4))
        seen = len(host.of_job(job))
        host.until(lambda seen=seen: len(host.of_job(job)) > seen + 1)


def test_a_job_without_the_profiler_is_reported_and_goes_on(services: Services, host: Host) -> None:
    job = name()
    service = services.start(FABRICTIME_JOB=job, FABRICTIME_TENANT="ml")
    progress(service, host, job)
    record = host.of_job(job)[-1]
    assert (record["source"], record["tenant"], record["host"]) == ("RAS", "ml", "h1")
    (row,) = record["reports"]
    assert (row["communicator"], row["ranks"], row["reported"], row["behind"]) == ("ab".zfill(16), 4, 4, 0)
    healthy = host.verdict(job, "HEALTHY")
    assert (healthy["ranks_total"], healthy["ranks_seen"]) == (4, 0)
    assert "without our profiler their times are not known" in healthy["text"]


def test_the_rank_that_did_not_enter_a_collective_is_named(services: Services, host: Host) -> None:
    job = name()
    service = services.start(FABRICTIME_JOB=job)
    progress(service, host, job)
    service.report(job_of(5001, 5001, 5000, 5001))
    begin_s = time.monotonic()
    stalled = host.verdict(job, "STALLED")
    assert time.monotonic() - begin_s < 10
    assert (stalled["ranks"], stalled["blames_network"]) == ([2], False)
    assert "did not enter the ALL_REDUCE in which the others wait" in stalled["text"]
    assert "process 4002" in stalled["remedy"]
    service.report(job_of(6000, 6000, 6000, 6000))
    host.until(lambda: host.diagnoses[-1]["job"] == job and host.diagnoses[-1]["verdict"] == "HEALTHY")
    assert not [one for one in host.diagnoses if one["job"] == job and one["verdict"] == "HANG"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_dead_process_is_a_dead_rank(services: Services, host: Host, form: str) -> None:
    job = name()
    service = services.start(FABRICTIME_JOB=job)
    service.report(job_of(7, 7, 7, missing_ranks=[missing(3, unresponsive=True, dead=True)]), form=form)
    dead = host.verdict(job, "DEAD_RANK")
    assert dead["ranks"] == [3]
    assert "rank 3 on 127.0.0.1" in dead["text"]


def test_ranks_that_launch_different_operations_do_not_match(services: Services, host: Host) -> None:
    job = name()
    service = services.start(FABRICTIME_JOB=job)
    first = [rank(n, {"AllReduce": 7, "AllGather": 3}) for n in (0, 1)]
    second = [rank(n, {"AllReduce": 6, "AllGather": 4}) for n in (2, 3)]
    service.report(communicator("0xab", [*first, *second]))
    assert host.verdict(job, "PROGRAM_MISMATCH")["confidence"] >= 0.8


def test_two_jobs_on_one_port_are_both_reported(services: Services, host: Host) -> None:
    """The kernel gives each connection to one of their processes."""
    one, two = name(), name()
    first = services.start(FABRICTIME_JOB=one)
    second = services.start(port=first.port, FABRICTIME_JOB=two)
    first.report(job_of(1, 1, 1))
    second.report({**job_of(2, 2), "hash": "0xcd"})
    host.until(lambda: host.of_job(one) and host.of_job(two))
    assert host.of_job(two)[-1]["reports"][0]["communicator"] == "cd".zfill(16)


def test_a_stopped_process_on_the_port_does_not_hide_the_job(services: Services, host: Host) -> None:
    job = name()
    first = services.start(FABRICTIME_JOB=job)
    second = services.start(port=first.port, FABRICTIME_JOB=job)
    for service in (first, second):
        service.report(job_of(3, 3))
    host.until(lambda: host.of_job(job))
    os.kill(second.pid, signal.SIGSTOP)
    seen = len(host.of_job(job))
    host.until(lambda: len(host.of_job(job)) > seen + 2)


def test_a_job_that_is_over_ends(services: Services, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.collectives.ras.jobs._GONE_S", 1.0)
    job = name()
    service = services.start(FABRICTIME_JOB=job)
    service.report(job_of(3, 3))
    host.until(lambda: host.of_job(job))
    services.end(service)
    host.until(lambda: host.of_job(job)[-1]["ended"])


def test_a_job_without_a_name_has_that_of_its_communicator(services: Services, host: Host) -> None:
    service = services.start()
    number = uuid.uuid4().hex[:16]
    service.report({**job_of(3, 3), "hash": f"0x{number}"})
    host.until(lambda: host.of_job(f"communicator-{number}"))


def reading() -> ClockReading:
    return ClockReading(
        time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW), time.time_ns(), 9.0, ClockSync.SYNCED
    )


def test_states_go_to_a_process_of_the_communicator(services: Services) -> None:
    segment = Segment()
    segment.communicator(number=0xAB, rank=3)
    segment.put(ended([1]))
    traced = Traced(segment)
    traced.step(0.0)
    service = services.start()
    gone = [missing(1, unresponsive=False), missing(2, dead=True)]
    service.report(job_of(3, missing_ranks=gone))
    settings = CollectiveSettings(socket="unused", ras=f"127.0.0.1:{service.port}", ras_s=1)
    jobs = RasJobs(settings, Place("h1", "boot", "s0", None))
    processes = [traced.process]
    records = wait_until(lambda: jobs.poll(time.monotonic(), processes, reading) or processes[0].rank_states)
    assert records is processes[0].rank_states, "the job has no records beside those of its processes"
    traced.step(5.0)
    states = [(one["rank"], one["state"]) for one in traced.records[-1]["ranks"]]
    assert states == [(1, "MISSING"), (2, "DEAD")]
    segment.close()


def test_only_addresses_of_this_host_are_asked(caplog: pytest.LogCaptureFixture) -> None:
    settings = CollectiveSettings(socket="unused", ras="192.0.2.1:28028")
    jobs = RasJobs(settings, Place("h1", "boot", "s0", None))
    assert "expected an address of h1" in caplog.text
    assert jobs.poll(time.monotonic(), [], reading) == []


def test_jobs_of_users_without_access_are_left_alone(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schemas.socket_access.os.geteuid", lambda: 65_533)
    service = services.start(FABRICTIME_JOB=name())
    service.report(job_of(3, 3))
    settings = CollectiveSettings(socket="unused", ras_s=1)
    jobs = RasJobs(settings, Place("h1", "boot", "s0", None))
    assert not jobs._ask_all(time.monotonic())
