"""The asynchronous reader against the embedded log."""

from __future__ import annotations

import asyncio
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition

from schemas.kafka import BEGINNING, END, async_reader, owns, since, tail
from schemas.kafka.async_reader import AsyncTopicReader, partition_count
from schemas.kafka.reader import TopicReader
from schemas.topics import LINK_HEALTH, QUEUES, REJECTS
from tests.schemas.kafka.conftest import NAMES


def test_async_reader(filled):
    log, later_ns = filled

    async def read_async(start, only=None):
        async with AsyncTopicReader(log) as reader:
            await reader.assign({LINK_HEALTH: start}, only)
            found = []
            while not await reader.caught_up():
                found += await reader.poll(0.25)
            assert not reader.missing
            return found

    with TopicReader.open(log, {LINK_HEALTH: BEGINNING}) as reader:
        expected = list(reader.read_to_end())
    everything = asyncio.run(read_async(BEGINNING))
    assert [astuple(message) for message in sorted(everything)] == [
        astuple(message) for message in sorted(expected)
    ]
    assert {m.key for m in asyncio.run(read_async(since(later_ns)))} == set(NAMES[15:])
    assert len(asyncio.run(read_async(tail(2)))) == 4
    assert asyncio.run(read_async(END)) == []
    only = asyncio.run(read_async(BEGINNING, {LINK_HEALTH: [0]}))
    assert {m.key for m in only} == {name for name in NAMES if owns(name, 2, {0})}
    assert asyncio.run(partition_count(log, QUEUES.name)) == 2
    assert asyncio.run(partition_count(log, REJECTS.name)) == 1


class Client:
    """Returns one batch, as aiokafka does: its position is then after the batch."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    async def getmany(self, timeout_ms: int, max_records: int | None) -> Any:
        return self.batches.pop() if self.batches else {}

    async def position(self, tp: TopicPartition) -> int:
        return 1


async def test_messages_of_a_poll_that_is_cancelled_come_with_the_next_one(monkeypatch):
    """A stage that reads up to the end of its inputs ends a poll after some seconds."""
    place, waits = TopicPartition("fabric.nics", 0), asyncio.Event()
    message = SimpleNamespace(
        topic=place.topic, partition=0, offset=0, key=b"h1", value=b"", timestamp=1, timestamp_type=1
    )

    async def arrive(cluster, values):
        assert list(values) in ([b""], [])
        waits.set()
        if len(polls) < 1:
            await asyncio.Event().wait()

    monkeypatch.setattr(async_reader, "arrive", arrive)
    monkeypatch.setattr(async_reader, "AIOKafkaConsumer", lambda **options: Client([{place: [message]}]))
    reader, polls = AsyncTopicReader("127.0.0.1:9"), []
    reader.ends = {(place.topic, 0): 1}
    cancelled = asyncio.ensure_future(reader.poll(0.0))
    await waits.wait()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert not await reader.has_reached({place: 1})
    polls.append(cancelled)
    assert [each.key for each in await reader.poll(0.0)] == ["h1"]
    assert await reader.has_reached({place: 1})
    assert await reader.poll(0.0) == []
