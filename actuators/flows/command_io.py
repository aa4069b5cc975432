"""Kafka I/O of the flow actuator, in a thread of its own.

It reads decisions, fallbacks and config from the partitions that the hosts hash to, and publishes reports,
states and rejects. Without a schema registry it also follows the schemas of other versions. The acting thread
takes messages from a queue and is woken by an eventfd. An offset is committed once its message is processed
and reported, in order. A long queue pauses the decisions. Config has its own queue and is taken first,
because it can stop all actions.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from actuators.clock.consumer import RareWarnings, reject_record
from schemas import codec
from schemas.kafka.message import Message, Place
from schemas.kafka.offset_reader import OffsetReader
from schemas.kafka.producer import NOT_QUEUED, open_producer
from schemas.kafka.reader import (
    BEGINNING,
    END,
    LogUnavailable,
    Start,
    TopicMissing,
    TopicReader,
    back,
    committed,
)
from schemas.kafka.schema_log import FollowedSchemas
from schemas.kafka.settings import KafkaSettings, service_options
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES
from schemas.records import ActionReport, ActuatorState
from schemas.topics import (
    ACTIONS,
    ACTUATORS,
    CONFIG,
    DECISIONS,
    FALLBACKS,
    FLOWS,
    REJECTS,
    SCHEMAS,
    R,
    Topic,
)

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.05
_COMMIT_S: Final = 0.2
_RETRY_S: Final = 0.2
_REASSIGN_S: Final = 10.0
"""Time between two attempts to assign the topic of schemas on a log that lacks it."""
_LOOKBACK_S: Final = 10.0
"""Time before its start, s, from which an actuator without a committed offset reads."""
_MAX_UNSENT: Final = 20_000
_CLOSE_S: Final = 2.0
_MAX_QUEUED: Final = 10_000
_MAX_QUEUED_BYTES: Final = 32 << 20
"""Limits of the queue, in messages and bytes, beyond which reading pauses."""
_BATCH: Final = 1000
_DECISION_BYTES: Final = 32_768
"""Size of a message above which it cannot be a valid decision."""
_CHECK_S: Final = 1.0
"""Time between two checks of whether the rows of the topic of schemas have all arrived."""
_CHECK_AGAIN_S: Final = 5.0
"""Time after a check that the log did not answer: a check holds up the thread for some seconds."""
_SCHEMAS_S: Final = 3.0
"""Longest time for which the actuator waits for the end of the topic of schemas after that of config."""
_WHOLE: Final = (CONFIG.name, SCHEMAS.name)
"""Topics that are read before the actuator acts, and never paused."""


@dataclass(slots=True)
class Offsets:
    """The offsets of one partition: in processing, done, and ready to commit. Pure."""

    next: int | None = None
    """Offset after the last one taken."""
    _open: list[int] = field(default_factory=list)
    _done: set[int] = field(default_factory=set)
    committed: int | None = None

    def take(self, offset: int) -> None:
        """Record that processing of a message has begun."""
        heapq.heappush(self._open, offset)
        self.next = offset + 1

    def done(self, offset: int) -> None:
        """Record that a message is fully processed."""
        self._done.add(offset)

    def to_commit(self) -> int | None:
        """Return the offset below which all messages are done; None if it is already committed."""
        while self._open and self._open[0] in self._done:
            self._done.discard(heapq.heappop(self._open))
        offset = self._open[0] if self._open else self.next
        if offset is None or offset == self.committed:
            return None
        self.committed = offset
        return offset


@dataclass(frozen=True, slots=True)
class CommandItem:
    """An item in the queue of the acting thread: a message, or a notice.

    `kind` is the short name of the message's topic, or the kind of notice. `ready`: config is complete, and
    so are schemas unless they take too long. `schemas`: awaited schemas have arrived. `published`: the log
    has stored a report.
    """

    kind: str
    message: Message | None = None
    """The message; None for `ready`, `published` and `schemas`, whose rows the registry has already."""
    record: ActionReport | None = None
    whole_at_s: float = -math.inf
    """With `schemas`: monotonic time up to which all rows of the topic have arrived."""

    @property
    def size_bytes(self) -> int:
        """Size of the message's value, bytes."""
        return 0 if self.message is None else len(self.message.value or b"")


