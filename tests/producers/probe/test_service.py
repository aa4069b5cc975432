"""The prober as a process on a real log: peers found, batches that strangers read, restarts, a lost log."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from producers.probe.service import ALONE_S, ProbeService, until_flush_s
from producers.settings import NicSettings, flush_ms_of
from schemas import codec

Records = list[dict[str, Any]]


def batches_of(records: Records, nic: str) -> Records:
    return [record for record in records if record["nic"] == nic]


def samples_of(records: Records, nic: str) -> int:
    return sum(len(s["sent"]) for record in batches_of(records, nic) for s in record["samples"])


def test_probers_find_each_other_and_publish_all_four_stamps(
    start_prober: Callable[..., Any], read: Callable[[str], Any]
) -> None:
    clock = {"offset_ns": 3_000_000, "drift_ppb": 12_000.0}
    start_prober("a")
    start_prober("b", nic={"clock": clock})
    start_prober("c")
    probes = read("fabric.probes")
    records = probes.until(lambda found: all(samples_of(found, f"{host}/lo") > 100 for host in "abc"))
    for host in "abc":
        own = batches_of(records, f"{host}/lo")
        assert [record["batch"] for record in own] == list(range(len(own)))
        assert len({record["run"] for record in own}) == 1
        peers = {s["peer"] for record in own for s in record["samples"]}
        assert peers == {f"{other}/lo" for other in "abc" if other != host}
        for record in own:
            for s in record["samples"]:
                assert len(s["sent"]) == len(s["forward"]) == len(s["turnaround"]) == len(s["reverse"])
                assert not s["spacing_ns"] or len(s["sent"]) % 2 == 0
                assert min(s["turnaround"], default=0) >= 0
    forward = [
        f
        for record in batches_of(records, "a/lo")
        for s in record["samples"]
        if s["peer"] == "b/lo"
        for f in s["forward"]
    ]
    assert 2_900_000 < sorted(forward)[len(forward) // 2] < 3_500_000
    nics = {record["nic"]: record for record in read("fabric.inventory").until(lambda found: len(found) >= 3)}
    assert nics["b/lo"]["clock"] == "b/lo"
    assert nics["a/lo"]["clock"] == "a/system"
    assert nics["a/lo"]["run"] == batches_of(records, "a/lo")[0]["run"]


def test_a_restart_is_a_new_run_that_begins_at_batch_0(
    start_prober: Callable[..., Any], read: Callable[[str], Any]
) -> None:
    a = start_prober("a")
    start_prober("b")
    probes = read("fabric.probes")
    probes.until(lambda found: samples_of(found, "a/lo") > 20)
    started = time.monotonic()
    code, text = a.end(signal.SIGTERM)
    assert code == 0, text
    assert time.monotonic() - started < 5
    nics = read("fabric.inventory").until(lambda found: any(not r["probe_port"] for r in found))
    assert [r["nic"] for r in nics if not r["probe_port"]] == ["a/lo"], "it alone says goodbye"
    a.start()
    records = probes.until(lambda found: len({r["run"] for r in batches_of(found, "a/lo")}) == 2)
    runs = [record["run"] for record in batches_of(records, "a/lo")]
    new = [record for record in batches_of(records, "a/lo") if record["run"] == runs[-1]]
    assert new[0]["batch"] == 0


def test_a_log_that_goes_costs_the_oldest_batches_and_shows_as_a_gap(
    start_prober: Callable[..., Any], read: Callable[[str], Any], log: Any
) -> None:
    a = start_prober("a", flush_ms=10, queue_messages=10)
    probes = read("fabric.probes")
    before = len(batches_of(probes.until(lambda found: len(found) > 20), "a/lo"))
    log.down()
    gone = time.monotonic()
    while time.monotonic() - gone < 2.5:
        time.sleep(0.05)  # the outage itself: what it lasts is what is tested
    log.up()
    records = probes.until(lambda found: len(batches_of(found, "a/lo")) > before + 100)
    numbers = sorted({record["batch"] for record in batches_of(records, "a/lo")})
    gaps = [b - a for a, b in pairwise(numbers) if b - a > 1]
    assert gaps, "nothing was dropped: the queue is not bounded"
    assert len(gaps) <= 2
    assert len({record["run"] for record in batches_of(records, "a/lo")}) == 1
    assert a.end()[0] == 0


def test_reduced_publishes_windows_with_itself_as_source(
    start_prober: Callable[..., Any], read: Callable[[str], Any]
) -> None:
    start_prober("a", publish="reduced", window_ms=200)
    start_prober("b", publish="reduced", window_ms=200, nic={"clock": {"offset_ns": 3_000_000}})
    found = read("fabric.clock.fits").until(
        lambda records: sum(bool(r["pairs"]) for r in records if r["source"] == "a/lo") >= 3
    )
    own = [record for record in found if record["source"] == "a/lo"]
    windows = [record["window"] for record in own]
    assert windows == sorted(set(windows))
    last = next(record for record in reversed(own) if record["pairs"])
    assert last["shard"] == "fabric"
    assert last["nics"][0]["nic"] == "a/lo"
    assert abs(last["pairs"][0]["offset_ns"] - 3_000_000) < 50_000
    delays = read("fabric.delays").until(lambda records: any(r["paths"] for r in records))
    assert delays[0]["state"] == "UNSYNCED"
    assert all(path["forward_p50_ns"] is None for record in delays for path in record["paths"])


def test_it_ends_quickly_while_the_log_is_away(start_prober: Callable[..., Any], log: Any) -> None:
    log.down()
    a = start_prober("a")
    for line in a.process.stderr:
        if "answers on" in line:
            break
    started = time.monotonic()
    code, text = a.end(signal.SIGINT)
    assert code == 0, text
    assert time.monotonic() - started < 5
    log.up()


def test_a_failed_start_gives_one_line(start_prober: Callable[..., Any], key_file: Path) -> None:
    key_file.chmod(0o644)
    a = start_prober("a")
    a.process.wait(20)
    code, text = a.end()
    assert code == 2
    assert "a/lo: key_file" in text
    assert "expected 0600" in text
    assert "Traceback" not in text
    key_file.chmod(0o600)


@pytest.mark.parametrize(
    ("nic", "named"),
    [({"netns": "/run/netns/none-such"}, "none-such"), ({"address": "203.0.113.99"}, "203.0.113.99")],
)
def test_a_prober_waits_for_its_address(
    start_prober: Callable[..., Any], nic: dict[str, str], named: str
) -> None:
    b = start_prober("b", nic=nic)
    line = b.process.stderr.readline()
    assert "b/lo: address" in line
    assert named in line
    assert b.end()[0] == 0


def test_a_killed_peer_is_reported_at_once_with_the_answers_of_living_peers(
    start_prober: Callable[..., Any], read: Callable[[str], Any]
) -> None:
    start_prober("a")
    b = start_prober("b")
    start_prober("c")
    links = read("fabric.links")

    def answered(found: Records, peer: str) -> int:
        rows = (row for record in found if record["nic"] == "a/lo" for row in record["paths"])
        return sum(row["answered"] for row in rows if row["peer"] == peer)

    before = links.until(lambda found: min(answered(found, "b/lo"), answered(found, "c/lo")) > 500)
    own = [record for record in before if record["nic"] == "a/lo"]
    assert own[0]["event"] == 0
    assert [r["carrier"] for r in own if r["kind"] == "CARRIER"] == [True], "the state at the start is told"
    killed_ns = time.time_ns()
    b.end(signal.SIGKILL)

    def reported(found: Records) -> bool:
        return any(
            row["peer"] == "b/lo" and row["loss_streak"] >= 3
            for record in found
            if record["nic"] == "a/lo" and record["system_ns"] > killed_ns
            for row in record["paths"]
        )

    found = links.until(reported)
    after = [r for r in found if r["nic"] == "a/lo" and r["system_ns"] > killed_ns and r["kind"] == "PROBE"]
    numbers = [record["event"] for record in found if record["nic"] == "a/lo"]
    assert numbers == list(range(len(numbers)))
    assert any(row["peer"] == "c/lo" and row["answered"] for record in after for row in record["paths"])
    lost = next(row for r in after for row in r["paths"] if row["peer"] == "b/lo" and row["loss_streak"] >= 3)
    assert lost["first_lost_age_ns"] >= lost["last_lost_age_ns"] >= 0
    assert lost["arrived_age_ns"] >= 0
    nics = {record["nic"]: record for record in read("fabric.inventory").until(lambda found: len(found) >= 3)}
    assert {"probe.udp", "links.probes", "links.carrier"} <= set(nics["a/lo"]["capabilities"])


def test_the_flush_interval_depends_on_the_fleet_size_unless_it_is_set() -> None:
    assert [flush_ms_of(None, nics) for nics in (0, 8, 250, 251, 100_000)] == [50, 50, 50, 100, 100]
    assert [flush_ms_of(20, nics) for nics in (8, 100_000)] == [20, 20]


@given(st.integers(0, 2**62), st.integers(10, 10_000))
def test_flushes_come_together_a_little_after_round_times(system_ns: int, flush_ms: int) -> None:
    left_s = until_flush_s(flush_ms, system_ns)
    every_ns = flush_ms * 1_000_000
    assert every_ns / 8e9 < left_s <= every_ns * 9 / 8e9
    at_ns = system_ns + round(left_s * 1e9)
    assert abs((at_ns - 33_000_000 + every_ns // 2) % every_ns - every_ns // 2) <= 1


def test_a_live_flows_route_is_probed_additionally_until_the_flow_ends(
    start_prober: Callable[..., Any], read: Callable[[str], Any], log: Any
) -> None:
    given_settings = {"flow_gap_ms": 5, "flow_pps": 300, "rate_pps": 40, "scheduled": False, "flow_paths": 1}
    start_prober("a", **given_settings)
    start_prober("b", **given_settings)

    def rows(found: Records) -> Records:
        newest = {(record["nic"], record["peer"]): record for record in found}
        text = newest.get(("a/lo", "b/lo"), {"paths": []})["paths"]
        return [row for row in text if row["leg"] == "REQUEST" and row["complete"]]

    paths = read("fabric.paths")
    route = rows(paths.until(lambda found: len(rows(found)) == 2))[0]["links"]
    producer = Producer({"bootstrap.servers": log.bootstrap, "partitioner": "murmur2_random"})

    def publish_flow(state: str) -> None:
        flow = {
            "flow_id": "a/boot/sock:1",
            "state": state,
            "nic": "a/lo",
            "peer": "b/lo",
            "peer_port": 2,
            "source_address": "127.0.0.1",
            "peer_address": "127.0.0.2",
            "source_port": 1,
            "protocol": "TCP",
            "links": route,
            "bytes_total": 10,
            "interval_ns": 1,
            "bytes": 10,
            "rate_bps": 1e6,
        }
        record = {
            "host": "a",
            "boot": "boot",
            "report": time.monotonic_ns(),
            "shard": "fabric",
            "system_ns": time.time_ns(),
            "whole": True,
            "flows": [flow],
        }
        producer.produce("fabric.flows", codec.encode("FlowReports", record), "a")
        producer.flush(5)

    def lately(found: Records) -> dict[int, int]:
        """Samples of each source port in the newest second of a's batches."""
        counts: Counter[int] = Counter()
        for record in batches_of(found, "a/lo")[-10:]:
            for s in record["samples"]:
                counts[s["path"]] += len(s["sent"])
        return counts

    probes = read("fabric.probes")

    def looked_at(found: Records) -> bool:
        publish_flow("OPEN")
        counts = sorted(lately(found).values())
        return len(counts) > 1 and counts[-1] > 60 and counts[-1] > 4 * counts[0]

    probes.until(looked_at, 60)

    def back(found: Records) -> bool:
        publish_flow("CLOSED")
        return sum(lately(found).values()) < 60

    probes.until(back, 60)


