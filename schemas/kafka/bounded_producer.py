"""A Kafka producer with a bounded queue: while the log is down, messages wait, then the oldest are dropped.

Only `close` blocks. librdkafka gets only a few messages at a time, because its own queue never drops old
messages in favour of newer ones.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as KafkaMessage

from schemas.kafka.producer import open_producer
from schemas.kafka.settings import KafkaSettings
from schemas.log_time import CONFLUENT_BASE, append_ns_of
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES
from schemas.repeat_filter import RepeatFilter

_log = logging.getLogger(__name__)

Delivered = Callable[[int], None]
"""Callback that gets the log append time of a delivered message, ns since the Unix epoch."""

_Key = tuple[str, bytes]
"""Topic and key of a message."""
_Message = tuple[bytes | None, Delivered | None]
_IN_FLIGHT = 64
_IN_FLIGHT_PER_KEY: Final = 5
"""Messages of one key that librdkafka holds. Its idempotent producer has at most five of a partition in
flight (RD_KAFKA_IDEMP_MAX_INFLIGHT). If more wait in it, its thread polls without a pause until the log
answers: while a broker stalls, each prober would use a whole core."""
_MISSING = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_PROPAGATION_MS = 2_000
"""Time after its first message in which a topic may be missing, because it was made just now."""
_FIND_EVERY_S = 1.0
_FIND_S = 0.2
"""Longest wait for the answer about a missing topic; the caller waits as long."""


class _Queue:
    """Waiting messages by key; the keys are in the order in which they began to wait."""

    def __init__(self) -> None:
        self._by_key: dict[_Key, deque[_Message]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: _Key) -> bool:
        return key in self._by_key

    def waiting_keys(self) -> list[_Key]:
        """Return the keys of all messages that wait."""
        return list(self._by_key)

    def oldest_key(self) -> _Key:
        """Return the key that has waited longest. Raises StopIteration if nothing waits."""
        return next(iter(self._by_key))

    def append(self, key: _Key, message: _Message) -> None:
        """Add a message behind the other messages of its key."""
        self._by_key.setdefault(key, deque()).append(message)
        self._count += 1

    def first(self, key: _Key) -> _Message:
        """Return the oldest message of a key."""
        return self._by_key[key][0]

    def pop(self, key: _Key) -> _Message:
        """Remove and return the oldest message of a key."""
        of_key = self._by_key[key]
        message = of_key.popleft()
        self._count -= 1
        if not of_key:
            del self._by_key[key]
        return message


class _Producer(Protocol):
    def produce(self, topic: str, *, key: bytes, value: bytes | None, on_delivery: Any) -> None: ...
    def poll(self, timeout: float) -> int: ...
    def flush(self, timeout: float) -> int: ...
    def purge(self) -> None: ...
    def list_topics(self, topic: str, timeout: float) -> object: ...


class BoundedProducer:
    """A bounded queue in front of a Kafka producer. `max_messages` and `max_bytes` limit its content."""

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
        """Create the client. `linger_ms`: how long a message waits for others to share a produce request."""
        self._producer: _Producer = producer or open_producer(
            cluster,
            {
                "compression.type": compression,
                "linger.ms": linger_ms,
                "message.timeout.ms": 0,
                "message.max.bytes": 4_000_000,
                # messages of a missing topic must not keep those of others waiting for 30 s
                "topic.metadata.propagation.max.ms": _PROPAGATION_MS,
                "queue.buffering.max.messages": max(1000, 2 * in_flight),
            },
        )
        self._urgent, self._waiting = _Queue(), _Queue()
        self._waiting_bytes = 0
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._in_flight = 0
        self._in_flight_by_key: Counter[_Key] = Counter()
        self._max_in_flight = in_flight
        self.dropped = 0
        self.delivered = 0
        self.failed = 0
        """Messages that the log refused, such as those of a topic that does not exist."""
        self._append_s = 0.0
        """Sum over the delivered messages of the time until their acknowledgement, s."""
        self._failures = RepeatFilter()
        self._find_at_s = 0.0
        SOURCES.add(self.samples)

    def put(
        self,
        topic: str,
        key: str,
        value: bytes | None,
        delivered: Delivered | None = None,
        urgent: bool = False,
    ) -> None:
        """Queue a message; if the queue is full, drop the oldest message. A `value` of None is a tombstone.

        Urgent messages have a queue of their own, which is sent first. Each queue keeps the order of a key's
        messages and holds at most `max_messages`.
        """
        queue = self._urgent if urgent else self._waiting
        queue.append((topic, key.encode()), (value, delivered))
        self._waiting_bytes += len(value or b"")
        while len(queue) > self._max_messages:
            self._drop(queue)
        while self._waiting_bytes > self._max_bytes:
            self._drop(self._waiting if len(self._waiting) else self._urgent)
        self.poll()

    def _drop(self, queue: _Queue) -> None:
        value, _ = queue.pop(queue.oldest_key())
        self._waiting_bytes -= len(value or b"")
        self.dropped += 1

    def poll(self) -> None:
        """Process acknowledgements, and pass waiting messages on to librdkafka."""
        self._producer.poll(0)
        for queue in (self._urgent, self._waiting):
            for key in queue.waiting_keys():
                if self._in_flight >= self._max_in_flight:
                    return
                while self._may_send(queue, key):
                    if not self._send(key, *queue.first(key)):
                        return
                    value, _ = queue.pop(key)
                    self._waiting_bytes -= len(value or b"")

    def _may_send(self, queue: _Queue, key: _Key) -> bool:
        return (
            key in queue
            and self._in_flight < self._max_in_flight
            and self._in_flight_by_key[key] < _IN_FLIGHT_PER_KEY
        )

    def _send(self, key: _Key, value: bytes | None, delivered: Delivered | None) -> bool:
        """Pass a message on to librdkafka, or count it as failed; return False if librdkafka is full."""
        topic = key[0]
        try:
            self._producer.produce(topic, key=key[1], value=value, on_delivery=self._report(key, delivered))
        except BufferError:
            return False
        except KafkaException as error:  # this message can never be sent: too large, or refused for good
            self.failed += 1
            self._log_failure(f"{topic}: message not sent: {error}")
            self._find_again(topic, error.args[0])
        else:
            self._in_flight += 1
            self._in_flight_by_key[key] += 1
        return True

    @property
    def waiting(self) -> int:
        """Number of messages that are not yet acknowledged."""
        return len(self._urgent) + len(self._waiting) + self._in_flight

    def samples(self) -> Iterator[Sample]:
        """Yield the counters of delivered, dropped and waiting messages as metrics."""
        yield Sample("fabrictime_records_published_total", self.delivered)
        yield Sample("fabrictime_records_dropped_total", self.dropped + self.failed)
        yield Sample("fabrictime_records_waiting", self.waiting)
        yield Sample("fabrictime_log_append_seconds_sum", self._append_s)
        yield Sample("fabrictime_log_append_seconds_count", self.delivered)

    @property
    def status(self) -> str:
        """The counters of messages as text, for the status line of a service."""
        return f"{self.waiting} messages wait, {self.dropped} dropped, {self.failed} failed"

    def _find_again(self, topic: str, error: KafkaError) -> None:
        """Request the metadata of a topic that the client believes missing and would look up only in 30 s."""
        now_s = time.monotonic()
        if error.code() not in _MISSING or now_s < self._find_at_s:
            return
        self._find_at_s = now_s + _FIND_EVERY_S
        with contextlib.suppress(KafkaException):
            self._producer.list_topics(topic, timeout=_FIND_S)

    def _log_failure(self, line: str) -> None:
        if (due := self._failures.due(line)) is not None:
            _log.error("%s", due)

    def close(self, timeout_s: float) -> int:
        """Send waiting messages for at most `timeout_s`; return the number of messages that were not sent."""
        end = time.monotonic() + timeout_s
        while self.waiting and time.monotonic() < end:
            self.poll()
            self._producer.flush(max(0.0, min(0.1, end - time.monotonic())))
        left = self.waiting
        self._producer.purge()
        self._producer.flush(0.1)
        SOURCES.remove(self.samples)
        return left

    def _report(
        self, key: _Key, delivered: Delivered | None
    ) -> Callable[[KafkaError | None, KafkaMessage], None]:
        topic, sent_s = key[0], time.monotonic()

        def report(error: KafkaError | None, message: KafkaMessage) -> None:
            self._in_flight -= 1
            self._in_flight_by_key[key] -= 1
            if not self._in_flight_by_key[key]:
                del self._in_flight_by_key[key]
            if error is not None:
                self.failed += 1
                if error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
                    self._log_failure(f"{topic}: not acknowledged: {error}")
                return
            self.delivered += 1
            self._append_s += time.monotonic() - sent_s
            if delivered is None:
                return
            kind, timestamp_ms = message.timestamp()
            try:
                append_ns = append_ns_of(topic, kind - CONFLUENT_BASE, timestamp_ms)
            except ValueError as no_append_time:
                self.failed += 1
                self._log_failure(str(no_append_time))
                return
            delivered(append_ns)

        return report
