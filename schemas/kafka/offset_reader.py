"""Reads positions in the log, but no records: the ends of partitions and a group's committed offsets.

It serves code that only checks whether a topic or a consumer group advances. Unlike a `TopicReader`, its cost
does not depend on the rate of messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from schemas.kafka.message import Place
from schemas.kafka.partitioning import partition_of
from schemas.kafka.reader import LogUnavailable, TopicMissing
from schemas.kafka.settings import KafkaSettings, as_settings
from schemas.topics import Topic

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

TIMEOUT_S: Final = 2.0
"""Longest wait for one answer of the log."""
END_TIMESTAMP: Final = -1
"""Value that requests a partition's end instead of a time (ListOffsets of the Kafka protocol)."""


class OffsetReader:
    """Reads the ends of some topics' partitions, and the offsets that the consumer group `group` committed.

    The reader does not join the group. All methods raise LogUnavailable.
    """

    def __init__(
        self,
        cluster: KafkaSettings | str,
        topics: Iterable[Topic],
        group: str,
        partition_keys: Mapping[Topic, Iterable[str]] | None = None,
    ) -> None:
        """Create the client without connecting.

        `partition_keys`: keys by topic, to read only the partitions of these keys.
        """
        import confluent_kafka.admin  # noqa: F401 - see TopicReader
        from confluent_kafka import Consumer

        self._cluster = as_settings(cluster)
        self._keys = {topic.name: list((partition_keys or {}).get(topic, ())) for topic in topics}
        """Maps topic to the keys whose partitions are read; all partitions are read without a key."""
        self._places: list[Place] = []
        self._consumer = Consumer(
            {
                **self._cluster.confluent_options(),
                "group.id": group,
                "enable.auto.commit": False,
                "allow.auto.create.topics": False,
                "auto.offset.reset": "latest",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
                "error_cb": lambda error: None,
            }
        )

    def close(self) -> None:
        """End the client."""
        self._consumer.close()

    def ends(self) -> dict[Place, int]:
        """Return each partition's end: the offset of its next message."""
        from confluent_kafka import KafkaException

        try:
            if not self._places:
                self._places = self._known_places()
            requests = _partitions(dict.fromkeys(self._places, END_TIMESTAMP))
            partitions = self._consumer.offsets_for_times(requests, timeout=TIMEOUT_S)
        except KafkaException as error:
            raise self._unavailable(error) from None
        return {
            (partition.topic, partition.partition): partition.offset
            for partition in partitions
            if partition.error is None
        }

    def committed(self, topic: Topic) -> dict[Place, int]:
        """Return the group's committed offset of each partition of a topic; call `ends` first."""
        from confluent_kafka import KafkaException

        places = [place for place in self._places if place[0] == topic.name]
        try:
            partitions = self._consumer.committed(_partitions(dict.fromkeys(places, 0)), timeout=TIMEOUT_S)
        except KafkaException as error:
            raise self._unavailable(error) from None
        return {
            (partition.topic, partition.partition): partition.offset
            for partition in partitions
            if partition.error is None and partition.offset >= 0
        }

    def messages_at(self, offsets: Mapping[Place, int], wait_s: float = TIMEOUT_S) -> dict[Place, Any]:
        """Return, per partition, the first message at or after the offset, if it arrives within `wait_s`.

        The messages are objects of confluent-kafka.
        """
        from confluent_kafka import KafkaException

        by_place: dict[Place, Any] = {}
        end_s = time.monotonic() + wait_s
        try:
            self._consumer.assign(_partitions(offsets))
            while len(by_place) < len(offsets) and time.monotonic() < end_s:
                for message in self._consumer.consume(100, 0.1):
                    topic, partition = message.topic(), message.partition()
                    if message.error() is None and topic is not None and partition is not None:
                        by_place.setdefault((topic, partition), message)
            self._consumer.unassign()
        except KafkaException as error:
            raise self._unavailable(error) from None
        return by_place

    def _known_places(self) -> list[Place]:
        metadata = self._consumer.list_topics(timeout=TIMEOUT_S).topics
        places: list[Place] = []
        for name, keys in self._keys.items():
            if name not in metadata or metadata[name].error is not None or not metadata[name].partitions:
                raise TopicMissing(f"topic {name}: does not exist at {self._cluster.bootstrap}")
            numbers = set(metadata[name].partitions)
            if keys:
                numbers = {partition_of(key, len(numbers)) for key in keys}
            places += [(name, number) for number in sorted(numbers)]
        return places

    def _unavailable(self, error: Any) -> LogUnavailable:
        return LogUnavailable(f"log {self._cluster.bootstrap}: {error.args[0].str()}")


def _partitions(offsets: Mapping[Place, int]) -> list[TopicPartition]:
    from confluent_kafka import TopicPartition

    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
