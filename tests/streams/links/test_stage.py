"""Link health as it runs: a real log, real workers, evidence in, records of fabric.link-health out."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from fabrictime.bench._pipeline import Service, embedded_log, stream_worker
from fabrictime.bench.detect.link_evidence import ProbedFleet
from fabrictime.bench.detect.live_links import LiveLinks
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas import codec
from schemas.ids import cable_id
from schemas.topics import ALERTS, CONFIG, DELAYS, INVENTORY, LINK_HEALTH, LINKS, REJECTS
from tests.streams.alerts.script import slow
from tests.streams.test_pipeline import Log

SETTINGS: dict[str, Any] = {"stages": ["links"], "session_timeout_s": 2}
LINK = "leaf2:swp5>spine3:swp2"
CABLE = cable_id(LINK)


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    with embedded_log(tmp_path, 2) as address:
        yield address


@pytest.fixture
def live(bootstrap: str) -> Iterator[LiveLinks]:
    fleet = Fleet(Shape(hosts=8, hosts_per_rack=2, spines=4), 1)
    probes = ProbedFleet(fleet, peers=7, start_ns=time.time_ns())
    feeding = LiveLinks(bootstrap, probes)
    feeding.publish_paths()
    yield feeding
    feeding.close()


def break_link(live: LiveLinks, down: bool) -> None:
    live.probes.down[live.probes.fleet.link_index[LINK]] = down


def test_flaps_are_counted_exactly_though_the_worker_is_killed_and_thresholds_are_live(
    live: LiveLinks, bootstrap: str, tmp_path: Path
) -> None:
    first = Service("streams", {"kafka": {"bootstrap": bootstrap}, **SETTINGS}, tmp_path)
    try:
        first.wait_ready()
        live.run(2.5)
        assert live.records == []
        break_link(live, True)
        assert live.run(20, until=lambda: live.state(CABLE) == "DOWN")
        break_link(live, False)
        assert live.run(20, until=lambda: live.state(CABLE) == "UP")
        break_link(live, True)
        assert live.run(20, until=lambda: live.state(CABLE) == "DOWN")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(10)
    finally:
        first.stop()
    break_link(live, False)
    live.run(1.0)
    config = {
        "host": "*", "version": 1, "at_ns": 0, "by": "test", "mode": "UNKNOWN",
        "thresholds": [{"name": "flaps_max", "value": 2.0}], "latency_rules": [],
    }  # fmt: skip
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    with stream_worker(bootstrap, tmp_path, **SETTINGS):
        assert live.run(30, until=lambda: live.state(CABLE) == "UP")
        break_link(live, True)
        assert live.run(20, until=lambda: live.state(CABLE) == "DOWN")
        producer.produce(CONFIG.name, codec.encode(CONFIG.record, config), "*")
        assert producer.flush(10) == 0
        break_link(live, False)
        assert live.run(20, until=lambda: live.state(CABLE) == "FLAPPING")
    assert live.subjects_ever("DOWN") == {CABLE}
    record = live.last(CABLE)
    assert record is not None
    assert (record["flaps_total"], record["flaps_hour"], record["seq"]) == (3, 3, 6)
    assert record["text"] == "leaf2 to spine3 flapped 3 times within the past hour"
    downs = {r["seq"]: r["since_ns"] for _, _, r, _ in live.records if r and r["state"] == "DOWN"}
    assert list(downs) == [1, 3, 5]
    assert sorted(downs.values()) == record["flap_ns"]


def test_evidence_that_no_prober_sends_is_rejected_and_the_stream_goes_on(
    live: LiveLinks, bootstrap: str, tmp_path: Path
) -> None:
    log = Log(bootstrap)
    event = {
        "nic": "h1/eth1", "shard": "fabric", "run": 7, "event": 0, "kind": "PROBE", "clock_ns": 0,
        "system_ns": 0, "interval_ns": 0,
        "paths": [{
            "peer": "h1/eth1", "path": 1, "lost": 0, "answered": 1, "loss_streak": 0, "first_lost_age_ns": -1,
            "last_lost_age_ns": -1, "answered_age_ns": 0, "arrived_age_ns": 0, "timeout_ns": 0,
        }],
    }  # fmt: skip
    port = {**event, "paths": [], "kind": "CARRIER", "carrier": False}
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    with stream_worker(bootstrap, tmp_path, **SETTINGS):
        for value, key in (
            (b"nonsense", "fabric"),
            (codec.encode(LINKS.record, event), "fabric"),
            (codec.encode(LINKS.record, port), "another"),
            (None, "fabric"),
            (codec.encode(LINKS.record, port), "fabric"),
        ):
            producer.produce(LINKS.name, value, key)
        assert producer.flush(10) == 0
        assert live.run(20, until=lambda: live.state("h1/eth1") == "DOWN")
        log.wait(lambda: len(log.records(REJECTS.name)) >= 3)
    rejects = log.records(REJECTS.name)
    assert {r["reason"] for r in rejects} == {"UNKNOWN_SCHEMA", "OUT_OF_RANGE", "WRONG_KEY"}
    assert {r["topic"] for r in rejects} == {LINKS.name}
    log.close()


def test_an_alert_outlives_its_worker_and_is_cleared_once(
    live: LiveLinks, bootstrap: str, tmp_path: Path
) -> None:
    log = Log(bootstrap)
    config = {
        "host": "*", "version": 1, "at_ns": 0, "by": "test", "mode": "UNKNOWN",
        "thresholds": [{"name": "alert_clear_s", "value": 0.5}], "latency_rules": [],
    }  # fmt: skip
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    producer.produce(CONFIG.name, codec.encode(CONFIG.record, config), "*")

    def port(number: int, up: bool) -> None:
        event = {
            "nic": "h1/eth1", "shard": "fabric", "run": 7, "event": number, "kind": "CARRIER", "clock_ns": 0,
            "system_ns": 0, "interval_ns": 0, "carrier": up,
        }  # fmt: skip
        producer.produce(LINKS.name, codec.encode(LINKS.record, event), "fabric")
        assert producer.flush(10) == 0

    def alerts() -> list[tuple[str, int, str]]:
        return [(r["alert_id"], r["update"], r["state"]) for r in log.records(ALERTS.name)]

    first = Service("streams", {"kafka": {"bootstrap": bootstrap}, **SETTINGS}, tmp_path)
    try:
        first.wait_ready()
        port(0, False)
        log.wait(lambda: len(alerts()) == 1)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(10)
    finally:
        first.stop()
    port(1, True)
    with stream_worker(bootstrap, tmp_path, **SETTINGS):
        log.wait(lambda: len(alerts()) == 2)
    raised = log.records(ALERTS.name)[0]
    assert raised["kind"] == "NIC_DOWN"
    assert raised["text"].startswith("NIC h1/eth1 is down since ")
    assert [(e["topic"], e["key"]) for e in raised["evidence"]] == [(LINK_HEALTH.name, "h1/eth1")]
    assert alerts() == [(raised["alert_id"], 0, "RAISED"), (raised["alert_id"], 1, "CLEARED")]
    log.close()


def test_a_broken_latency_slo_outlives_its_worker_and_is_cleared_once(bootstrap: str, tmp_path: Path) -> None:
    log = Log(bootstrap)
    rule = {"name": "gold", "from_group": "h1", "to_group": "h2", "p99_us": 20.0, "for_s": 3.0}
    config = {
        "host": "*", "version": 1, "at_ns": 0, "by": "test", "mode": "UNKNOWN", "thresholds": [],
        "latency_rules": [rule],
    }  # fmt: skip
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for nic in ("h1/eth1", "h2/eth1"):
        announced = {
            "nic": nic, "host": nic[:2], "device": "eth1", "shard": "fabric", "addresses": ["10.0.0.1"],
            "probe_port": 9319, "clock": f"{nic[:2]}/system", "stamp": "KERNEL", "run": 1, "since_ns": 0,
            "announced_ns": 0, "rail": None, "rack": None, "speed_bps": None, "mtu_bytes": None,
            "capabilities": [], "path_ports": [], "first_hop": None,
        }  # fmt: skip
        producer.produce(INVENTORY.name, codec.encode(INVENTORY.record, announced), nic)

    def publish_config(version: dict[str, Any]) -> None:
        producer.produce(CONFIG.name, codec.encode(CONFIG.record, version), "*")
        assert producer.flush(10) == 0

    def measure(windows: range, us: float) -> None:
        for window in windows:
            _, nic, record, _ = slow(window, us)
            producer.produce(DELAYS.name, codec.encode(DELAYS.record, record), nic)
        assert producer.flush(10) == 0

    def alerts() -> list[tuple[str, str, int]]:
        return [(r["kind"], r["state"], r["update"]) for r in log.records(ALERTS.name)]

    publish_config(config)
    first = Service("streams", {"kafka": {"bootstrap": bootstrap}, **SETTINGS}, tmp_path)
    try:
        first.wait_ready()
        measure(range(10), 90.0)
        log.wait(lambda: alerts() == [("LATENCY", "RAISED", 0)])
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(10)
    finally:
        first.stop()
    with stream_worker(bootstrap, tmp_path, **SETTINGS):
        measure(range(10, 20), 4.0)  # who takes over reads back only as far as the promise needs
        log.wait(lambda: len(alerts()) == 2)
        measure(range(20, 30), 90.0)
        log.wait(lambda: len(alerts()) == 3)
        publish_config(config | {"version": 2, "latency_rules": []})
        log.wait(lambda: len(alerts()) == 4)
    published = log.records(ALERTS.name)
    assert [r["state"] for r in published] == ["RAISED", "CLEARED", "RAISED", "CLEARED"]
    assert (
        published[0]["alert_id"]
        == published[1]["alert_id"]
        != published[2]["alert_id"]
        == published[3]["alert_id"]
    )
    assert published[3]["text"].endswith("the rule was taken back")
    log.close()
