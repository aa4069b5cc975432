"""Finds the offsets at which a reader of a past period ends in each partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from schemas.kafka.message import Place

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition


class LastOffsets:
    """The offset at which reading ends in each partition, from a log append time."""

    def __init__(self, consumer: Any, until_ns: int | None) -> None:
        """Store the last append time to read, `until_ns`; None means everything."""
        self._consumer, self._until_ns = consumer, until_ns
        self._ends: dict[Place, int] = {}
        """Offset of the first message after `until_ns`, by partition that has one."""
        self._finished: set[Place] = set()

    def resolve(self, partitions: list[TopicPartition], timeout_s: float) -> None:
        """Find each partition's end offset; one without messages up to `until_ns` starts at its end."""
        from confluent_kafka import TopicPartition

        if self._until_ns is None:
            return
        after_ms = self._until_ns // 1_000_000 + 1
        asked = [TopicPartition(one.topic, one.partition, after_ms) for one in partitions]
        ends = self._consumer.offsets_for_times(asked, timeout=timeout_s)
        self._ends |= {(end.topic, end.partition): end.offset for end in ends if end.offset >= 0}
        for one in partitions:
            place = one.topic, one.partition
            if place in self._ends and one.offset >= self._ends[place]:
                one.offset = self._ends[place]
                self._finished.add(place)

    def unread(self, places: Iterable[Place]) -> set[Place]:
        """Return the partitions in `places` that still have messages to read; stop fetching the rest."""
        unread = set(places) - self._finished
        self._pause(set(places) - unread)
        return unread

    def passes(self, place: Place, offset: int, behind: set[Place]) -> bool:
        """Return whether to read a message; after a partition's last message, remove it from `behind`."""
        end = self._ends.get(place)
        if end is None:
            return True
        if offset >= end - 1 and place not in self._finished:
            self._finished.add(place)
            behind.discard(place)
            self._pause([place])
        return offset < end

    def _pause(self, places: Iterable[Place]) -> None:
        from confluent_kafka import TopicPartition

        if partitions := [TopicPartition(*place) for place in places]:
            self._consumer.pause(partitions)
