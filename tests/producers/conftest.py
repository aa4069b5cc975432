"""An embedded log of the test's own, probers as processes, and a reader of what they published."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from schemas import codec
from schemas.topics import TOPICS

_numbers = itertools.count(2)
_RUN = """
import json, logging, sys
logging.basicConfig(level=logging.INFO)
from producers.probe.service import main
from producers.settings import NicSettings, ProbeSettings
settings, nic = json.loads(sys.argv[1])
sys.exit(main(ProbeSettings(**settings), NicSettings(**nic)))
"""


class Log:
    """The embedded log in a thread, which can be taken away and brought back on the same port."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory, 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.up()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def up(self) -> None:
        from fabrictime.log.server import LogServer
        from fabrictime.log.settings import LogSettings

        self.server = LogServer(LogSettings(directory=self.directory, port=self.port, partitions=2))
        self._do(self.server.start())
        self.port = self.server.port

    def down(self) -> None:
        self._do(self.server.stop())

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    started = Log(tmp_path / "log")
    yield started
    started.down()
    started.close()


class Reader:
    """Everything that a topic holds, decoded by fastavro as any stranger would."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.record = TOPICS[topic].record
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "test",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        found = self.consumer.list_topics(topic, timeout=10).topics[topic].partitions
        self.consumer.assign([TopicPartition(topic, partition, 0) for partition in found])
        self.records: list[dict[str, Any]] = []

    def key_of(self, record: dict[str, Any], other: str) -> str:
        """Return the key that a record is to have; `other` where that does not stand in it."""
        if self.record == "PathMaps":
            return f"{record['nic']}>{record['peer']}"
        return record.get("shard" if self.record == "LinkEvent" else "nic", other)

    def until(
        self, done: Callable[[list[dict[str, Any]]], bool], timeout_s: float = 20
    ) -> list[dict[str, Any]]:
        end = time.monotonic() + timeout_s
        while not done(self.records):
            assert time.monotonic() < end, f"{self.record}: not in {timeout_s} s, {len(self.records)} records"
            for message in self.consumer.consume(100, timeout=0.05):
                if message.error() is None:
                    self.records.append(codec.decode(message.value(), self.record))
                    assert message.key().decode() == self.key_of(self.records[-1], message.key().decode())
        return self.records


@pytest.fixture
def read(log: Log) -> Iterator[Callable[[str], Reader]]:
    made: list[Reader] = []

    def make(topic: str) -> Reader:
        made.append(Reader(log.bootstrap, topic))
        return made[-1]

    yield make
    for reader in made:
        reader.consumer.close()


class Process:
    """A prober in a process of its own."""

    def __init__(self, settings: dict[str, Any], nic: dict[str, Any]) -> None:
        import json

        self.arguments = [sys.executable, "-c", _RUN, json.dumps([settings, nic])]
        self.name = f"{nic['host']}/{nic['device']}"
        self.start()

    def start(self) -> None:
        root = str(Path(__file__).parents[2])
        self.process = subprocess.Popen(
            self.arguments, cwd=root, env=os.environ | {"PYTHONPATH": root}, stderr=subprocess.PIPE, text=True
        )

    def end(self, number: int = signal.SIGTERM, timeout_s: float = 10) -> tuple[int, str]:
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, text = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, text


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "probe.key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


@pytest.fixture
def start_prober(log: Log, key_file: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start(host: str, *, nic: dict[str, Any] | None = None, **settings: Any) -> Process:
        pid = os.getpid()
        address = f"127.{pid // 250 % 125 + 126}.{pid % 250 + 1}.{next(_numbers)}"
        common = {
            "kafka": {"bootstrap": log.bootstrap},
            "key_file": str(key_file),
            "udp_port": 0,
            "first_path_port": 0,
            "rate_pps": 400,
            "announce_s": 1,
            "paths": 2,
        }
        made.append(
            Process(common | settings, {"host": host, "device": "lo", "address": address} | (nic or {}))
        )
        return made[-1]

    yield start
    for process in made:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)
