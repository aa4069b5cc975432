"""The worker with a real log: probes in, clocks and delays out."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from fabrictime.bench._fleet import SyntheticFleet
from fabrictime.bench._pipeline import Service, embedded_log, service, stream_worker
from fabrictime.log.server import LogServer
from fabrictime.log.settings import LogSettings
from schemas import codec
from schemas.topics import CLOCK_FITS, CLOCK_OFFSETS, DELAYS, INVENTORY, PROBES, REJECTS, TOPICS
from tests.examples import draws

PARTITIONS = 4
SETTINGS: dict[str, Any] = {"stages": ["map", "solve"], "window_ms": 500, "session_timeout_s": 3}
WINDOW_NS = 500_000_000


class Log:
    """A test's access to the log: produce batches, read topics, wait for records."""

    def __init__(self, bootstrap: str, nics: int = 6) -> None:
        self.bootstrap = bootstrap
        self.fleet = SyntheticFleet(nics, peers=min(5, nics - 1), paths=1, epoch_ns=time.time_ns())
        self.acknowledged = 0
        self.samples = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
        self._consumers: dict[str, Consumer] = {}
        self._records: dict[str, list[tuple[Any, dict[str, Any]]]] = {}
        self._next: dict[tuple[str, int], int] = {}

    def send(self, value: bytes, key: str, samples: int = 0) -> None:
        def delivered(error: Any, _: Any) -> None:
            assert error is None
            self.acknowledged += 1
            self.samples += samples

        self._producer.produce(PROBES.name, value, key, on_delivery=delivered)
        self._producer.poll(0)

    def probe(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        """Let every NIC flush each 50 ms for some time, or until a condition holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            now_ns = time.time_ns()
            for name in self.fleet.members:
                value = self.fleet.message(name, now_ns - 50_000_000, now_ns, 4)
                self.send(value, name, 8 * self.per_batch())
            self._producer.poll(0.05)
            if until is not None and until():
                return
        assert until is None, f"not within {seconds} s"

    def per_batch(self) -> int:
        return len(next(iter(self.fleet.members.values())).peers)

    def flush(self) -> None:
        assert self._producer.flush(20) == 0

    def read(self, topic: str) -> list[tuple[Any, dict[str, Any]]]:
        """Return all records of a topic so far."""
        kept = self._records.setdefault(topic, [])
        consumer = self._consumers.get(topic)
        if consumer is None:
            consumer = self._consumers[topic] = Consumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "group.id": "test",
                    "enable.auto.commit": False,
                    "fetch.wait.max.ms": 20,
                }
            )
            numbers = consumer.list_topics(topic, 10).topics[topic].partitions
            consumer.assign([TopicPartition(topic, n, 0) for n in numbers])
            self._next |= {(topic, n): 0 for n in numbers}
        missing = {
            n: consumer.get_watermark_offsets(TopicPartition(topic, n), 10)[1]
            for name, n in self._next
            if name == topic
        }
        while missing := {n: end for n, end in missing.items() if self._next[topic, n] < end}:
            message = consumer.poll(5)
            assert message is not None, f"{topic}: {missing} did not come"
            assert message.error() is None
            self._next[topic, message.partition()] = message.offset() + 1
            if message.value() is not None:
                kept.append((message, codec.decode(message.value(), TOPICS[topic].record)))
        return kept

    def records(self, topic: str) -> list[dict[str, Any]]:
        return [record for _, record in self.read(topic)]

    def wait(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s"
            self._producer.poll(0.05)

    def fits_by_identity(self) -> dict[tuple[str, str, int, int], dict[str, Any]]:
        """Return the records that remain after deduplication by identity."""
        return {(r["shard"], r["source"], r["window"], r["part"]): r for r in self.records(CLOCK_FITS.name)}

    def synced(self) -> bool:
        newest = self.newest_offsets()
        return bool(newest) and all(c["state"] == "SYNCED" for c in newest.values())

    def newest_offsets(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for record in sorted(self.records(CLOCK_OFFSETS.name), key=lambda r: int(r["window"])):
            found |= {clock["clock"]: clock for clock in record["clocks"]}
        return found

    def last_window(self) -> int:
        return max(r["window"] for r in self.records(CLOCK_OFFSETS.name))

    def reachable(self) -> bool:
        """Return whether the readers have reconnected to the log."""
        try:
            return all(self.read(topic) is not None for topic in self._consumers)
        except KafkaException:
            return False

    def close(self) -> None:
        self._producer.flush(5)
        for consumer in self._consumers.values():
            consumer.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded_log(tmp_path, PARTITIONS) as bootstrap:
        log = Log(bootstrap)
        yield log
        log.close()


def test_offsets_and_delays_match_the_truth(log: Log, tmp_path: Path) -> None:
    def delays() -> list[dict[str, Any]]:
        return log.records(DELAYS.name)

    with stream_worker(log.bootstrap, tmp_path, **SETTINGS) as worker:
        log.probe(20, until=lambda: len({r["window"] for r in delays() if r["state"] == "SYNCED"}) > 3)
        assert worker.stop() == 0
    errors = {}
    fleet = log.fleet.members
    for record in log.records(CLOCK_OFFSETS.name):
        fabric = {}
        for clock in record["clocks"]:
            if clock["state"] == "SYNCED":
                true = fleet[clock["clock"]].clock
                time_ns = clock["at_ns"]
                for _ in range(4):
                    time_ns -= true.reading_at(time_ns) - clock["at_ns"]
                fabric[clock["clock"]] = clock["at_ns"] - time_ns + clock["offset_ns"]
                errors[clock["clock"], record["window"]] = clock["bound_ns"]
        if fabric:
            middle = sorted(fabric.values())[len(fabric) // 2]
            for name, ahead in fabric.items():
                assert abs(ahead - middle) <= 2 * errors[name, record["window"]]
            assert abs(middle) < 1_000_000
    assert len(errors) >= 3 * len(fleet)
    last = max(window for _, window in errors)
    assert max(bound for (_, window), bound in errors.items() if window == last) < 10_000
    paths = [p for r in delays() if r["state"] == "SYNCED" for p in r["paths"]]
    assert paths
    for path in paths:
        assert abs(path["forward_min_ns"] - 5_000) <= path["bound_ns"] + 2_000
        assert abs(path["reverse_min_ns"] - 5_000) <= path["bound_ns"] + 2_000
    sources = {r["source"] for r in log.records(CLOCK_FITS.name)}
    assert sources == {f"{PROBES.name}/{n}" for n in range(PARTITIONS)}


def test_every_source_publishes_every_window_without_probes(log: Log, tmp_path: Path) -> None:
    def windows() -> list[int]:
        counts = Counter(r["window"] for r in log.records(CLOCK_FITS.name))
        return sorted(window for window, sources in counts.items() if sources == PARTITIONS)

    with stream_worker(log.bootstrap, tmp_path, **SETTINGS):
        log.wait(lambda: len(windows()) >= 3)
    found = windows()
    assert found == list(range(found[0], found[-1] + 1))
    assert all(r["samples"] == 0 and r["first_offset"] == -1 for r in log.records(CLOCK_FITS.name))


def test_a_bad_message_is_rejected_and_the_stream_continues(log: Log, tmp_path: Path) -> None:
    name = next(iter(log.fleet.members))
    now_ns = time.time_ns()
    good = log.fleet.message(name, now_ns, now_ns + 1000, 2)
    bad = {
        "UNKNOWN_SCHEMA": (b"hello", "x"),
        "TRUNCATED": (good[:-7], name),
        "WRONG_KEY": (good, "other/nic"),
        "MALFORMED": (good + b"\x01", name),
    }
    with stream_worker(log.bootstrap, tmp_path, **SETTINGS):
        for value, key in bad.values():
            log.send(value, key)
        log.flush()
        log.wait(lambda: len(log.records(REJECTS.name)) >= len(bad))
        log.probe(20, until=log.synced)
    rejects = log.read(REJECTS.name)
    assert {r["reason"] for _, r in rejects} == set(bad)
    for message, record in rejects:
        assert message.key() == PROBES.name.encode()
        assert record["topic"] == PROBES.name
        assert record["detail"]
        assert record["head"] in {value[:1024] for value, _ in bad.values()}
    assert sum(r["rejected"] for r in log.fits_by_identity().values()) == len(bad)


def test_a_failed_history_delays_no_other_stage(log: Log, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"  # accepts connections and never answers
        history = {"url": url, "batch_messages": 2}
        settings = SETTINGS | {"stages": ["map", "solve", "sink"], "history": history}
        with stream_worker(log.bootstrap, tmp_path, **settings) as worker:
            log.probe(20, until=log.synced)
            began = log.last_window()
            log.probe(20, until=lambda: log.last_window() > began + 6)
            assert worker.process.poll() is None


def test_tombstones_are_skipped(log: Log, tmp_path: Path) -> None:
    with stream_worker(log.bootstrap, tmp_path, **SETTINGS):
        log._producer.produce(PROBES.name, None, next(iter(log.fleet.members)))
        log.probe(20, until=log.synced)
    assert log.records(REJECTS.name) == []


@pytest.mark.parametrize("pause_s", draws([1.3, 2.1]))
def test_kill_9_in_mid_window_loses_and_doubles_no_sample(log: Log, tmp_path: Path, pause_s: float) -> None:
    first = Service("streams", {"kafka": {"bootstrap": log.bootstrap}, **SETTINGS}, tmp_path)
    try:
        first.wait_ready()
        log.probe(20, until=log.synced)
        log.probe(pause_s)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(10)
    finally:
        first.stop()
    before = log.newest_offsets()
    died = log.last_window()
    log.probe(1.0)
    with stream_worker(log.bootstrap, tmp_path, **SETTINGS):
        log.probe(30, until=lambda: log.last_window() > died + 4 and log.synced())
        log.flush()
        log.wait(lambda: sum(r["samples"] for r in log.fits_by_identity().values()) >= log.samples)
    fits = log.fits_by_identity().values()
    assert sum(r["samples"] for r in fits) == log.samples
    assert sum(r["messages"] for r in fits) == log.acknowledged
    assert sum(n["lost_batches"] for r in fits for n in r["nics"]) == 0
    ranges = sorted((r["source"], r["first_offset"], r["next_offset"]) for r in fits if r["messages"])
    for (source, _, end), (next_source, begin, _) in pairwise(ranges):
        assert source != next_source or begin == end
    after = log.newest_offsets()
    for name, old in before.items():
        new = after[name]
        carried = old["offset_ns"] + old["drift_ppb"] * 1e-9 * (new["at_ns"] - old["at_ns"])
        seconds = (new["at_ns"] - old["at_ns"]) * 1e-9
        assert abs(carried - new["offset_ns"]) < 500 + 500 * seconds  # no step: rate errors of some 100 ppb
    by_window: dict[int, set[Any]] = {}
    for record in log.records(CLOCK_OFFSETS.name):
        by_window.setdefault(record["window"], set()).add((record["part"], record["parts"]))
    assert all(len({parts for _, parts in found}) == 1 for found in by_window.values())


def test_forged_offsets_do_not_stop_a_shard_over_a_restart(log: Log, tmp_path: Path) -> None:
    with stream_worker(log.bootstrap, tmp_path, **SETTINGS):
        log.probe(20, until=log.synced)
    died = log.last_window()
    honest = log.records(CLOCK_OFFSETS.name)[-1]
    width_ns = honest["window_end_ns"] - honest["window_start_ns"]
    forged = {
        **honest,
        "window": honest["window"] + 10**6,
        "part": 0,
        "parts": 1,
        "window_start_ns": honest["window_start_ns"] + 10**6 * width_ns,
        "window_end_ns": honest["window_end_ns"] + 10**6 * width_ns,
    }
    log._producer.produce(CLOCK_OFFSETS.name, codec.encode(CLOCK_OFFSETS.record, forged), b"forged/0")
    log.flush()

    def windows() -> set[int]:
        return {r["window"] for r in log.records(CLOCK_OFFSETS.name)} - {forged["window"]}

    with stream_worker(log.bootstrap, tmp_path, **SETTINGS):
        log.probe(20, until=lambda: max(windows()) > died + 3)


def test_a_log_restart_loses_no_sample(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"directory": str(tmp_path / "log"), "port": port, "partitions": 4, "min_free_bytes": 0}
    bootstrap = f"127.0.0.1:{port}"
    with (
        service("fabrictime.log", settings, tmp_path) as first,
        stream_worker(bootstrap, tmp_path, **SETTINGS) as worker,
    ):
        log = Log(bootstrap)
        log.probe(20, until=log.synced)
        log.probe(0.8)
        died = log.last_window()
        first.process.kill()
        first.process.wait(10)
        with service("fabrictime.log", settings, tmp_path):
            log.wait(log.reachable)
            log.probe(30, until=lambda: log.last_window() > died + 5)
            log.flush()
            log.wait(lambda: sum(r["samples"] for r in log.fits_by_identity().values()) >= log.samples)
            assert worker.process.poll() is None
            assert sum(r["samples"] for r in log.fits_by_identity().values()) == log.samples
            log.probe(30, until=log.synced)
            log.close()
            assert worker.stop() == 0


@pytest.mark.slow("waits for rebalances of Faust")
def test_workers_join_and_leave_while_it_runs(log: Log, tmp_path: Path) -> None:
    """Every partition has one owner at a time, and no sample is lost or counted twice."""
    with stream_worker(log.bootstrap, tmp_path, **SETTINGS):
        log.probe(20, until=log.synced)
        with stream_worker(log.bootstrap, tmp_path, **SETTINGS) as second:
            began = log.last_window()
            log.probe(30, until=lambda: log.last_window() > began + 6)
            assert second.stop() == 0
        ended = log.last_window()
        log.probe(30, until=lambda: log.last_window() > ended + 4)
        log.flush()
        log.wait(lambda: sum(r["samples"] for r in log.fits_by_identity().values()) >= log.samples)
    fits = log.fits_by_identity().values()
    assert sum(r["samples"] for r in fits) == log.samples
    assert sum(r["messages"] for r in fits) == log.acknowledged
    assert log.synced()


def test_nics_with_one_clock_in_the_inventory_share_an_offset(log: Log, tmp_path: Path) -> None:
    """The inventory is known before the first window, because the stage waits for its global tables."""
    names = list(log.fleet.members)
    one = log.fleet.members[names[0]].clock
    log.fleet.members[names[1]].clock = one
    for name in names[:2]:
        nic = {
            "nic": name,
            "host": name.split("/")[0],
            "device": "eth0",
            "shard": "pod1",
            "rail": None,
            "rack": None,
            "addresses": ["127.0.0.1"],
            "probe_port": 0,
            "clock": "shared/system",
            "stamp": "KERNEL",
            "speed_bps": None,
            "mtu_bytes": None,
            "run": 1,
            "since_ns": 0,
            "announced_ns": 0,
            "capabilities": [],
        }
        log._producer.produce(INVENTORY.name, codec.encode("Nic", nic), name)
    log.flush()
    with stream_worker(log.bootstrap, tmp_path, **SETTINGS):
        log.probe(
            20, until=lambda: {r["shard"] for r in log.records(CLOCK_OFFSETS.name)} == {"pod1", "fabric"}
        )
    clocks = {c["clock"] for r in log.records(CLOCK_OFFSETS.name) for c in r["clocks"]}
    assert "shared/system" in clocks
    assert not clocks & set(names[:2])


class SteppedLog:
    """The embedded log in a thread, with a clock of append time that can step, as that of a Kafka broker."""

    def __init__(self, directory: Path) -> None:
        self.wrong_s = 0
        settings = LogSettings(
            directory=directory, port=0, partitions=PARTITIONS, min_free_bytes=0, group_join_delay_ms=50
        )
        self._server = LogServer(settings, lambda: time.time_ns() // 1_000_000 + self.wrong_s * 1000)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._server.start())
        self.bootstrap = f"127.0.0.1:{self._server.port}"

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def close(self) -> None:
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[SteppedLog]:
    log = SteppedLog(tmp_path / "log")
    yield log
    log.close()


def checked(log: Log) -> tuple[int, str]:
    """Return exit code and message of `clock --check`, again while a busy machine delays windows by 10 s."""
    command = [sys.executable, "-m", "fabrictime", "clock", "--check", "--log", log.bootstrap]
    for _ in range(6):
        check = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        log.probe(120, until=lambda check=check: check.poll() is not None)
        errors = check.communicate()[1]
        if " s old, expected at most" not in errors:
            break
    return check.returncode, errors


@pytest.fixture
def stepped_log(stepped: SteppedLog) -> Iterator[Log]:
    log = Log(stepped.bootstrap)
    yield log
    log.close()


@pytest.mark.slow("waits for steps of log time")
def test_windows_resume_after_each_step_of_log_time_and_a_check_knows(
    stepped: SteppedLog, stepped_log: Log, tmp_path: Path
) -> None:
    log = stepped_log

    def follows(wrong_s: int) -> bool:
        """Return whether the last window has the stepped log time, and all its clocks are synced."""
        last = log.records(CLOCK_OFFSETS.name)[-1]
        behind_ns = time.time_ns() + wrong_s * 1_000_000_000 - last["window"] * WINDOW_NS
        is_present = abs(behind_ns) < 10_000_000_000
        return is_present and {clock["state"] for clock in last["clocks"]} == {"SYNCED"}

    with stream_worker(stepped.bootstrap, tmp_path, **SETTINGS):
        log.probe(60, until=log.synced)
        for wrong_s in (120, 0, -30):
            stepped.wrong_s = wrong_s
            log.probe(60, until=lambda wrong_s=wrong_s: follows(wrong_s))
            code, errors = checked(log)
            assert code == (wrong_s > 0), errors
            assert ("in the future" in errors) == (wrong_s > 0)
