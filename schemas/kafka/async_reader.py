"""Reads topics without a consumer group, in an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.kafka import rebootstrap
from schemas.kafka.message import Message, Place
from schemas.kafka.reader import warn_once
from schemas.kafka.schema_log import arrive
from schemas.kafka.settings import KafkaSettings, as_settings
from schemas.kafka.start import Start
from schemas.log_time import append_ns_of
from schemas.topics import Topic

log = logging.getLogger(__name__)

FETCH_WAIT_MS: Final = 500
"""Longest duration of a fetch without messages, ms; the first message ends it."""
MISSING_TOPIC_RETRY_S: Final = 0.5


class AsyncTopicReader:
    """A consumer of some topics without a group, on aiokafka; use it with `async with`.

    It commits nothing, and keeps the order within each partition. `assign` waits until its topics exist.
    """

    def __init__(self, cluster: KafkaSettings | str) -> None:
        """Create the client without connecting."""
        rebootstrap.install()
        self._cluster = as_settings(cluster)
        self.consumer: Any = AIOKafkaConsumer(
            **self._cluster.aiokafka_options(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # after `seek`, an offset out of range means that the log is new
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        self.ends: dict[Place, int] = {}
        """End offset of each assigned partition when it was assigned."""
        self._missing: dict[TopicPartition, int] = {}
        self._fetched: Mapping[TopicPartition, Sequence[Any]] = {}
        """Messages of a poll that was cancelled while they waited for their schemas."""

    async def __aenter__(self) -> Self:
        await self.consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.consumer.stop()

    async def partitions(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions; wait until the topic exists."""
        while True:
            # The public partitions_for_topic() knows subscribed topics only (aiokafka 0.14).
            numbers = (await self.consumer._client.fetch_all_metadata()).partitions_for_topic(topic)
            if numbers:
                return sorted(numbers)
            log.info("waiting for topic %s", topic)
            await asyncio.sleep(MISSING_TOPIC_RETRY_S)

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each topic; 0 for a topic that does not exist."""
        metadata = await self.consumer._client.fetch_all_metadata()
        return {topic: len(metadata.partitions_for_topic(topic) or ()) for topic in topics}

    async def assign(
        self, starts: Mapping[Topic, Start], only: Mapping[Topic, Iterable[int]] | None = None
    ) -> None:
        """Assign the topics' partitions and seek to their start positions.

        `only`: for some topics, the partitions to which the reader is limited.
        """
        start_of: dict[TopicPartition, Start] = {}
        for topic, start in starts.items():
            numbers = await self.partitions(topic.name)
            selected = set((only or {}).get(topic, numbers))
            start_of |= {
                TopicPartition(topic.name, number): start for number in numbers if number in selected
            }
        await self.seek(start_of)

    async def seek(self, start_of: Mapping[TopicPartition, Start]) -> None:
        """Assign the given partitions and seek to their start positions."""
        places = list(start_of)
        if not places:
            return
        self._fetched = {}
        self.consumer.assign(places)
        # Begins and ends first: a message that arrives before the times are resolved is read, not skipped.
        begins = await self.consumer.beginning_offsets(places)
        ends = await self.consumer.end_offsets(places)
        times_ms = {
            tp: max(0, start.since_ns // 1_000_000)
            for tp, start in start_of.items()
            if start.since_ns is not None
        }
        offsets = await self.consumer.offsets_for_times(times_ms) if times_ms else {}
        self._missing, self.ends = {}, {(tp.topic, tp.partition): end for tp, end in ends.items()}
        for tp, start in start_of.items():
            first = begins[tp]
            if tp in times_ms:
                first = ends[tp] if offsets[tp] is None else offsets[tp].offset
            elif start.tail_messages is not None:
                first = max(first, ends[tp] - start.tail_messages)
            self.consumer.seek(tp, first)
            if ends[tp] > first:
                self._missing[tp] = ends[tp]

    async def poll(self, wait_s: float, max_messages: int | None = None) -> list[Message]:
        """Return the messages that arrive within `wait_s`, in order within each partition.

        Messages with an unknown schema fingerprint wait until the log's schemas have been read. If a poll is
        cancelled meanwhile, the next poll returns these messages: the client would not fetch them again.
        """
        if not self.ends:  # without an assignment the client would wait for one
            await asyncio.sleep(wait_s)
            return []
        if not self._fetched:
            options = {"timeout_ms": round(wait_s * 1e3), "max_records": max_messages}
            self._fetched = await self.consumer.getmany(**options)
        await arrive(self._cluster, (raw.value for batch in self._fetched.values() for raw in batch))
        batches, self._fetched = self._fetched, {}
        received = (_message(raw_message) for batch in batches.values() for raw_message in batch)
        return [message for message in received if message is not None]

    async def has_reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether all messages before these offsets have been returned."""
        if self._fetched:
            return False
        return not [tp for tp, end in ends.items() if await self.consumer.position(tp) < end]

    async def caught_up(self) -> bool:
        """Return whether every partition has been read to the end offset at the time of its assignment."""
        for tp in list(self._missing):
            if await self.consumer.position(tp) >= self._missing[tp]:
                del self._missing[tp]
        return not self._missing

    @property
    def missing(self) -> set[Place]:
        """Partitions that have not been read to the end yet; `caught_up` waits for them."""
        return {(tp.topic, tp.partition) for tp in self._missing}

    def pause(self, places: Iterable[Place]) -> None:
        """Stop fetching some partitions."""
        self.consumer.pause(*(TopicPartition(*place) for place in places))


async def partition_count(cluster: KafkaSettings | str, topic: str) -> int:
    """Return the number of partitions of a topic; wait until the topic exists."""
    async with AsyncTopicReader(cluster) as reader:
        return len(await reader.partitions(topic))


def _message(message: Any) -> Message | None:
    """Convert a message of aiokafka to a `Message`; return None if it has no append time."""
    try:
        append_ns = append_ns_of(message.topic, message.timestamp_type, message.timestamp)
    except ValueError as unusable:
        warn_once(str(unusable))
        return None
    return Message(append_ns, message.topic, message.partition, message.offset, message.key, message.value)
