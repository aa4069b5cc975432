"""The page's ear at the log: reads the fabric's topics into a `FabricState`, in a thread, without a group.

In: the log's address. Out: the state kept up to date, `changed` called after each batch, and `status`. What
is compacted is read from its beginning; of the rest the last minutes. Independent of history: a fault is
seen here while history starves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from fabrictime.state.fabric_state import RECORDS, FabricState, Part
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
)

log = logging.getLogger(__name__)

READS: Final = (
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
BACK_S: Final = {
    QUEUES.name: 65,
    CONTENTION.name: 3600,
    FLOWS.name: 12,
    DECISIONS.name: 3600,
    ACTIONS.name: 3600,
    POLICY_CYCLES.name: 30,
}
"""How far back a topic is read at the start; the others from their beginning."""
NEWEST_ONLY: Final = (INVENTORY.name, PATHS.name)
"""Topics of which, within a batch, only a key's newest message is decoded."""

BATCH: Final = 2_000
WAIT_S: Final = 0.05
LATEST: Final = -1
"""In place of a time: the end of a partition (ListOffsets of the Kafka protocol)."""
AGAIN_S: Final = 2.0
"""s between two looks for topics that are not there yet."""


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """How the feed is. `error` is a line for people, None while the log answers."""

    error: str | None = None
    missing: tuple[str, ...] = ()
    caught_up: bool = False
    unreadable: int = 0


class FabricConsumer:
    """Follows the topics until stopped. `changed(parts)` is called in the feed's thread, without the lock."""

    def __init__(
        self,
        bootstrap: str,
        state: FabricState,
        changed: Callable[[frozenset[Part]], None],
        registry: codec.Registry | None = None,
    ) -> None:
        self.status = ConsumerStatus(error=f"asking the log at {bootstrap}")
        self._bootstrap = bootstrap
        self._state = state
        self._changed = changed
        self._registry = registry
        self._ending = threading.Event()
        self._assigned: set[str] = set()
        self._behind: set[tuple[str, int]] = set()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        from confluent_kafka import Consumer, KafkaException

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "fabrictime-page",
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
        look_s = 0.0
        while not self._ending.is_set():
            now_s = time.monotonic()
            if now_s >= look_s and (self.status.error is not None or len(self._assigned) < len(READS)):
                try:
                    self._assign(consumer)
                except KafkaException as error:
                    self._say(error=f"the log at {self._bootstrap} does not answer: {error.args[0].str()}")
                    self._ending.wait(0.2)
                look_s = now_s + (AGAIN_S if self.status.error is None else 0.2)
            if not self._assigned:
                self._ending.wait(0.1)
                continue
            try:
                messages = consumer.consume(BATCH, WAIT_S)
            except KafkaException as error:
                self._say(error=f"the log at {self._bootstrap}: {error.args[0].str()}")
                self._ending.wait(0.2)
                continue
            if messages:
                self._take(messages)
        consumer.close()

    def _assign(self, consumer: Any) -> None:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        there = consumer.list_topics(timeout=2).topics
        self._say(error=None, missing=tuple(t.name for t in READS if t.name not in there))
        wanted: list[Any] = []
        timed: list[Any] = []
        for topic in READS:
            if topic.name in self._assigned or topic.name not in there or there[topic.name].error is not None:
                continue
            back_s = BACK_S.get(topic.name)
            at = OFFSET_BEGINNING if back_s is None else round((time.time() - back_s) * 1000)
            for number in there[topic.name].partitions:
                (wanted if back_s is None else timed).append(TopicPartition(topic.name, number, at))
        if timed:
            # ends first: what comes in between is read, not passed over as if it had been before the end
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
        ended: list[tuple[str, int]] = []
        # The lock is held for a message at a time: a batch of thousands must not keep the tabs waiting.
        for k, message in enumerate(messages):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    ended.append((message.topic(), message.partition()))
                continue
            topic, key = message.topic(), message.key()
            if topic in NEWEST_ONLY and newest[topic, key] != k:
                continue
            part = self._take_one(topic, key or b"", message.value(), message.timestamp()[1] * 1_000_000)
            if part is not None:
                parts.add(part)
        self._behind.difference_update(ended)
        if not self._behind and not self.status.caught_up and not self.status.missing:
            self._say(caught_up=True)
        if self.status.error is not None and (parts or ended):
            self._say(error=None)
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
            record = None if value is None else codec.decode(value, RECORDS[topic], self._registry)
            with self._state.lock:
                return self._state.take(topic, name, record, append_ns)
        except codec.BadRecord as error:
            log.warning("%s of %s: %s", topic, name, error)
        except Exception:  # one odd record must not end the feed
            log.exception("%s of %s", topic, name)
        self.status = replace(self.status, unreadable=self.status.unreadable + 1)
        return None

    def _is_block(self, value: bytes) -> bool:
        """Whether a LinkQueues is of short slots: many a second, of those that queue alone, not for eyes."""
        return bool(codec.decode_head(value, QUEUES.record, "slots", self._registry)["slots"] > 1)

    def _on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._say(error=f"the log at {self._bootstrap} does not answer")

    def _say(self, **changes: Any) -> None:
        before, self.status = self.status, replace(self.status, **changes)
        if self.status != before:
            self._changed(frozenset())
