"""The service against the embedded log: real ranks, their deaths, and restarts of service and log."""

from __future__ import annotations

import signal

import pytest

from producers.boot import boot_id
from producers.collectives.service import reported_hosts
from producers.collectives.settings import CollectiveSettings
from producers.settings import NicSettings

pytestmark = pytest.mark.timeout(120)

NICS = [{"host": "h1", "device": "lo", "address": "127.0.0.1", "shard": "s0"}]


def operations(records, **wanted):
    found = [operation for record in records for operation in record["operations"]]
    return [each for each in found if all(each[key] == value for key, value in wanted.items())]


def count(records):
    return sum(
        each["count"] for record in {r["batch"]: r for r in records}.values() for each in record["summaries"]
    )


@pytest.fixture
def given(log, tmp_path):
    return {
        "kafka": {"bootstrap": log.bootstrap},
        "socket": str(tmp_path / "run" / "c.sock"),
        "report_ms": 200,
    }


def test_each_host_of_a_machine_has_a_socket_and_a_page(tmp_path):
    settings = CollectiveSettings(socket=tmp_path / "collectives.sock")
    nics = [NicSettings(host=host, device="eth0", address=f"10.0.0.{n}") for n, host in ((1, "a"), (2, "b"))]
    first, second = reported_hosts(settings, nics, {"a": tmp_path / "page"})
    assert (first.socket.name, second.socket.name) == ("collectives-a.sock", "collectives-b.sock")
    assert (first.clock_file, second.clock_file) == (tmp_path / "page", None)
    assert first.boot == boot_id()
    alone = reported_hosts(settings, nics[:1], {})
    assert [host.socket.name for host in alone] == ["collectives.sock"]


def test_a_job_is_reported_until_it_dies(log, read, given, ranks, services, tmp_path):
    reader = read("fabric.collectives")
    service = services(given, NICS)
    rank = ranks(tmp_path / "run" / "c.sock")
    rank.do("run 100 100000 65536", "moved 4 200000")
    records = reader.until(lambda records: count(records) == 101)
    assert {(r["job"], r["host"], r["shard"], r["boot"]) for r in records} == {
        ("train", "h1", "s0", boot_id())
    }
    assert records[0]["process"].startswith(f"{rank.pid}-")
    summary = records[0]["summaries"][0]
    assert (summary["function"], summary["bytes_from"], summary["p50_ns"]) == ("ALL_REDUCE", 65536, 100_000)
    rank.do("hang")
    rank.kill()
    records = reader.until(lambda records: records[-1]["ended"])
    (running,) = operations(records[-1:], kept="RUNNING")
    assert (running["end_ns"], running["seq"]) == (None, 101), "it died in mid-collective"
    assert [record["batch"] for record in records] == list(range(len(records)))
    service.send_signal(signal.SIGTERM)
    assert service.wait(10) == 0
    assert not (tmp_path / "run" / "c.sock").exists()


def test_a_killed_service_loses_nothing_that_the_next_one_can_read(
    log, read, given, ranks, services, tmp_path
):
    reader = read("fabric.collectives")
    first = services(given, NICS)
    rank = ranks(tmp_path / "run" / "c.sock")
    rank.do("run 50 100000 4096")
    reader.until(lambda records: count(records) >= 50)
    first.kill()
    first.wait(10)
    rank.do("run 70 100000 4096")
    services(given, NICS)
    records = reader.until(lambda records: count(records) >= 120)
    rank.end()
    records = reader.until(lambda records: records[-1]["ended"])
    assert count(records) == 120
    assert sorted({record["batch"] for record in records}) == list(range(records[-1]["batch"] + 1))


def test_sums_outlive_an_outage_of_the_log(log, read, given, ranks, services, tmp_path):
    services(given, NICS)
    rank = ranks(tmp_path / "run" / "c.sock")
    rank.do("run 10 100000 4096")
    read("fabric.collectives").until(lambda records: count(records) == 10)
    log.down()
    rank.do("run 1990 100000 4096")
    log.up()
    rank.end()
    records = read("fabric.collectives").until(lambda records: bool(records) and records[-1]["ended"])
    assert (count(records), records[-1]["events_dropped"]) == (2000, 0)
