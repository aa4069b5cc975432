"""All uses of private attributes of Faust 0.15.3 and aiokafka 0.14.

Faust decides which partitions this worker owns and commits their positions. Messages bypass Faust's streams,
which cost 0.1 ms and more a message: a `Receiver` gets whole batches of a partition.

Both libraries are pinned, because an update can break this module without a warning. Each workaround names
its upstream issue; "no upstream issue" means that upstream offers no setting and has no report. `watchdog.py`
handles the consumers that stop (#175, #532, #640) without private attributes.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, cast

import faust
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from schemas.kafka.schema_log import arrive
from schemas.kafka.settings import KafkaSettings

log = logging.getLogger(__name__)

NO_READ_AHEAD_S: Final = 0.1
"""Read-ahead delay of a worker that must react fast, s. Fetches then include partitions with messages."""
FETCH_TIMEOUT_S: Final = 1.0
"""Longest time that a fetch waits for messages, s."""
CAPACITY_CHECK_S: Final = 0.01
"""Interval at which receivers without capacity, busy with earlier messages, are checked again, s."""

LAST_TASKS_S: Final = 1.0
"""Longest time for which cancelled tasks are awaited at the end of a worker, s."""


class PromptWorker(faust.Worker):
    """A Faust worker that ends once its tasks have ended; Faust waits another second. No upstream issue."""

    async def _sentinel_task(self) -> None:
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks, timeout=LAST_TASKS_S)


def tune_fetcher(app: Any, read_ahead_s: float, wait_ms: int, min_bytes: int = 1) -> None:
    """Set how a Faust app fetches, once its consumer has started. No upstream issue.

    aiokafka has one pending fetch request per broker, for the partitions without buffered messages. After
    `read_ahead_s` it also fetches while messages of other partitions are still buffered. A shorter delay
    reads ahead sooner, but these early requests omit the buffered partitions. The broker waits up to
    `wait_ms` for `min_bytes`. Faust offers none of the three settings; its values are 100 ms, 1.5 s and 1
    byte.
    """
    fetcher = app.consumer._thread._consumer._fetcher
    fetcher._prefetch_backoff = read_ahead_s
    fetcher._fetch_max_wait_ms = wait_ms
    fetcher._fetch_min_bytes = min_bytes


def set_read_ahead(consumer: AIOKafkaConsumer, read_ahead_s: float) -> None:
    """Set an aiokafka consumer's read-ahead delay, which is fixed at 100 ms. No upstream issue."""
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

    Faust knows the offset only after its own seek, which comes later. No upstream issue. An offset beyond the
    partition's end counts as none: the log was replaced.
    """
    thread = app.consumer._thread
    found = await thread.call_thread(thread._consumer.committed, TopicPartition(tp.topic, tp.partition))
    if not isinstance(found, int) or found < 0 or await _beyond_end(thread, {tp: found}):
        return None
    return found


async def _beyond_end(thread: Any, committed: Mapping[TP, int | None]) -> set[TP]:
    """Return the partitions whose committed offset is beyond their end: the log was replaced."""
    offsets = {tp: offset for tp, offset in committed.items() if offset is not None and offset > 0}
    try:
        ends = await thread.highwaters(*offsets) if offsets else {}
    except KafkaError as error:  # a partition without a leader
        log.warning("ends of partitions are unknown: %s", error)
        return set()
    return {tp for tp, offset in offsets.items() if offset > ends[tp]}


def position(app: Any, tp: TP) -> int | None:
    """Return one past the last offset that aiokafka delivered to Faust; None before the first message.

    The public `position` waits until there is a position. No upstream issue.
    """
    assignment = app.consumer._thread._consumer._subscription.subscription.assignment
    partition = TopicPartition(tp.topic, tp.partition)
    if assignment is None or partition not in assignment.tps:
        return None
    state = assignment.state_value(partition)
    return state.position if state is not None and state.has_valid_position else None


class Receiver(Protocol):
    """Takes the messages of one topic and reports up to which offset they are processed."""

    @property
    def has_capacity(self) -> bool:
        """Whether more messages may be delivered; without capacity, the topic is not read."""

    def receive(self, tp: TP, records: Sequence[ConsumerRecord]) -> bool:
        """Take the next messages of a partition, in order; return False if they must be fetched again."""

    def commit_position(self, tp: TP) -> int | None:
        """Return the offset from which a new owner reads the partition; None to commit nothing."""


def read_batches(app: Any, topic: str, receiver: Receiver | None) -> None:
    """Make a topic part of the app's consumer group, before the app starts.

    The topic's messages go to `receiver`. Without a receiver the partitions are assigned, but never fetched.
    """
    app.topics.add(
        app.topic(topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
    )
    app.transport.receivers[topic] = receiver


def run_consumer_in_loop(app: faust.App, cluster: KafkaSettings) -> None:
    """Make the app's consumer run in the app's own event loop, before the app starts.

    Faust runs the consumer in a thread of its own (no upstream issue). Each fetch then costs three thread
    wake-ups, of milliseconds each on a busy machine. In the loop, group heartbeats are late if anything
    blocks the loop: computations that take a considerable part of the session timeout belong in a thread.
    """
    transport = app.transport = _Transport(app.conf.broker_consumer, app)
    transport.cluster = cluster


class _LoopWorker:
    """Replaces the worker thread of mode, Faust's service library: runs the service as a task."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the service as a task of the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._service._serve(), name="consumer")

    def stop(self) -> None:
        """Do nothing: the caller waits for the service itself, and there is no thread to join."""