class Table:
    """The NICs that live, by host."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts

    def alive(self, shard: str) -> dict[str, dict[str, str]]:
        return {f"{host}/eth0": {"host": host} for host in self.hosts}


@pytest.mark.parametrize(
    ("hosts", "peers", "is_problem"),
    [
        pytest.param(("a", "b", "c"), 0, True, id="others live, none can be reached"),
        pytest.param(("a", "b", "c"), 1, False, id="one can be reached"),
        pytest.param(("a",), 0, False, id="a lone host has no peers by nature"),
        pytest.param((), 0, False, id="before the first announcement"),
    ],
)
def test_a_nic_without_a_peer_is_a_fault_unless_it_is_alone(
    hosts: tuple[str, ...], peers: int, is_problem: bool
) -> None:
    service: Any = ProbeService.__new__(ProbeService)
    service.nic = NicSettings(host="a", device="eth0", address="10.0.0.1")
    service.publisher = SimpleNamespace(peers=Table(*hosts))
    service._peers, service._alone_since_s = peers, 0.0
    assert service._peer_problem(ALONE_S - 1) is None
    problem = service._peer_problem(ALONE_S + 1)
    assert (problem is not None) is is_problem
    assert problem is None or problem.startswith("no peer among the NICs of 2 other hosts")
