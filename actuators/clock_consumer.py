"""The log's side of an actuator: inventory and clock offsets in, rejects out.

In: the whole inventory, and each partition of the offsets topic from its tail. No group: every actuator needs
everything. Out: decoded and checked records to the one who takes them. Nothing here waits but `close`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage

from schemas import codec
from schemas.sanity import sound_offsets
from schemas.topics import CLOCK_OFFSETS, INVENTORY, REJECTS

__all__ = ["ClockConsumer", "reject_record"]

_log = logging.getLogger(__name__)

OFFSETS_TAIL: Final = 100
"""Newest records of each partition that are read at the start: only the last windows can be used."""
READER: Final = "actuator"
KEY_BYTES: Final = 256
VALUE_BYTES: Final = 1024
_WARN_EVERY_S: Final = 10.0
_RETRY_S: Final = 0.5
_CLOSE_S: Final = 1.0

Record = dict[str, Any]


def reject_record(message: Any, error: codec.BadRecord) -> Record:
    """Return the `Reject` of a message that could not be read."""
    value = message.value() or b""
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "append_ns": max(0, message.timestamp()[1]) * 1_000_000,
        "reader": READER,
        "reason": error.reason,
        "detail": str(error)[:300],
        "key": (message.key() or b"")[:KEY_BYTES],
        "size_bytes": len(value),
        "head": value[:VALUE_BYTES],
    }


class ClockConsumer:
    """Reads both topics. `on_nic` takes (NIC, record or None), `on_offsets` a checked record."""

    def __init__(
        self,
        client: dict[str, Any],
        window_ns: int,
        on_nic: Callable[[str, Record | None], None],
        on_offsets: Callable[[Record], None],
        registry: codec.Registry | None = None,
        wanted: Callable[[str], bool] = lambda shard: True,
    ) -> None:
        """`wanted`: whether records of a shard are of use; others are not even decoded."""
        self._client = client
        self._consumer = Consumer(
            {
                **client,
                "group.id": "fabrictime-actuator",  # librdkafka wants one; nothing is ever committed
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
        """Take what has come, waiting for at most so long; return how many messages that was."""
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
        """End both clients."""
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
                    self._warn(f"{topic.name}: no such topic yet")
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
                record = codec.decode(value, CLOCK_OFFSETS.record, self._registry)
                record, left_out = sound_offsets(record, append_ns, self._window_ns)
                if left_out:
                    self._warn(f"{key}: window {record['window']}: {left_out} clocks no clock can be")
                self._on_offsets(record)
        except codec.BadRecord as bad:
            self._reject(message, bad)

    def _nic(self, key: str, value: bytes) -> Record:
        record = codec.decode(value, INVENTORY.record, self._registry)
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
        data = codec.encode(REJECTS.record, reject_record(message, bad), self._registry)
        try:
            self._producer.produce(REJECTS.name, key=str(message.topic()).encode(), value=data)
        except (
            BufferError,
            KafkaException,
        ) as error:  # counted and said already; a full queue costs the copy
            self._warn(f"{REJECTS.name}: {error}")

    def _warn(self, line: str) -> None:
        """Log a line, the same beginning at most every 10 s."""
        now_s, head = time.monotonic(), line[:40]
        if now_s - self._last_warned_s.get(head, -_WARN_EVERY_S) >= _WARN_EVERY_S:
            if len(self._last_warned_s) > 100:
                self._last_warned_s.clear()
            self._last_warned_s[head] = now_s
            _log.warning("%s", line)
