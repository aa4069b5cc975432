"""Finds the record in the log that an alert's evidence refers to.

Each search uses a consumer of its own and closes it afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from fabrictime.web.history_client import HistoryDown, HistoryError, QueryFailed
from fabrictime.web.tabs.alerts.frames import LogRecord, fields_of, nearest, time_text
from schemas import codec
from schemas.kafka.reader import LogUnavailable, TopicMissing, TopicReader, since
from schemas.topics import (
    ALERTS,
    CLOCK_OFFSETS,
    CONTENTION,
    DELAYS,
    FLOWS,
    LINK_HEALTH,
    LINKS,
    PATHS,
    QUEUES,
    TOPICS,
)

READABLE_TOPICS: Final = (LINKS, LINK_HEALTH, QUEUES, CONTENTION, FLOWS, PATHS, DELAYS, CLOCK_OFFSETS, ALERTS)
"""Topics that the search reads."""
AROUND_NS: Final = 3_000_000_000
"""Searched interval on both sides of the evidence's time."""
MAX_MESSAGES: Final = 4_000
TIMEOUT_S: Final = 4.0

EvidenceReader = Callable[[str, str, int, str], LogRecord]
"""(topic, key, at_ns, text) to the record."""


def evidence_reader(bootstrap: str, registry: codec.Registry | None) -> EvidenceReader:
    """Return a function that finds a record. It blocks, and raises HistoryError."""

    def find(topic: str, key: str, at_ns: int, text: str) -> LogRecord:
        if topic not in {each.name for each in READABLE_TOPICS}:
            raise QueryFailed(f"{topic}: not a topic with readable evidence")
        from confluent_kafka import KafkaException

        try:
            found = _around(bootstrap, topic, key.encode(), at_ns, registry)
        except KafkaException as error:
            raise HistoryDown(f"the log at {bootstrap}: {error.args[0].str()}") from error
        best = nearest([(append_ns, record) for append_ns, _, record in found], at_ns, text)
        if best is None:
            raise HistoryError(f"{topic} has no record of {key} around {time_text(at_ns)}")
        position = next(position for _, position, record in found if record is best[1])
        return LogRecord(f"{position}, appended at {time_text(best[0])}", fields_of(best[1]))

    return find


def _around(
    bootstrap: str, topic: str, key: str, at_ns: int, registry: codec.Registry | None
) -> list[tuple[int, str, Any]]:
    """Return (append time, position, record) of a key's records within `AROUND_NS`."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "fabrictime-page-evidence",
            "log_level": 0,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        partitions = len(consumer.list_topics(topic, timeout=2).topics[topic].partitions)
        if not partitions:
            raise QueryFailed(f"the log at {bootstrap} has no topic {topic}")
        number = (murmur2(key) & 0x7FFFFFFF) % partitions
        start = TopicPartition(topic, number, (at_ns - AROUND_NS) // 1_000_000)
        consumer.assign(consumer.offsets_for_times([start], timeout=2))
        found: list[tuple[int, str, Any]] = []
        read, end_s = 0, time.monotonic() + TIMEOUT_S
        while read < MAX_MESSAGES and time.monotonic() < end_s:
            for message in consumer.consume(500, 0.2):
                if message.error() is not None:
                    return found
                read += 1
                append_ns = message.timestamp()[1] * 1_000_000
                if append_ns > at_ns + AROUND_NS:
                    return found
                value = message.value()
                if message.key() != key or value is None:
                    continue
                try:
                    record = codec.decode(value, TOPICS[topic].record, registry)
                except codec.BadRecord:
                    continue  # counted by the fabric consumer
                found.append((append_ns, f"{topic}/{number} offset {message.offset()}", record))
        return found
    finally:
        consumer.close()
