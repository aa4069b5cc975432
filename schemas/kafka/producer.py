"""Creates the producers of services and of benchmarks, on confluent-kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from schemas.kafka.publisher import PARTITIONER, publisher_options
from schemas.kafka.settings import KafkaSettings, service_options

NOT_QUEUED: Final = (BufferError, KafkaException)
"""Errors of `produce`: the queue is full, or the message can never be sent."""


def open_producer(cluster: KafkaSettings | str, options: Mapping[str, Any]) -> Any:
    """Return a producer that keeps the order of messages. `options`: further options of confluent-kafka."""
    return Producer(
        {
            **service_options(cluster),
            "partitioner": PARTITIONER,
            "enable.idempotence": True,
            **options,
        }
    )


def produce(
    producer: Any, topic: str, value: bytes | None, key: str | bytes | None = None, **more: Any
) -> None:
    """Pass a message to a producer; wait while its queue is full. `more`: arguments of its `produce`."""
    while True:
        try:
            producer.produce(topic, value, key, **more)
            return
        except BufferError:
            producer.poll(0.05)


def load_producer(cluster: KafkaSettings | str, options: Mapping[str, Any]) -> Any:
    """Return a producer for load tests, with librdkafka's defaults unless `options` change them."""
    return Producer({**publisher_options(cluster), "log_level": 2, **options})
