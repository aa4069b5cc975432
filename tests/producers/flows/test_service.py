"""Flow reporter: real connections of the loopback, addresses of the inventory, and the service itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from producers.flows.intervals import FlowTable
from producers.flows.service import AddressTable, FlowReporter
from producers.inventory.nics import nic_record
from producers.settings import FlowSettings, NicSettings
from schemas import codec


def reported(of: FlowTable, whole: bool = False) -> list[dict[str, Any]]:
    records = of.report(whole, 1, iter(range(10**6)).__next__)
    for record in records:
        codec.encode("FlowReports", record)
    return [flow for record in records for flow in record["flows"]]


def test_addresses_follow_the_inventory():
    addresses = AddressTable()
    addresses.update("a/e0", {"addresses": ["10.0.0.1", "2001:DB8::1"]}, 0)
    assert addresses.nic_of("10.0.0.1") == addresses.nic_of("2001:db8::1") == "a/e0"
    addresses.update("b/e0", {"addresses": ["10.0.0.1"]}, 1)
    addresses.update("a/e0", {"addresses": ["10.0.0.9"]}, 2)
    assert addresses.nic_of("10.0.0.1") == "b/e0", "it moved, and its old owner's news does not take it away"
    assert addresses.nic_of("2001:db8::1") is None
    addresses.update("b/e0", None, 3)
    assert addresses.nic_of("10.0.0.1") is None


HOSTS = [NicSettings(host=f"lo{n}", device="lo", address=f"127.0.0.{n}") for n in (1, 2)]


@contextlib.contextmanager
def connection(
    family: socket.AddressFamily = socket.AF_INET,
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection from lo1 to lo2, over the machine's loopback."""
    mapped = "::ffff:" if family == socket.AF_INET6 else ""
    with socket.socket(family) as listener, socket.socket(family) as sender:
        listener.bind((f"{mapped}127.0.0.2", 0))
        listener.listen(1)
        sender.bind((f"{mapped}127.0.0.1", 0))
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        with receiver:
            yield sender, receiver


@pytest.fixture
def reporter(tmp_path) -> Iterator[FlowReporter]:
    addresses = AddressTable()
    for nic in HOSTS:
        addresses.update(f"{nic.host}/lo", {"addresses": [nic.address]}, 0)
    made = FlowReporter(FlowSettings(socket=tmp_path / "flows.sock"), HOSTS, addresses)
    made.read()
    yield made
    made.close()


def pump(sender: socket.socket, receiver: socket.socket, size: int) -> None:
    reading = threading.Thread(target=lambda: [receiver.recv(1 << 20, socket.MSG_WAITALL)])
    reading.start()
    sender.sendall(bytes(size))
    reading.join(10)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_real_connection_is_reported_with_its_bytes_and_its_end(reporter, family):
    with connection(family) as (sender, receiver):
        cookie = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
        port = sender.getsockname()[1]
        pump(sender, receiver, 1 << 20)
        reporter.read()
        mine = [flow for record in reporter.report(True) for flow in record["flows"]]
        (flow,) = [flow for flow in mine if flow["flow_id"].endswith(f"sock:{cookie}")]
        assert (flow["nic"], flow["peer"], flow["source_port"]) == ("lo1/lo", "lo2/lo", port)
        assert flow["protocol"] == "TCP"
        assert (flow["source_address"], flow["peer_address"]) == ("127.0.0.1", "127.0.0.2")
        assert 1 << 20 <= flow["bytes"] < 1.02 * (1 << 20)
        assert flow["rtt_ns"] > 0
        pump(sender, receiver, 1 << 20)
    end = time.monotonic() + 10
    closed: list[dict[str, Any]] = []
    while not closed:
        assert time.monotonic() < end
        reporter.read()
        reported = [flow for record in reporter.report(False) for flow in record["flows"]]
        closed = [
            each for each in reported if each["flow_id"] == flow["flow_id"] and each["state"] == "CLOSED"
        ]
    assert 2 << 20 <= closed[0]["bytes_total"] < 1.02 * (2 << 20)


