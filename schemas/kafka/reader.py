"""Reads topics without a consumer group: from a start position up to the end, then new messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.last_offsets import LastOffsets
from schemas.kafka.message import Message, Place
from schemas.kafka.partitioning import partition_of
from schemas.kafka.reachable import unreachable
from schemas.kafka.settings import KafkaSettings, as_settings
from schemas.kafka.start import BEGINNING, END, Start, back, committed, since, tail
from schemas.log_time import CONFLUENT_BASE, append_ns_of
from schemas.topics import TOPICS, Topic

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

__all__ = [
    "BEGINNING",
    "END",
    "LogUnavailable",
    "Start",
    "TopicMissing",
    "TopicReader",
    "back",
    "committed",
    "since",
    "tail",
]

CONNECT_TIMEOUT_S: Final = 5.0
_ADVICE: Final = "; is `fabrictime up` running?"
SILENT_S: Final = 10.0
"""The log counts as unavailable if it sends nothing for this long to a reader that is behind."""
END_TIMESTAMP: Final = -1
"""Value that requests a partition's end instead of a time (ListOffsets of the Kafka protocol)."""
FETCH_ERROR_BACKOFF_MS: Final = 50
RECONNECT_BACKOFF_MAX_MS: Final = 500

_log = logging.getLogger(__name__)
_warned: set[str] = set()


def warn_once(line: str) -> None:
    """Log a warning that concerns all messages of a topic; each text is logged once per process."""
    if line not in _warned:
        _warned.add(line)
        _log.error("%s; such messages are skipped", line)


RejectHandler = Callable[[Message, codec.BadRecord], None]
"""Callback that gets a message that cannot be decoded, and the reason."""


class LogUnavailable(InputError):
    """The log does not answer, or a topic does not exist; the text is one line for display."""


class TopicMissing(LogUnavailable):
    """A topic does not exist."""


def check_reachable(cluster: KafkaSettings | str) -> None:
    """Raise LogUnavailable at once if no broker listens at the log's addresses."""
    bootstrap = as_settings(cluster).bootstrap
    if reason := unreachable(bootstrap):
        raise LogUnavailable(f"log {bootstrap}: {reason}{_ADVICE}")


