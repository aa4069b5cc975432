"""A Kafka producer with a bounded queue. While the log is down, messages wait; then the oldest are dropped.

Only `close` blocks. librdkafka gets only a few messages at a time, because its own queue never drops old
messages in favour of newer ones.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as KafkaMessage

from schemas.kafka.producer import open_producer
from schemas.kafka.settings import KafkaSettings
from schemas.log_time import CONFLUENT_BASE, append_ns_of

_log = logging.getLogger(__name__)

Delivered = Callable[[int], None]
"""Callback that gets the log append time of a delivered message, ns since the Unix epoch."""

_Message = tuple[str, bytes, bytes | None, Delivered | None]
_IN_FLIGHT = 64


class _Producer(Protocol):
    def produce(self, topic: str, *, key: bytes, value: bytes | None, on_delivery: Any) -> None: ...
    def poll(self, timeout: float) -> int: ...
    def flush(self, timeout: float) -> int: ...
    def purge(self) -> None: ...


class BoundedProducer:
    """A bounded queue in front of a Kafka producer. `max_messages` and `max_bytes` limit the waiting
    messages."""

    def __init__(
        self,
        cluster: KafkaSettings,
        max_messages: int,
        max_bytes: int,
        compression: str = "none",
        producer: _Producer | None = None,
        in_flight: int = _IN_FLIGHT,
        linger_ms: int = 0,
    ) -> None:
        """`linger_ms`: how long a message waits for others to share a request."""
        self._producer: _Producer = producer or open_producer(
            cluster,
            {
                "compression.type": compression,
                "linger.ms": linger_ms,
                "message.timeout.ms": 0,
                "message.max.bytes": 4_000_000,
                "queue.buffering.max.messages": max(1000, 2 * in_flight),
            },
        )
        self._urgent: deque[_Message] = deque()
        self._waiting: deque[_Message] = deque()
        self._waiting_bytes = 0
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._in_flight = 0
        self._max_in_flight = in_flight
        self.dropped = 0
        self.delivered = 0
        self.failed = 0

    def put(
        self,
        topic: str,
        key: str,
        value: bytes | None,
        delivered: Delivered | None = None,
        urgent: bool = False,
    ) -> None:
        """Queue a message; if the queue is full, drop the oldest message. A `value` of None is a tombstone.

        Urgent messages are sent first. Urgent and other messages each keep their order and have a limit of
        `max_messages`.
        """
        queue = self._urgent if urgent else self._waiting
        queue.append((topic, key.encode(), value, delivered))
        self._waiting_bytes += len(value or b"")
        while len(queue) > self._max_messages:
            self._drop(queue)
        while self._waiting_bytes > self._max_bytes:
            self._drop(self._waiting or self._urgent)
        self.poll()

    def _drop(self, queue: deque[_Message]) -> None:
        self._waiting_bytes -= len(queue.popleft()[2] or b"")
        self.dropped += 1

    def poll(self) -> None:
        """Process acknowledgements, and pass waiting messages on to librdkafka."""
        self._producer.poll(0)
        while (queue := self._urgent or self._waiting) and self._in_flight < self._max_in_flight:
            topic, key, value, delivered = queue[0]
            try:
                self._producer.produce(
                    topic, key=key, value=value, on_delivery=self._report(topic, delivered)
                )
            except BufferError:
                return
            except KafkaException as error:  # this message can never be sent: too large, or refused for good
                self.failed += 1
                _log.error("%s: message of %d bytes: %s", topic, len(value or b""), error)
            else:
                self._in_flight += 1
            queue.popleft()
            self._waiting_bytes -= len(value or b"")

    @property
    def waiting(self) -> int:
        """Number of messages that are not yet acknowledged."""
        return len(self._urgent) + len(self._waiting) + self._in_flight

    def close(self, timeout_s: float) -> int:
        """Send waiting messages for at most `timeout_s`; return the number of messages that were not sent."""
        end = time.monotonic() + timeout_s
        while self.waiting and time.monotonic() < end:
            self.poll()
            self._producer.flush(max(0.0, min(0.1, end - time.monotonic())))
        left = self.waiting
        self._producer.purge()
        self._producer.flush(0.1)
        return left

    def _report(
        self, topic: str, delivered: Delivered | None
    ) -> Callable[[KafkaError | None, KafkaMessage], None]:
        def report(error: KafkaError | None, message: KafkaMessage) -> None:
            self._in_flight -= 1
            if error is not None:
                self.failed += 1
                if error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
                    _log.error("%s: not acknowledged: %s", topic, error)
                return
            self.delivered += 1
            if delivered is None:
                return
            kind, timestamp_ms = message.timestamp()
            try:
                append_ns = append_ns_of(topic, kind - CONFLUENT_BASE, timestamp_ms)
            except ValueError as no_append_time:
                self.failed += 1
                _log.error("%s", no_append_time)
                return
            delivered(append_ns)

        return report
