"""The outlet: bounded room while the log is down, the oldest messages go first, all of it counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from schemas.kafka.admin import create_topics, delete_topics
from schemas.kafka.bounded_producer import BoundedProducer
from schemas.kafka.settings import KafkaSettings
from schemas.topics import DELAYS, LINKS
from tests.embedded_log import EmbeddedLog, log_fixture  # noqa: F401  pytest finds fixtures
from tests.waiting import wait_until


class Log:
    """Stands for librdkafka: takes messages, acknowledges them when told."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, Callable[..., None]]] = []
        self.sent: list[bytes] = []
        self.up = False

    def produce(self, topic: str, *, key: bytes, value: bytes, on_delivery: Any) -> None:
        self.taken.append((value, on_delivery))

    def poll(self, timeout: float) -> int:
        while self.up and self.taken:
            value, report = self.taken.pop(0)
            self.sent.append(value)
            report(None, self)
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 2, 1234

    def flush(self, timeout: float) -> int:
        return self.poll(timeout)

    def purge(self) -> None:
        self.taken.clear()

    def list_topics(self, topic: str, timeout: float) -> object:
        return None


def numbered(producer: BoundedProducer, first: int, last: int, size: int = 8) -> None:
    for number in range(first, last):
        producer.put("t", "k", number.to_bytes(size, "big"))


def test_all_arrives_in_order_while_the_log_is_up() -> None:
    log = Log()
    log.up = True
    producer = BoundedProducer(KafkaSettings(), 100, 10_000, producer=log)
    numbered(producer, 0, 500)
    assert producer.close(1) == 0
    assert [int.from_bytes(value, "big") for value in log.sent] == list(range(500))
    assert (producer.dropped, producer.failed, producer.delivered) == (0, 0, 500)


def test_the_oldest_of_those_that_wait_are_dropped_and_the_rest_arrives() -> None:
    log = Log()
    producer = BoundedProducer(KafkaSettings(), 100, 10_000, producer=log)
    numbered(producer, 0, 1000)
    handed = len(log.taken)
    assert producer.waiting == 100 + handed
    assert producer.dropped == 900 - handed
    log.up = True
    assert producer.close(1) == 0
    got = [int.from_bytes(value, "big") for value in log.sent]
    assert got == [*range(handed), *range(900, 1000)]


def test_librdkafka_holds_five_messages_of_a_key_and_other_keys_go_on() -> None:
    log = Log()
    producer = BoundedProducer(KafkaSettings(), 100, 10_000, producer=log)
    numbered(producer, 0, 50)
    assert len(log.taken) == 5
    producer.put("t", "other", b"x")
    assert [value for value, _ in log.taken[5:]] == [b"x"]


def test_bytes_are_bounded_as_well() -> None:
    log = Log()
    producer = BoundedProducer(KafkaSettings(), 10_000, 5000, producer=log)
    numbered(producer, 0, 1000, size=100)
    assert producer.waiting - len(log.taken) == 50


def test_giving_up_is_counted() -> None:
    log = Log()
    producer = BoundedProducer(KafkaSettings(), 100, 10_000, producer=log)
    numbered(producer, 0, 10)
    assert producer.close(0.01) == 10


def test_the_log_append_time_is_handed_on() -> None:
    log = Log()
    log.up = True
    producer = BoundedProducer(KafkaSettings(), 100, 10_000, producer=log)
    times: list[int] = []
    producer.put("t", "k", b"x", times.append)
    producer.poll()
    assert times == [1_234_000_000]


@pytest.mark.parametrize("timestamp", [(1, 1234), (0, -1), (2, -1)])
def test_an_acknowledgement_without_append_time_is_no_log_time(
    timestamp: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    log.up = True
    monkeypatch.setattr(log, "timestamp", lambda: timestamp)
    producer, times = BoundedProducer(KafkaSettings(), 100, 10_000, producer=log), []
    producer.put("fabric.inventory", "k", b"v", times.append)
    producer.poll()
    assert times == []
    assert "topic fabric.inventory: timestamp" in caplog.text
    assert "LogAppendTime" in caplog.text


def test_refused_messages_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    producer = BoundedProducer(KafkaSettings(), 100, 10_000, producer=log)
    numbered(producer, 0, 50)
    while log.taken:
        log.taken.pop(0)[1](KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), log)
        producer.poll()
    assert producer.status == "0 messages wait, 0 dropped, 50 failed"
    assert len(caplog.records) == 1


def test_a_topic_that_was_deleted_and_made_again_gets_messages_within_seconds(log: EmbeddedLog) -> None:
    producer = BoundedProducer(KafkaSettings(bootstrap=log.bootstrap), 100, 100_000)

    def deliver(topic: str) -> bool:
        before = producer.delivered
        producer.put(topic, "k", b"v")
        producer.poll()
        return producer.delivered > before

    wait_until(lambda: deliver(LINKS.name), 10)
    delete_topics(log.bootstrap, [LINKS.name])
    wait_until(lambda: not deliver(LINKS.name) and producer.failed > 20, 20)
    wait_until(lambda: deliver(DELAYS.name), 5, name="other topics go on")
    create_topics(log.bootstrap, partitions=2)
    wait_until(lambda: deliver(LINKS.name), 10)
    producer.close(5)