class TopicReader:
    """A consumer of some topics without a group.

    It keeps the order within each partition, and commits nothing except by `commit`. `connect` assigns the
    partitions; a service calls it again after `LogUnavailable`.
    """

    def __init__(
        self,
        cluster: KafkaSettings | str,
        starts: Mapping[Topic, Start],
        *,
        key: str | None = None,
        partition_keys: Mapping[Topic, Iterable[str]] | None = None,
        group: str = "fabrictime-reader",
        fetch_wait_ms: int = 50,
        until_ns: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the client without connecting.

        `key`: only messages with this key are read, from its partitions. `partition_keys`: keys by topic, to
        read only the partitions of these keys. `group`: name of the group for which offsets are committed.
        `fetch_wait_ms`: longest time for which a broker delays a fetch. `until_ns`: last log append time that
        is read. `options`: further options of confluent-kafka.
        """
        # list_topics looks its classes up in this module, which fails while another thread imports it
        import confluent_kafka.admin  # noqa: F401
        from confluent_kafka import Consumer

        self._cluster = as_settings(cluster)
        self.starts, self._key = dict(starts), key
        self._partition_keys = {topic: list(keys) for topic, keys in (partition_keys or {}).items()}
        self._cause: str | None = None
        self._error_handler = (options or {}).get("error_cb")
        self.behind: set[Place] = set()
        """Partitions that have not been read up to their end yet."""
        self.assigned: list[Place] = []
        self._consumer = Consumer(
            {
                **self._cluster.confluent_options(),
                "group.id": group,  # librdkafka demands one, even where nothing is committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "allow.auto.create.topics": False,
                "auto.offset.reset": "latest",
                "fetch.wait.max.ms": fetch_wait_ms,
                "fetch.error.backoff.ms": FETCH_ERROR_BACKOFF_MS,
                "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MAX_MS,
                "log_level": 0,
                **(options or {}),
                "error_cb": self._on_error,
            }
        )
        self._last_offsets = LastOffsets(self._consumer, until_ns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def open(cls, cluster: KafkaSettings | str, starts: Mapping[Topic, Start], **options: Any) -> Self:
        """Create and connect a reader. Raises LogUnavailable if that fails, at once if no broker listens."""
        check_reachable(cluster)
        reader = cls(cluster, starts, **options)
        try:
            return reader.connect()
        except LogUnavailable:
            reader.close()
            raise

    def connect(self, timeout_s: float = CONNECT_TIMEOUT_S, partitions: Container[int] | None = None) -> Self:
        """Find the partitions and their start offsets, and assign them.

        `partitions`: numbers of the only partitions to read. Raises LogUnavailable and TopicMissing.
        """
        from confluent_kafka import KafkaException

        try:
            metadata = self._consumer.list_topics(timeout=timeout_s).topics
            positions = [
                position
                for topic, start in self.starts.items()
                for position in self._positions(topic, start, metadata.get(topic.name), partitions)
            ]
            self._consumer.assign(self._resolved(positions, timeout_s))
        except KafkaException as error:
            raise self._unavailable(error, _ADVICE) from None
        self.assigned = [(partition.topic, partition.partition) for partition, _ in positions]
        self.behind = self._last_offsets.unread(self.assigned)
        return self

    def assign_available(self, timeout_s: float = CONNECT_TIMEOUT_S) -> list[str]:
        """Assign the topics that exist and are not assigned yet; return the names of the missing ones.

        Services that start before all topics exist call this again until no name is returned. Raises
        LogUnavailable.
        """
        from confluent_kafka import KafkaException

        assigned = {name for name, _ in self.assigned}
        missing: list[str] = []
        positions: list[tuple[TopicPartition, Start]] = []
        try:
            metadata = self._consumer.list_topics(timeout=timeout_s).topics
            for topic, start in self.starts.items():
                if topic.name in assigned:
                    continue
                try:
                    positions += self._positions(topic, start, metadata.get(topic.name), None)
                except TopicMissing:
                    missing.append(topic.name)
            if positions:
                self._consumer.incremental_assign(self._resolved(positions, timeout_s))
        except KafkaException as error:
            raise self._unavailable(error) from None
        places = [(partition.topic, partition.partition) for partition, _ in positions]
        self.assigned += places
        self.behind |= self._last_offsets.unread(places)
        return missing

    def close(self) -> None:
        """End the client."""
        self._consumer.close()

    def read_to_end(self) -> Iterator[Message]:
        """Yield messages up to the end of each partition. Raises LogUnavailable if the log is silent."""
        received_s = time.monotonic()
        while self.behind:
            received, messages = self._receive(1000, 0.1)
            if received:
                received_s = time.monotonic()
            yield from messages
            if time.monotonic() - received_s > SILENT_S:
                raise LogUnavailable(f"log {self._cluster.bootstrap}: no answer for {SILENT_S:g} s")

    def poll(self, wait_s: float, max_messages: int = 500, *, at_once: bool = False) -> list[Message]:
        """Return the messages that arrive within `wait_s`; with `at_once`, return when any has arrived."""
        if not at_once:
            return self._receive(max_messages, wait_s)[1]
        first = self._consumer.poll(wait_s)
        if first is None:
            return []
        return [*self._messages([first]), *self._receive(max_messages - 1, 0)[1]]

    def commit(
        self, offsets: Mapping[Place, int], *, wait: bool = False, metadata: Mapping[Place, str] | None = None
    ) -> None:
        """Commit the group's next offset in each given partition. Raises LogUnavailable."""
        from confluent_kafka import KafkaException, TopicPartition

        consumer: Any = self._consumer
        try:
            consumer.commit(
                offsets=[
                    TopicPartition(*place, offset, (metadata or {}).get(place, ""))
                    for place, offset in offsets.items()
                ],
                asynchronous=not wait,
            )
        except KafkaException as error:
            raise self._unavailable(error) from None

    def committed_metadata(
        self, topic: Topic, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> dict[Place, tuple[int, str]]:
        """Return, by assigned partition, the group's committed offset and metadata. Raises LogUnavailable."""
        from confluent_kafka import KafkaException, TopicPartition

        places = [TopicPartition(*place) for place in self.assigned if place[0] == topic.name]
        try:
            stored = self._consumer.committed(places, timeout=timeout_s) if places else []
        except KafkaException as error:
            raise self._unavailable(error) from None
        if failed := [partition.error for partition in stored if partition.error is not None]:
            raise self._unavailable(KafkaException(failed[0]))
        return {
            (partition.topic, partition.partition): (partition.offset, partition.metadata or "")
            for partition in stored
            if partition.offset >= 0
        }

    def pause(self, places: Iterable[Place]) -> None:
        """Stop fetching some partitions until `resume`."""
        self._consumer.pause(_partitions(places))

    def resume(self, places: Iterable[Place]) -> None:
        """Fetch paused partitions again."""
        self._consumer.resume(_partitions(places))

    def decoded(
        self,
        messages: Iterable[Message],
        registry: codec.Registry | None = None,
        on_reject: RejectHandler | None = None,
    ) -> Iterator[tuple[Message, Any]]:
        """Yield (message, record), with None for a tombstone. Bad messages go to `on_reject` only."""
        for message in messages:
            if message.value is None:
                yield message, None
                continue
            try:
                record = message.decoded(TOPICS[message.topic], registry)
            except codec.BadRecord as error:
                if on_reject is not None:
                    on_reject(message, error)
                continue
            yield message, record

    def _positions(
        self, topic: Topic, start: Start, metadata: Any, partitions: Container[int] | None
    ) -> list[tuple[TopicPartition, Start]]:
        from confluent_kafka import TopicPartition

        if metadata is None or metadata.error is not None or not metadata.partitions:
            raise TopicMissing(f"topic {topic.name}: does not exist at {self._cluster.bootstrap}")
        numbers = sorted(metadata.partitions)
        keys = self._partition_keys.get(topic) if self._key is None else [self._key]
        if keys is not None:
            numbers = sorted({partition_of(key, len(numbers)) for key in keys})
        if partitions is not None:
            numbers = [number for number in numbers if number in partitions]
        return [(TopicPartition(topic.name, number), start) for number in numbers]

    def _resolved(
        self, positions: list[tuple[TopicPartition, Start]], timeout_s: float
    ) -> list[TopicPartition]:
        """Return the partitions with their `Start` positions resolved to offsets."""
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

        timed = []
        offsets = self._committed([one for one, start in positions if start.committed], timeout_s)
        for partition, start in positions:
            if start.committed and (partition.topic, partition.partition) in offsets:
                partition.offset = offsets[partition.topic, partition.partition]
            elif start.since_ns is not None:
                timed.append((partition, start.since_ns // 1_000_000))
            elif start.tail_messages is None:
                partition.offset = OFFSET_BEGINNING
            elif start.tail_messages == 0:
                partition.offset = OFFSET_END
            else:
                low, high = self._consumer.get_watermark_offsets(partition, timeout=timeout_s)
                partition.offset = max(low, high - start.tail_messages)
        if timed:
            self._resolve_times(timed, timeout_s)
        partitions = [one for one, _ in positions]
        self._last_offsets.resolve(partitions, timeout_s)
        return partitions

    def _committed(self, partitions: list[TopicPartition], timeout_s: float) -> dict[Place, int]:
        """Return the group's committed offset by partition; partitions without one are left out."""
        from confluent_kafka import KafkaException

        stored = self._consumer.committed(partitions, timeout=timeout_s) if partitions else []
        for partition in stored:
            if partition.error is not None:
                raise KafkaException(partition.error)
        return {(one.topic, one.partition): one.offset for one in stored if one.offset >= 0}

    def _resolve_times(self, timed: list[tuple[TopicPartition, int]], timeout_s: float) -> None:
        """Set the offsets of partitions that start at a time, given in ms since the Unix epoch."""
        from confluent_kafka import TopicPartition

        # Ends first: a message that arrives between the two requests is then read, not skipped.
        ends = self._consumer.offsets_for_times(
            [TopicPartition(one.topic, one.partition, END_TIMESTAMP) for one, _ in timed],
            timeout=timeout_s,
        )
        starts = self._consumer.offsets_for_times(
            [TopicPartition(one.topic, one.partition, max(0, at_ms)) for one, at_ms in timed],
            timeout=timeout_s,
        )
        for (partition, _), end, start in zip(timed, ends, starts, strict=True):
            partition.offset = start.offset if start.offset >= 0 else end.offset

    def _receive(self, max_messages: int, wait_s: float) -> tuple[bool, list[Message]]:
        """Return (whether the log answered, messages received within `wait_s`). Raises LogUnavailable."""
        from confluent_kafka import KafkaException

        try:
            received = self._consumer.consume(max_messages, wait_s)
        except KafkaException as error:
            raise self._unavailable(error) from None
        return bool(received), self._messages(received)

    def _messages(self, received: Iterable[Any]) -> list[Message]:
        return [message for raw_message in received if (message := self._message(raw_message)) is not None]

    def _on_error(self, error: Any) -> None:
        """Store the cause of a refused connection, which exceptions of librdkafka do not state."""
        from confluent_kafka import KafkaError

        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._cause = error.str()
        if self._error_handler is not None:
            self._error_handler(error)

    def _unavailable(self, error: Any, advice: str = "") -> LogUnavailable:
        """Return a `LogUnavailable` with the text of a confluent-kafka error and the advice, in one line."""
        if not self.assigned:  # serves the error callback; with partitions it might also take a message
            self._consumer.poll(0)
        cause, self._cause = self._cause, None
        return LogUnavailable(f"log {self._cluster.bootstrap}: {cause or error.args[0].str() + advice}")

    def _begin_again(self, topic: str, partition: int) -> None:
        """Reassign a partition whose next offset no longer exists at its beginning.

        A partition of a topic that the reader started at its end is reassigned at its end.
        """
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

        start = next(start for started, start in self.starts.items() if started.name == topic)
        offset = OFFSET_END if start == END else OFFSET_BEGINNING
        lost = [TopicPartition(topic, partition, offset)]
        self._consumer.incremental_unassign(lost)  # librdkafka has stopped it, so no seek is possible
        self._consumer.incremental_assign(lost)

    def _on_failure(self, message: Any, error: Any) -> None:
        """Handle an error that a poll returned in place of a message. Raises LogUnavailable."""
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._PARTITION_EOF:
            self.behind.discard((message.topic(), message.partition()))
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._begin_again(message.topic(), message.partition())
        elif error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise LogUnavailable(f"log {self._cluster.bootstrap}: {error.str()}")

    def _message(self, message: Any) -> Message | None:
        if message.error() is not None:
            self._on_failure(message, message.error())
            return None
        place = message.topic(), message.partition()
        if not self._last_offsets.passes(place, message.offset(), self.behind):
            return None  # most of a past moment's messages: batches reach beyond it
        kind, timestamp_ms = message.timestamp()
        try:
            append_ns = append_ns_of(place[0], kind - CONFLUENT_BASE, timestamp_ms)
        except ValueError as unusable:
            warn_once(str(unusable))
            return None
        received = Message(append_ns, *place, message.offset(), message.key(), message.value())
        return None if self._key is not None and received.key != self._key else received


def _partitions(places: Iterable[Place]) -> list[TopicPartition]:
    from confluent_kafka import TopicPartition

    return [TopicPartition(*place) for place in places]
