"""The producer of a service, on confluent-kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from schemas.kafka.publisher import PARTITIONER
from schemas.kafka.settings import KafkaSettings, service_options

__all__ = ["NOT_QUEUED", "open_producer"]

NOT_QUEUED: Final = (BufferError, KafkaException)
"""Errors of `produce`: the queue is full, or the message can never be sent."""


def open_producer(cluster: KafkaSettings | str, options: Mapping[str, Any]) -> Any:
    """Return a client that keeps the order of messages. `options`: further options of confluent-kafka."""
    return Producer(
        {
            **service_options(cluster),
            "partitioner": PARTITIONER,
            "enable.idempotence": True,
            **options,
        }
    )
