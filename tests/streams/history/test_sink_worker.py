"""The sink with an embedded log, its own Faust worker and a history server, through kills."""

import json
import subprocess
import sys

import pytest
from confluent_kafka import Producer

from schemas import codec, topics
from schemas.kafka import KafkaSettings
from streams.runtime.history_settings import HistorySinkSettings
from streams.runtime.settings import StreamSettings
from tests.waiting import wait_until

DEADLINE_S = 60


class Process:
    """A child process with its output in a file."""

    def __init__(self, output, *command):
        self.output = output
        with output.open("a") as file:
            self.child = subprocess.Popen([sys.executable, *command], stdout=file, stderr=subprocess.STDOUT)

    def wait_for_line(self, text):
        def line():
            assert self.child.poll() is None, self.output.read_text()[-3000:]
            return next((x for x in self.output.read_text().splitlines() if text in x), None)

        return wait_until(line)

    def end(self, how="terminate"):
        getattr(self.child, how)()
        return self.child.wait(DEADLINE_S)


WORKER = """
import logging, sys
from streams.app import main
from streams.runtime.settings import StreamSettings
logging.basicConfig(level=logging.INFO)
sys.exit(main(StreamSettings.model_validate_json(sys.argv[1])))
"""


@pytest.fixture
def log(tmp_path):
    settings = {"directory": str(tmp_path / "log"), "port": 0, "partitions": 2, "min_free_bytes": 0}
    process = Process(tmp_path / "log.out", "-m", "fabrictime.log", json.dumps(settings))
    yield process.wait_for_line("listening on").split("listening on ")[1].split(",")[0]
    process.end()


@pytest.fixture
def worker(tmp_path, log):
    started = []

    def start(server):
        history = HistorySinkSettings(
            url=server.url, password_file=server.directory / "write.token", batch_ms=50, retry_max_ms=200
        )
        settings = StreamSettings(
            kafka=KafkaSettings(bootstrap=log), stages=("sink",), history=history, commit_interval_ms=100
        )
        output = tmp_path / f"worker{len(started)}.out"
        started.append(Process(output, "-c", WORKER, settings.model_dump_json()))
        return started[-1]

    yield start
    for process in started:
        if process.child.poll() is None:
            process.end()


def publish(log, values, topic=topics.DELAYS.name):
    producer = Producer({"bootstrap.servers": log, "partitioner": "murmur2_random"})
    for key, value in values:
        producer.produce(topic, value, key)
    assert producer.flush(DEADLINE_S) == 0


def test_the_log_reaches_history_through_kills_of_both(log, worker, own_server, path_delays):
    server = own_server().start()
    values = [
        (f"n{nic}/eth0".encode(), path_delays.encode(path_delays(f"n{nic}/eth0", window)))
        for window in range(30)
        for nic in range(10)
    ]
    total = "SELECT sum(count) FROM fabrictime.{} FINAL".format

    def stored(rows):
        client = server.client()
        base, rollup = (int(client.command(total(table)) or 0) for table in ("delays", "delays_1s"))
        client.close()
        return base == rollup == 10 * rows

    first = worker(server)
    publish(log, values[:100])
    wait_until(lambda: stored(100))
    assert first.end("kill") != 0
    publish(log, values[100:150])
    second = worker(server)
    wait_until(lambda: stored(150))
    port = server.port
    server.kill()
    publish(log, values[150:])
    second.wait_for_line("history is away")
    server.settings["port"] = port
    server.start()
    wait_until(lambda: stored(300))
    publish(log, [(b"n0/eth0", b"junk")])
    reject = "SELECT topic, reason, reader FROM fabrictime.rejects FINAL"
    client = server.client()
    found = wait_until(lambda: client.query(reject).result_rows)
    assert found == [(topics.DELAYS.name, "UNKNOWN_SCHEMA", "sink")]
    assert stored(300)
    assert second.end() == 0


def test_a_tombstone_removes_a_nic(log, worker, own_server):
    server = own_server().start()
    worker(server)
    nic = {
        "nic": "a/eth0",
        "host": "a",
        "device": "eth0",
        "shard": "s0",
        "rail": None,
        "rack": None,
        "addresses": [],
        "probe_port": 0,
        "clock": "a/system",
        "stamp": "KERNEL",
        "speed_bps": None,
        "mtu_bytes": None,
        "run": 1,
        "since_ns": 1,
        "announced_ns": 1,
        "capabilities": [],
    }
    publish(log, [(b"a/eth0", codec.encode("Nic", nic))], topics.INVENTORY.name)
    client = server.client()
    wait_until(lambda: client.query("SELECT nic FROM fabrictime.nics FINAL").result_rows == [("a/eth0",)])
    publish(log, [(b"a/eth0", None)], topics.INVENTORY.name)
    wait_until(lambda: client.query("SELECT nic FROM fabrictime.nics FINAL").result_rows == [])
