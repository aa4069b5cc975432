"""Fills global tables from Kafka, and reads the past of a topic.

One consumer without a group reads the whole compacted topics, or their newest parts, and follows them. Stages
start once the tables have reached the end offsets seen at their start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from schemas import codec
from schemas.kafka import Start
from schemas.kafka.async_reader import AsyncTopicReader
from schemas.kafka.message import Message
from schemas.kafka.settings import KafkaSettings
from schemas.topics import Topic
from streams.runtime.fabric_tables import FabricTables

log = logging.getLogger(__name__)

OnRejected = Callable[[Message, codec.BadRecord], None]

POLL_S: Final = 0.25
MAX_POLL_MESSAGES: Final = 500
"""Largest number of messages processed before control returns to the event loop, which stages share."""
CLOCK_TAIL: Final = 1000
"""Number of newest records of each partition of `fabric.clock.offsets` that are read at the start. They cover
at least some minutes; the topic keeps a day of windows for replays."""


class GlobalTableReader:
    """Keeps tables filled from their topics until stopped, by one consumer for all of them."""

    def __init__(
        self,
        tables: FabricTables,
        starts: Mapping[Topic, Start],
        cluster: KafkaSettings,
        on_rejected: OnRejected,
        check: Callable[[Message], None] = lambda message: None,
    ) -> None:
        """`starts`: the tables' topics, each with the place from which it is read. `check` raises
        BadRecord for a message that must not count."""
        self.caught_up = asyncio.Event()
        self._tables, self._starts = tables, starts
        self._cluster = cluster
        self._on_rejected, self._check = on_rejected, check

    async def run(self) -> None:
        """Fill the tables until cancelled."""
        async with AsyncTopicReader(self._cluster) as reader:
            await reader.assign(self._starts)
            while True:
                if not self.caught_up.is_set() and await reader.caught_up():
                    self.caught_up.set()
                for message in await reader.poll(POLL_S, MAX_POLL_MESSAGES):
                    error = self._take(message)
                    if error is not None:
                        self._on_rejected(message, error)

    def _take(self, message: Message) -> codec.BadRecord | None:
        try:
            self._check(message)
        except codec.BadRecord as error:
            return error
        return self._tables.take(message)
