"""Offsets through a real log to pages, and C and Python readers compared with the truth.

Fabric time is this machine's system clock here. Each simulated host has a test clock with a known error. The
test replaces the clock stage: it publishes the exact models with a bound of 200 ns.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from fabrictime_client import Clock, ClockError, Unsynced
from native.core.probe import TestClock
from schemas import codec
from schemas.topics import CLOCK_OFFSETS, INVENTORY, REJECTS
from tests.embedded_log import EmbeddedLog
from tests.waiting import wait_until

S = 1_000_000_000
WINDOW_NS = 250_000_000
BOUND_NS = 200.0
HOSTS = {
    "h1": {"offset_ns": 3_000_000, "drift_ppb": 12_000.0},
    "h2": {"offset_ns": -4_500_000, "drift_ppb": -7_000.0},
}

pytestmark = pytest.mark.timeout(180)


class Solver:
    """Publishes a window's true models every 250 ms, in a thread, until it is stopped."""

    def __init__(self, bootstrap, clocks):
        self.clocks = clocks
        self.producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        for host in clocks:
            record = {
                "nic": f"{host}/eth1",
                "host": host,
                "device": "eth1",
                "shard": "fabric",
                "addresses": [],
                "probe_port": 0,
                "clock": f"{host}/eth1",
                "stamp": "KERNEL",
                "run": 1,
                "since_ns": 0,
                "announced_ns": 0,
            }
            self.put(INVENTORY, f"{host}/eth1", codec.encode("Nic", record))
        self.thread.start()

    def put(self, topic, key, value):
        self.producer.produce(topic.name, key=key.encode(), value=value)
        self.producer.poll(0)

    def record(self, window):
        middle_ns = window * WINDOW_NS + WINDOW_NS // 2
        found = []
        for host, clock in self.clocks.items():
            at_ns = clock.reading(middle_ns)
            rate = 1 + HOSTS[host]["drift_ppb"] * 1e-9
            found.append(
                {
                    "clock": f"{host}/eth1",
                    "at_ns": at_ns,
                    "offset_ns": middle_ns - at_ns,
                    "drift_ppb": (1 / rate - 1) * 1e9,
                    "bound_ns": BOUND_NS,
                    "state": "SYNCED",
                    "pairs": 1,
                    "residual_ns": 1.0,
                    "drift_sigma_ppb": 10.0,
                }
            )
        return {
            "shard": "fabric",
            "window": window,
            "part": 0,
            "parts": 1,
            "domain": "h1/eth1",
            "window_start_ns": window * WINDOW_NS,
            "window_end_ns": (window + 1) * WINDOW_NS,
            "log_offset_ns": 0,
            "solved_ns": time.time_ns(),
            "clocks": found,
        }

    def run(self):
        last = time.time_ns() // WINDOW_NS
        while not self.stopping.wait(0.02):
            window = time.time_ns() // WINDOW_NS - 1
            if window > last:
                last = window
                self.put(CLOCK_OFFSETS, "fabric/0", codec.encode("ClockOffsets", self.record(window)))

    def stop(self):
        self.stopping.set()
        self.thread.join(10)
        self.producer.flush(10)


class Actuator:
    """`python -m actuators` with the test's settings; it is ready when this returns."""

    def __init__(self, bootstrap, folder, clocks, **given):
        self.folder = folder
        hosts = [
            {"host": host, "clock_file": str(folder / host), "test_clocks": {"eth1": parameters}}
            for host, parameters in clocks.items()
        ]
        settings = {
            "kafka": {"bootstrap": bootstrap},
            "window_ms": WINDOW_NS // 1_000_000,
            "refresh_ms": 50,
            "hosts": hosts,
        }
        address = str(folder / "notify")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(address)
        self.notify.settimeout(60)
        self.output = (folder / "actuator.log").open("w+")
        (folder / "settings.json").write_text(json.dumps(settings | given))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "actuators", folder / "settings.json"],
            env={**os.environ, "NOTIFY_SOCKET": address},
            stdout=self.output,
            stderr=self.output,
        )
        self.notified = []
        self.until("READY=1")

    def until(self, beginning):
        while not any(line.startswith(beginning) for line in self.notified):
            self.notified += self.notify.recv(4096).decode().splitlines()
        return [line for line in self.notified if line.startswith(beginning)]

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(20)
        self.notify.close()
        (self.folder / "notify").unlink()
        self.output.close()
        return code


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    with EmbeddedLog(tmp_path_factory.mktemp("log"), partitions=2) as started:
        yield started


