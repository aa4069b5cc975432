"""Reads the inputs that a stage needs only at certain times, without a consumer group."""

from __future__ import annotations

import time
from typing import ClassVar, Final

from schemas.kafka.async_reader import AsyncTopicReader
from schemas.kafka.message import Message
from schemas.kafka.settings import KafkaSettings
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import Operator, Stage

LINGER_S: Final = 60.0
"""Time for which inputs are still read after they were last needed, s."""


class NeededReader:
    """Reads the conditional inputs of a stage: all of them while they are needed, else none."""

    MAX_POLL: ClassVar[int] = 100
    """Largest number of messages per poll: the stage's other inputs are read in between."""

    def __init__(
        self, cluster: KafkaSettings, stage: Stage, operator: Operator, tables: FabricTables, begin_ns: int
    ) -> None:
        """Prepare the reader. `begin_ns`: log time from which to read if inputs are needed at the start."""
        self._inputs = [each for each in stage.inputs if each.is_needed is not None]
        self._cluster, self._operator, self._tables = cluster, operator, tables
        self.reader: AsyncTopicReader | None = None
        self._begin_ns: int | None = begin_ns
        self._used_s = 0.0
        """Monotonic time at which the inputs were last needed."""
        operator.behind = frozenset(each.topic.name for each in self._inputs)

    @property
    def is_needed(self) -> bool:
        """Whether the stage needs messages of its conditional inputs now."""
        operator, tables = self._operator, self._tables
        return any(each.is_needed(operator, tables) for each in self._inputs if each.is_needed)

    async def update(self, log_ns: int) -> None:
        """Start or stop reading, and set whether the operator's conditional inputs are behind."""
        if not self._inputs:
            return
        if self.is_needed:
            self._used_s = time.monotonic()
            if self.reader is None:
                await self._start(log_ns if self._begin_ns is None else self._begin_ns)
        elif time.monotonic() - self._used_s > LINGER_S:
            await self.stop()
        self._begin_ns = None
        if self._operator.behind and (self.reader is None or await self.reader.caught_up()):
            self._operator.behind = frozenset()

    async def poll(self) -> list[Message]:
        """Return the messages of the conditional inputs that have arrived."""
        return [] if self.reader is None else await self.reader.poll(0.0, self.MAX_POLL)

    async def stop(self) -> None:
        """Stop reading the conditional inputs."""
        reader, self.reader = self.reader, None
        self._operator.behind = frozenset()
        if reader is not None:
            await reader.consumer.stop()

    async def _start(self, log_ns: int) -> None:
        reader = AsyncTopicReader(self._cluster)
        await reader.consumer.start()
        self.reader = reader
        self._operator.behind = frozenset(each.topic.name for each in self._inputs)
        await reader.assign(
            {each.topic: each.start(log_ns, self._tables) for each in self._inputs if each.start}
        )
