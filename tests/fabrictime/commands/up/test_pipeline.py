"""The whole pipeline on a fabric of real packets: one `up` for many tests, broken on purpose, then stopped.

The tests of this file share one pipeline; the last one ends it.
"""

import json
import os
import pwd
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from fabrictime.state.live_figures import ClockView
from fabrictime.state.scorecard import errors_ns
from fabrictime.testbed.processes.userns import namespaces_allowed
from fabrictime_client import Clock
from native.core import decode_probe_batch
from native.core.probe import TestClock
from schemas import codec
from schemas.topics import TOPICS
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[4]
NICS = 8
OFF = {"offset_ns": 3_000_000, "drift_ppb": 12_000.0}
SETTINGS = """
[up.clocks."h1/eth1"]
offset_ns = 3000000
drift_ppb = 12000
[log]
port = 0
[history]
port = 0
[web]
port = 0
"""

pytestmark = [pytest.mark.fabric, pytest.mark.pipeline, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", autouse=True)
def _namespaces():
    reason = namespaces_allowed()
    if reason is not None:
        pytest.skip(reason)


class Pipeline:
    """A running `fabrictime up` and what the tests ask of it."""

    def __init__(self, folder):
        self.directory = folder / "data"
        self.killed = []
        (folder / "ft.toml").write_text(SETTINGS)
        self.output = (folder / "up.out").open("w+")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fabrictime",
                "up",
                "--config",
                folder / "ft.toml",
                "--dir",
                self.directory,
            ],
            cwd=ROOT,
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def state(self):
        if self.process.poll() is not None:
            self.output.seek(0)
            pytest.fail(f"up ended with {self.process.returncode}: {self.output.read()[-2000:]}")
        path = self.directory / "run" / "state.json"
        return json.loads(path.read_text()) if path.exists() else None

    def rows(self):
        state = self.state()
        return {} if state is None else {row["name"]: row for row in state["children"]}

    def all_ready(self):
        rows = self.rows()
        return rows if rows and all(row["state"] == "ready" for row in rows.values()) else None

    def log(self):
        return self.state()["addresses"]["log"]

    def ask(self, sql):
        """Rows of a query to history, as JSON."""
        request = urllib.request.Request(
            self.state()["addresses"]["history"] + "/",
            data=f"{sql} FORMAT JSONCompact".encode(),
            headers={
                "X-ClickHouse-User": "fabrictime",
                "X-ClickHouse-Key": (self.directory / "secrets" / "history-write.token").read_text().strip(),
            },
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)["data"]

    def messages(self, topic):
        """Everything that a topic holds now, as (partition, offset, value)."""
        consumer = Consumer(
            {"bootstrap.servers": self.log(), "group.id": "test", "enable.auto.commit": False}
        )
        partitions = [
            TopicPartition(topic, p) for p in consumer.list_topics(topic, 10).topics[topic].partitions
        ]
        ends = {tp.partition: consumer.get_watermark_offsets(tp, 10)[1] for tp in partitions}
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p, end in ends.items() if end])
        found, reached = [], {partition: 0 for partition, end in ends.items() if end}
        deadline = time.monotonic() + 60
        while any(reached[partition] < ends[partition] for partition in reached):
            assert time.monotonic() < deadline
            for message in consumer.consume(1000, 0.2):
                assert message.error() is None, message.error()
                reached[message.partition()] = message.offset() + 1
                found.append((message.partition(), message.offset(), message.value()))
        consumer.close()
        return found

    def records(self, topic):
        return [codec.decode(value, TOPICS[topic].record) for _, _, value in self.messages(topic)]

    def last_offsets(self):
        """The newest ClockOffsets of the fabric; None before the first."""
        records = self.records("fabric.clock.offsets")
        return max(records, key=lambda record: record["window"]) if records else None


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory, _namespaces):
    running = Pipeline(tmp_path_factory.mktemp("up"))
    try:
        wait_until(running.all_ready, 120)

        def synced():
            """all clocks SYNCED"""
            last = running.last_offsets()
            return last and [clock["state"] for clock in last["clocks"]] == ["SYNCED"] * NICS

        wait_until(synced, 60)
        yield running
    finally:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGINT)
            try:
                running.process.wait(30)
            except subprocess.TimeoutExpired:
                running.process.kill()
        running.process.wait()
        running.output.close()


