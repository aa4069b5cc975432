"""Passes the messages of topics to the sinks that store them, and commits stored positions."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import faust
from aiokafka import ConsumerRecord
from faust.types import TP
from sdnotify import SystemdNotifier

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import Reject
from schemas.topics import REJECTS
from streams.runtime.faust.compat import read_batches
from streams.runtime.faust.faust_app import gather_fetches
from streams.runtime.history_settings import HistorySinkSettings
from streams.runtime.units import NS_PER_MS

__all__ = ["MakeSinks", "Sink", "SinkReceiver", "add_sinks"]

SINK_WAIT_MS: Final = 500
"""ms for which a fetch of the sinks collects messages: they are not urgent."""
RECORD_BYTES: Final = 200
"""Bytes of memory of a waiting message beside its value."""


class Sink(Protocol):
    """Stores the messages of one topic."""

    @property
    def batch_bytes(self) -> int:
        """Bytes that it stores at once."""

    async def take(self, message: Message, done: Callable[[], None]) -> None:
        """Take one message; return late while it cannot store. `done` is called once it is stored."""

    async def flush_when_due(self) -> None:
        """Store the batches that have waited long enough; runs for ever."""


OnReject = Callable[[Reject], Awaitable[None]]
MakeSinks = Callable[[HistorySinkSettings, OnReject, codec.Registry | None], Mapping[str, Sink]]
"""Returns the sinks by topic; they pass on rejects."""


class SinkReceiver:
    """Passes a topic's messages to its sink; the position of a partition follows those that are stored.

    A `Receiver` of the app's consumer, which reads no more of the topic while a batch waits for the sink.
    """

    def __init__(self, sink: Sink) -> None:
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


def add_sinks(
    app: faust.App,
    settings: HistorySinkSettings,
    registry: codec.Registry | None,
    make_sinks: MakeSinks,
    *,
    is_alone: bool,
) -> None:
    """Make an app read the topics of the sinks. `is_alone`: the worker is ready once they are assigned."""
    rejects = app.topic(REJECTS.name, key_serializer="raw", value_serializer="raw")

    async def reject(record: Reject) -> None:
        value = codec.encode(Reject, record, registry)
        await (await rejects.send(key=record["topic"].encode(), value=value))

    receivers: list[SinkReceiver] = []
    for topic, sink in make_sinks(settings, reject, registry).items():
        receiver = SinkReceiver(sink)
        receivers.append(receiver)
        read_batches(app, topic, receiver)
        app.task(receiver.run)

    async def assigned(*_: Any, **__: Any) -> None:
        gather_fetches(app, SINK_WAIT_MS)
        if is_alone:
            SystemdNotifier().notify("READY=1")

    async def revoked(_: Any, tps: set[TP], *__: Any, **___: Any) -> None:
        for receiver in receivers:
            receiver.forget(tps)

    signals: Any = app
    signals.on_partitions_assigned.connect(assigned, weak=False)
    signals.on_partitions_revoked.connect(revoked, weak=False)
