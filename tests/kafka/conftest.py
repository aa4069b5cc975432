"""One suite for all brokers: the embedded log and each supported Apache Kafka, each started once."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.offset import OffsetRequest_v1
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fabrictime.bench import _apache_kafka
from tests.record_batch import build_batch
from tests.waiting import wait_until

DEADLINE_S = 30.0
FETCH_AND_START_S = _apache_kafka.FETCH_S + 2 * _apache_kafka.START_S


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test on Apache Kafka may have to fetch its jars: that takes as long as it takes."""
    for item in items:
        if item.get_closest_marker("kafka"):
            item.add_marker(pytest.mark.slow("fetches and starts Apache Kafka"))
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(FETCH_AND_START_S))


@dataclass(frozen=True)
class Kafka:
    """A broker under test."""

    name: str
    bootstrap: str

    @property
    def embedded(self) -> bool:
        return self.name == "embedded"


@pytest.fixture(scope="session")
def embedded_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {
        "directory": str(tmp_path_factory.mktemp("log")),
        "port": 0,
        "create_topics": False,
        "housekeeping_ms": 200,
        "compaction_bytes": 0,
        "min_free_bytes": 0,
    }
    errors = tmp_path_factory.mktemp("output") / "stderr"
    with errors.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "fabrictime.log", json.dumps(settings)], stderr=output
        )
    try:
        line = wait_until(
            lambda: next((x for x in errors.read_text().splitlines() if "listening on" in x), None)
        )
        yield line.split("listening on ")[1].split(",")[0]
        assert process.poll() is None, errors.read_text()[-2000:]
    finally:
        process.terminate()
        process.wait(20)
    assert "Traceback" not in errors.read_text()


@contextmanager
def apache_kafka(folder: Path, version: str, more_properties: str = "") -> Iterator[str]:
    """Run an Apache Kafka and yield its address; skip the test where there is none."""
    try:
        with _apache_kafka.running(folder, more_properties, version) as bootstrap:
            yield bootstrap
    except _apache_kafka.NotAvailable as error:
        pytest.skip(str(error))


@pytest.fixture(params=_apache_kafka.VERSIONS, scope="session")
def kafka_version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


BROKERS = ("embedded", *(pytest.param(name, marks=pytest.mark.kafka) for name in _apache_kafka.VERSIONS))


@pytest.fixture(params=BROKERS, scope="session")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    if request.param == "embedded":
        yield Kafka(request.param, request.getfixturevalue("embedded_log"))
        return
    with apache_kafka(tmp_path_factory.mktemp("kafka"), request.param) as bootstrap:
        yield Kafka(request.param, bootstrap)


@pytest.fixture(scope="session")
def admin(kafka: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


@pytest.fixture
def topic(kafka: Kafka, admin: AdminClient) -> Iterator[Callable[..., str]]:
    """Makes topics of random names, ready to be used, and takes them away afterwards."""
    made: list[str] = []

    def ready(name: str, partitions: int) -> bool:
        client = Raw(kafka.bootstrap)
        try:
            wanted = [(name, [(number, -1) for number in range(partitions)])]
            [(_, found)] = client.ask(OffsetRequest_v1(-1, wanted)).topics
            return all(code == 0 for _, code, _, _ in found)
        finally:
            client.close()

    def make(partitions: int = 1, **config: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        options = {key.replace("_", "."): str(value) for key, value in config.items()}
        if kafka.name.startswith("4.") and "segment.bytes" in options:  # 1 MiB at least, except in tests
            options["internal.segment.bytes"] = options.pop("segment.bytes")
        for future in admin.create_topics([NewTopic(name, partitions, 1, config=options)]).values():
            future.result(DEADLINE_S)
        made.append(name)
        wait_until(lambda: ready(name, partitions))
        return name

    yield make
    if made:
        for future in admin.delete_topics(made).values():
            future.exception(DEADLINE_S)


@pytest.fixture
def produce(kafka: Kafka) -> Callable[..., list[Any]]:
    """Produces (key, value) pairs with confluent-kafka and returns the acknowledged messages."""

    def send(topic: str, pairs: Any, config: Mapping[str, Any] | None = None, **options: Any) -> list[Any]:
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random", **(config or {})}
        )
        done: list[Any] = []
        failed: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            (failed if error else done).append(error or message)

        for key, value in pairs:
            producer.produce(topic, value, key, on_delivery=delivered, **options)
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
        assert not failed, failed[:3]
        return done

    return send


@pytest.fixture
def consume(kafka: Kafka) -> Callable[..., list[Any]]:
    """Reads `count` messages of a topic from the beginning, or all up to the end where count is None."""

    def read(topic: str, count: int | None = None, partitions: int = 1, **config: Any) -> list[Any]:
        consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": f"g-{uuid.uuid4().hex[:12]}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": count is None,
                **config,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, number, -2) for number in range(partitions)])
            messages: list[Any] = []
            ended: set[int] = set()
            deadline = time.monotonic() + DEADLINE_S
            while (len(ended) < partitions) if count is None else (len(messages) < count):
                assert time.monotonic() < deadline, f"{len(messages)} messages of {count} came"
                for message in consumer.consume(1000, 0.2):
                    if message.error() is None:
                        messages.append(message)
                    elif message.error().code() == -191:
                        ended.add(message.partition())
                    else:
                        raise AssertionError(message.error())
            return messages
        finally:
            consumer.close()

    return read


class Raw:
    """A client that sends exactly the requests it is told to."""

    def __init__(self, bootstrap: str, timeout_s: float = 15.0) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._ids = itertools.count(1)

    def send(self, request: Any) -> int:
        """Sends an aiokafka request struct and returns its correlation id."""
        number = next(self._ids)
        data = request.build_request_header(number, "raw").encode() + request.encode()
        self.sock.sendall(struct.pack(">i", len(data)) + data)
        return number

    def receive(self, request: Any, number: int) -> Any:
        size = struct.unpack(">i", self.read(4))[0]
        data = self.read(size)
        assert struct.unpack(">i", data[:4])[0] == number
        return request.RESPONSE_TYPE.decode(data[4:])

    def ask(self, request: Any) -> Any:
        return self.receive(request, self.send(request))

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.sock.recv(size - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        return bytes(data)

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def raw(kafka: Kafka) -> Iterator[Callable[[], Raw]]:
    made: list[Raw] = []

    def connect() -> Raw:
        client = Raw(kafka.bootstrap)
        made.append(client)
        return client

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def record_batch() -> Callable[..., bytearray]:
    """Builds one record batch of (key, value) pairs."""
    return build_batch