@pytest.fixture(scope="module")
def clocks():
    epoch_ns = time.time_ns()
    return {host: {**parameters, "epoch_ns": epoch_ns} for host, parameters in HOSTS.items()}


@pytest.fixture(scope="module")
def solver(log, clocks):
    made = Solver(log.bootstrap, {host: TestClock(**parameters) for host, parameters in clocks.items()})
    yield made
    made.stop()


@pytest.fixture
def actuator(log, clocks, solver, tmp_path):
    made = Actuator(log.bootstrap, tmp_path, clocks)
    yield made
    if made.process.poll() is None:
        made.end()


def synced(path):
    try:
        clock = Clock(path)
    except ClockError:
        return None
    return clock if clock.state() == "SYNCED" else None


def test_c_and_python_agree_with_the_truth_on_every_host(actuator, clocks, reader):
    for host, parameters in clocks.items():
        path = actuator.folder / host
        clock = wait_until(lambda path=path: synced(path))
        bounds = []
        for _ in range(200):
            before, reading, after = time.time_ns(), clock.now(), time.time_ns()
            assert before - reading.bound_ns <= reading.time_ns <= after + reading.bound_ns
            bounds.append(reading.bound_ns)
        assert min(bounds) < 1_000  # 200 published, the bracket of the cross-timestamp, a second's growth
        before = time.time_ns()
        state, time_ns, bound_ns, *_ = reader("now", path)
        assert state == 2
        assert before - bound_ns <= time_ns <= time.time_ns() + bound_ns
        true_ns = time.time_ns()
        stamp_ns = TestClock(**parameters).reading(true_ns)
        for name, stamp in (("eth1", stamp_ns), (f"{host}/eth1", stamp_ns), ("system", true_ns)):
            converted = clock.convert(stamp, name)
            assert abs(converted.time_ns - true_ns) <= converted.bound_ns < 1_500
            state, time_ns, bound_ns = reader("convert", path, name, stamp)
            assert state == 2
            assert abs(time_ns - true_ns) <= bound_ns < 1_500
        assert clock.status().steps == 0
        assert clock.status().source == "eth1"


def test_all_hosts_of_the_machine_have_the_same_time(actuator):
    """Their clocks are 7.5 ms and 19 ppm apart."""
    one, other = (wait_until(lambda host=host: synced(actuator.folder / host)) for host in HOSTS)
    for _ in range(100):
        first, second, third = one.now(), other.now(), one.now()
        bound = max(first.bound_ns, second.bound_ns)
        assert first.time_ns - 2 * bound <= second.time_ns <= third.time_ns + 2 * bound


def test_time_does_not_run_back_over_windows_and_a_restart(actuator, log, clocks, reader):
    path = actuator.folder / "h1"
    clock = wait_until(lambda: synced(path))
    follower = subprocess.Popen(
        [reader.program, "monotonic", path, str(6 * S)], stdout=subprocess.PIPE, text=True
    )
    last, windows = 0, set()

    def read_until(end):
        nonlocal last
        while not end():
            time_ns = clock.now().time_ns
            assert time_ns >= last
            last = time_ns
            windows.add(clock.status().window)

    read_until(lambda: len(windows) > 4)
    actuator.end(signal.SIGKILL)
    assert clock.state() in ("SYNCED", "HOLDOVER")  # the page stays valid
    again = Actuator(log.bootstrap, actuator.folder, clocks)
    try:
        before = len(windows)
        read_until(lambda: len(windows) > before + 4)
        assert clock.state() == "SYNCED"
        assert clock.status().steps == 0
        reads, back = (int(field) for field in follower.communicate(timeout=60)[0].split())
        assert back == 0
        assert reads > 10_000
    finally:
        again.end()


