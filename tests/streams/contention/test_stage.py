"""The contention stage as it runs: queues and flows on a real log, windows out, through a worker's death."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from fabrictime.bench._pipeline import embedded_log, stream_worker
from schemas import codec
from schemas.topics import CONTENTION, FLOWS, INVENTORY, QUEUES, REJECTS, TOPICS

SETTINGS: dict[str, Any] = {"stages": ["solve"], "session_timeout_s": 3}
SLOT_NS, SLOTS = 10_000_000, 5
WINDOW_NS = SLOT_NS * SLOTS
SPINE, LAST = "leaf1:swp9>spine1:swp1", "leaf2:swp1>h3:eth1"


class Log:
    """Publishes the records of agents and queue inference, and reads the stage's output."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        })  # fmt: skip
        ends = []
        for topic in (CONTENTION.name, REJECTS.name):
            numbers = self._consumer.list_topics(topic, 10).topics[topic].partitions
            ends += [TopicPartition(topic, number, 0) for number in numbers]
        self._consumer.assign(ends)
        self.records: dict[str, list[dict[str, Any]]] = {CONTENTION.name: [], REJECTS.name: []}
        self.window = time.time_ns() // WINDOW_NS
        for number in range(1, 5):
            self.send(INVENTORY.name, f"h{number}/eth1", nic(number))

    def send(self, topic: str, key: str, record: dict[str, Any]) -> None:
        self._producer.produce(topic, codec.encode(TOPICS[topic].record, record), key)
        assert self._producer.flush(10) == 0

    def flows(self, *flows: dict[str, Any]) -> None:
        for number in range(1, 5):
            own = [each for each in flows if each["nic"] == f"h{number}/eth1"]
            self.send(FLOWS.name, f"h{number}", {
                "host": f"h{number}", "boot": "b", "report": self.window, "shard": "fabric", "system_ns": 1,
                "whole": True, "flows": own,
            })  # fmt: skip

    def queues(self, depth: float, windows: int) -> None:
        """Publish some windows, as fast as they pass by."""
        for _ in range(windows):
            link = {
                "link": SPINE, "rate_bps": 10**9, "depth_mean_bytes": depth, "depth_max_bytes": depth,
                "bound_bytes": 1e3, "samples": 9, "slot": list(range(SLOTS)), "depth_bytes": [depth] * SLOTS,
            }  # fmt: skip
            self.send(QUEUES.name, "fabric", {
                "shard": "fabric", "window": self.window, "part": 0, "parts": 1,
                "window_start_ns": self.window * WINDOW_NS, "slot_ns": SLOT_NS, "slots": SLOTS,
                "synced": True, "paths": 1, "solved_ns": 1, "links": [link],
            })  # fmt: skip
            self.window += 1

    def until(self, topic: str, done: Any, seconds: float = 30) -> list[dict[str, Any]]:
        end = time.monotonic() + seconds
        while not done(self.records[topic]):
            assert time.monotonic() < end, self.records
            for message in self._consumer.consume(50, 0.05):
                name = message.topic() or ""
                self.records[name].append(codec.decode(message.value() or b"", TOPICS[name].record))
        return self.records[topic]

    def close(self) -> None:
        self._consumer.close()


def nic(number: int) -> dict[str, Any]:
    name = f"h{number}"
    return {
        "nic": f"{name}/eth1", "host": name, "device": "eth1", "shard": "fabric", "rail": None, "rack": None,
        "addresses": [f"10.0.0.{number}"], "probe_port": 9319, "clock": f"{name}/system", "stamp": "KERNEL",
        "speed_bps": None, "mtu_bytes": None, "run": 1, "since_ns": 1, "announced_ns": 1, "capabilities": [],
    }  # fmt: skip


def flow(source: int, to: int, rate_bps: float, job: str) -> dict[str, Any]:
    return {
        "flow_id": f"h{source}/b/sock:{source}", "state": "OPEN", "nic": f"h{source}/eth1",
        "peer": f"h{to}/eth1", "source_address": "", "peer_address": "", "source_port": 1, "peer_port": 2,
        "protocol": "TCP", "links": [SPINE, LAST], "job": job, "bytes_total": 1, "interval_ns": 1, "bytes": 1,
        "rate_bps": rate_bps,
    }  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded_log(tmp_path, 2) as bootstrap:
        log = Log(bootstrap)
        yield log
        log.close()


def states(records: list[dict[str, Any]]) -> list[str]:
    return [record["state"] for record in records]


def test_a_window_survives_its_worker_and_closes_once(log: Log, tmp_path: Path) -> None:
    log.send(FLOWS.name, "nobody", {
        "host": "nobody", "boot": "b", "report": 1, "shard": "fabric", "system_ns": 1, "whole": True,
        "flows": [flow(1, 3, 1e9, "x") | {"nic": "nobody/eth1", "flow_id": "nobody/b/sock:1"}],
    })  # fmt: skip
    with stream_worker(log.bootstrap, tmp_path, **SETTINGS) as worker:
        log.queues(0.0, 2)
        began = log.window * WINDOW_NS
        log.queues(80e3, 4)
        (opened, *_) = log.until(CONTENTION.name, lambda got: got)
        assert (opened["link"], opened["opened_ns"]) == (SPINE, began)

        def named(got: list[dict[str, Any]]) -> bool:
            log.flows(flow(1, 3, 6e8, "train"), flow(2, 3, 6e8, "serve"))
            log.queues(80e3, 1)
            return any(each["kind"] == "COLLISION" and each["jobs"] for each in got)

        log.until(CONTENTION.name, named)
        worker.process.kill()
    log.queues(80e3, 3)
    log.send(QUEUES.name, "fabric", {
        "shard": "fabric", "window": 1, "part": 0, "parts": 1, "window_start_ns": 50, "slot_ns": SLOT_NS,
        "slots": SLOTS, "synced": True, "paths": 1, "solved_ns": 1, "links": [],
    })  # fmt: skip
    with stream_worker(log.bootstrap, tmp_path, **SETTINGS) as worker:
        ended = log.window * WINDOW_NS
        log.queues(0.0, 8)
        records = log.until(CONTENTION.name, lambda got: "CLOSED" in states(got))
        (reject,) = log.until(REJECTS.name, lambda got: got)
        assert worker.stop() == 0
    assert {record["window_id"] for record in records} == {opened["window_id"]}
    closed = records[-1]
    assert (closed["opened_ns"], closed["closed_ns"]) == (began, ended)
    assert closed["over_ns"] == ended - began, "nothing lost and nothing counted twice"
    assert (closed["kind"], closed["jobs"]) == ("COLLISION", ["serve", "train"])
    identities = [(record["window_id"], record["update"]) for record in records]
    assert len(set(identities)) == len(identities)
    assert (reject["topic"], reject["reason"]) == (QUEUES.name, "OUT_OF_RANGE")
    assert "window_start_ns: 50" in reject["detail"]
