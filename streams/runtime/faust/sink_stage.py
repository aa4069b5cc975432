"""Runs a stage that converts the messages of one topic to rows. Positions are committed once rows are stored.

While the store is unavailable, no more messages are read: the backlog stays in the log, not in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from aiokafka import ConsumerRecord
from faust.types import TP

from schemas.checks import BadRecord
from schemas.kafka.message import Message
from schemas.records import RejectReason
from schemas.repeat_filter import RepeatFilter
from schemas.topics import REJECTS
from schemas.unexpected import refusal
from streams.runtime.faust.compat import read_batches
from streams.runtime.faust.context import WorkerContext
from streams.runtime.faust.ownership import Generation, Ownership
from streams.runtime.faust.rejects import send_reject
from streams.runtime.history_settings import HistorySinkSettings
from streams.runtime.log_time import LogClock
from streams.runtime.operator import Moment, Operator, Owner, Stage, Store
from streams.runtime.rejects import reject_record
from streams.runtime.units import NS_PER_MS, NS_PER_S

log = logging.getLogger(__name__)

RECORD_BYTES: Final = 200
"""Memory that a waiting message takes in addition to its value, bytes."""

T = TypeVar("T")


class SinkStage(Ownership):
    """Stores the messages of one topic; as a `Receiver`, it takes them from the app's consumer."""

    def __init__(self, context: WorkerContext, stage: Stage, store: Store) -> None:
        super().__init__(context, stage)
        self._store = store
        self._settings = context.settings.history or HistorySinkSettings()
        self._clock = LogClock(time.time_ns(), time.monotonic_ns())
        """The clock by which batches are cut: it never steps."""
        self._waiting: deque[Message] = deque()
        self._unstored_bytes = 0
        self._arrived = asyncio.Event()
        self._next_offsets: dict[TP, int] = {}
        """Maps partition to one past the last message up to which all are stored."""
        self._refusals = RepeatFilter()
        self._pool = ThreadPoolExecutor(1, self.topic.name)

    @property
    def has_capacity(self) -> bool:
        """Whether less than one batch waits after the batch that is being stored."""
        return self._unstored_bytes < 2 * self._settings.batch_bytes

    def receive(self, tp: TP, records: Sequence[ConsumerRecord]) -> bool:
        """Queue messages of a partition; return whether the partition is assigned here."""
        if tp not in self.generation.tps or self.generation.revoking:
            return False
        messages = list(map(_message, records))
        self._waiting += messages
        self.received += len(messages)
        self._unstored_bytes += sum(map(_size_bytes, messages))
        self._arrived.set()
        return True

    def commit_position(self, tp: TP) -> int | None:
        """Return the offset after the last stored message, to be committed; None if there is none."""
        return None if self.generation.revoking else self._next_offsets.get(tp)

    @property
    def reached(self) -> dict[TP, int]:
        """Maps each partition to the offset before which all messages are stored."""
        return dict(self._next_offsets)

    def register(self) -> None:
        """Make the app deliver the topic's messages to this stage."""
        read_batches(self.context.app, self.topic.name, self)

    def assign(self, partitions: Iterable[TP]) -> None:
        """Start a generation with exactly these partitions; messages that are not stored are read again."""
        super().assign(partitions)
        self._store.forget()
        self._waiting.clear()
        self._next_offsets.clear()
        self._unstored_bytes = 0

    async def _serve(self, generation: Generation) -> None:
        """Store batches until the generation ends."""
        context, numbers = self.context, frozenset(tp.partition for tp in generation.tps)
        epoch = context.log_clock.now_ns(time.monotonic_ns()) // NS_PER_MS
        owner = Owner(epoch, numbers, len(numbers), context.settings, context.registry)
        operator = self.definition.make(owner, -1, context.tables)
        generation.recovered.set()
        while True:
            batch = await self._next_batch(operator)
            await self._store_rows(operator, batch)
            for message in batch:
                self._next_offsets[TP(*message.place)] = message.offset + 1
            self._unstored_bytes -= sum(map(_size_bytes, batch))

    async def _next_batch(self, operator: Operator) -> list[Message]:
        """Let the operator take messages until it is due to advance; return these messages."""
        batch: list[Message] = []
        while True:
            now_ns = self._clock.now_ns(time.monotonic_ns())
            operator.moment = Moment(now_ns, 0)
            while self._waiting and operator.due_ns() > now_ns:
                batch.append(self._waiting.popleft())
                operator.take(batch[-1:], self.context.tables)
            wait_ns = operator.due_ns() - now_ns
            if wait_ns <= 0:
                return batch
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_ns / NS_PER_S):
                    await self._arrived.wait()

    async def _store_rows(self, operator: Operator, messages: Sequence[Message]) -> None:
        """Store the rows of messages that the operator took; if the store refuses rows, try each half."""
        try:
            result = operator.advance(operator.moment, self.context.tables)
            for output in await self._in_thread(result) if callable(result) else result:
                for table, rows in (output.rows or {}).items():
                    await self._insert(table, rows, output.key)
        except BadRecord as error:
            operator.rejected.clear()
            if len(messages) > 1:
                middle = len(messages) // 2
                for half in (messages[:middle], messages[middle:]):
                    operator.take(half, self.context.tables)
                    await self._store_rows(operator, half)
                return
            operator.rejected.append((messages[0], error))
        rejected, operator.rejected = operator.rejected, []
        for message, refused in rejected:
            await self._reject(operator, message, refused)

    async def _insert(self, table: str, rows: Any, token: str) -> None:
        """Insert rows into a table; retry until the store answers. Raises BadRecord if it refuses them."""
        wait_s = self._settings.retry_ms / 1000
        while True:
            try:
                return await self._in_thread(self._store.insert, table, rows, token)
            except OSError as error:
                log.warning("history is away, %s waits %.1f s: %s", self.topic.name, wait_s, error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, self._settings.retry_max_ms / 1000)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in this stage's only thread, so a cancelled call ends before the next begins."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    async def _reject(self, operator: Operator, message: Message, error: Exception) -> None:
        """Publish the reject of a message. If the message is itself a `Reject`, only store the new reject.

        So no endless cycle arises. If the store refuses the new reject too, it is dropped.
        """
        reader = self.definition.reject_reader
        if message.topic != REJECTS.name:
            await send_reject(self.context, message, reader, error)
            return
        if message.value is None:  # the store refuses the reject of a reject too
            if line := self._refusals.due(f"{message.topic}: a message is left out of history: {error}"):
                log.error("%s", line)
            return
        refused = refusal(error)
        record = reject_record(message, reader, RejectReason(refused.reason), str(refused))
        about = [Message(message.append_ns, *message.place, message.offset, "", None, record)]
        operator.take(about, self.context.tables)
        await self._store_rows(operator, about)


def _message(record: ConsumerRecord) -> Message:
    append_ns = (record.timestamp or 0) * NS_PER_MS
    return Message(append_ns, record.topic, record.partition, record.offset, record.key, record.value)


def _size_bytes(message: Message) -> int:
    return len(message.value or b"") + RECORD_BYTES
