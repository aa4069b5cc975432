"""The history sink: inserts topics into ClickHouse, at least once and without duplicates.

Positions are committed after the messages' block is inserted. While ClickHouse is down, no more messages are
read, so that the lag grows in the log and not in memory. Messages that cannot be decoded go to
fabric.rejects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from aiokafka import ConsumerRecord
from faust.types import TP
from sdnotify import SystemdNotifier

from schemas import codec, topics
from schemas.kafka.message import Message
from schemas.records import Reject, RejectReason
from schemas.unexpected import DATA_ERRORS, refusal
from streams.history import batch, rows
from streams.history.clickhouse import Refused, TableSetup, Unavailable, Writer
from streams.history.store_status import StoreStatus
from streams.runtime.faust_compat import read_batches
from streams.runtime.history_settings import HistorySinkSettings
from streams.runtime.units import NS_PER_MS

LOG: Final = logging.getLogger(__name__)
READER: Final = "sink"
RECORD_BYTES: Final = 200
"""Bytes of memory of a waiting message beside its value."""

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


class SinkReceiver:
    """Passes a topic's messages to its sink; the position of a partition follows those that are stored.

    A `Receiver` of the app's consumer, which reads no more of the topic while a batch waits for the sink.
    """

    def __init__(self, sink: TopicSink) -> None:
        self._sink = sink
        self._waiting: deque[ConsumerRecord] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._unstored: dict[TP, set[int]] = {}
        """Offsets that were received and are not stored, by partition."""
        self._next: dict[TP, int] = {}
        """One past the newest received offset, by partition."""

    @property
    def has_capacity(self) -> bool:
        """Whether less waits for the sink than one of its batches."""
        return self._waiting_bytes < self._sink.batch_bytes

    def receive(self, tp: TP, records: Sequence[ConsumerRecord]) -> bool:
        """Queue messages of a partition."""
        self._unstored.setdefault(tp, set()).update(record.offset for record in records)
        self._next[tp] = records[-1].offset + 1
        self._waiting.extend(records)
        self._waiting_bytes += sum(map(_size_bytes, records))
        self._arrived.set()
        return True

    def forget(self, tps: Iterable[TP]) -> None:
        """Forget the positions of revoked partitions: their next owner commits others."""
        for tp in tps:
            self._unstored.pop(tp, None)
            self._next.pop(tp, None)

    def commit_position(self, tp: TP) -> int | None:
        """Return the first offset that is not stored; None: nothing was received."""
        return min(self._unstored.get(tp, ()), default=self._next.get(tp))

    async def run(self) -> None:
        """Pass messages on; returns only by cancellation."""
        timer = asyncio.create_task(self._sink.flush_when_due())
        try:
            while True:
                while self._waiting:
                    if timer.done():
                        timer.result()
                    record = self._waiting[0]
                    unstored = self._unstored.get(TP(record.topic, record.partition), set())
                    await self._sink.take(_message(record), partial(unstored.discard, record.offset))
                    self._waiting_bytes -= _size_bytes(self._waiting.popleft())
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            timer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await timer


def _message(record: ConsumerRecord) -> Message:
    append_ns = (record.timestamp or 0) * NS_PER_MS
    return Message(append_ns, record.topic, record.partition, record.offset, record.key, record.value)


def _size_bytes(record: ConsumerRecord) -> int:
    return len(record.value or b"") + RECORD_BYTES


def register(
    app: Any, settings: HistorySinkSettings, registry: codec.Registry | None = None
) -> dict[str, TopicSink]:
    """Make a Faust app read the sink's topics. Returns the sinks by topic, for status and tests."""
    rejects = app.topic(topics.REJECTS.name, key_serializer="raw", value_serializer="raw")

    async def reject(record: Reject) -> None:
        value = codec.encode(Reject, record, registry)
        await (await rejects.send(key=record["topic"].encode(), value=value))

    status = StoreStatus(settings.url, SystemdNotifier().notify)
    setup = TableSetup(settings)
    sinks: dict[str, TopicSink] = {}
    receivers: list[SinkReceiver] = []

    async def revoked(_: Any, tps: set[TP], *__: Any, **___: Any) -> None:
        for receiver in receivers:
            receiver.forget(tps)

    app.on_partitions_revoked.connect(revoked, weak=False)
    for topic in rows.TOPICS:
        sink = TopicSink(topic.name, settings, Writer(settings, setup), reject, registry, status)
        receiver = SinkReceiver(sink)
        receivers.append(receiver)
        sinks[topic.name] = sink
        read_batches(app, topic.name, receiver)
        app.task(receiver.run)
    return sinks
