"""The diagnosis stage as it runs: records of a job on a real log, diagnoses out, through a worker's death."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from fabrictime.bench._pipeline import embedded_log, stream_worker
from fabrictime.commands.cli import app
from schemas import codec
from schemas.topics import COLLECTIVES, DIAGNOSES, REJECTS
from tests.streams.diagnosis.job_batches import S, batch
from tests.streams.test_pipeline import Log

SETTINGS: dict[str, Any] = {"stages": ["solve"], "session_timeout_s": 3}


class Jobs:
    """Jobs of four ranks that publish a record a second, as time passes."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap, self.log = bootstrap, Log(bootstrap)
        self.from_ns = time.time_ns()
        self.second = 0
        self.producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})

    def send(self, value: bytes, key: str) -> None:
        self.producer.produce(COLLECTIVES.name, value, key)
        assert self.producer.flush(10) == 0

    def publish(self, *names: str, **fields: Any) -> None:
        for name in names:
            for rank in range(4):
                record = batch(name, rank, self.second, self.from_ns, **fields)
                self.send(codec.encode(COLLECTIVES.record, record), name)
        self.second += 1

    def diagnoses(self) -> list[dict[str, Any]]:
        return [record for _, record in self.log.read(DIAGNOSES.name)]

    def until(self, holds: Callable[[list[dict[str, Any]]], bool], *names: str) -> list[dict[str, Any]]:
        """Publish a record of each job whenever its second is over, until the diagnoses are as wanted."""
        end_s = time.monotonic() + 60
        while not holds(found := self.diagnoses()):
            assert time.monotonic() < end_s, found
            if time.time_ns() >= self.from_ns + (self.second + 1) * S:
                self.publish(*names)
            self.producer.poll(0.05)
        return found


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with embedded_log(tmp_path, 2) as bootstrap:
        yield Jobs(bootstrap)


def test_jobs_are_diagnosed_across_a_worker_kill_and_the_replay_agrees(jobs: Jobs, tmp_path: Path) -> None:
    with stream_worker(jobs.bootstrap, tmp_path, **SETTINGS) as worker:
        first = jobs.until(lambda got: len({each["job"] for each in got}) == 2, "A", "B")
        jobs.send(b"nonsense", "A")
        jobs.until(lambda got: len(jobs.log.read(REJECTS.name)) == 1, "A", "B")
        worker.process.kill()
    with stream_worker(jobs.bootstrap, tmp_path, **SETTINGS) as worker:
        newest = max(each["number"] for each in first)
        jobs.until(lambda got: any(r["job"] == "B" and r["number"] > newest + 5 for r in got), "A", "B")
        jobs.publish("A", "B", ended=True)
        last_ns = jobs.from_ns + jobs.second * S
        ended = jobs.until(lambda got: {r["job"] for r in got if r["end_ns"] > last_ns - S} == {"A", "B"})
        assert worker.stop() == 0
    identities = {(each["job"], each["number"]): each for each in ended}
    for each in ended:
        assert each == identities[each["job"], each["number"]], "a repeated record is equal"
    rejects = [record for _, record in jobs.log.read(REJECTS.name)]
    assert {(each["topic"], each["key"]) for each in rejects} == {(COLLECTIVES.name, b"A")}
    assert len({(each["partition"], each["offset"]) for each in rejects}) == 1, "the next owner reads it too"
    found = CliRunner().invoke(
        app, ["replay", "diagnosis", "--log", jobs.bootstrap, "--from", "5m", "--json"]
    )
    (replayed,) = json.loads(found.output)["stages"]
    assert replayed["published"] == len(identities)
    kinds = {each["kind"] for each in replayed["differences"]}
    assert kinds <= {"is replayed, and was not published"}, "a starved machine may be long without an owner"
