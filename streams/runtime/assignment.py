"""Partitions as a stage holds them: taken over, read on from where they were committed, let go.

In: what Faust assigns and revokes, and its messages. Out: messages that are to be worked on, once the stage
knows their partition's past; acknowledgements in offset order; nothing that is sent after the partitions are
another's. `Ownership` follows partitions of a topic, `Assignment` also reads them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from faust.types import TP

from schemas import codec
from schemas.topics import Topic
from streams.runtime.acks import OrderedAcks
from streams.runtime.context import WorkerContext
from streams.runtime.rejects import send_reject

__all__ = ["Assignment", "Generation", "KeyedState", "Message", "Ownership", "PartitionState"]

log = logging.getLogger(__name__)

S = TypeVar("S")
R = TypeVar("R")

MS: Final = 1_000_000
REVOKE_S: Final = 3.0
"""s that a revocation waits for what is being worked on and sent."""


class Generation:
    """From an assignment of partitions to its revocation."""

    def __init__(self, tps: Iterable[TP] = ()) -> None:
        self.tps: Final = tuple(tps)
        self.recovered = asyncio.Event()
        """Set when the past is known, and at the end at the latest."""
        self.revoking = False
        """Nothing new is begun; what was begun may still be sent."""
        self.revoked = False
        """The partitions may be another's: nothing is sent."""
        if not self.tps:
            self.recovered.set()


class Ownership:
    """A topic's partitions that one stage of this worker owns, from one tenure to the next."""

    def __init__(
        self,
        context: WorkerContext,
        stage: str,
        topic: Topic,
        serve: Callable[[Generation], Coroutine[Any, Any, None]],
    ) -> None:
        """`serve` runs for each tenure that has partitions, from when the lookups have caught up; it sets
        `recovered` and is cancelled at the tenure's end."""
        self.context = context
        self.stage = stage
        self.topic = topic
        self.generation = Generation()
        self.lock = asyncio.Lock()
        """Held by who changes or tells a state; a revocation waits for it."""
        self._serve = serve
        self._serving: asyncio.Task[None] | None = None

    @property
    def positions(self) -> dict[TP, int]:
        """One past the last message that was taken of each partition that has one."""
        return {}

    def register(self) -> None:
        """Put what reads the partitions on the app, where anything does."""

    def assigned(self, partitions: Iterable[TP]) -> None:
        """Take over these partitions and no others."""
        self._end()
        self.generation.revoked = True
        self.generation = Generation(partitions)
        if self.generation.tps:
            self._serving = self.context.task(f"{self.stage} ownership", self._begin(self.generation))

    async def revoked(self) -> None:
        """Let go of all partitions, once what is being worked on is done and out."""
        generation, serving = self.generation, self._end()
        try:
            async with asyncio.timeout(REVOKE_S):
                if serving is not None:
                    await asyncio.wait([serving])
                async with self.lock:
                    await self._sent()
        except TimeoutError:
            log.warning("%s: still at work after %g s of a rebalance", self.stage, REVOKE_S)
        generation.revoked = True

    async def ready(self) -> None:
        """Wait until what was taken over can be worked on."""
        await self.generation.recovered.wait()

    async def _begin(self, generation: Generation) -> None:
        await self.context.tables_caught_up()
        await self._serve(generation)

    def _end(self) -> asyncio.Task[None] | None:
        """End the tenure, where it has not ended; return what served it, cancelled."""
        self.generation.revoking = True
        self.generation.recovered.set()
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
        return serving

    async def _sent(self) -> None:
        """Wait for the log to have what was sent."""


@dataclass(slots=True, eq=False)
class PartitionState(Generic[S]):
    """One partition for one tenure, with what its stage keeps of it."""

    tp: TP
    generation: Generation
    next_offset: int | None = None
    """One past the last message that was taken or is passed over; None: nothing was committed yet."""
    state: S = field(init=False)
    """Set by the stage's `recover`."""
    acks: OrderedAcks = field(default_factory=OrderedAcks)
    sent: list[asyncio.Future[Any]] = field(default_factory=list)
    """What `publish` sent and `flush` has not waited for."""

    @property
    def revoking(self) -> bool:
        """Whether the partition is let go: nothing new is begun."""
        return self.generation.revoking


@dataclass(slots=True)
class Message(Generic[S]):
    """A message to be worked on."""

    partition: PartitionState[S]
    offset: int
    append_ns: int
    key: bytes | None
    value: bytes | None
    raw: Any
    """As Faust has it, its value taken off: it stays in memory until it is acknowledged."""