class _ConsumerTask(driver.AIOKafkaConsumerThread):
    abstract = False
    Worker: Any = _LoopWorker

    def __init__(self, consumer: Any, *, loop: asyncio.AbstractEventLoop, **kwargs: Any) -> None:
        super().__init__(consumer, loop=loop, thread_loop=loop, **kwargs)

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function directly, because the consumer has no thread of its own."""
        result = fun(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def _gather_remaining_tasks(self) -> None:
        """Do nothing: the loop's other tasks do not belong to this service."""

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Do nothing: the worker's watchdog detects consumers that stop."""


class _Consumer(driver.Consumer):
    """A consumer that delivers whole batches to receivers and commits the positions that receivers report."""

    _generation = 0
    """Number of assignments so far."""

    def _new_consumer_thread(self) -> _ConsumerTask:
        return _ConsumerTask(self, loop=self.loop, beacon=self.beacon)

    @property
    def _own_transport(self) -> _Transport:
        return cast("_Transport", self.transport)

    @property
    def _receivers(self) -> Mapping[str, Receiver | None]:
        return self._own_transport.receivers

    async def _drain_messages(self, fetcher: Any) -> None:
        """Deliver messages until the consumer or its fetcher stops.

        A rebalance stops the flow. Faust then seeks to the committed offsets, but leaves the position of a
        partition without one, so messages that no receiver took are fetched again here.
        """
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set()):
                records, active = await self._wait_next_records(FETCH_TIMEOUT_S)
                values = [record.value for batch in (records or {}).values() for record in batch]
                generation = self._generation
                await arrive(self._own_transport.cluster, values)
                if generation != self._generation:  # Faust has sought the partitions meanwhile
                    continue
                for tp, batch in (records or {}).items():
                    if (
                        not (self.flow_active and self._deliver(tp, batch, active))
                        and tp in self.assignment()
                    ):
                        self._thread.seek(tp, batch[0].offset)
                await asyncio.sleep(0)  # a batch that is there already does not suspend
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.transport.app.should_stop:
                raise

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seek all partitions to their committed offsets, or to the beginning if the log was replaced.

        In a replaced log, Faust would ignore messages below the old committed offset, and commit nothing.
        """
        thread: Any = self._thread
        committed: dict[Any, Any] = dict(await super().seek_to_committed())
        beyond = await _beyond_end(thread, committed)
        begins = await thread.earliest_offsets(*beyond) if beyond else {}
        for tp in beyond:
            log.warning(
                "%s/%d: the committed offset %d is beyond the end of the log, which was replaced: "
                "read from its begin",
                *tp,
                committed[tp],
            )
            thread.seek(tp, begins[tp])
            committed[tp] = None
        return committed

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Handle an assignment of partitions; do not fetch the partitions without a receiver."""
        self._generation += 1
        await super().on_partitions_assigned(assigned, generation_id)
        unread = [tp for tp in assigned if self._receivers.get(tp.topic) is None]
        thread: Any = self._thread
        thread._consumer.pause(*(TopicPartition(tp.topic, tp.partition) for tp in unread))

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Mapping[TP, Any]:
        """Return the next messages of the partitions whose receivers have capacity."""
        capacities = {
            topic: receiver.has_capacity
            for topic, receiver in self._receivers.items()
            if receiver is not None
        }
        readable = {tp for tp in active_partitions or () if capacities.get(tp.topic, False)}
        if not all(capacities.values()):
            timeout = CAPACITY_CHECK_S  # receivers without capacity have it soon again
        if not readable:
            await asyncio.sleep(timeout)
            return {}
        records: Mapping[TP, Any] = await super()._getmany(readable, timeout)
        return records

    def _deliver(self, tp: TP, batch: Sequence[ConsumerRecord], active: set[TP] | None) -> bool:
        """Pass messages to the receiver of their topic, each only once; return whether it takes them."""
        receiver = self._receivers[tp.topic]
        if receiver is None or (active is not None and tp not in active):
            return False
        read_offset = self._read_offset[tp]
        if read_offset is not None and batch[0].offset < read_offset:
            batch = [record for record in batch if record.offset >= read_offset]
        if batch:
            if not receiver.receive(tp, batch):
                return False
            self._read_offset[tp] = batch[-1].offset
        return True

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        """Yield the partitions that may have a new position to commit."""
        for tp in self.assignment():
            if topics is None or tp in topics or tp.topic in topics:
                yield tp

    def _new_offset(self, tp: TP) -> int | None:
        """Return the position to commit. Faust's own method commits past a missing offset (#606)."""
        receiver = self._receivers.get(tp.topic)
        return None if receiver is None else receiver.commit_position(tp)


class _Transport(driver.Transport):
    Consumer: ClassVar[Any] = _Consumer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cluster = KafkaSettings()
        """The cluster whose log holds the schemas of other versions."""
        self.receivers: dict[str, Receiver | None] = {}
