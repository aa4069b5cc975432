"""The partitions that a stage of this worker owns, from their assignment to their revocation.

`Ownership` follows the assignments of a topic's partitions. `Assignment` also reads them: it passes batches
of messages to the stage once the partition's state is recovered, commits no message before its predecessors,
and sends nothing after another worker may own the partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from aiokafka import ConsumerRecord
from faust.types import TP

from schemas.checks import BadRecord
from schemas.kafka import partition_of
from schemas.kafka.message import Message
from schemas.log_time import append_ns_of
from schemas.topics import Topic
from schemas.unexpected import DATA_ERRORS
from streams.runtime.context import WorkerContext
from streams.runtime.faust_compat import read_batches
from streams.runtime.rejects import send_reject

__all__ = ["Assignment", "Generation", "KeyedState", "Ownership", "PartitionState"]

log = logging.getLogger(__name__)

S = TypeVar("S")
R = TypeVar("R")

REVOKE_S: Final = 3.0
"""s that a revocation waits for running work and unacknowledged records."""


class Generation:
    """The time from an assignment of partitions to its revocation."""

    def __init__(self, tps: Iterable[TP] = ()) -> None:
        self.tps: Final = tuple(tps)
        self.recovered = asyncio.Event()
        """Set when the state is recovered, and at the latest when the generation ends."""
        self.revoking = False
        """No new work starts; results of running work may still be sent."""
        self.revoked = False
        """Another worker may own the partitions: nothing is sent."""
        if not self.tps:
            self.recovered.set()


class Ownership:
    """A topic's partitions that one stage of this worker owns, over all generations."""

    def __init__(
        self,
        context: WorkerContext,
        stage: str,
        topic: Topic,
        serve: Callable[[Generation], Coroutine[Any, Any, None]],
    ) -> None:
        """`serve` runs for each generation with partitions, once the global tables have caught up.

        It sets `Generation.recovered` and is cancelled when the generation ends.
        """
        self.context = context
        self.stage = stage
        self.topic = topic
        self.generation = Generation()
        self.lock = asyncio.Lock()
        """Taken to change or publish state; a revocation waits for it."""
        self._serve = serve
        self._serving: asyncio.Task[None] | None = None

    @property
    def positions(self) -> dict[TP, int]:
        """Partition to one past its last processed offset, for partitions that have one."""
        return {}

    def owns(self, key: str, partitions: int) -> bool:
        """Return whether the key's partition, of so many, is assigned to this worker."""
        number = partition_of(key, partitions)
        return any(tp.partition == number for tp in self.generation.tps)

    def register(self) -> None:
        """Make the app read the partitions, where no other stage does; by default nothing is to be done."""

    def assign(self, partitions: Iterable[TP]) -> None:
        """Start a generation with exactly these partitions."""
        self._end()
        self.generation.revoked = True
        self.generation = Generation(partitions)
        if self.generation.tps:
            self._serving = self.context.task(f"{self.stage} ownership", self._begin(self.generation))

    async def revoke(self) -> None:
        """End the generation, after running work has ended and its records are acknowledged."""
        generation, serving = self.generation, self._end()
        try:
            async with asyncio.timeout(REVOKE_S):
                if serving is not None:
                    await asyncio.wait([serving])
                async with self.lock:
                    await self._flush_all()
        except TimeoutError:
            log.warning("%s: work has not ended after %g s of a rebalance", self.stage, REVOKE_S)
        generation.revoked = True

    async def ready(self) -> None:
        """Wait until the state of the assigned partitions is recovered."""
        await self.generation.recovered.wait()

    async def _begin(self, generation: Generation) -> None:
        await self.context.tables_caught_up()
        await self._serve(generation)

    def _end(self) -> asyncio.Task[None] | None:
        """End the generation if it has not ended; return its cancelled task."""
        self.generation.revoking = True
        self.generation.recovered.set()
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
        return serving

    async def _flush_all(self) -> None:
        """Wait until the log has acknowledged all sent records."""


@dataclass(slots=True, eq=False)
class PartitionState(Generic[S]):
    """One partition during one generation, with the stage's state of it."""

    tp: TP
    generation: Generation
    next_offset: int | None = None
    """One past the last offset that was processed or skipped; None: the group has not committed yet."""
    state: S = field(init=False)
    """Set by the stage's `recover`."""
    queued: int = 0
    """Messages that were received and that the stage has not processed yet."""
    undone: dict[int, None] = field(default_factory=dict)
    """Offsets that were received and are not done, in order."""
    sent: list[asyncio.Future[Any]] = field(default_factory=list)
    """Records of `publish` that `flush` has not waited for yet."""
    retained: deque[tuple[int, Callable[[], bool]]] = field(default_factory=deque)
    """(offset, release condition) of processed messages that are not done yet, see
    `ShardStage.retain`."""

    @property
    def revoking(self) -> bool:
        """Whether the partition is being revoked: no new work starts."""
        return self.generation.revoking

    @property
    def commit_position(self) -> int | None:
        """One past the last message whose predecessors are all done, too."""
        return next(iter(self.undone), self.next_offset)


