"""Reads the inventory and the clock offsets from Kafka for the clock pages.

It reads the whole inventory, and each partition of the offsets topic from its tail. It uses no consumer
group, because each actuator needs all records. Unusable records go to `fabric.rejects`. Only `close` blocks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.producer import NOT_QUEUED, open_producer
from schemas.kafka.reader import BEGINNING, LogUnavailable, TopicReader, tail
from schemas.kafka.settings import KafkaSettings, service_options
from schemas.messages import decode_message
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES
from schemas.records import ClockOffsets, Nic, Reject, RejectReason
from schemas.topics import CLOCK_OFFSETS, INVENTORY, REJECTS
from schemas.unexpected import DATA_ERRORS, refusal
from schemas.validation import validate_offsets

_log = logging.getLogger(__name__)

OFFSETS_TAIL: Final = 100
"""Number of newest records read from each partition at the start. Only the last windows are useful."""
READER: Final = "actuator"
KEY_BYTES: Final = 256
VALUE_BYTES: Final = 1024
_WARN_EVERY_S: Final = 10.0
_RETRY_S: Final = 0.5
ASSIGN_TIMEOUT_S: Final = 1.0
_CLOSE_S: Final = 1.0


def reject_record(message: Message, error: codec.BadRecord) -> Reject:
    """Return the `Reject` record of a message that could not be used."""
    value = message.value or b""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "append_ns": max(0, message.append_ns),
        "reader": READER,
        "reason": RejectReason(error.reason),
        "detail": str(error)[:300],
        "key": (message.key_bytes or b"")[:KEY_BYTES],
        "size_bytes": len(value),
        "head": value[:VALUE_BYTES],
    }


class RareWarnings:
    """Logs lines, but of those with the same beginning only one per 10 s."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last_s: dict[str, float] = {}

    def __call__(self, line: str) -> None:
        """Log a line, unless a similar one was logged within the last 10 s."""
        now_s, head = time.monotonic(), line[:40]
        if now_s - self._last_s.get(head, -_WARN_EVERY_S) >= _WARN_EVERY_S:
            if len(self._last_s) > 100:
                self._last_s.clear()
            self._last_s[head] = now_s
            self._log.warning("%s", line)


class ClockConsumer:
    """Reads inventory and clock offsets. `on_nic` gets (NIC, record or None), `on_offsets` each record."""

    def __init__(
        self,
        cluster: KafkaSettings,
        window_ns: int,
        on_nic: Callable[[str, Nic | None], None],
        on_offsets: Callable[[ClockOffsets], None],
        registry: codec.Registry | None = None,
        serves_shard: Callable[[str], bool] = lambda shard: True,
    ) -> None:
        """Connect to the cluster. `serves_shard`: returns True for shards whose records are decoded."""
        self._cluster = cluster
        self._reader = TopicReader(
            cluster,
            {INVENTORY: BEGINNING, CLOCK_OFFSETS: tail(OFFSETS_TAIL)},
            fetch_wait_ms=100,
            options={**service_options(cluster), "auto.offset.reset": "earliest"},
        )
        self._producer: Any = None
        self._window_ns = window_ns
        self._on_nic, self._on_offsets, self._serves_shard = on_nic, on_offsets, serves_shard
        self._registry = registry
        self._ask_at_s = 0.0
        self._warn = RareWarnings(_log)
        self.assigned = False
        self.rejected = 0
        SOURCES.add(self.samples)

    def samples(self) -> Iterator[Sample]:
        """Yield the number of rejected messages as a metric."""
        yield Sample("fabrictime_records_rejected_total", self.rejected)

    def poll(self, timeout_s: float = 0.0, max_messages: int = 1000) -> int:
        """Process the available messages, after a wait of at most `timeout_s`. Return their number."""
        if self._producer is not None:
            self._producer.poll(0)
        if not self.assigned and not self._assign():
            return 0
        try:
            messages = self._reader.poll(timeout_s, max_messages)
        except LogUnavailable as error:
            self._warn(str(error))
            return 0
        for message in messages:
            self._take(message)
        return len(messages)

    def close(self) -> None:
        """Close the consumer and the producer."""
        SOURCES.remove(self.samples)
        self._reader.close()
        if self._producer is not None:
            self._producer.flush(_CLOSE_S)

    def _assign(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._ask_at_s:
            return False
        self._ask_at_s = now_s + _RETRY_S
        try:
            self._reader.connect(ASSIGN_TIMEOUT_S)
        except LogUnavailable as error:
            self._warn(str(error))
            return False
        self.assigned = True
        return True

    def _take(self, message: Message) -> None:
        key, value = message.key, message.value
        try:
            if message.topic == INVENTORY.name:
                self._on_nic(
                    key, None if value is None else decode_message(INVENTORY, key, value, self._registry)
                )
            elif value is not None and self._serves_shard(key.rpartition("/")[0]):
                record = decode_message(CLOCK_OFFSETS, key, value, self._registry)
                record, left_out = validate_offsets(record, message.append_ns, self._window_ns)
                if left_out:
                    self._warn(
                        f"{key}: window {record['window']}: {left_out} clocks with impossible values dropped"
                    )
                self._on_offsets(record)
        except DATA_ERRORS as error:
            self._reject(message, refusal(error))

    def _reject(self, message: Message, bad: codec.BadRecord) -> None:
        self.rejected += 1
        self._warn(f"refused {message.topic}/{message.partition} offset {message.offset}: {bad}")
        if self._producer is None:
            self._producer = open_producer(
                self._cluster, {"message.timeout.ms": 30_000, "queue.buffering.max.messages": 1000}
            )
        data = codec.encode(REJECTS.type, reject_record(message, bad), self._registry)
        try:
            self._producer.produce(REJECTS.name, key=message.topic.encode(), value=data)
        except NOT_QUEUED as error:  # the reject is counted and logged; only its copy is lost
            self._warn(f"{REJECTS.name}: {error}")