class CommandIO:
    """Reads and writes Kafka topics in a thread. The acting thread uses `queued`, `urgent` and `wake_fd`."""

    def __init__(
        self,
        cluster: KafkaSettings,
        name: str,
        hosts: Sequence[str],
        registry: codec.Registry | None = None,
        *,
        flows: bool = False,
    ) -> None:
        """Prepare the thread. `name`: the actuator's name, part of its group id.

        `registry`: `FollowedSchemas` gets the rows of the topic of schemas. `flows`: also read the hosts'
        flow reports, starting with the next report.
        """
        self._cluster, self._group, self._registry = cluster, f"fabrictime-act-{name}", registry
        self._followed = registry if isinstance(registry, FollowedSchemas) else None
        starts: dict[Topic, Start] = {DECISIONS: committed(END), FALLBACKS: BEGINNING, CONFIG: BEGINNING}
        if self._followed is not None:
            starts[SCHEMAS] = BEGINNING
        if flows:
            starts[FLOWS] = END
        self._reader = TopicReader(
            cluster,
            starts,
            partition_keys={topic: hosts for topic in starts if topic.name not in _WHOLE},
            group=self._group,
            fetch_wait_ms=500,
            options={**service_options(cluster), "auto.offset.reset": "earliest"},
        )
        self._producer = open_producer(
            cluster,
            {
                "linger.ms": 0,
                "message.timeout.ms": 0,
                "queue.buffering.max.messages": 2 * _MAX_UNSENT,
            },
        )
        self.queued: deque[CommandItem] = deque()
        self.urgent: deque[CommandItem] = deque()
        """Config, schemas and `ready`; taken before `queued`."""
        self._given_bytes = self._taken_bytes = 0
        self._paused: list[Place] = []
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._offsets: dict[Place, Offsets] = {}
        self._is_ready = False
        self._ready_by_s = math.inf
        """Monotonic time up to which readiness waits for schemas; infinite until config is read whole."""
        self._assign_s = 0.0
        """Monotonic time of the next attempt to assign missing topics; infinite once none is missing."""
        self._asked_s = self._answered_s = -math.inf
        """Monotonic time of the newest message whose schema has not arrived, and of the newest one for which
        it was checked whether it is on the topic."""
        self._schemas_end: OffsetReader | None = None
        """Reads the end of the topic of schemas; made for the first check."""
        self._check_s = 0.0
        self._schemas_next = 0
        """Offset after the last row of the topic of schemas that has arrived."""
        self._warn = RareWarnings(_log)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.assigned = False
        self.rejected = 0
        self.dropped = 0
        """Number of reports dropped because the log was unavailable for too long."""
        self._waiting = 0
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)
        SOURCES.add(self.samples)

    def samples(self) -> Iterator[Sample]:
        """Yield the counts of messages read, published and rejected as metrics."""
        yield Sample("fabrictime_records_rejected_total", self.rejected)
        yield Sample("fabrictime_records_dropped_total", self.dropped)
        yield Sample("fabrictime_records_waiting", self._waiting)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def next(self) -> CommandItem | None:
        """Return the next item of the queue `queued`; None if it is empty."""
        if not self.queued:
            return None
        queued = self.queued.popleft()
        self._taken_bytes += queued.size_bytes
        return queued

    def check_schemas(self, at_s: float) -> None:
        """Queue an item `schemas` once all schemas in the log at the monotonic time `at_s` have arrived.

        Minus infinity ends the checks.
        """
        self._asked_s = at_s

    def report(self, record: ActionReport, done: Callable[[], None]) -> None:
        """Publish an `ActionReport`. `done` is called once the log has stored the report or it is dropped."""

        def delivered(error: object, message: Any) -> None:
            self._waiting -= 1
            if error is not None:
                self.dropped += 1
                self._warn(f"{ACTIONS.name}: report of {record['decision_id']} not taken: {error}")
            else:
                self._give(CommandItem("published", record=record))
            done()

        if self._waiting >= _MAX_UNSENT:
            self.dropped += 1
            done()
            return
        self._waiting += 1
        self._produce(ACTIONS, record["host"], record, delivered)

    def state(self, record: ActuatorState) -> None:
        """Publish an `ActuatorState`."""
        self._produce(ACTUATORS, record["actuator"], record, None)

    def reject(self, message: Message, bad: codec.BadRecord) -> None:
        """Publish a `Reject` for a message that could not be used."""
        self.rejected += 1
        record = reject_record(message, bad)
        self._warn(f"{message.topic}: {bad}")
        self._produce(REJECTS, message.topic, record, None)

    def done(self, message: Message) -> None:
        """Record that the message of a decision is fully processed."""
        with self._lock:
            offsets = self._offsets.get(message.place)
            if offsets is not None:
                offsets.done(message.offset)

    def flush(self, timeout_s: float) -> int:
        """Wait until all messages are sent. Return the number still unsent."""
        return int(self._producer.flush(timeout_s))

    def close(self) -> None:
        """Stop reading, send the queued messages, and commit the offsets."""
        SOURCES.remove(self.samples)
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S + 1)
        self._producer.flush(_CLOSE_S)
        self._commit(final=True)
        self._reader.close()
        os.close(self.wake_fd)

    def _produce(self, topic: Topic[R], key: str, record: R, delivered: Any) -> None:
        data = codec.encode(topic.type, record, self._registry)
        try:
            self._producer.produce(topic.name, key=key.encode(), value=data, on_delivery=delivered)
        except NOT_QUEUED as error:
            self._warn(f"{topic.name}: {error}")
            if delivered is not None:
                delivered(error, None)

    def _give(self, queued: CommandItem) -> None:
        if queued.kind in ("config", "schemas", "ready"):
            self.urgent.append(queued)
        else:
            self._given_bytes += queued.size_bytes
            self.queued.append(queued)
        os.eventfd_write(self.wake_fd, 1)

    # --- the thread ---

    def _run(self) -> None:
        commit_s = 0.0
        while not self._stopping.is_set():
            try:
                self._producer.poll(0)
                if time.monotonic() >= self._assign_s:
                    self._assign()
                if not self.assigned:
                    self._stopping.wait(_RETRY_S)
                    continue
                self._pause()
                for message in self._reader.poll(_POLL_S, _BATCH, at_once=True):
                    self._take(message)
                now_s = time.monotonic()
                if not self._is_ready:
                    self._check_ready(now_s)
                if self._asked_s > self._answered_s and now_s >= self._check_s:
                    self._check_schemas()
                if now_s - commit_s >= _COMMIT_S:
                    commit_s = now_s
                    self._commit()
            except LogUnavailable as error:
                self._warn(str(error))
        if self._schemas_end is not None:
            self._schemas_end.close()

    def _check_ready(self, now_s: float) -> None:
        """Queue `ready` once the config is read to its end, and the schemas too unless they take too long."""
        behind = {name for name, _ in self._reader.behind}
        if CONFIG.name in behind:
            return
        self._ready_by_s = min(self._ready_by_s, now_s + _SCHEMAS_S)
        if SCHEMAS.name not in behind or now_s >= self._ready_by_s:
            self._is_ready = True
            self._give(CommandItem("ready"))

    def _pause(self) -> None:
        """While the queue is long, pause all partitions except those of config and schemas."""
        waiting, size = len(self.queued), self._given_bytes - self._taken_bytes
        if not self._paused and (waiting > _MAX_QUEUED or size > _MAX_QUEUED_BYTES):
            self._paused = [place for place in self._reader.assigned if place[0] not in _WHOLE]
            self._reader.pause(self._paused)
        elif self._paused and waiting < _MAX_QUEUED // 2 and size < _MAX_QUEUED_BYTES // 2:
            self._reader.resume(self._paused)
            self._paused = []

    def _assign(self) -> None:
        """Assign the partitions of the topics that exist.

        All topics are required except the schemas, which a log of former versions lacks. Decisions start at
        the committed offset; without a committed offset, `_LOOKBACK_S` ago.
        """
        if self.assigned:  # decisions go on to be read if the log does not answer now
            self._assign_s = time.monotonic() + _REASSIGN_S
        self._reader.starts[DECISIONS] = committed(back(_LOOKBACK_S))
        missing = self._reader.assign_available()
        if not missing:
            self._assign_s = math.inf
        if any(name != SCHEMAS.name for name in missing):
            self._warn(f"topics {', '.join(missing)}: do not exist")
        elif not self.assigned:
            with self._lock:
                self._offsets = {
                    place: Offsets() for place in self._reader.assigned if place[0] == DECISIONS.name
                }
            self.assigned = True

    def _check_schemas(self) -> None:
        """Queue an item `schemas` once no schema for which the acting thread waits is still to come."""
        asked_s = self._asked_s
        if self._schemas_end is None:
            self._schemas_end = OffsetReader(self._cluster, [SCHEMAS], self._group)
        try:
            ends = list(self._schemas_end.ends().values())
        except TopicMissing:
            ends = [0]
        except LogUnavailable as error:  # commits go on
            self._warn(str(error))
            ends = []
        self._check_s = time.monotonic() + (_CHECK_S if ends else _CHECK_AGAIN_S)
        if ends and self._schemas_next >= max(ends):
            self._answered_s = asked_s
            self._give(CommandItem("schemas", whole_at_s=asked_s))

    def _take(self, message: Message) -> None:
        if message.topic == SCHEMAS.name:
            self._schemas_next = message.offset + 1
            if self._followed is not None:
                self._followed.take(message)
            self._give(CommandItem("schemas"))
            return
        kind = {
            DECISIONS.name: "decision",
            FALLBACKS.name: "fallbacks",
            CONFIG.name: "config",
            FLOWS.name: "flows",
        }
        if message.topic == DECISIONS.name:
            with self._lock:
                self._offsets[message.place].take(message.offset)
            size = len(message.value or b"")
            if size > _DECISION_BYTES:
                text = f"{DECISIONS.record}: {size} bytes, expected at most {_DECISION_BYTES}"
                self.reject(message, codec.BadRecord("TOO_LARGE", text))
                self.done(message)
                return
        self._give(CommandItem(kind[message.topic], message))

    def _commit(self, final: bool = False) -> None:
        with self._lock:
            commits = {
                place: offset
                for place, offsets in self._offsets.items()
                if (offset := offsets.to_commit()) is not None
            }
        if commits:
            try:
                self._reader.commit(commits, wait=final)
            except LogUnavailable as error:
                self._warn(str(error))