def test_a_removed_page_is_recreated_and_found_by_its_readers(actuator):
    path = actuator.folder / "h1"
    clock = wait_until(lambda: synced(path))
    path.unlink()
    wait_until(path.exists)

    def moved():
        try:
            clock.now()
        except Unsynced:
            return False
        return clock._file == (path.stat().st_dev, path.stat().st_ino)

    wait_until(moved)
    assert wait_until(lambda: clock.state() == "SYNCED")
    assert clock.status().steps == 0


def rejects(bootstrap):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(REJECTS.name, 0, 0)])
        low, high = consumer.get_watermark_offsets(TopicPartition(REJECTS.name, 0), 10)
        found = []
        while len(found) < high - low:
            found += [message.value() for message in consumer.consume(100, 0.2) if message.error() is None]
        return [codec.decode(value, "Reject") for value in found]
    finally:
        consumer.close()


def test_implausible_records_are_rejected_and_counted(actuator, log, solver):
    path = actuator.folder / "h1"
    clock = wait_until(lambda: synced(path))
    record = solver.record(time.time_ns() // WINDOW_NS - 1)
    ahead = record | {"window": record["window"] + 100_000}
    solver.put(CLOCK_OFFSETS, "fabric/0", b"rubbish")
    solver.put(CLOCK_OFFSETS, "fabric/0", codec.encode("ClockOffsets", ahead))
    solver.put(
        INVENTORY,
        "h1/eth9",
        codec.encode(
            "Nic",
            {
                "nic": "h1/eth8",
                "host": "h1",
                "device": "eth8",
                "shard": "fabric",
                "addresses": [],
                "probe_port": 0,
                "clock": "h1/system",
                "stamp": "KERNEL",
                "run": 1,
                "since_ns": 0,
                "announced_ns": 0,
            },
        ),
    )
    solver.put(INVENTORY, "h1/eth9", None)
    solver.producer.flush(10)

    def refused():
        return {(r["topic"], r["reason"]) for r in rejects(log.bootstrap) if r["reader"] == "actuator"}

    wanted = {
        (CLOCK_OFFSETS.name, "UNKNOWN_SCHEMA"),
        (CLOCK_OFFSETS.name, "OUT_OF_RANGE"),
        (INVENTORY.name, "WRONG_KEY"),
    }
    wait_until(lambda: refused() >= wanted)
    assert clock.state() == "SYNCED"
    lines = actuator.until("STATUS=2 clock pages")
    wait_until(
        lambda: (
            "3 refused" in actuator.until("STATUS=")[-1]
            or actuator.notified.append(actuator.notify.recv(4096).decode().splitlines()[0])
        )
    )
    assert lines
    assert any(line == "WATCHDOG=1" for line in actuator.notified)


def test_the_page_stays_valid_after_the_actuator_ends(actuator):
    path = actuator.folder / "h1"
    clock = wait_until(lambda: synced(path))
    assert actuator.end() == 0
    assert clock.now().bound_ns < 5_000
    assert Clock(path).status().window > 0


def run_once(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "actuators", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={key: value for key, value in os.environ.items() if key != "NOTIFY_SOCKET"},
        check=False,
    )


def test_settings_that_cannot_be_used_are_one_line(tmp_path):
    done = run_once(tmp_path, '{"refresh_ms": 1}')
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("actuators: refresh_ms: ")
    assert "expected settings as JSON" in run_once(tmp_path, tmp_path / "none.json").stderr
    (tmp_path / "file").write_text("")
    done = run_once(tmp_path, json.dumps({"clock_file": str(tmp_path / "file" / "clock")}))
    assert done.returncode == 2
    assert f"clock_file {tmp_path}/file/clock" in done.stderr
    hosts = [{"host": f"h{n}", "clock_file": str(tmp_path / f"h{n}")} for n in (1, 2)]
    done = run_once(tmp_path, json.dumps({"discipline": {"mode": "dry-run"}, "hosts": hosts}))
    assert done.returncode == 2
    assert "discipline.mode dry-run: expected one host with real clocks, 2 here" in done.stderr
