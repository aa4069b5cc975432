"""Reads the fabric's topics into a `FabricState`, in a thread and without a consumer group.

Compacted topics are read from their beginning, other topics from some minutes back. The consumer does not
depend on the history, so the page shows a fault while the history is down.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fabrictime.state.action_state import CYCLES_BACK_S
from fabrictime.state.fabric_state import FabricState, Part
from fabrictime.state.job_state import HEAD_END
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, LogUnavailable, TopicReader, back
from schemas.kafka.settings import KafkaSettings, as_settings
from schemas.messages import check_key
from schemas.topics import (
    ACTIONS,
    ALERT_NOTES,
    ALERTS,
    CONFIG,
    CONTENTION,
    DECISIONS,
    DIAGNOSES,
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
    ALERT_NOTES,
    CONFIG,
    QUEUES,
    CONTENTION,
    FLOWS,
    DIAGNOSES,
    DECISIONS,
    ACTIONS,
    POLICY_CYCLES,
)
REPLAY_S: Final = {
    QUEUES.name: 65,
    CONTENTION.name: 3600,
    FLOWS.name: 12,
    DIAGNOSES.name: 3600,
    DECISIONS.name: 3600,
    ACTIONS.name: 3600,
    POLICY_CYCLES.name: CYCLES_BACK_S,
}
"""How far back each of these topics is read at the start, s. Other topics are read from their beginning."""
NEWEST_ONLY: Final = (INVENTORY.name, PATHS.name)
"""Topics of whose messages only the newest per key is decoded in each batch."""

ROUTES_DIGEST_BYTES: Final = 16
BATCH: Final = 2_000
WAIT_S: Final = 0.05
FETCH_WAIT_MS: Final = 100
FETCH_BYTES: Final = 1 << 16
"""A fetch waits for this many bytes, at most `FETCH_WAIT_MS`, because small fetches cost most."""
ASSIGN_TIMEOUT_S: Final = 2.0
RETRY_S: Final = 2.0
"""Interval between two checks for topics that do not exist yet."""


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """The consumer's status. `error`: one line on why the log does not answer; None while it answers."""

    error: str | None = None
    missing: tuple[str, ...] = ()
    caught_up: bool = False
    unreadable: int = 0


def newest_only(messages: Sequence[Message]) -> list[Message]:
    """Return the messages; of the topics in `NEWEST_ONLY`, return only the newest message per key."""
    newest = {
        (message.topic, message.key_bytes): message for message in messages if message.topic in NEWEST_ONLY
    }
    return [
        message for message in messages if message is newest.get((message.topic, message.key_bytes), message)
    ]


class Intake:
    """Decodes messages of the fabric's topics and adds them to a state. Logs and counts bad records."""

    def __init__(self, state: FabricState, registry: codec.Registry | None = None) -> None:
        self.unreadable = 0
        self._state = state
        self._registry = registry

    def take(self, message: Message) -> Part | None:
        """Add a message to the state. Return the part that changed; None if the message had no effect."""
        topic, name, value, append_ns = message.topic, message.key, message.value, message.append_ns
        try:
            if topic == FLOWS.name:
                with self._state.lock:
                    return self._state.take_flows(name, value, append_ns)
            if topic == DIAGNOSES.name and value is not None:
                head = codec.decode_head(value, DIAGNOSES.record, HEAD_END, self._registry)
                check_key(DIAGNOSES, name, head)
                with self._state.lock:
                    return self._state.take_diagnosis(head, value, append_ns)
            if topic == QUEUES.name and value is not None and self._is_block(value):
                return None
            routes = self._routes_of(message) if topic == PATHS.name else b""
            if routes:
                with self._state.lock:
                    if self._state.take_repeated_routes(name, routes, append_ns):
                        return None
            record = None if value is None else message.decoded(TOPICS[topic], self._registry)
            with self._state.lock:
                return self._state.take(topic, name, record, append_ns, routes)
        except codec.BadRecord as error:
            log.warning("%s of %s: %s", topic, name, error)
        except Exception:  # one bad record must not stop the consumer
            log.exception("%s of %s", topic, name)
        self.unreadable += 1
        return None

    def _routes_of(self, message: Message) -> bytes:
        """Return a digest of the routes in a PathMaps message; empty for a tombstone or an unknown version.

        Probers publish the same routes again with a new time, so most messages need no decoding.
        """
        value = message.value
        if value is None:
            return b""
        try:
            start = codec.body_start(value, PATHS.record, self._registry)
        except codec.BadRecord:
            return b""  # of another version, or bad: decoding tells
        head, end = codec.decode_head_at(value, start, PATHS.record, "traced_ns")
        check_key(PATHS, message.key, head)
        return hashlib.blake2b(value[end:], digest_size=ROUTES_DIGEST_BYTES).digest()

    def _is_block(self, value: bytes) -> bool:
        """Return whether a LinkQueues record has short slots; these are too many per second to be shown."""
        return bool(codec.decode_head(value, QUEUES.record, "slots", self._registry)["slots"] > 1)


