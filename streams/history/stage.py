"""The history sink: inserts topics into ClickHouse, at least once and without duplicates.

Messages are acknowledged after their block is inserted. While ClickHouse is down, an agent reads no more
messages, so that the lag grows in the log and not in memory. Messages that cannot be decoded go to
fabric.rejects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sdnotify import SystemdNotifier

from schemas import codec, topics
from schemas.messages import decode_message
from schemas.records import Reject, RejectReason
from schemas.unexpected import DATA_ERRORS, refusal
from streams.history import batch, rows
from streams.history.clickhouse import Refused, TableSetup, Unavailable, Writer
from streams.history.settings import HistorySinkSettings
from streams.history.store_status import StoreStatus

LOG: Final = logging.getLogger(__name__)
READER: Final = "sink"

OnReject = Callable[[Reject], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Taken:
    """A message that waits for its insert, and how to acknowledge it."""

    place: batch.Place
    key: bytes
    value: bytes | None
    done: Callable[[], Awaitable[None]]


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
        self._batch: batch.Batch[Taken] = batch.Batch(policy)
        self._order = asyncio.Lock()
        self._wake = asyncio.Event()
        self.inserted_rows = 0
        self.failures = 0

    async def take(self, message: Taken) -> None:
        """Add one message; return late while ClickHouse is down."""
        async with self._order:
            self._batch.add(message, len(message.value or b""), time.monotonic())
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
        taken = self._batch.take()
        if taken:
            try:
                await self._store(taken)
            except BaseException:
                self._batch.put_back(taken, time.monotonic())
                raise
            for message in taken:
                await message.done()

    async def _store(self, taken: Sequence[Taken]) -> None:
        """Insert the rows of `taken`, in halves if one record is unfit. Returns when all rows are stored."""
        try:
            blocks, bad = await asyncio.to_thread(self._blocks_of, taken)
        except DATA_ERRORS as error:
            refused = refusal(error)
            await self._halve(taken, refused.reason, str(refused))
            return
        name = batch.token(self._topic, [message.place for message in taken])
        for table, block in blocks.items():
            try:
                await self._insert(table, block, name)
            except Refused as error:
                await self._halve(taken, "OTHER", str(error))
                return
        for message, why in bad:
            await self._refuse(message, why.reason, str(why))

    async def _halve(self, taken: Sequence[Taken], reason: str, detail: str) -> None:
        if len(taken) == 1:
            await self._refuse(taken[0], reason, detail)
            return
        middle = len(taken) // 2
        await self._store(taken[:middle])
        await self._store(taken[middle:])

    def _blocks_of(
        self, taken: Sequence[Taken]
    ) -> tuple[dict[str, Any], list[tuple[Taken, codec.BadRecord]]]:
        """Return the rows to insert by table, and the messages that cannot be decoded."""
        decoded, bad = self._decode(taken)
        return rows.rows_of(self._topic, decoded), bad

    def _decode(
        self, taken: Sequence[Taken]
    ) -> tuple[list[rows.Message[Any]], list[tuple[Taken, codec.BadRecord]]]:
        decoded: list[rows.Message[Any]] = []
        bad: list[tuple[Taken, codec.BadRecord]] = []
        for message in taken:
            key = message.key.decode("utf-8", "replace")
            try:
                record = None
                if message.value is not None:
                    record = decode_message(
                        topics.TOPICS[self._topic], message.key, message.value, self._registry
                    )
            except DATA_ERRORS as error:
                bad.append((message, refusal(error)))
            else:
                decoded.append(rows.Message(record, key, message.place.append_ns))
        return decoded, bad

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

    async def _refuse(self, message: Taken, reason: str, detail: str) -> None:
        value = message.value or b""
        record: Reject = {
            "topic": self._topic,
            "partition": message.place.partition,
            "offset": message.place.offset,
            "append_ns": message.place.append_ns,
            "reader": READER,
            "reason": RejectReason(reason),
            "detail": detail[:500],
            "key": message.key[:256],
            "size_bytes": len(value),
            "head": value[:1024],
        }
        LOG.warning(
            "%s/%d offset %d refused: %s %s",
            self._topic,
            message.place.partition,
            message.place.offset,
            reason,
            detail,
        )
        if self._topic != topics.REJECTS.name:
            await self._reject(record)
            return
        # A bad Reject is stored as a row at once: if published, it would return to this sink for ever.
        made = rows.rows_of(self._topic, [rows.Message(record, "", message.place.append_ns)])
        for table, block in made.items():
            await self._insert(table, block, batch.token(f"{self._topic}/unreadable", [message.place]))


def register(
    app: Any, settings: HistorySinkSettings, registry: codec.Registry | None = None
) -> dict[str, TopicSink]:
    """Add the sink agents to a Faust app. Returns the sinks by topic, for status and tests."""
    rejects = app.topic(topics.REJECTS.name, key_serializer="raw", value_serializer="raw")

    async def reject(record: Reject) -> None:
        value = codec.encode(Reject, record, registry)
        await (await rejects.send(key=record["topic"].encode(), value=value))

    status = StoreStatus(settings.url, SystemdNotifier().notify)
    setup = TableSetup(settings)
    sinks: dict[str, TopicSink] = {}
    for topic in rows.TOPICS:
        sink = TopicSink(topic.name, settings, Writer(settings, setup), reject, registry, status)
        sinks[topic.name] = sink
        source = app.topic(
            topic.name, key_serializer="raw", value_serializer="raw", key_type=bytes, value_type=bytes
        )
        app.agent(source, name=f"sink.{topic.name}")(_agent(sink))
    return sinks


def _agent(sink: TopicSink) -> Callable[[Any], Awaitable[None]]:
    async def agent(stream: Any) -> None:
        stream = stream.noack()
        timer = asyncio.create_task(sink.flush_when_due())
        try:
            async for event in stream.events():
                if timer.done():
                    timer.result()
                await sink.take(_taken(stream, event))
        finally:
            timer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await timer

    return agent


def _taken(stream: Any, event: Any) -> Taken:
    async def done() -> None:
        await stream.ack(event)

    message = event.message
    append_ns = round((message.timestamp or 0.0) * 1000) * 1_000_000
    place = batch.Place(message.partition, message.offset, append_ns)
    value = message.value
    return Taken(place, message.key or b"", None if value is None else bytes(value), done)
