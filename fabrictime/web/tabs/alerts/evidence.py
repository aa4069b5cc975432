"""Finds the log record to which an alert's evidence refers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from fabrictime.web.history_client import HistoryDown, HistoryError, QueryFailed
from fabrictime.web.tabs.alerts.frames import LogRecord, fields_of, nearest, time_text
from schemas import codec
from schemas.kafka.reader import LogUnavailable, TopicMissing, TopicReader, since
from schemas.kafka.settings import KafkaSettings
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
"""How far before and after the evidence's time the search reads, ns."""
MAX_MESSAGES: Final = 4_000
TIMEOUT_S: Final = 4.0
CONNECT_TIMEOUT_S: Final = 2.0
POLL_S: Final = 0.2

EvidenceReader = Callable[[str, str, int, str], LogRecord]
"""A function of (topic, key, at_ns, text) that returns the record."""


def evidence_reader(cluster: KafkaSettings) -> EvidenceReader:
    """Return a function that reads the record of an alert's evidence from the log. The function blocks and
    raises HistoryError.
    """
    registry = cluster.registry()

    def find(topic: str, key: str, at_ns: int, text: str) -> LogRecord:
        if topic not in {readable_topic.name for readable_topic in READABLE_TOPICS}:
            raise QueryFailed(f"{topic}: not a topic with readable evidence")
        try:
            candidates = _around(cluster, topic, key, at_ns, registry)
        except TopicMissing as error:
            raise QueryFailed(str(error)) from error
        except LogUnavailable as error:
            raise HistoryDown(str(error)) from error
        best = nearest([(append_ns, record) for append_ns, _, record in candidates], at_ns, text)
        if best is None:
            raise HistoryError(f"{topic} has no record of {key} around {time_text(at_ns)}")
        position = next(position for _, position, record in candidates if record is best[1])
        return LogRecord(f"{position}, appended at {time_text(best[0])}", fields_of(best[1]))

    return find


def _around(
    cluster: KafkaSettings, topic: str, key: str, at_ns: int, registry: codec.Registry | None
) -> list[tuple[int, str, Any]]:
    """Return (append time, position, record) of each record with this key within `AROUND_NS` of `at_ns`."""
    key_records: list[tuple[int, str, Any]] = []
    end_s = time.monotonic() + TIMEOUT_S
    with TopicReader(cluster, {TOPICS[topic]: since(at_ns - AROUND_NS)}, key=key) as reader:
        reader.connect(CONNECT_TIMEOUT_S)
        read = 0
        while reader.behind and read < MAX_MESSAGES and time.monotonic() < end_s:
            messages = reader.poll(POLL_S)
            read += len(messages)
            for message, record in reader.decoded(messages, registry):
                if message.append_ns > at_ns + AROUND_NS:
                    return key_records
                if record is not None:
                    position = f"{topic}/{message.partition} offset {message.offset}"
                    key_records.append((message.append_ns, position, record))
        if not key_records and reader.behind and read < MAX_MESSAGES:
            raise LogUnavailable(f"{topic}: not read within {TIMEOUT_S:g} s")
    return key_records