def test_status_shows_processes_and_addresses(pipeline):
    done = subprocess.run(
        [sys.executable, "-m", "fabrictime", "status", "--dir", pipeline.directory, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["pid"] == pipeline.process.pid
    assert found["fleet"] == "fabric"
    assert len(found["nics"]) == NICS
    assert {"log", "history", "worker-1", "web"} <= {row["name"] for row in found["children"]}
    with urllib.request.urlopen(found["addresses"]["web"], timeout=10) as page:
        assert b"fabrictime" in page.read()


def test_probers_probe_in_their_scheduled_slots(pipeline):
    def slots_followed():
        """every prober probes in scheduled slots"""
        probers = [row for name, row in pipeline.rows().items() if name.startswith("prober")]
        return len(probers) == 8 and all("scheduled" in (row["status"] or "") for row in probers)

    laid = {}

    def all_peers_scheduled():
        """each NIC's newest schedule has all others as peers: the first ones lack those that came later"""
        for _, _, value in pipeline.messages("fabric.probe-schedules"):
            record = codec.decode(value, "ProbeSchedule")
            laid[record["nic"]] = record
        return len(laid) == 8 and all(set(one["peers"]) == laid.keys() - {nic} for nic, one in laid.items())

    wait_until(slots_followed, 90)
    wait_until(all_peers_scheduled, 60)
    assert all(len(one["path"]) % one["probes_per_slot"] == 0 for one in laid.values())


def test_clock_3_ms_and_12_ppm_off_is_published_within_its_bound(pipeline):
    nics = json.loads((pipeline.directory / "run" / "fleet.json").read_text())["nics"]
    clocks = {f"{nic['host']}/{nic['device']}": nic["clock"] for nic in nics}
    assert {key: clocks["h1/eth1"][key] for key in OFF} == OFF
    readings = {name: TestClock(**clock).reading for name, clock in clocks.items()}
    inventory = {record["nic"]: record["clock"] for record in pipeline.records("fabric.inventory")}
    by_clock = {inventory[name]: reading for name, reading in readings.items()}
    checked = 0
    for record in pipeline.records("fabric.clock.offsets"):
        published = {
            row["clock"]: ClockView(
                row["at_ns"], row["offset_ns"], row["drift_ppb"], row["bound_ns"], row["state"], 0, 0
            )
            for row in record["clocks"]
            if row["state"] == "SYNCED"
        }
        # errors are counted from the median clock, whose own error has a bound too
        median_ns = statistics.median(view.bound_ns for view in published.values()) if published else 0.0
        for clock, error_ns in errors_ns(published, by_clock).items():
            assert abs(error_ns) <= published[clock].bound_ns + median_ns
            checked += 1
    assert checked >= NICS
    last = next(row for row in pipeline.last_offsets()["clocks"] if row["clock"] == inventory["h1/eth1"])
    assert last["offset_ns"] == pytest.approx(-3_000_000, abs=1_500_000)
    assert last["bound_ns"] < 100_000


def test_clock_pages_of_all_hosts_show_the_same_time(pipeline):
    """Read by the client, as any program would; the clocks behind them are ms and ppm apart."""
    folder = Path(pipeline.state()["addresses"]["clock"])
    nics = json.loads((pipeline.directory / "run" / "fleet.json").read_text())["nics"]

    def all_synced():
        """every host's page SYNCED"""
        return all(
            (folder / nic["host"]).exists() and Clock(folder / nic["host"]).state() == "SYNCED"
            for nic in nics
        )

    wait_until(all_synced, 60)
    first = Clock(folder / "h1")
    for nic in nics:
        clock, real = Clock(folder / nic["host"]), TestClock(**nic["clock"])
        before, there, after = first.now(), clock.now(), first.now()
        bound_ns = before.bound_ns + there.bound_ns
        assert before.time_ns - bound_ns <= there.time_ns <= after.time_ns + bound_ns
        system_ns = time.time_ns()
        by_nic, by_system = (
            clock.convert(real.reading(system_ns), nic["device"]),
            clock.convert(system_ns, "system"),
        )
        assert abs(by_nic.time_ns - by_system.time_ns) <= by_nic.bound_ns + by_system.bound_ns
        assert clock.status().host == nic["host"]


@pytest.mark.parametrize("name", ["prober h2/eth1", "web", "worker-1", "links", "sink", "history", "log"])
def test_killed_process_is_replaced_within_10_s(pipeline, name):
    before = wait_until(pipeline.all_ready, 30)[name]
    os.kill(before["pid"], signal.SIGKILL)
    pipeline.killed.append(name)

    def replaced():
        """a new process"""
        return pipeline.rows().get(name, before)["pid"] not in (None, before["pid"])

    def ready():
        """the new process ready"""
        return pipeline.rows()[name]["state"] == "ready"

    wait_until(replaced, 10)
    wait_until(ready, 40)
    assert pipeline.rows()[name]["last_exit"] == "killed by SIGKILL"
    others = [row for other, row in pipeline.rows().items() if other != name]
    assert all(row["pid"] is not None for row in others)


def test_pipeline_goes_on_after_the_kills(pipeline):
    first = pipeline.last_offsets()["window"]

    def moved():
        """five more windows with all clocks SYNCED"""
        last = pipeline.last_offsets()
        synced = [clock["state"] for clock in last["clocks"]] == ["SYNCED"] * NICS
        return last["window"] >= first + 5 and synced

    wait_until(moved, 60)


def test_no_acknowledged_batch_is_lost(pipeline):
    batches = defaultdict(list)
    for _, _, value in pipeline.messages("fabric.probes"):
        columns = decode_probe_batch(value, codec.body_start(value, "ProbeBatch"))
        batches[columns.nic, columns.run].append(columns.batch)
    assert len({nic for nic, _ in batches}) == NICS
    assert len([run for nic, run in batches if nic == "h2/eth1"]) == 1 + pipeline.killed.count(
        "prober h2/eth1"
    )
    for sender, seen in batches.items():
        assert sorted(set(seen)) == list(range(min(seen), max(seen) + 1)), sender
        assert min(seen) <= 1, sender


def test_every_sample_is_counted_once(pipeline):
    """Windows tile each partition's offsets, and their samples are those of the batches."""
    windows, order = {}, defaultdict(list)
    for record in pipeline.records("fabric.clock.fits"):
        windows[record["source"], record["window"], record["part"]] = record
        if record["part"] == 0:
            found = record["window"], record["first_offset"], record["next_offset"]
            order[int(record["source"].rpartition("/")[2])].append(found)
    samples = {}
    for partition, offset, value in pipeline.messages("fabric.probes"):
        columns = decode_probe_batch(value, codec.body_start(value, "ProbeBatch"))
        samples[partition, offset] = len(columns.sent)
    ranges = defaultdict(list)
    for (source, _, part), record in windows.items():
        if part == 0 and record["first_offset"] >= 0:
            ranges[int(source.rpartition("/")[2])].append(record)
    assert ranges
    for partition, records in ranges.items():
        records.sort(key=lambda record: record["first_offset"])
        assert records[0]["first_offset"] == 0
        for one, following in pairwise(records):
            gap = one["next_offset"], following["first_offset"]
            near = [each for each in order[partition] if abs(each[0] - one["window"]) < 6]
            assert gap[0] == gap[1], f"partition {partition}, in the log's order: {near}"
        for record in records:
            inside = range(record["first_offset"], record["next_offset"])
            assert record["samples"] == sum(samples[partition, offset] for offset in inside)


def test_history_has_the_records_of_the_topics(pipeline):
    newest = max(record["window"] for record in pipeline.records("fabric.delays"))
    last = newest - 2

    def caught_up():
        """history has the newest windows"""
        (row,) = pipeline.ask("SELECT max(window) FROM fabrictime.delays")
        return int(row[0]) >= newest

    wait_until(caught_up, 60)
    wanted = {}
    for record in pipeline.records("fabric.delays"):
        for row in record["paths"] if record["window"] <= last else ():
            wanted[record["nic"], record["window"], row["peer"], row["path"]] = row["count"]

    def stored():
        """the rows of the topics"""
        rows = pipeline.ask(
            f"SELECT nic, window, peer, path, count FROM fabrictime.delays FINAL WHERE window <= {last}"
        )
        return {(nic, int(window), peer, path): int(count) for nic, window, peer, path, count in rows}

    wait_until(lambda: len(stored()) >= len(wanted), 30)
    assert stored() == wanted


def test_ctrl_c_leaves_nothing(pipeline):
    wait_until(pipeline.all_ready, 30)
    everyone = [pipeline.process, *psutil.Process(pipeline.process.pid).children(recursive=True)]
    pids = [process.pid for process in everyone]
    ports = set()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):  # a child that lives for a moment
            ports |= {c.laddr.port for c in psutil.Process(pid).net_connections() if c.status == "LISTEN"}
    assert len(ports) == 4  # log, history, page, metrics
    started = time.monotonic()
    pipeline.process.send_signal(signal.SIGINT)
    assert pipeline.process.wait(30) == 0
    assert time.monotonic() - started < 20
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert not ports & {c.laddr.port for c in psutil.net_connections() if c.status == "LISTEN"}
    assert not (pipeline.directory / "run" / "fabric.sock").exists()
    assert not (pipeline.directory / "run" / "tmp").exists()
    assert not [name for name in mounted() if name.startswith("ft")]


def mounted():
    folder = Path("/run/netns")
    return os.listdir(folder) if folder.exists() else []


def scorecard(folder, *, wrapper=()):
    (folder / "ft.toml").write_text(SETTINGS)
    command = [
        sys.executable,
        "-m",
        "fabrictime",
        "up",
        "--for",
        "5s",
        "--json",
        "--config",
        str(folder / "ft.toml"),
        "--dir",
        str(folder / "data"),
    ]
    done = subprocess.run(
        [*wrapper, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder)},
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (line,) = done.stdout.splitlines()
    return json.loads(line)


def check(card):
    assert card["passed"]
    assert card["fleet"] == "fabric"
    assert card["probes"]["nics_probing"] == card["clocks"]["synced"] == NICS
    assert card["truth"] == card["truth"] | {"within_bound": NICS, "clocks": NICS}
    assert card["history"]["rows_last_10_s"] > 0
    assert card["web"]["ok"]


def test_up_for_a_while_prints_a_scorecard_and_exits_0(tmp_path):
    check(scorecard(tmp_path))


def test_up_works_for_an_ordinary_user():
    if os.geteuid() != 0:
        pytest.skip("already an ordinary user: the test above is this one")
    user = pwd.getpwnam("nobody")
    drop = [
        sys.executable,
        "-c",
        "import os, sys; os.setgroups([]); os.setresgid(*[int(sys.argv[2])] * 3);"
        "os.setresuid(*[int(sys.argv[1])] * 3); os.execv(sys.argv[3], sys.argv[3:])",
        str(user.pw_uid),
        str(user.pw_gid),
    ]
    probe = "import fabrictime.commands.cli, native.core.probe"
    readable = subprocess.run(
        [*drop, sys.executable, "-c", probe], cwd=ROOT, capture_output=True, check=False
    )
    if readable.returncode:
        pytest.skip("user nobody cannot read this checkout or its environment")
    allowed = subprocess.run(
        [*drop, sys.executable, "-m", "fabrictime.testbed.processes.userns"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if allowed.returncode:
        pytest.skip(f"user nobody: {allowed.stdout.strip()}")
    folder = Path(tempfile.mkdtemp(prefix="fabrictime-test-"))
    try:
        os.chown(folder, user.pw_uid, user.pw_gid)
        check(scorecard(folder, wrapper=drop))
    finally:
        shutil.rmtree(folder)
