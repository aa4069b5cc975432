"""Faust's consumer in the worker's own event loop.

In: an app that has not started. Out: the same app without the thread that Faust reads in (0.15.3): each fetch
costs three wakes of threads there, milliseconds each where all processors are full. The heartbeats of the
consumer group go with the loop, so what computes for longer than a part of the session's time-out belongs in
a thread of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import faust
from faust.transport.drivers import aiokafka as driver

__all__ = ["run_consumer_in_loop"]


def run_consumer_in_loop(app: faust.App) -> None:
    """Let an app's consumer run in the loop that the app runs in."""
    app.transport = _Transport(app.conf.broker_consumer, app)


class _InLoop:
    """Stands where mode has a thread: runs the service as a task."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to run it."""
        self._task = asyncio.get_running_loop().create_task(self._service._serve(), name="consumer")

    def stop(self) -> None:
        """Do nothing: who stops the service waits for it, and there is no thread to join."""


class _ConsumerTask(driver.AIOKafkaConsumerThread):
    abstract = False
    Worker: Any = _InLoop

    def __init__(self, consumer: Any, *, loop: asyncio.AbstractEventLoop, **kwargs: Any) -> None:
        super().__init__(consumer, loop=loop, thread_loop=loop, **kwargs)

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it here and now."""
        result = fun(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def _gather_remaining_tasks(self) -> None:
        """Leave other tasks of the loop alone: they are not this service's."""


class _Consumer(driver.Consumer):
    def _new_consumer_thread(self) -> _ConsumerTask:
        return _ConsumerTask(self, loop=self.loop, beacon=self.beacon)


class _Transport(driver.Transport):
    Consumer: ClassVar[Any] = _Consumer
