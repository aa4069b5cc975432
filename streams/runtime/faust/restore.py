"""Reads the published records from which a new owner continues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemas.kafka.async_reader import AsyncTopicReader
from schemas.kafka.message import Place
from schemas.kafka.settings import KafkaSettings
from streams.runtime.operator import Past, Restore
from streams.runtime.past import PastMessages, start_of

POLL_S: Final = 0.25


async def read_past(
    cluster: KafkaSettings, restores: Iterable[Restore], log_ns: int
) -> tuple[Past, dict[Place, int]]:
    """Return the messages that these restores select, and the end offsets up to which they were read.

    `log_ns`: log time at which the owner begins.
    """
    by_topic = {restore.topic: restore for restore in restores}
    if not by_topic:
        return {}, {}
    past = {topic.name: PastMessages(restore) for topic, restore in by_topic.items()}
    async with AsyncTopicReader(cluster) as reader:
        await reader.assign({topic: start_of(restore, log_ns) for topic, restore in by_topic.items()})
        ends = dict(reader.ends)
        while not await reader.caught_up():
            for message in await reader.poll(POLL_S):
                if message.offset < ends[message.place]:
                    past[message.topic].add(message)
    return {name: messages.messages() for name, messages in past.items()}, ends
