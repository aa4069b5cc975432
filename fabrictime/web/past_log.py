"""Reads the fabric's topics up to a past moment into a `FabricState`.

Topics that grow fast are read from some time before the moment. This process keeps the records of the other
topics, up to the latest requested moment. Cables and routes are those of the live state, because a day of
traced routes takes minutes to read.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from fabrictime.state.action_state import CYCLES_BACK_S
from fabrictime.state.fabric_consumer import Intake, newest_only
from fabrictime.state.fabric_state import HOUR_NS, FabricState
from schemas import codec
from schemas.kafka.message import Message, Place
from schemas.kafka.reader import BEGINNING, LogUnavailable, Start, TopicReader, since
from schemas.kafka.settings import KafkaSettings, as_settings
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
    POLICY_CYCLES,
    QUEUES,
    Topic,
)

BACK_S: Final[Mapping[Topic, float]] = {
    INVENTORY: 65,
    QUEUES: 2.5,
    CONTENTION: 3600,
    FLOWS: 2,
    DIAGNOSES: 900,
    DECISIONS: 3600,
    ACTIONS: 3600,
    POLICY_CYCLES: CYCLES_BACK_S,
}
"""How far before the moment each of these topics is read, s: at least two of a writer's usual intervals."""
LASTING: Final = (LINK_HEALTH, ALERTS, ALERT_NOTES, CONFIG)
"""Topics whose records count until the next one of their subject, however old they are."""
MAX_LASTING: Final = 100_000
"""Largest number of messages of `LASTING` in memory; the oldest are dropped."""
DECODED_TOPICS: Final = frozenset({INVENTORY.name, CONTENTION.name})
"""Topics of whose records moments near each other share the larger part."""
MAX_DECODED: Final = 20_000
"""Largest number of decoded messages of `DECODED_TOPICS` in memory."""
ASSIGN_TIMEOUT_S: Final = 2.0
SILENT_S: Final = 10.0
"""Longest time without an answer of the log, s."""
BATCH: Final = 5_000
POLL_S: Final = 0.05
FETCH_BYTES: Final = 1 << 18
_BY_TIME: Final = attrgetter("append_ns")


@dataclass(frozen=True, slots=True)
class PastState:
    """The state at a moment, and the append time of its newest record, ns; None without a record."""

    state: FabricState
    newest_ns: int | None
    unreadable: int


class PastLog:
    """Reads the log up to any past moment. Thread-safe."""

    def __init__(self, cluster: KafkaSettings | str, registry: codec.Registry | None = None) -> None:
        self._cluster, self._registry = as_settings(cluster), registry
        self._lock = threading.Lock()
        self._lasting: list[Message] = []
        """Messages of `LASTING`, by append time."""
        self._offsets: dict[Place, int] = {}
        """Offset of the newest message in `_lasting`, by partition."""
        self._decoded: dict[tuple[Place, int, int], Message] = {}
        """Messages of `DECODED_TOPICS` by place, offset and append time, in the order of their last use."""
        self._lasting_ns = 0
        """Moment up to which `LASTING` was read."""

    def at(self, moment_ns: int, empty: Callable[[], FabricState]) -> PastState:
        """Return the state at a moment of the log's time. `empty` returns a new state, which this method
        fills.

        Raises LogUnavailable.
        """
        starts = {topic: since(moment_ns - round(back_s * 1e9)) for topic, back_s in BACK_S.items()}
        with self._lock:
            if moment_ns > self._lasting_ns:
                start = since(self._lasting_ns) if self._lasting_ns else BEGINNING
                starts |= dict.fromkeys(LASTING, start)
            recent = self._read(starts, moment_ns)
            self._lasting_ns = max(self._lasting_ns, moment_ns)
            messages = [*self._lasting_at(moment_ns), *recent]
        state = empty()
        intake = Intake(state, self._registry)
        for message in sorted(messages):
            intake.take(message)
        state.freeze()
        return PastState(state, max(map(_BY_TIME, recent), default=None), intake.unreadable)

    def _read(self, starts: dict[Topic, Start], until_ns: int) -> list[Message]:
        """Read the topics up to `until_ns`. Return the messages, but store those of topics in `LASTING`."""
        recent: list[Message] = []
        lasting = {topic.name for topic in LASTING}
        options: dict[str, Any] = {
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": FETCH_BYTES,
            "fetch.queue.backoff.ms": 10,
        }
        with TopicReader(self._cluster, starts, until_ns=until_ns, options=options) as reader:
            reader.assign_available(ASSIGN_TIMEOUT_S)
            answered_s = time.monotonic()
            while reader.behind:
                messages = reader.poll(POLL_S, BATCH, at_once=True)
                for message in messages:
                    if message.topic in lasting:
                        self._keep(message)
                    else:
                        recent.append(message)
                answered_s = time.monotonic() if messages else answered_s
                if time.monotonic() - answered_s > SILENT_S:
                    raise LogUnavailable(f"log {self._cluster.bootstrap}: no answer for {SILENT_S:g} s")
        self._lasting.sort(key=_BY_TIME)
        del self._lasting[:-MAX_LASTING]
        announced = newest_only(sorted(recent))
        newest = [one for one in announced if one.topic != INVENTORY.name or one.value is not None]
        return [self._decoded_once(one) if one.topic in DECODED_TOPICS else one for one in newest]

    def _decoded_once(self, message: Message) -> Message:
        """Return the equal message of an earlier read, whose record is already decoded, else `message`."""
        key = message.place, message.offset, message.append_ns
        self._decoded[key] = earlier = self._decoded.pop(key, message)
        if len(self._decoded) > MAX_DECODED:
            del self._decoded[next(iter(self._decoded))]
        return earlier

    def _keep(self, message: Message) -> None:
        """Store a message of a topic in `LASTING`, unless an earlier call read it."""
        if message.offset > self._offsets.get(message.place, -1):
            self._offsets[message.place] = message.offset
            self._lasting.append(message)

    def _lasting_at(self, moment_ns: int) -> Iterable[Message]:
        """Return the messages of topics in `LASTING` that are in force at a moment: the newest per
        subject.
        """
        newest: dict[object, Message] = {}
        for message in self._lasting[: bisect_right(self._lasting, moment_ns, key=_BY_TIME)]:
            identity = self._identity(message, moment_ns)
            newest.pop(identity, None)
            newest[identity] = message
        return newest.values()

    def _identity(self, message: Message, moment_ns: int) -> object:
        """Return a key; a message replaces earlier messages with the same key. Each change of a link's health
        within the past hour has a key of its own.
        """
        if message.topic == LINK_HEALTH.name and message.append_ns > moment_ns - HOUR_NS:
            return message.place, message.offset
        return message.topic, message.key
