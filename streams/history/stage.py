"""The history sink: inserts topics into ClickHouse, at least once and without duplicates.

Positions are committed after the messages' block is inserted. While ClickHouse is down, no more messages are
read, so that the lag grows in the log and not in memory. Messages that cannot be decoded go to
fabric.rejects.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from sdnotify import SystemdNotifier

from schemas import codec, topics
from schemas.kafka.message import Message
from schemas.records import Reject, RejectReason
from schemas.unexpected import DATA_ERRORS, refusal
from streams.history import batch, rows
from streams.history.clickhouse import Refused, TableSetup, Unavailable, Writer
from streams.history.store_status import StoreStatus
from streams.runtime.history_settings import HistorySinkSettings

LOG: Final = logging.getLogger(__name__)
READER: Final = "sink"

OnReject = Callable[[Reject], Awaitable[None]]
Done = Callable[[], None]
"""Notes that a message is stored."""


class TopicSink:
    """Inserts one topic. `reject` publishes a Reject record; `writer` belongs to this sink alone."""

    def __init__(
        self,
        topic: str,
        settings: HistorySinkSettings,
        writer: Writer,
        reject: OnReject,
        registry: codec.Registry | None = None,
        status: StoreStatus | None = None,
    ) -> None:
        self._topic = topic
        self._status = status or StoreStatus(settings.url, lambda line: None)
        self._type = topics.TOPICS[topic].type
        self._settings = settings
        self._writer = writer
        self._reject = reject
        self._registry = registry
        policy = batch.Policy(settings.batch_bytes, settings.batch_messages, settings.batch_ms / 1000)
        self._batch: batch.Batch[tuple[Message, Done]] = batch.Batch(policy)
        self._order = asyncio.Lock()
        self._wake = asyncio.Event()
        self.inserted_rows = 0
        self.failures = 0

    @property
    def batch_bytes(self) -> int:
        """Bytes at which a batch is full."""
        return self._settings.batch_bytes

    async def take(self, message: Message, done: Done) -> None:
        """Add one message; return late while ClickHouse is down. `done` is called once it is stored."""
        async with self._order:
            self._batch.add((message, done), len(message.value or b""), time.monotonic())
            self._wake.set()
            if self._batch.full():
                await self._flush()

    async def flush_when_due(self) -> None:
        """Send batches that are not full in time; runs for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (wait_s := self._batch.wait_s(time.monotonic())) is not None:
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                    continue
                async with self._order:
                    if self._batch.wait_s(time.monotonic()) == 0:
                        await self._flush()

    async def flush(self) -> None:
        """Send the batch."""
        async with self._order:
            await self._flush()

    async def _flush(self) -> None:
        waiting = self._batch.take()
        if waiting:
            try:
                await self._store([message for message, _ in waiting])
            except BaseException:
                self._batch.put_back(waiting, time.monotonic())
                raise
            for _, done in waiting:
                done()

    async def _store(self, messages: Sequence[Message]) -> None:
        """Insert the messages' rows, in halves if one record is unfit. Returns when all rows are stored."""
        try:
            blocks, bad = await asyncio.to_thread(self._blocks_of, messages)
        except DATA_ERRORS as error:
            refused = refusal(error)
            await self._halve(messages, refused.reason, str(refused))
            return
        name = batch.token(self._topic, messages)
        for table, block in blocks.items():
            try:
                await self._insert(table, block, name)
            except Refused as error:
                await self._halve(messages, "OTHER", str(error))
                return
        for message, why in bad:
            await self._refuse(message, why.reason, str(why))

    async def _halve(self, messages: Sequence[Message], reason: str, detail: str) -> None:
        if len(messages) == 1:
            await self._refuse(messages[0], reason, detail)
            return
        middle = len(messages) // 2
        await self._store(messages[:middle])
        await self._store(messages[middle:])

    def _blocks_of(
        self, messages: Sequence[Message]
    ) -> tuple[dict[str, Any], list[tuple[Message, codec.BadRecord]]]:
        """Return the rows to insert by table, and the messages that cannot be decoded."""
        decoded: list[Message] = []
        bad: list[tuple[Message, codec.BadRecord]] = []
        for message in messages:
            try:
                if message.value is not None:
                    message.decoded(topics.TOPICS[self._topic], self._registry)
            except DATA_ERRORS as error:
                bad.append((message, refusal(error)))
            else:
                decoded.append(message)
        return rows.rows_of(self._topic, decoded), bad

    async def _insert(self, table: str, block: Any, name: str) -> None:
        """Insert one block, with retries until ClickHouse answers. Raises Refused."""
        wait_s = self._settings.retry_ms / 1000
        while True:
            try:
                await asyncio.to_thread(self._writer.insert, table, block, name)
            except Unavailable as error:
                self.failures += 1
                self._status.failed(self._topic, str(error))
                LOG.warning("history is away, %s waits %.1f s: %s", self._topic, wait_s, error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, self._settings.retry_max_ms / 1000)
            else:
                self.inserted_rows += block.num_rows
                self._status.stored(self._topic, block.num_rows)
                return

    async def _refuse(self, message: Message, reason: str, detail: str) -> None:
        value = message.value or b""
        record: Reject = {
            "topic": self._topic,
            "partition": message.partition,
            "offset": message.offset,
            "append_ns": message.append_ns,
            "reader": READER,
            "reason": RejectReason(reason),
            "detail": detail[:500],
            "key": (message.key_bytes or b"")[:256],
            "size_bytes": len(value),
            "head": value[:1024],
        }
        place = self._topic, message.partition, message.offset
        LOG.warning("%s/%d offset %d refused: %s %s", *place, reason, detail)
        if self._topic != topics.REJECTS.name:
            await self._reject(record)
            return
        # A bad Reject is stored as a row at once: if published, it would return to this sink for ever.
        about = Message(message.append_ns, *place, "", None, record)
        for table, block in rows.rows_of(self._topic, [about]).items():
            await self._insert(table, block, batch.token(f"{self._topic}/unreadable", [about]))


def sinks_of(
    settings: HistorySinkSettings, reject: OnReject, registry: codec.Registry | None = None
) -> dict[str, TopicSink]:
    """Return the sinks by topic."""
    status = StoreStatus(settings.url, SystemdNotifier().notify)
    setup = TableSetup(settings)
    return {
        topic.name: TopicSink(topic.name, settings, Writer(settings, setup), reject, registry, status)
        for topic in rows.TOPICS
    }
