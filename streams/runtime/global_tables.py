"""Fills global tables from Kafka, and reads the past of a topic.

A consumer without a group reads the whole compacted topic, or its newest part, and follows it. A stage starts
once its tables have reached the end offsets seen at their start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from schemas import codec
from schemas.topics import TOPICS, Topic
from streams.runtime.faust_compat import partition_numbers
from streams.runtime.tables import GlobalTable

__all__ = ["CLOCK_TAIL", "GlobalTableReader", "partition_count", "read_last", "read_tail"]

log = logging.getLogger(__name__)

Record = dict[str, Any]
OnRejected = Callable[[ConsumerRecord, codec.BadRecord], None]

NS_PER_MS: Final = 1_000_000
FETCH_WAIT_MS: Final = 250
TOPIC_RETRY_S: Final = 0.5
CLOCK_TAIL: Final = 1000
"""Newest records of each partition of `fabric.clock.offsets` that are read at the start: some minutes at
least. The topic keeps a day of windows for replays."""


class GlobalTableReader:
    """Keeps one table filled from its topic until stopped."""

    def __init__(
        self,
        table: GlobalTable,
        bootstrap: str,
        on_rejected: OnRejected,
        *,
        tail: int | None = None,
        since_s: float | None = None,
        registry: codec.Registry | None = None,
    ) -> None:
        """Begin `tail` messages before each partition's end, or `since_s` ago; else at its beginning."""
        self.table = table
        self.caught_up = asyncio.Event()
        self._bootstrap = bootstrap
        self._on_rejected = on_rejected
        self._tail = tail
        self._since_s = since_s
        self._registry = registry

    async def run(self) -> None:
        """Fill the table; returns only by cancellation."""
        async with _consumer(self._bootstrap) as consumer:
            partitions = await _assign(consumer, self.table.topic)
            missing = await _seek(consumer, partitions, self._tail, self._since_s)
            if not missing:
                self.caught_up.set()
            async for message in consumer:
                self._apply(message)
                if missing:
                    tp = TopicPartition(message.topic, message.partition)
                    if message.offset + 1 >= missing.get(tp, message.offset + 2):
                        del missing[tp]
                    if not missing:
                        self.caught_up.set()

    def _apply(self, message: ConsumerRecord[bytes, bytes]) -> None:
        try:
            self.table.take(message.key, message.value, self._registry, message.timestamp * NS_PER_MS)
        except codec.BadRecord as error:
            self._on_rejected(message, error)


@asynccontextmanager
async def _consumer(bootstrap: str, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
    settings = {"fetch_max_wait_ms": FETCH_WAIT_MS} | settings
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, **settings
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def _assign(consumer: AIOKafkaConsumer, topic: str) -> list[TopicPartition]:
    """Assign all partitions of a topic, waiting for the topic to exist."""
    while True:
        numbers = await partition_numbers(consumer, topic)
        if numbers:
            partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
            consumer.assign(partitions)
            return partitions
        log.info("waiting for topic %s", topic)
        await asyncio.sleep(TOPIC_RETRY_S)


async def _seek(
    consumer: AIOKafkaConsumer,
    partitions: list[TopicPartition],
    tail: int | None,
    since_s: float | None = None,
) -> dict[TopicPartition, int]:
    """Seek to where reading begins; return the end offsets of the partitions that hold messages."""
    begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    first = dict(begins)
    if since_s is not None:
        since_ms = round((time.time() - since_s) * 1000)
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        first = {tp: ends[tp] if found[tp] is None else found[tp].offset for tp in partitions}
    for tp in partitions:
        consumer.seek(tp, first[tp] if tail is None else max(first[tp], ends[tp] - tail))
    return {tp: ends[tp] for tp in partitions if ends[tp] > first[tp]}


async def _read_to_end(
    consumer: AIOKafkaConsumer, missing: dict[TopicPartition, int]
) -> AsyncIterator[ConsumerRecord[bytes, bytes]]:
    """Yield the messages up to the end offsets `missing`."""
    while missing:
        for messages in (await consumer.getmany(timeout_ms=FETCH_WAIT_MS)).values():
            for message in messages:
                yield message
        for tp in list(missing):
            if await consumer.position(tp) >= missing[tp]:
                del missing[tp]


async def partition_count(bootstrap: str, topic: str) -> int:
    """Return the number of a topic's partitions, waiting for the topic to exist."""
    async with _consumer(bootstrap) as consumer:
        return len(await _assign(consumer, topic))


async def read_tail(
    bootstrap: str,
    topic: str,
    tail: int | None,
    registry: codec.Registry | None = None,
    check: Callable[[Record, int], Record] | None = None,
    since_s: float | None = None,
) -> list[Record]:
    """Return a topic's newest records, up to the end seen at the start.

    At most `tail` per partition, or those of the last `since_s`. Records that cannot be decoded are left out,
    and those that `check` (of record and append time) refuses with BadRecord.
    """
    name = TOPICS[topic].record
    records, rejected = [], 0
    async with _consumer(bootstrap) as consumer:
        missing = await _seek(consumer, await _assign(consumer, topic), tail, since_s)
        async for message in _read_to_end(consumer, missing):
            if message.value is None:
                continue
            try:
                record = codec.decode(message.value, name, registry)
                records.append(record if check is None else check(record, message.timestamp * NS_PER_MS))
            except codec.BadRecord as error:
                last, rejected = error, rejected + 1
    if rejected:
        log.warning("%s: ignored %d bad records, the last: %s", topic, rejected, last)
    return records


async def read_last(
    bootstrap: str,
    topic: Topic,
    registry: codec.Registry | None = None,
    by: Callable[[Record], str] | None = None,
) -> dict[str, tuple[Record, int]]:
    """Return the newest record and its append time (ns) of each message key, or of each `by(record)`.

    Reads up to the end seen at the start. Records that cannot be decoded are left out.
    """
    values: dict[bytes, tuple[bytes, int]] = {}
    records: dict[str, tuple[Record, int]] = {}

    def keep(key: bytes, value: bytes, append_ns: int) -> None:
        try:
            record = codec.decode(value, topic.record, registry)
        except codec.BadRecord as error:
            log.warning("%s: ignored a bad record: %s", topic.name, error)
            return
        name = by(record) if by is not None else key.decode("utf-8", "replace")
        records[name] = (record, append_ns)

    async with _consumer(bootstrap) as consumer:
        missing = await _seek(consumer, await _assign(consumer, topic.name), None)
        async for message in _read_to_end(consumer, missing):
            append_ns = message.timestamp * NS_PER_MS
            if message.key is None:
                continue
            if message.value is None:
                values.pop(message.key, None)
            elif by is None:
                values[message.key] = (message.value, append_ns)
            else:
                keep(message.key, message.value, append_ns)
    for key, (value, append_ns) in values.items():
        keep(key, value, append_ns)
    return records
