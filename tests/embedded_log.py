"""An embedded log of the test's own, in a thread, and a reader of what its topics hold."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from schemas import codec
from schemas.messages import decode_message
from schemas.topics import TOPICS


class EmbeddedLog:
    """The embedded log in a thread. It can be stopped and restarted on the same port."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory, self.port = directory, 0
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def up(self) -> None:
        from fabrictime.log.server import LogServer
        from fabrictime.log.settings import LogSettings

        self.server = LogServer(LogSettings(directory=self.directory, port=self.port, **self._settings))
        self._do(self.server.start())
        self.port = self.server.port

    def down(self) -> None:
        self._do(self.server.stop())

    def move(self, host: str) -> None:
        """Stop the log, and start it with its data at another address, on the same port."""
        self.down()
        self._settings["host"] = host
        self.up()

    @property
    def bootstrap(self) -> str:
        return f"{self._settings.get('host', '127.0.0.1')}:{self.port}"

    def put(self, topic: str, key: str, record: dict[str, Any] | bytes) -> None:
        """Publish a record or any bytes, and wait until the log has stored it."""
        data = record if isinstance(record, bytes) else codec.encode(TOPICS[topic].record, record)
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random", "log_level": 0}
        )
        producer.produce(topic, key=key.encode(), value=data)
        assert producer.flush(20) == 0


class TopicRecords:
    """All records of a topic, decoded by fastavro as a stranger would, under the keys that they must have."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = TOPICS[topic]
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "test",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        partitions = self.consumer.list_topics(topic, timeout=10).topics[topic].partitions
        self.consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        self.records: list[dict[str, Any]] = []

    def until(
        self, done: Callable[[list[dict[str, Any]]], Any], timeout_s: float = 20
    ) -> list[dict[str, Any]]:
        end = time.monotonic() + timeout_s
        while not done(self.records):
            assert time.monotonic() < end, f"{self.topic.name}: not in {timeout_s} s: {self.records}"
            for message in self.consumer.consume(100, timeout=0.05):
                if message.error() is None:
                    self.records.append(decode_message(self.topic, message.key(), message.value()))
        return self.records


@pytest.fixture(name="log")
def log_fixture(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", partitions=2) as started:
        yield started


@pytest.fixture(name="read")
def read_fixture(log: EmbeddedLog) -> Iterator[Callable[[str], TopicRecords]]:
    readers: list[TopicRecords] = []

    def open_reader(topic: str) -> TopicRecords:
        readers.append(TopicRecords(log.bootstrap, topic))
        return readers[-1]

    yield open_reader
    for reader in readers:
        reader.consumer.close()