class KeyedState(dict[str, S]):
    """Things by name, each made when it is first asked for."""

    def __init__(self, make: Callable[[str], S]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> S:
        made = self[name] = self._make(name)
        return made


class Assignment(Ownership, Generic[S]):
    """The partitions that one stage reads, each with the state that the stage keeps of it.

    Iterating gives those whose past is known. At least once: a message that is not `done` is read again by
    the next owner, and one below the committed offset is passed over.
    """

    def __init__(
        self,
        context: WorkerContext,
        stage: str,
        topic: Topic,
        *,
        start: Callable[[], None],
        recover: Callable[[list[PartitionState[S]]], Awaitable[None]],
        take: Callable[[Message[S]], Awaitable[None]],
        on_revoke: Callable[[list[PartitionState[S]]], None] = lambda partition: None,
    ) -> None:
        """`start` begins the stage's timers. `recover` sets the state of partitions whose `next_offset` is
        known; until then no message comes. `take` works on one message. `on_revoke` is told which partitions
        are not worked on any more."""
        super().__init__(context, stage, topic, self._recovered)
        self._states: dict[TP, PartitionState[S]] = {}
        self._start, self._recover, self._take, self._on_revoke = start, recover, take, on_revoke

    def __iter__(self) -> Iterator[PartitionState[S]]:
        if self.generation.revoking or not self.generation.recovered.is_set():
            return iter(())
        return iter(list(self._states.values()))

    @property
    def positions(self) -> dict[TP, int]:
        """One past the last message that was taken of each partition that has one."""
        return {
            partition.tp: partition.next_offset for partition in self if partition.next_offset is not None
        }

    def register(self) -> None:
        """Put an agent that reads the partitions on the app."""
        topic = self.context.app.topic(
            self.topic.name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
        )
        self.context.app.agent(topic, name=self.stage)(self._agent)

    def assigned(self, partitions: Iterable[TP]) -> None:
        """Take over these partitions and no others; they are read once their past is known."""
        super().assigned(partitions)
        self._states = {tp: PartitionState(tp, self.generation) for tp in self.generation.tps}

    def done(self, partition: PartitionState[S], offsets: Iterable[int]) -> None:
        """Note that messages are worked on and what they led to is out; acknowledge those whose
        predecessors all are, too."""
        if not partition.revoking:
            for message in partition.acks.done(offsets):
                message.ack(self.context.app.consumer)

    async def send(
        self, partition: PartitionState[S], topic: Topic, key: str, value: bytes | None
    ) -> Awaitable[Any]:
        """Hand an encoded record to the producer; awaiting the result waits for the log's acknowledgement.
        Once the partition may be another's nothing is sent."""
        return (
            _nothing()
            if partition.generation.revoked
            else await self.context.send_bytes(topic.name, key, value)
        )

    async def publish(
        self, partition: PartitionState[S], topic: Topic, key: str, value: bytes | None
    ) -> None:
        """Send a record for which `flush` waits, and a revocation."""
        partition.sent.append(asyncio.ensure_future(await self.send(partition, topic, key, value)))

    async def reject(self, message: Message[S], error: Exception, reader: str = "solve") -> None:
        """Tell that a message could not be read: `error` is what `send_reject` takes."""
        reject = await send_reject(self.context, message.raw, message.value, reader, error)
        message.partition.sent.append(asyncio.ensure_future(reject))

    async def flush(self, partition: PartitionState[S]) -> None:
        """Wait until the log has what was told by now."""
        await asyncio.gather(*partition.sent)
        partition.sent = [sent for sent in partition.sent if not sent.done()]

    async def read(self, message: Message[S], decode: Callable[[Message[S], bytes], R]) -> R | None:
        """Return what a message says; None where it says nothing or `decode` raises BadRecord: then it is
        done, once its reject is out."""
        if message.value is not None:
            try:
                return decode(message, message.value)
            except codec.BadRecord as error:
                await self.reject(message, error)
                await self.flush(message.partition)
        self.done(message.partition, [message.offset])
        return None

    def caught_up(self, partition: PartitionState[S]) -> bool:
        """Return whether all that the log holds of a partition was taken, as far as the consumer knows."""
        highwater = self.context.highwater(partition.tp)
        if highwater is None:
            return False
        if partition.next_offset is not None:
            return partition.next_offset >= highwater
        return highwater == 0 or self.context.position(partition.tp) == highwater

    async def receive(self, raw: Any) -> Message[S] | None:
        """Return a Faust message that is to be worked on, once its partition's past is known; None where
        the partition was let go or an owner before had done with it."""
        partition = self._states.get(raw.tp)
        if partition is None:
            return None
        await partition.generation.recovered.wait()
        if partition.revoking or (partition.next_offset is not None and raw.offset < partition.next_offset):
            return None
        partition.next_offset = raw.offset + 1
        partition.acks.read(raw)
        value, raw.value = raw.value, None
        return Message(partition, raw.offset, round(raw.timestamp * 1000) * MS, raw.key, value, raw)

    async def _agent(self, stream: Any) -> None:
        self._start()
        async for event in stream.noack().events():
            try:
                raw, event.value = event.message, None
                message = await self.receive(raw)
                if message is not None:
                    await self._take(message)
            except Exception as error:
                self.context.abort(f"{self.stage}: {type(error).__name__}: {error}", error)
                raise

    async def _recovered(self, generation: Generation) -> None:
        """Ask what is committed first: the past that is read then covers it."""
        taken = list(self._states.values())
        for partition in taken:
            partition.next_offset = await self.context.committed(partition.tp)
        await self._recover(taken)
        generation.recovered.set()
        log.info("%s: took over %s", self.stage, ", ".join(str(tp.partition) for tp in generation.tps))

    def _end(self) -> asyncio.Task[None] | None:
        worked_on = list(self)
        serving = super()._end()
        if worked_on:
            self._on_revoke(worked_on)
        return serving

    async def _sent(self) -> None:
        sent = [each for partition in self._states.values() for each in partition.sent]
        if sent:
            await asyncio.wait(sent)


async def _nothing() -> None:
    """Stand for an acknowledgement of what was not sent."""
