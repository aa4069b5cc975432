"""Reads the fabric's topics into a `FabricState`, in a thread and without a consumer group.

Compacted topics are read from their beginning, others from some minutes back. The consumer does not depend on
the history, so the page shows a fault while the history is down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from fabrictime.state.fabric_state import FabricState, Part
from schemas import codec
from schemas.topics import (
    ACTIONS,
    ALERTS,
    CONFIG,
    CONTENTION,
    DECISIONS,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    PATHS,
    POLICY_CYCLES,
    QUEUES,
    TOPICS,
)

log = logging.getLogger(__name__)

TOPICS_READ: Final = (
    INVENTORY,
    PATHS,
    LINK_HEALTH,
    ALERTS,
    CONFIG,
    QUEUES,
    CONTENTION,
    FLOWS,
    DECISIONS,
    ACTIONS,
    POLICY_CYCLES,
)
REPLAY_S: Final = {
    QUEUES.name: 65,
    CONTENTION.name: 3600,
    FLOWS.name: 12,
    DECISIONS.name: 3600,
    ACTIONS.name: 3600,
    POLICY_CYCLES.name: 30,
}
"""Seconds of a topic that are read at the start. Other topics are read from their beginning."""
NEWEST_ONLY: Final = (INVENTORY.name, PATHS.name)
"""Topics of which only a key's newest message in a batch is decoded."""

BATCH: Final = 2_000
WAIT_S: Final = 0.05
LATEST: Final = -1
"""Timestamp that stands for a partition's end in ListOffsets."""
RETRY_S: Final = 2.0
"""Interval between two checks for topics that do not exist yet."""


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """The consumer's status. `error` is a line for people, or None while the log answers."""

    error: str | None = None
    missing: tuple[str, ...] = ()
    caught_up: bool = False
    unreadable: int = 0


class FabricConsumer:
    """Consumes the topics until stopped. Calls `changed(parts)` in its thread, without the lock."""

    def __init__(
        self,
        bootstrap: str,
        state: FabricState,
        changed: Callable[[frozenset[Part]], None],
        registry: codec.Registry | None = None,
    ) -> None:
        self.status = ConsumerStatus(error=f"connecting to the log at {bootstrap}")
        self._bootstrap = bootstrap
        self._state = state
        self._changed = changed
        self._registry = registry
        self._stopping = threading.Event()
        self._assigned: set[str] = set()
        self._behind: set[tuple[str, int]] = set()
        self._thread = threading.Thread(target=self._run, name="fabric consumer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        # list_topics looks its classes up in this module, which fails while another thread imports it
        import confluent_kafka.admin  # noqa: F401

        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        from confluent_kafka import Consumer, KafkaException

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "fabrictime-web",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 50,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "queued.max.messages.kbytes": 16_384,
                "log_level": 0,
                "error_cb": self._on_error,
            }
        )
        check_s = 0.0
        while not self._stopping.is_set():
            now_s = time.monotonic()
            if now_s >= check_s and (self.status.error is not None or len(self._assigned) < len(TOPICS_READ)):
                try:
                    self._assign(consumer)
                except KafkaException as error:
                    self._set_status(
                        error=f"the log at {self._bootstrap} does not answer: {error.args[0].str()}"
                    )
                    self._stopping.wait(0.2)
                check_s = now_s + (RETRY_S if self.status.error is None else 0.2)
            if not self._assigned:
                self._stopping.wait(0.1)
                continue
            try:
                messages = consumer.consume(BATCH, WAIT_S)
            except KafkaException as error:
                self._set_status(error=f"the log at {self._bootstrap}: {error.args[0].str()}")
                self._stopping.wait(0.2)
                continue
            if messages:
                self._take(messages)
        consumer.close()

    def _assign(self, consumer: Any) -> None:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        metadata = consumer.list_topics(timeout=2).topics
        self._set_status(error=None, missing=tuple(t.name for t in TOPICS_READ if t.name not in metadata))
        wanted: list[Any] = []
        timed: list[Any] = []
        for topic in TOPICS_READ:
            if (
                topic.name in self._assigned
                or topic.name not in metadata
                or metadata[topic.name].error is not None
            ):
                continue
            back_s = REPLAY_S.get(topic.name)
            at = OFFSET_BEGINNING if back_s is None else round((time.time() - back_s) * 1000)
            for number in metadata[topic.name].partitions:
                (wanted if back_s is None else timed).append(TopicPartition(topic.name, number, at))
        if timed:
            # The ends are read first, so that messages appat_end in between are consumed and not skipped.
            ends = consumer.offsets_for_times(
                [TopicPartition(each.topic, each.partition, LATEST) for each in timed], timeout=2
            )
            for end, found in zip(ends, consumer.offsets_for_times(timed, timeout=2), strict=True):
                at = found.offset if found.offset >= 0 else end.offset
                wanted.append(TopicPartition(found.topic, found.partition, at))
        if wanted:
            consumer.incremental_assign(wanted)
            self._assigned |= {each.topic for each in wanted}
            self._behind |= {(each.topic, each.partition) for each in wanted}

    def _take(self, messages: list[Any]) -> None:
        from confluent_kafka import KafkaError

        newest: dict[tuple[str, bytes | None], int] = {}
        for k, message in enumerate(messages):
            if message.error() is None and message.topic() in NEWEST_ONLY:
                newest[message.topic(), message.key()] = k
        parts: set[Part] = set()
        at_end: list[tuple[str, int]] = []
        # The lock is held for one message at a time: a batch of thousands must not block the tabs.
        for k, message in enumerate(messages):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    at_end.append((message.topic(), message.partition()))
                continue
            topic, key = message.topic(), message.key()
            if topic in NEWEST_ONLY and newest[topic, key] != k:
                continue
            part = self._take_one(topic, key or b"", message.value(), message.timestamp()[1] * 1_000_000)
            if part is not None:
                parts.add(part)
        self._behind.difference_update(at_end)
        if not self._behind and not self.status.caught_up and not self.status.missing:
            self._set_status(caught_up=True)
        if self.status.error is not None and (parts or at_end):
            self._set_status(error=None)
        if parts:
            self._changed(frozenset(parts))

    def _take_one(self, topic: str, key: bytes, value: bytes | None, append_ns: int) -> Part | None:
        name = key.decode("utf-8", "replace")
        try:
            if topic == FLOWS.name:
                with self._state.lock:
                    return self._state.take_flows(name, value, append_ns)
            if topic == QUEUES.name and value is not None and self._is_block(value):
                return None
            record = None if value is None else codec.decode(value, TOPICS[topic].type, self._registry)
            with self._state.lock:
                return self._state.take(topic, name, record, append_ns)
        except codec.BadRecord as error:
            log.warning("%s of %s: %s", topic, name, error)
        except Exception:  # one bad record must not stop the consumer
            log.exception("%s of %s", topic, name)
        self.status = replace(self.status, unreadable=self.status.unreadable + 1)
        return None

    def _is_block(self, value: bytes) -> bool:
        """Return whether a LinkQueues record has short slots: too many per second to be shown."""
        return bool(codec.decode_head(value, QUEUES.record, "slots", self._registry)["slots"] > 1)

    def _on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._set_status(error=f"the log at {self._bootstrap} does not answer")

    def _set_status(self, **changes: Any) -> None:
        before, self.status = self.status, replace(self.status, **changes)
        if self.status != before:
            self._changed(frozenset())
