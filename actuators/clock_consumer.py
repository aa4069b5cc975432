"""Reads the inventory and the clock offsets from Kafka for the clock pages.

It reads the whole inventory, and each partition of the offsets topic from its tail. It uses no consumer
group, because every actuator needs all records. Records that cannot be used go to `fabric.rejects`. Only
`close` blocks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage

from schemas import codec
from schemas.records import ClockOffsets, Nic, Reject, RejectReason
from schemas.topics import CLOCK_OFFSETS, INVENTORY, REJECTS
from schemas.validation import validate_offsets

__all__ = ["ClockConsumer", "reject_record"]

_log = logging.getLogger(__name__)

OFFSETS_TAIL: Final = 100
"""Newest records that are read from each partition at the start. Only the last windows are useful."""
READER: Final = "actuator"
KEY_BYTES: Final = 256
VALUE_BYTES: Final = 1024
_WARN_EVERY_S: Final = 10.0
_RETRY_S: Final = 0.5
_CLOSE_S: Final = 1.0


def reject_record(message: Any, error: codec.BadRecord) -> Reject:
    """Return the `Reject` record of a message that could not be used."""
    value = message.value() or b""
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "append_ns": max(0, message.timestamp()[1]) * 1_000_000,
        "reader": READER,
        "reason": RejectReason(error.reason),
        "detail": str(error)[:300],
        "key": (message.key() or b"")[:KEY_BYTES],
        "size_bytes": len(value),
        "head": value[:VALUE_BYTES],
    }


class ClockConsumer:
    """Reads both topics. `on_nic` receives (NIC, record or None), `on_offsets` a validated record."""

    def __init__(
        self,
        client: dict[str, Any],
        window_ns: int,
        on_nic: Callable[[str, Nic | None], None],
        on_offsets: Callable[[ClockOffsets], None],
        registry: codec.Registry | None = None,
        wanted: Callable[[str], bool] = lambda shard: True,
    ) -> None:
        """`wanted` returns True for the shards whose records are useful. Others are not decoded."""
        self._client = client
        self._consumer = Consumer(
            {
                **client,
                "group.id": "fabrictime-actuator",  # required by librdkafka; nothing is committed
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 100,
            }
        )
        self._producer: Producer | None = None
        self._window_ns = window_ns
        self._on_nic, self._on_offsets, self._wanted = on_nic, on_offsets, wanted
        self._registry = registry
        self._ask_at_s = 0.0
        self._last_warned_s: dict[str, float] = {}
        self.assigned = False
        self.rejected = 0

    def poll(self, timeout_s: float = 0.0, max_messages: int = 1000) -> int:
        """Process the messages that are available, waiting up to `timeout_s`. Return their number."""
        if self._producer is not None:
            self._producer.poll(0)
        if not self.assigned and not self._assign():
            return 0
        try:
            messages: list[KafkaMessage] = self._consumer.consume(max_messages, timeout=timeout_s)
        except KafkaException as error:
            self._warn(str(error))
            return 0
        for message in messages:
            self._take(message)
        return len(messages)

    def close(self) -> None:
        """Close the consumer and the producer."""
        self._consumer.close()
        if self._producer is not None:
            self._producer.flush(_CLOSE_S)

    def _assign(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._ask_at_s:
            return False
        self._ask_at_s = now_s + _RETRY_S
        wanted: list[TopicPartition] = []
        try:
            topics = self._consumer.list_topics(timeout=1).topics
            for topic in (INVENTORY, CLOCK_OFFSETS):
                found = topics.get(topic.name)
                if found is None or found.error is not None or not found.partitions:
                    self._warn(f"{topic.name}: topic does not exist yet")
                    return False
                for number in found.partitions:
                    begin = OFFSET_BEGINNING
                    if topic is CLOCK_OFFSETS:
                        low, high = self._consumer.get_watermark_offsets(
                            TopicPartition(topic.name, number), 1
                        )
                        begin = max(low, high - OFFSETS_TAIL)
                    wanted.append(TopicPartition(topic.name, number, begin))
        except KafkaException as error:
            self._warn(str(error))
            return False
        self._consumer.assign(wanted)
        self.assigned = True
        return True

    def _take(self, message: KafkaMessage) -> None:
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                self._warn(str(error))
            return
        key = (message.key() or b"").decode(errors="replace")
        value = message.value()
        try:
            if message.topic() == INVENTORY.name:
                self._on_nic(key, None if value is None else self._nic(key, value))
            elif value is not None and self._wanted(key.rpartition("/")[0]):
                append_ns = message.timestamp()[1] * 1_000_000
                record = codec.decode(value, CLOCK_OFFSETS.type, self._registry)
                record, left_out = validate_offsets(record, append_ns, self._window_ns)
                if left_out:
                    self._warn(
                        f"{key}: window {record['window']}: {left_out} clocks with impossible values dropped"
                    )
                self._on_offsets(record)
        except codec.BadRecord as bad:
            self._reject(message, bad)

    def _nic(self, key: str, value: bytes) -> Nic:
        record = codec.decode(value, INVENTORY.type, self._registry)
        if record["nic"] != key:
            raise codec.BadRecord("WRONG_KEY", f"Nic.nic: {record['nic']!r}, expected the key, {key!r}")
        return record

    def _reject(self, message: KafkaMessage, bad: codec.BadRecord) -> None:
        self.rejected += 1
        self._warn(f"refused {message.topic()}/{message.partition()} offset {message.offset()}: {bad}")
        if self._producer is None:
            self._producer = Producer(
                {
                    **self._client,
                    "partitioner": "murmur2_random",
                    "enable.idempotence": True,
                    "message.timeout.ms": 30_000,
                    "queue.buffering.max.messages": 1000,
                }
            )
        data = codec.encode(REJECTS.type, reject_record(message, bad), self._registry)
        try:
            self._producer.produce(REJECTS.name, key=str(message.topic()).encode(), value=data)
        except (
            BufferError,
            KafkaException,
        ) as error:  # the reject is counted and logged; only its copy is lost
            self._warn(f"{REJECTS.name}: {error}")

    def _warn(self, line: str) -> None:
        """Log a line, at most every 10 s for lines with the same beginning."""
        now_s, head = time.monotonic(), line[:40]
        if now_s - self._last_warned_s.get(head, -_WARN_EVERY_S) >= _WARN_EVERY_S:
            if len(self._last_warned_s) > 100:
                self._last_warned_s.clear()
            self._last_warned_s[head] = now_s
            _log.warning("%s", line)