def test_a_receiver_that_does_not_read_is_seen_to_hold_the_flow_back(reporter):
    with connection() as (sender, receiver):
        cookie = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
        sender.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.send(bytes(1 << 20))
        end = time.monotonic() + 20
        share = 0.0
        while share < 0.9:
            assert time.monotonic() < end, share
            threading.Event().wait(0.05)
            reporter.read()
            for record in reporter.report(True):
                for flow in record["flows"]:
                    if flow["flow_id"].endswith(f":{cookie}"):
                        share = flow["receiver_limited_share"] or 0.0
        assert receiver.fileno() >= 0


def test_reports_count_up_over_restarts(tmp_path, reporter):
    before = reporter.report(True)
    again = FlowReporter(FlowSettings(socket=tmp_path / "other.sock"), HOSTS, AddressTable())
    after = again.report(True)
    again.close()
    assert min(record["report"] for record in after) > max(record["report"] for record in before)
    assert {record["host"] for record in after} == {"lo1", "lo2"}
    assert all(record["whole"] and record["boot"] for record in after)


def test_a_namespace_that_is_not_there_is_named(tmp_path):
    nic = NicSettings(host="x", device="e", address="10.0.0.1", netns=str(tmp_path / "none"))
    with pytest.raises(OSError, match="none"):
        FlowReporter(FlowSettings(socket=tmp_path / "f.sock"), [nic], AddressTable())


_RUN = """
import json, logging, sys
logging.basicConfig(level=logging.INFO)
from producers.flows.service import main
from producers.settings import FlowSettings, NicSettings
settings, nics = json.loads(sys.argv[1])
sys.exit(main(FlowSettings(**settings), [NicSettings(**nic) for nic in nics]))
"""


def announce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for nic in HOSTS:
        record = nic_record(
            nic,
            run=1,
            probe_port=9,
            phc_index=None,
            speed_bps=None,
            mtu_bytes=None,
            since_ns=1,
            announced_ns=1,
        )
        producer.produce("fabric.inventory", codec.encode("Nic", record), f"{nic.host}/lo")
    assert producer.flush(10) == 0


def test_the_service_publishes_by_host_and_stops_on_a_signal(tmp_path, log, read):
    announce(log.bootstrap)
    settings = {
        "kafka": {"bootstrap": log.bootstrap},
        "socket": str(tmp_path / "flows.sock"),
        "whole_ms": 100,
    }
    root = str(Path(__file__).parents[3])
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, json.dumps([settings, [nic.model_dump(mode="json") for nic in HOSTS]])],
        cwd=root,
        env=os.environ | {"PYTHONPATH": root},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with connection() as (sender, receiver):
            cookie = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
            pump(sender, receiver, 1 << 20)
            mine = f":{cookie}"
            reader = read("fabric.flows")
            reader.until(lambda got: any(f["flow_id"].endswith(mine) for r in got for f in r["flows"]))
        reader.until(
            lambda got: any(
                f["flow_id"].endswith(mine) and f["state"] == "CLOSED" for r in got for f in r["flows"]
            )
        )
        reports = [record["report"] for record in reader.records if record["host"] == "lo1"]
        assert reports == sorted(set(reports))
        process.send_signal(signal.SIGTERM)
        _, text = process.communicate(timeout=10)
        assert process.returncode == 0, text
        assert not (tmp_path / "flows.sock").exists()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_a_nic_without_its_address_keeps_no_other_from_being_traced(tmp_path):
    """Field case A10: its flows are traced once it has its address."""
    lines = []
    away = NicSettings(host="lo1", device="eth3", address="203.0.113.99")
    settings = FlowSettings(socket=tmp_path / "flows.sock", trace_tcp_with_udp=True)
    made = FlowReporter(
        settings, [HOSTS[0], away], AddressTable(), lambda topic, key, value: None, None, lines.append
    )
    try:
        assert lines == ["X_FAULT=lo1/eth3: address 203.0.113.99 is not on this host"]
        assert made.wants_routes("lo1/lo>b/e")
        assert not made.wants_routes("lo1/eth3>b/e")
        made.read()
        made.trace()
    finally:
        made.close()