class KeyedState(dict[str, S]):
    """State by key, made by `make` at the first access."""

    def __init__(self, make: Callable[[str], S]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: str) -> S:
        made = self[key] = self._make(key)
        return made


class Assignment(Ownership, Generic[S]):
    """The partitions that one stage reads, each with the stage's state.

    Iteration yields the partitions whose state is recovered. Delivery is at least once: the next owner reads
    each message that is not `done` again and skips those below the committed offset. It is a `Receiver` of
    the app's consumer, which reads no more while `has_capacity` is false.
    """

    def __init__(
        self,
        context: WorkerContext,
        stage: str,
        topic: Topic,
        *,
        start: Callable[[], None],
        recover: Callable[[list[PartitionState[S]]], Awaitable[None]],
        process: Callable[[PartitionState[S], Sequence[Message]], Awaitable[None]],
        on_revoke: Callable[[list[PartitionState[S]]], None] = lambda partitions: None,
    ) -> None:
        """`start` starts the stage's timers. `recover` sets the state of partitions, given their
        `next_offset`; no message arrives before it returns. `process` receives messages of one partition, in
        order; `begin` and `done` are called for each. `on_revoke` receives the partitions that the stage must
        drop."""
        super().__init__(context, stage, topic, self._recovered)
        self._states: dict[TP, PartitionState[S]] = {}
        self._start, self._recover, self._process, self._on_revoke = start, recover, process, on_revoke
        self._batches: deque[tuple[PartitionState[S], Sequence[ConsumerRecord]]] = deque()
        self._arrived = asyncio.Event()
        self._queued = 0
        self._is_started = False

    def __iter__(self) -> Iterator[PartitionState[S]]:
        if self.generation.revoking or not self.generation.recovered.is_set():
            return iter(())
        return iter(list(self._states.values()))

    @property
    def positions(self) -> dict[TP, int]:
        """Partition to one past its last processed offset, for partitions that have one."""
        return {each.tp: each.next_offset for each in self if each.next_offset is not None}

    def register(self) -> None:
        """Make the app deliver the partitions' messages to this assignment."""
        read_batches(self.context.app, self.topic.name, self)

    def assign(self, partitions: Iterable[TP]) -> None:
        """Start a generation with exactly these partitions; they are read once their state is recovered."""
        super().assign(partitions)
        self._states = {tp: PartitionState(tp, self.generation) for tp in self.generation.tps}
        if not self._is_started:
            self._is_started = True
            self._start()
            self.context.task(self.stage, self._process_batches())

    @property
    def has_capacity(self) -> bool:
        """Whether fewer messages wait than the stage may buffer."""
        return self._queued < self.context.settings.buffer_messages

    def receive(self, tp: TP, records: Sequence[ConsumerRecord]) -> bool:
        """Queue messages of a partition; return whether it is assigned."""
        partition = self._states.get(tp)
        if partition is None:
            return False
        self._batches.append((partition, records))
        partition.queued += len(records)
        self._queued += len(records)
        self._arrived.set()
        return True

    def commit_position(self, tp: TP) -> int | None:
        """Return the offset from which a new owner must read the partition; None: no commit."""
        partition = self._states.get(tp)
        return None if partition is None or partition.revoking else partition.commit_position

    def done(self, partition: PartitionState[S], offsets: Iterable[int]) -> None:
        """Mark messages as processed and their results as published: their position may be committed."""
        for offset in offsets:
            partition.undone.pop(offset, None)

    async def send(
        self, partition: PartitionState[S], topic: Topic, key: str, value: bytes | None
    ) -> Awaitable[Any]:
        """Pass an encoded record to the producer; await the result for the log's acknowledgement.

        Nothing is sent once another worker may own the partition.
        """
        if partition.generation.revoked:
            return _nothing()
        return await self.context.send_bytes(topic.name, key, value)

    async def publish(
        self, partition: PartitionState[S], topic: Topic, key: str, value: bytes | None
    ) -> None:
        """Send a record; `flush` and a revocation wait for its acknowledgement."""
        partition.sent.append(asyncio.ensure_future(await self.send(partition, topic, key, value)))

    async def reject(
        self, partition: PartitionState[S], message: Message, error: Exception, reader: str = "solve"
    ) -> None:
        """Publish the `Reject` of a message that could not be used; see `send_reject` for `error`."""
        sent = await send_reject(self.context, message, reader, error)
        partition.sent.append(asyncio.ensure_future(sent))

    async def flush(self, partition: PartitionState[S]) -> None:
        """Wait until the log has acknowledged all records published so far."""
        await asyncio.gather(*partition.sent)
        partition.sent = [sent for sent in partition.sent if not sent.done()]

    async def read(
        self, partition: PartitionState[S], message: Message, decode: Callable[[Message, bytes], R]
    ) -> R | None:
        """Return the decoded value; None for a tombstone or if `decode` refuses it.

        In both cases the message is done; a bad one after its reject is acknowledged.
        """
        if message.value is not None:
            try:
                return decode(message, message.value)
            except DATA_ERRORS as error:
                await self._reject_for_good(partition, message, error, "solve")
                return None
        self.done(partition, [message.offset])
        return None

    def caught_up(self, partition: PartitionState[S]) -> bool:
        """Return whether the stage has processed all of a partition, as far as the consumer knows."""
        if partition.queued:
            return False
        highwater = self.context.highwater(partition.tp)
        if highwater is None:
            return False
        if partition.next_offset is not None:
            return partition.next_offset >= highwater
        return highwater == 0 or self.context.position(partition.tp) == highwater

    def begin(self, partition: PartitionState[S], message: Message) -> None:
        """Note that the partition is processed up to this message, before the stage changes its state."""
        partition.next_offset = message.offset + 1

    async def _process_batches(self) -> None:
        """Process queued messages, partition by partition."""
        while True:
            while self._batches:
                partition, records = self._batches.popleft()
                await self._process_batch(partition, records)
                partition.queued -= len(records)
                self._queued -= len(records)
                await asyncio.sleep(0)
            self._arrived.clear()
            await self._arrived.wait()

    async def _process_batch(self, partition: PartitionState[S], records: Sequence[ConsumerRecord]) -> None:
        """Wait for the partition's recovery, then process what no earlier owner has finished.

        An unexpected error costs the message that the stage has begun last, and no other.
        """
        await partition.generation.recovered.wait()
        messages = await self._messages(partition, records)
        while messages and not partition.revoking:
            try:
                await self._process(partition, messages)
                return
            except DATA_ERRORS as error:
                position = partition.next_offset
                failed = next((i for i, m in enumerate(messages) if m.offset + 1 == position), 0)
                await self._reject_for_good(partition, messages[failed], error, self.stage)
                messages = messages[failed + 1 :]

    async def _messages(
        self, partition: PartitionState[S], records: Sequence[ConsumerRecord]
    ) -> list[Message]:
        """Return the messages to process, which are undone from now on."""
        position = partition.next_offset
        if partition.revoking:
            return []
        messages = []
        for record in records:
            if position is not None and record.offset < position:
                continue
            partition.undone[record.offset] = None
            place = record.topic, record.partition
            try:
                append_ns = append_ns_of(record.topic, record.timestamp_type, record.timestamp)
            except ValueError as error:
                bad = Message(0, *place, record.offset, record.key, record.value)
                refused = BadRecord("OUT_OF_RANGE", str(error))
                await self._reject_for_good(partition, bad, refused, "solve")
            else:
                messages.append(Message(append_ns, *place, record.offset, record.key, record.value))
        if messages or position is None:
            return messages
        partition.next_offset = max(position, records[-1].offset + 1)
        return messages

    async def _reject_for_good(
        self, partition: PartitionState[S], message: Message, error: Exception, reader: str
    ) -> None:
        """Reject a message; it is done once the log has its reject."""
        await self.reject(partition, message, error, reader)
        await self.flush(partition)
        self.done(partition, [message.offset])

    async def _recovered(self, generation: Generation) -> None:
        """Recover the partitions; read the committed offsets first, so that the recovered past covers
        them."""
        partitions = list(self._states.values())
        for partition in partitions:
            partition.next_offset = await self.context.committed(partition.tp)
        await self._recover(partitions)
        generation.recovered.set()
        numbers = ", ".join(str(tp.partition) for tp in generation.tps)
        log.info("%s: recovered partitions %s", self.stage, numbers)

    def _end(self) -> asyncio.Task[None] | None:
        active = list(self)
        serving = super()._end()
        if active:
            self._on_revoke(active)
        return serving

    async def _flush_all(self) -> None:
        sent = [each for partition in self._states.values() for each in partition.sent]
        if sent:
            await asyncio.wait(sent)


async def _nothing() -> None:
    """Return at once: the acknowledgement of a record that was not sent."""
