"""The whole pipeline on switches that queue by class and mark: a load in one class shows there alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from fabrictime.bench._fabric import RunningFabric, running_fabric
from fabrictime.runtime import status
from fabrictime.testbed.processes.userns import namespaces_allowed
from schemas import codec
from schemas.topics import TOPICS

DATA = 26
# Traces, route checks and full-size packets leave in the class of their path's last probe, but are no probes.
SETTINGS = """
[fabric]
hosts = 4
leaves = 2
spines = 2
host_rate_bps = 40000000
fabric_rate_bps = 20000000
buffer_bytes = 1000000
[[fabric.classes]]
mark_percent = 90
[[fabric.classes]]
dscp = 26
priority = 1
mark_percent = 90
[probes]
rate_pps = 150
flow_pps = 0
size_pps = 0
uplink_check_switch_pps = 0
retrace_s = 600
timeout_ms = 300
[[probes.classes]]
[[probes.classes]]
dscp = 26
[up]
act = "observe"
web = false
start_timeout_s = 300
[audit]
every_s = 0
"""
READY_S, LOAD_S, SETTLED_S = 120.0, 3.0, 40.0

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.pipeline,
    pytest.mark.slow("runs every service"),
    pytest.mark.timeout(400),
]


def records(fabric: RunningFabric, topic: str) -> list[Any]:
    """Return all records that a topic has now."""
    consumer = Consumer({"bootstrap.servers": fabric.bootstrap, "group.id": "test-classes"})
    found: list[Any] = []
    try:
        for number in consumer.list_topics(topic, 10).topics[topic].partitions:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), 10)
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
            reached, until_s = 0, time.monotonic() + 30
            while reached < end:
                assert time.monotonic() < until_s, f"{topic}/{number}: {reached} of {end} read"
                for message in consumer.consume(1000, 0.2):
                    assert message.error() is None, message.error()
                    reached = message.offset() + 1
                    found.append(codec.decode(message.value(), TOPICS[topic].record))
    finally:
        consumer.close()
    return found


def is_ready(fabric: RunningFabric) -> bool:
    if {row["state"] for row in status.read(fabric.data)["children"]} != {"ready"}:
        return False
    command = [sys.executable, "-m", "fabrictime", "clock", "--json", "--dir", str(fabric.data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    clocks = json.loads(done.stdout)["clocks"] if done.returncode == 0 else []
    return bool(clocks) and all(clock["state"] == "SYNCED" for clock in clocks)


def marks(fabric: RunningFabric) -> dict[int, int]:
    """Return the marks that all switches have counted, by DSCP."""
    total = {0: 0, DATA: 0}
    for counts in fabric.control.ask("truth")["marked"].values():
        for dscp, count in counts.items():
            total[int(dscp)] += count
    return total


def delays_by_class(fabric: RunningFabric) -> tuple[dict[int, dict[str, int]], dict[int, float]]:
    """Return by DSCP the marked and the incomplete probes of `fabric.delays`, and the worst p99 of marked
    requests, ns."""
    counted = {dscp: {"marked": 0, "lost": 0} for dscp in (0, DATA)}
    p99_ns = {0: 0.0, DATA: 0.0}
    for path in (path for window in records(fabric, "fabric.delays") for path in window["paths"]):
        counts = counted[path["dscp"]]
        counts["marked"] += path["forward_ce"] + path["reverse_ce"]
        counts["lost"] += path["lost"] + path["no_t3"]
        if path["forward_ce"] and path["forward_p99_ns"] is not None:
            p99_ns[path["dscp"]] = max(p99_ns[path["dscp"]], path["forward_p99_ns"])
    return counted, p99_ns


def test_a_load_in_one_class_shows_in_its_delays_its_marks_and_its_contention(capsys):
    if (denied := namespaces_allowed()) is not None:
        pytest.skip(denied)
    with running_fabric(print, SETTINGS, minutes=6) as fabric:
        until_s = time.monotonic() + READY_S
        while not is_ready(fabric):
            assert time.monotonic() < until_s, f"not ready within {READY_S:g} s"
            time.sleep(1)
        before, _ = delays_by_class(fabric)
        flow = fabric.control.stream(
            "flow",
            LOAD_S + 30,
            source="h1",
            destination="h3",
            rate_bps=20_800_000,
            duration_s=LOAD_S,
            protocol="udp",
            dscp=DATA,
        )
        loaded = next(flow)["path"][1]
        next(flow)
        until_s = time.monotonic() + SETTLED_S
        while True:
            counted, p99_ns = delays_by_class(fabric)
            by_switches = marks(fabric)  # after the delays: a queue that drains still marks probes
            missed = counted[DATA]["lost"] - before[DATA]["lost"]
            if counted[DATA]["marked"] + missed >= by_switches[DATA] or time.monotonic() > until_s:
                break
            time.sleep(1)
        opened = [each for each in records(fabric, "fabric.contention") if each["update"] == 0]
    with capsys.disabled():
        print(f"\n  switches {by_switches}, delays {counted}, {missed} missed, p99 {p99_ns}", end="")
        print(f", windows {[(each['link'], each['detected_by'], each['dscp']) for each in opened]}", end="")
    assert by_switches[0] == counted[0]["marked"] == 0
    assert by_switches[DATA] > 50
    assert abs(counted[DATA]["marked"] - by_switches[DATA]) <= 0.01 * by_switches[DATA] + missed
    assert p99_ns[DATA] > 20e6
    assert {each["dscp"] for each in opened} == {DATA}
    assert loaded in {link for each in opened for link in (each["link"], *each["candidates"])}