class FabricConsumer:
    """Consumes the topics until `stop`. It calls `changed(parts)` in its own thread, without holding the
    state's lock.
    """

    def __init__(
        self,
        cluster: KafkaSettings | str,
        state: FabricState,
        changed: Callable[[frozenset[Part]], None],
        registry: codec.Registry | None = None,
    ) -> None:
        self._cluster = as_settings(cluster)
        self._log = f"the log at {self._cluster.bootstrap}"
        self.status = ConsumerStatus(error=f"connecting to {self._log}")
        self._changed = changed
        self._intake = Intake(state, registry)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fabric consumer", daemon=True)

    def start(self) -> None:
        """Start the thread that consumes the topics."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread that consumes the topics."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        starts = {
            topic: back(REPLAY_S[topic.name]) if topic.name in REPLAY_S else BEGINNING
            for topic in TOPICS_READ
        }
        options = {
            "auto.offset.reset": "earliest",
            "reconnect.backoff.ms": 50,
            "queued.max.messages.kbytes": 16_384,
            "fetch.min.bytes": FETCH_BYTES,
            "error_cb": self._on_error,
        }
        with TopicReader(self._cluster, starts, fetch_wait_ms=FETCH_WAIT_MS, options=options) as reader:
            check_s = 0.0
            while not self._stopping.is_set():
                now_s = time.monotonic()
                if now_s >= check_s and (
                    self.status.error is not None or self.status.missing or not reader.assigned
                ):
                    self._assign(reader)
                    check_s = now_s + (RETRY_S if self.status.error is None else 0.2)
                if not reader.assigned:
                    self._stopping.wait(0.1)
                    continue
                try:
                    messages = reader.poll(WAIT_S, BATCH)
                except LogUnavailable as error:
                    self._set_status(error=str(error))
                    self._stopping.wait(0.2)
                    continue
                self._take(messages)
                if not reader.behind and not self.status.caught_up and not self.status.missing:
                    self._set_status(caught_up=True)

    def _assign(self, reader: TopicReader) -> None:
        try:
            missing = tuple(reader.assign_available(ASSIGN_TIMEOUT_S))
        except LogUnavailable as error:
            self._set_status(error=f"{self._log} does not answer: {str(error).partition(': ')[2]}")
            self._stopping.wait(0.2)
        else:
            self._set_status(error=None, missing=missing)

    def _take(self, messages: list[Message]) -> None:
        parts: set[Part] = set()
        # The lock is held for one message at a time: a batch of thousands must not block the tabs.
        for message in newest_only(messages):
            part = self._intake.take(message)
            if part is not None:
                parts.add(part)
        if self.status.unreadable != self._intake.unreadable:
            self.status = replace(self.status, unreadable=self._intake.unreadable)
        if messages and self.status.error is not None:
            self._set_status(error=None)
        if parts:
            self._changed(frozenset(parts))

    def _on_error(self, error: Any) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self._set_status(error=f"{self._log} does not answer")

    def _set_status(self, **changes: Any) -> None:
        before, self.status = self.status, replace(self.status, **changes)
        if self.status != before:
            self._changed(frozenset())
