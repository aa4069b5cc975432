"""Fills global tables from Kafka, and reads earlier records of a topic.

One consumer without a group reads the whole compacted topics, or their newest parts, and follows them. Stages
start once the tables have reached the end offsets that the topics had at the tables' start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from schemas import codec
from schemas.kafka import Start
from schemas.kafka.async_reader import AsyncTopicReader
from schemas.kafka.message import Message
from schemas.kafka.settings import KafkaSettings
from schemas.topics import FLOWS, Topic
from schemas.unexpected import DATA_ERRORS, refusal
from streams.runtime.fabric_tables import FabricTables

log = logging.getLogger(__name__)

CHECKED_BY_TABLES: Final = frozenset({FLOWS.name})
"""Topics whose records are checked against other tables, so at the start they are taken after all others."""

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
        """Prepare the reader. `starts`: the tables' topics, each with the offset or time to read from.

        `check` raises BadRecord for a message that must be refused.
        """
        self.caught_up = asyncio.Event()
        self._tables, self._starts = tables, starts
        self._cluster = cluster
        self._on_rejected, self._check = on_rejected, check

    async def run(self) -> None:
        """Fill the tables until cancelled."""
        async with AsyncTopicReader(self._cluster) as reader:
            await reader.assign(self._starts)
            waiting: list[Message] = []
            while not await reader.caught_up():
                messages = await reader.poll(POLL_S, MAX_POLL_MESSAGES)
                waiting += [message for message in messages if message.topic in CHECKED_BY_TABLES]
                self._take(message for message in messages if message.topic not in CHECKED_BY_TABLES)
            for begin in range(0, len(waiting), MAX_POLL_MESSAGES):
                self._take(waiting[begin : begin + MAX_POLL_MESSAGES])
                await asyncio.sleep(0)
            del waiting
            self.caught_up.set()
            while True:
                self._take(await reader.poll(POLL_S, MAX_POLL_MESSAGES))

    def _take(self, messages: Iterable[Message]) -> None:
        for message in messages:
            try:
                self._check(message)
                error = self._tables.take(message)
            except DATA_ERRORS as refused:
                error = refusal(refused)
            if error is not None:
                self._on_rejected(message, error)
