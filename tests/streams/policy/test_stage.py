"""The policy stage with a real log and real workers, one of which is killed, and a replay from the log."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from fabrictime.bench._pipeline import Service, embedded_log
from fabrictime.commands.cli import app
from schemas import codec
from schemas.topics import (
    ACTIONS,
    CLOCK_OFFSETS,
    DECISIONS,
    FALLBACKS,
    FLOW_ROUTES,
    INVENTORY,
    POLICY_CYCLES,
    REJECTS,
    Topic,
)
from tests.fabrictime.evidence import clock_offsets
from tests.records import make
from tests.streams.policy import log_fabric as world
from tests.streams.policy.records import action
from tests.streams.test_pipeline import Log

SETTINGS: dict[str, Any] = {"stages": ["policy"], "session_timeout_s": 2}
DEAD = "leaf1:u2>spine2:leaf1"


class Fabric(world.Log):
    """The fabric of log_fabric.py on a real log. Its actuators apply the decisions in the topic."""

    def __init__(self, bootstrap: str) -> None:
        self.log = Log(bootstrap)
        self.producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
        self.done: set[str] = set()
        super().__init__()

    def put(self, topic: Topic, key: str, record: dict[str, Any] | None) -> None:
        self.now_ns = time.time_ns()
        value = None if record is None else codec.encode(topic.record, record)
        self.producer.produce(topic.name, value, key)
        assert self.producer.flush(10) == 0

    def decided(self) -> list[dict[str, Any]]:
        """Apply and return all decisions, in order."""
        found = [record for _, record in self.log.read(DECISIONS.name)]
        found.sort(key=lambda record: (record["epoch"], record["seq"]))
        for decision in found:
            if decision["decision_id"] in self.done:  # the read order varies
                continue
            self.done.add(decision["decision_id"])
            name = decision["flow_id"]
            self.ports[name] = decision["to_path"]
            report = action(decision, time.time_ns(), decision["from_path"], decision["to_path"], "APPLIED")
            self.put(ACTIONS, decision["host"], report)
            self.report()
        return found

    def until(self, holds: Any, seconds: float = 30.0) -> None:
        end_s, reported_s = time.monotonic() + seconds, 0.0
        while not holds():
            assert time.monotonic() < end_s, f"not within {seconds} s"
            if time.monotonic() - reported_s > 0.5:
                reported_s = time.monotonic()
                self.report()
            self.producer.poll(0.02)

    def add_standing_simulation(self) -> None:
        """Announce a simulated NIC of another shard whose time stands since a clock window 20 s ago."""
        other = make("Nic", nic="x/eth1", shard="x", probe_port=4791, simulation_pace=0.0)
        self.put(INVENTORY, other["nic"], other)
        window = clock_offsets(time.time_ns() // 1_000_000_000 - 20)
        self.put(CLOCK_OFFSETS, f"{window['shard']}/0", window)

    def published_cycles(self) -> list[dict[str, Any]]:
        return [record for _, record in self.log.read(POLICY_CYCLES.name)]


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    with embedded_log(tmp_path, 2) as address:
        yield address


def test_flows_leave_a_dead_link_across_a_worker_kill_and_the_replay_agrees(
    bootstrap: str, tmp_path: Path
) -> None:
    began_ns, fabric = time.time_ns(), Fabric(bootstrap)
    fabric.add_standing_simulation()
    for source in range(world.HOSTS):
        fabric.open(source, (source + 1) % world.HOSTS, 6000 + source)
    first = Service("streams", {"kafka": {"bootstrap": bootstrap}, **SETTINGS}, tmp_path)
    try:
        first.wait_ready()
        fabric.until(lambda: any(record["movable"] == world.HOSTS for record in fabric.published_cycles()))
        hit = fabric.over(DEAD)
        fabric.health(DEAD, "DOWN")
        fabric.until(lambda: len(fabric.decided()) >= len(hit))
        assert {decision["flow_id"] for decision in fabric.decided()} == hit
        assert all(decision["at_ns"] > began_ns for decision in fabric.decided())
        assert not fabric.over(DEAD)
        fabric.until(lambda: fabric.published_cycles()[-1]["at_ns"] > fabric.now_ns)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(10)
    finally:
        first.stop()
    moved = len(fabric.decided())
    second = Service("streams", {"kafka": {"bootstrap": bootstrap}, **SETTINGS}, tmp_path)
    try:
        second.wait_ready()
        epoch = fabric.decided()[-1]["epoch"]
        fabric.until(lambda: any(record["epoch"] > epoch for record in fabric.published_cycles()))
        other = "spine1:leaf2>leaf2:u1"
        hit = fabric.over(other)
        fabric.health(other, "DOWN")
        fabric.until(lambda: len(fabric.decided()) >= moved + len(hit))
        later = fabric.decided()[moved:]
        assert {decision["flow_id"] for decision in later} == hit, "moved flows do not move again"
        assert all(decision["epoch"] > epoch for decision in later)
        assert not fabric.over(other) | fabric.over(DEAD)
        fabric.put(FLOW_ROUTES, "x", None)
        fabric.producer.produce(FLOW_ROUTES.name, b"nonsense", "x")
        fabric.until(lambda: any(r["topic"] == FLOW_ROUTES.name for _, r in fabric.log.read(REJECTS.name)))
        fabric.until(lambda: fabric.published_cycles()[-1]["at_ns"] > fabric.now_ns)
    finally:
        second.stop()
    others = [each for _, record in fabric.log.read(FALLBACKS.name) for each in record["flows"]]
    assert all(
        each["other_paths"] and len(each["other_links"]) == len(each["other_paths"]) for each in others
    )
    found = CliRunner().invoke(app, ["replay", "policy", "--log", bootstrap, "--from", "5m", "--json"])
    assert found.exit_code == 0, found.output
    (replayed,) = json.loads(found.output)["stages"]
    assert replayed["differences"] == []
    assert replayed["published"] == len(replayed["records"]) == len(fabric.decided())
    assert len({record["epoch"] for record in replayed["records"]}) == 2
