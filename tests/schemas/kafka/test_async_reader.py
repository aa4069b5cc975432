"""The asynchronous reader against the embedded log."""

from __future__ import annotations

import asyncio
from dataclasses import astuple

from schemas.kafka import BEGINNING, END, owns, since, tail
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
