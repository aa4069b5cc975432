"""What the agents of one worker share: views, the log's clock, sending with acknowledgement, giving up.

In: the Faust app and its settings. Out: `Room`. An error that would lose or double anything ends the worker;
the supervisor starts a new one, which goes on at the committed offsets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import faust
from aiokafka import ConsumerRecord, TopicPartition
from faust.types import TP

from schemas import codec
from streams.lookups import OFFSETS_TAIL, Inventory, Offsets, View
from streams.map.windows import LogClock
from streams.settings import StreamSettings

__all__ = ["Room"]

log = logging.getLogger(__name__)

LAST_WORDS_S: Final = 5.0
READ_AHEAD_S: Final = 0.015
FETCH_WAIT_MS: Final = 100


class Room:
    """One worker's shared state."""

    def __init__(self, app: faust.App, settings: StreamSettings, registry: codec.Registry | None) -> None:
        self.app = app
        self.settings = settings
        self.registry = registry
        self.inventory = Inventory(settings.default_shard)
        self.offsets = Offsets(self.inventory, settings.solve.holdover_s, settings.window_ms * 1_000_000)
        self.log_clock = LogClock(time.time_ns(), time.monotonic_ns())
        self.failed: str | None = None
        self.rejected = 0
        self.reject: Callable[[ConsumerRecord, codec.BadRecord], None] = lambda message, error: None
        self._views: list[View] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: asyncio.Task[Any] | None = None

    def start_views(self) -> None:
        """Begin to fill the lookups; may be called more than once."""
        if self._views:
            return
        for view, tail in ((self.inventory, None), (self.offsets, OFFSETS_TAIL)):
            filling = View(
                view,
                self.settings.bootstrap,
                lambda m, e: self.reject(m, e),
                tail=tail,
                registry=self.registry,
            )
            self._views.append(filling)
            self.task(f"lookup of {view.topic}", filling.run())

    async def views_caught_up(self) -> None:
        """Wait until all lookups reached the end offsets seen at their start."""
        self.start_views()
        for view in self._views:
            await view.caught_up.wait()

    def task(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside the agents; its end by an error ends the worker."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.give_up(f"{task.get_name()}: {type(error).__name__}: {error}", error)

    async def stop(self) -> None:
        """Cancel what runs beside the agents."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def give_up(self, reason: str, error: BaseException | None = None) -> None:
        """End this worker with an error; what it holds is unacknowledged and read again by its successor."""
        if self.failed is not None:
            return
        self.failed = reason
        log.critical("stream worker gives up: %s", reason, exc_info=error)
        loop = asyncio.get_running_loop()
        self._ending = loop.create_task(self.app.stop(), name="stop after failure")
        loop.call_later(LAST_WORDS_S, os._exit, 70)

    async def send(self, topic: str, key: str, name: str, record: codec.Record) -> Awaitable[Any]:
        """Hand a record to the producer; awaiting the result waits for the log's acknowledgement."""
        value = codec.encode(name, record, self.registry)
        return await self.send_raw(topic, key, value)

    async def send_raw(self, topic: str, key: str, value: bytes) -> Awaitable[Any]:
        """Hand an encoded record to the producer."""
        future = await self.app.producer.send(topic, key.encode(), value, None, None, None)
        return self._acknowledged(future)

    async def _acknowledged(self, future: Awaitable[Any]) -> None:
        sent = await future
        if sent.timestamp is not None and sent.timestamp > 0 and sent.timestamp_type == 1:
            self.log_clock.observe(sent.timestamp * 1_000_000, time.monotonic_ns())

    def highwater(self, tp: TP) -> int | None:
        """Return one past the last offset of a partition as far as the consumer knows."""
        consumer = self.app.consumer
        try:
            highwater = consumer.highwater(tp)
        except (AssertionError, KeyError, ValueError):
            return None
        return highwater if isinstance(highwater, int) else None

    def tune_fetches(self) -> None:
        """Let the client library read ahead while messages are being worked on.

        It asks the log again only once everything is consumed, or after 100 ms, and a request may then wait
        1.5 s for partitions that have nothing (aiokafka 0.14, Faust 0.15.3, no setting for either).
        """
        fetcher = self._consumer()._thread._consumer._fetcher
        fetcher._prefetch_backoff = READ_AHEAD_S
        fetcher._fetch_max_wait_ms = FETCH_WAIT_MS

    def _consumer(self) -> Any:
        """Return Faust's consumer with its parts that have no public name (0.15.3)."""
        return self.app.consumer

    async def committed(self, tp: TP) -> int | None:
        """Return the offset where this worker begins to read a partition, None where its group never
        committed."""
        thread = self._consumer()._thread
        found = await thread.call_thread(thread._consumer.committed, TopicPartition(tp.topic, tp.partition))
        return found if isinstance(found, int) and found >= 0 else None

    def position(self, tp: TP) -> int | None:
        """Return one past the last offset that the client library has handed to Faust."""
        consumer = self._consumer()._thread._consumer
        assignment = consumer._subscription.subscription.assignment
        if assignment is None or TopicPartition(tp.topic, tp.partition) not in assignment.tps:
            return None
        state = assignment.state_value(TopicPartition(tp.topic, tp.partition))
        return state.position if state is not None and state.has_valid_position else None
