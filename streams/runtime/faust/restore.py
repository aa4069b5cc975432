"""Reads the published records from which a new owner continues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemas.kafka.async_reader import AsyncTopicReader
from schemas.kafka.message import Message, Place
from schemas.kafka.settings import KafkaSettings
from streams.runtime.operator import Past, Restore, newest_per_key

__all__ = ["read_past"]

POLL_S: Final = 0.25


async def read_past(cluster: KafkaSettings, restores: Iterable[Restore]) -> tuple[Past, dict[Place, int]]:
    """Return the messages of some restores, and the end offsets up to which they were read."""
    past: dict[str, list[Message]] = {}
    ends: dict[Place, int] = {}
    by_topic = {restore.topic: restore for restore in restores}
    if not by_topic:
        return past, ends
    async with AsyncTopicReader(cluster) as reader:
        await reader.assign({topic: restore.start for topic, restore in by_topic.items()})
        ends |= reader.ends
        past |= {topic.name: [] for topic in by_topic}
        while not await reader.caught_up():
            for message in await reader.poll(POLL_S):
                if message.offset < ends[message.place]:
                    past[message.topic].append(message)
    for topic, restore in by_topic.items():
        messages = sorted(past[topic.name], key=lambda message: (message.partition, message.offset))
        past[topic.name] = newest_per_key(messages) if restore.last_per_key else messages
    return past, ends
