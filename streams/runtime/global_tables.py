"""Fills global tables from Kafka, and reads the past of a topic.

One consumer without a group reads the whole compacted topics, or their newest parts, and follows them. Stages
start once the tables have reached the end offsets seen at their start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from schemas import codec
from schemas.kafka import BEGINNING, Start, back
from schemas.kafka import tail as newest
from schemas.kafka.async_reader import AsyncTopicReader, partition_count
from schemas.kafka.message import Message
from schemas.kafka.settings import KafkaSettings
from schemas.messages import decode_message
from schemas.topics import R, Topic
from schemas.unexpected import DATA_ERRORS, refusal
from streams.runtime.fabric_tables import FabricTables

__all__ = ["CLOCK_TAIL", "GlobalTableReader", "partition_count", "read_last", "read_tail", "read_to_end"]

log = logging.getLogger(__name__)

OnRejected = Callable[[Message, codec.BadRecord], None]

POLL_S: Final = 0.25
MAX_POLL_MESSAGES: Final = 500
"""Messages between two returns to the event loop: stages share it."""
CLOCK_TAIL: Final = 1000
"""Newest records of each partition of `fabric.clock.offsets` that are read at the start: some minutes at
least. The topic keeps a day of windows for replays."""


class GlobalTableReader:
    """Keeps tables filled from their topics until stopped, by one consumer for all of them."""

    def __init__(
        self,
        tables: FabricTables,
        starts: Mapping[Topic, Start],
        cluster: KafkaSettings,
        on_rejected: OnRejected,
    ) -> None:
        """`starts`: topics of the tables, each with the place from which it is read."""
        self.caught_up = asyncio.Event()
        self._tables, self._starts = tables, starts
        self._cluster = cluster
        self._on_rejected = on_rejected

    async def run(self) -> None:
        """Fill the tables; returns only by cancellation."""
        async with AsyncTopicReader(self._cluster) as reader:
            await reader.assign(self._starts)
            while True:
                if not self.caught_up.is_set() and await reader.caught_up():
                    self.caught_up.set()
                for message in await reader.poll(POLL_S, MAX_POLL_MESSAGES):
                    error = self._tables.take(message)
                    if error is not None:
                        self._on_rejected(message, error)


async def read_to_end(cluster: KafkaSettings, topic: Topic, start: Start) -> AsyncIterator[Message]:
    """Yield a topic's messages up to the end offsets seen at the start."""
    async with AsyncTopicReader(cluster) as reader:
        await reader.assign({topic: start})
        while not await reader.caught_up():
            for message in await reader.poll(POLL_S):
                yield message


async def read_tail(
    cluster: KafkaSettings,
    topic: Topic[R],
    tail: int | None,
    registry: codec.Registry | None = None,
    check: Callable[[R, int], R] | None = None,
    since_s: float | None = None,
) -> list[R]:
    """Return a topic's newest records, up to the end seen at the start.

    At most `tail` per partition, or those of the last `since_s`. Records that cannot be decoded are left out,
    and those that `check` (of record and append time) refuses with BadRecord.
    """
    start = BEGINNING
    if since_s is not None:
        start = back(since_s)
    elif tail is not None:
        start = newest(tail)
    records: list[R] = []
    rejected = 0
    async for message in read_to_end(cluster, topic, start):
        if message.value is None:
            continue
        try:
            record = message.decoded(topic, registry)
            records.append(record if check is None else check(record, message.append_ns))
        except DATA_ERRORS as error:
            last, rejected = refusal(error), rejected + 1
    if rejected:
        log.warning("%s: ignored %d bad records, the last: %s", topic.name, rejected, last)
    return records


async def read_last(
    cluster: KafkaSettings,
    topic: Topic[R],
    registry: codec.Registry | None = None,
    by: Callable[[R], str] | None = None,
) -> dict[str, tuple[R, int]]:
    """Return the newest record and its append time (ns) of each message key, or of each `by(record)`.

    Reads up to the end seen at the start. Records that cannot be decoded are left out.
    """
    values: dict[bytes, tuple[bytes, int]] = {}
    records: dict[str, tuple[R, int]] = {}

    def keep(key: bytes, value: bytes, append_ns: int) -> None:
        try:
            record = decode_message(topic, key, value, registry)
            name = by(record) if by is not None else key.decode("utf-8", "replace")
        except DATA_ERRORS as error:
            log.warning("%s: ignored a bad record: %s", topic.name, refusal(error))
            return
        records[name] = (record, append_ns)

    async for message in read_to_end(cluster, topic, BEGINNING):
        key = message.key_bytes
        if key is None:
            continue
        if message.value is None:
            values.pop(key, None)
        elif by is None:
            values[key] = (message.value, message.append_ns)
        else:
            keep(key, message.value, message.append_ns)
    for key, (value, append_ns) in values.items():
        keep(key, value, append_ns)
    return records
