"""Encodes records and sends them with the contract's partitioner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.settings import KafkaSettings, as_settings
from schemas.topics import Topic

PARTITIONER: Final = "murmur2_random"
"""The partitioner of the Java clients and of aiokafka; librdkafka's default differs from it."""
DELIVERY_TIMEOUT_MS: Final = 10_000


class PublishFailed(InputError):
    """The log did not accept a record."""


def publisher_options(cluster: KafkaSettings | str) -> dict[str, Any]:
    """Return the options that every confluent-kafka producer on the contract's topics needs."""
    return {**as_settings(cluster).confluent_options(), "partitioner": PARTITIONER}


class Publisher:
    """Sends records. `publish` queues a record; `flush` waits until the log has acknowledged all of them."""

    def __init__(
        self,
        cluster: KafkaSettings | str,
        registry: codec.Registry | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the client. `options`: further options of confluent-kafka."""
        from confluent_kafka import Producer

        self._cluster, self._registry = as_settings(cluster), registry
        self._errors: list[str] = []
        self._producer = Producer(
            {
                **publisher_options(self._cluster),
                "linger.ms": 0,
                "log_level": 0,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                **(options or {}),
            }
        )

    def publish(self, topic: Topic, key: str, record: Mapping[str, Any] | None) -> None:
        """Queue a record; None is a tombstone. Raises ValueError if the record does not fit its schema."""
        value = None if record is None else codec.encode(topic.record, record, self._registry)
        self.send(topic.name, key, value)

    def send(self, topic: str, key: str | bytes, value: bytes | None) -> None:
        """Queue an encoded message, or a tombstone if `value` is None."""
        self._producer.produce(topic, value, key, on_delivery=self._on_delivery)
        self._producer.poll(0)

    def flush(self, timeout_s: float) -> None:
        """Wait for all acknowledgements. Raises PublishFailed for the first error since the last flush."""
        left = self._producer.flush(timeout_s)
        errors, self._errors = self._errors, []
        if left or errors:
            raise PublishFailed(f"log {self._cluster.bootstrap}: {errors[0] if errors else 'no answer'}")

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self._errors.append(error.str())
