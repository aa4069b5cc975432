"""All uses of private attributes of Faust 0.15.3 and aiokafka 0.14.

Both libraries are pinned, because an update can break this module without a warning. Each workaround names
its upstream issue; "no issue" means that upstream offers no setting and has no report. Defects that need no
private attribute are handled elsewhere: `acks.py` (Faust commits past a missing offset:
faust-streaming/faust#606) and `watchdog.py` (consumers that stop: #175, #532, #640).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Final

import faust
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

__all__ = [
    "NO_READ_AHEAD_S",
    "committed_offset",
    "highwater",
    "position",
    "run_consumer_in_loop",
    "set_read_ahead",
    "tune_fetcher",
]

NO_READ_AHEAD_S: Final = 0.1
"""Read-ahead delay of a worker that must react fast: fetches do not leave out partitions with buffered
messages."""


def tune_fetcher(app: Any, read_ahead_s: float, wait_ms: int, min_bytes: int = 1) -> None:
    """Set how a Faust app fetches, once its consumer has started. No issue.

    aiokafka has one fetch request under way per broker, for the partitions without buffered messages. After
    `read_ahead_s` it also fetches while messages of other partitions are still buffered. A shorter delay
    reads ahead sooner, but those requests leave the buffered partitions out. The broker waits up to `wait_ms`
    for `min_bytes`. Faust offers none of the three settings; its values are 100 ms, 1.5 s and 1 byte.
    """
    fetcher = app.consumer._thread._consumer._fetcher
    fetcher._prefetch_backoff = read_ahead_s
    fetcher._fetch_max_wait_ms = wait_ms
    fetcher._fetch_min_bytes = min_bytes


def set_read_ahead(consumer: AIOKafkaConsumer, read_ahead_s: float) -> None:
    """Set the read-ahead delay of an aiokafka consumer; the library always uses 100 ms. No issue."""
    consumer._fetcher._prefetch_backoff = read_ahead_s


def highwater(app: faust.App, tp: TP) -> int | None:
    """Return the end offset of an assigned partition; None if the consumer does not know it yet."""
    try:
        found = app.consumer.highwater(tp)
    except (AssertionError, KeyError, ValueError):
        return None
    return found if isinstance(found, int) else None


async def committed_offset(app: Any, tp: TP) -> int | None:
    """Return the group's committed offset of a partition; None if the group has never committed one.

    Faust knows it only after its own seek, which comes later. No issue.
    """
    thread = app.consumer._thread
    found = await thread.call_thread(thread._consumer.committed, TopicPartition(tp.topic, tp.partition))
    return found if isinstance(found, int) and found >= 0 else None


def position(app: Any, tp: TP) -> int | None:
    """Return one past the last offset that aiokafka handed to Faust; None if there is none.

    The public `position` waits until there is one. No issue.
    """
    assignment = app.consumer._thread._consumer._subscription.subscription.assignment
    partition = TopicPartition(tp.topic, tp.partition)
    if assignment is None or partition not in assignment.tps:
        return None
    state = assignment.state_value(partition)
    return state.position if state is not None and state.has_valid_position else None


def run_consumer_in_loop(app: faust.App) -> None:
    """Make the app's consumer run in the app's own event loop, before the app starts. No issue.

    Faust runs the consumer in a thread of its own. Each fetch then costs three thread wake-ups, of
    milliseconds each on a busy machine. In the loop, group heartbeats are late if anything blocks the loop:
    computations that take a considerable part of the session timeout belong in a thread.
    """
    app.transport = _Transport(app.conf.broker_consumer, app)


class _LoopWorker:
    """Replaces mode's worker thread: runs the service as a task."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the service."""
        self._task = asyncio.get_running_loop().create_task(self._service._serve(), name="consumer")

    def stop(self) -> None:
        """Do nothing: the caller waits for the service itself, and there is no thread to join."""


class _ConsumerTask(driver.AIOKafkaConsumerThread):
    abstract = False
    Worker: Any = _LoopWorker

    def __init__(self, consumer: Any, *, loop: asyncio.AbstractEventLoop, **kwargs: Any) -> None:
        super().__init__(consumer, loop=loop, thread_loop=loop, **kwargs)

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function directly."""
        result = fun(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def _gather_remaining_tasks(self) -> None:
        """Do nothing: the loop's other tasks do not belong to this service."""


class _Consumer(driver.Consumer):
    def _new_consumer_thread(self) -> _ConsumerTask:
        return _ConsumerTask(self, loop=self.loop, beacon=self.beacon)


class _Transport(driver.Transport):
    Consumer: ClassVar[Any] = _Consumer
