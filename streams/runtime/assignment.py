"""Partitions as a stage holds them: taken over, read on from where they were committed, let go.

In: what Faust assigns and revokes, and its messages. Out: messages that are to be worked on, once the stage
knows their partition's past; acknowledgements in offset order; nothing that is sent after the partitions are
another's. `Ownership` follows partitions of a topic, `Partitions` also reads them.
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
from streams.runtime.context import Room
from streams.runtime.rejects import send_reject

__all__ = ["Held", "Message", "Named", "Ownership", "Partitions", "Tenure"]

log = logging.getLogger(__name__)

S = TypeVar("S")
R = TypeVar("R")

MS: Final = 1_000_000
REVOKE_S: Final = 3.0
"""s that a revocation waits for what is being worked on and sent."""


class Tenure:
    """From an assignment of partitions to its revocation."""

    def __init__(self, tps: Iterable[TP] = ()) -> None:
        self.tps: Final = tuple(tps)
        self.known = asyncio.Event()
        """Set when the past is known, and at the end at the latest."""
        self.over = False
        """Nothing new is begun; what was begun may still be sent."""
        self.gone = False
        """The partitions may be another's: nothing is sent."""
        if not self.tps:
            self.known.set()


class Ownership:
    """A topic's partitions that one stage of this worker owns, from one tenure to the next."""

    def __init__(
        self, room: Room, stage: str, topic: Topic, serve: Callable[[Tenure], Coroutine[Any, Any, None]]
    ) -> None:
        """`serve` runs for each tenure that has partitions, from when the lookups have caught up; it sets
        `known` and is cancelled at the tenure's end."""
        self.room = room
        self.stage = stage
        self.topic = topic
        self.tenure = Tenure()
        self.working = asyncio.Lock()
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
        self.tenure.gone = True
        self.tenure = Tenure(partitions)
        if self.tenure.tps:
            self._serving = self.room.task(f"{self.stage} ownership", self._begin(self.tenure))

    async def revoked(self) -> None:
        """Let go of all partitions, once what is being worked on is done and out."""
        tenure, serving = self.tenure, self._end()
        try:
            async with asyncio.timeout(REVOKE_S):
                if serving is not None:
                    await asyncio.wait([serving])
                async with self.working:
                    await self._sent()
        except TimeoutError:
            log.warning("%s: still at work after %g s of a rebalance", self.stage, REVOKE_S)
        tenure.gone = True

    async def ready(self) -> None:
        """Wait until what was taken over can be worked on."""
        await self.tenure.known.wait()

    async def _begin(self, tenure: Tenure) -> None:
        await self.room.views_caught_up()
        await self._serve(tenure)

    def _end(self) -> asyncio.Task[None] | None:
        """End the tenure, where it has not ended; return what served it, cancelled."""
        self.tenure.over = True
        self.tenure.known.set()
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
        return serving

    async def _sent(self) -> None:
        """Wait for the log to have what was sent."""


@dataclass(slots=True, eq=False)
class Held(Generic[S]):
    """One partition for one tenure, with what its stage keeps of it."""

    tp: TP
    tenure: Tenure
    next_offset: int | None = None
    """One past the last message that was taken or is passed over; None: nothing was committed yet."""
    state: S = field(init=False)
    """Set by the stage's `recover`."""
    acks: OrderedAcks = field(default_factory=OrderedAcks)
    sent: list[asyncio.Future[Any]] = field(default_factory=list)
    """What `tell` sent and `told` has not waited for."""

    @property
    def over(self) -> bool:
        """Whether the partition is let go: nothing new is begun."""
        return self.tenure.over


@dataclass(slots=True)
class Message(Generic[S]):
    """A message to be worked on."""

    held: Held[S]
    offset: int
    append_ns: int
    key: bytes | None
    value: bytes | None
    raw: Any
    """As Faust has it, its value taken off: it stays in memory until it is acknowledged."""


class Named(dict[str, S]):
    """Things by name, each made when it is first asked for."""

    def __init__(self, make: Callable[[str], S]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> S:
        made = self[name] = self._make(name)
        return made


class Partitions(Ownership, Generic[S]):
    """The partitions that one stage reads, each with the state that the stage keeps of it.

    Iterating gives those whose past is known. At least once: a message that is not `done` is read again by
    the next owner, and one below the committed offset is passed over.
    """

    def __init__(
        self,
        room: Room,
        stage: str,
        topic: Topic,
        *,
        start: Callable[[], None],
        recover: Callable[[list[Held[S]]], Awaitable[None]],
        take: Callable[[Message[S]], Awaitable[None]],
        let_go: Callable[[list[Held[S]]], None] = lambda held: None,
    ) -> None:
        """`start` begins the stage's timers. `recover` sets the state of partitions whose `next_offset` is
        known; until then no message comes. `take` works on one message. `let_go` is told which partitions
        are not worked on any more."""
        super().__init__(room, stage, topic, self._recovered)
        self._held: dict[TP, Held[S]] = {}
        self._start, self._recover, self._take, self._let_go = start, recover, take, let_go

    def __iter__(self) -> Iterator[Held[S]]:
        if self.tenure.over or not self.tenure.known.is_set():
            return iter(())
        return iter(list(self._held.values()))

    @property
    def positions(self) -> dict[TP, int]:
        """One past the last message that was taken of each partition that has one."""
        return {held.tp: held.next_offset for held in self if held.next_offset is not None}

    def register(self) -> None:
        """Put an agent that reads the partitions on the app."""
        topic = self.room.app.topic(
            self.topic.name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
        )
        self.room.app.agent(topic, name=self.stage)(self._agent)

    def assigned(self, partitions: Iterable[TP]) -> None:
        """Take over these partitions and no others; they are read once their past is known."""
        super().assigned(partitions)
        self._held = {tp: Held(tp, self.tenure) for tp in self.tenure.tps}

    def done(self, held: Held[S], offsets: Iterable[int]) -> None:
        """Note that messages are worked on and what they led to is out; acknowledge those whose
        predecessors all are, too."""
        if not held.over:
            for message in held.acks.done(offsets):
                message.ack(self.room.app.consumer)

    async def send(self, held: Held[S], topic: Topic, key: str, value: bytes | None) -> Awaitable[Any]:
        """Hand an encoded record to the producer; awaiting the result waits for the log's acknowledgement.
        Once the partition may be another's nothing is sent."""
        return _nothing() if held.tenure.gone else await self.room.send_raw(topic.name, key, value)

    async def tell(self, held: Held[S], topic: Topic, key: str, value: bytes | None) -> None:
        """Send a record for which `told` waits, and a revocation."""
        held.sent.append(asyncio.ensure_future(await self.send(held, topic, key, value)))

    async def refuse(self, message: Message[S], error: Exception, reader: str = "solve") -> None:
        """Tell that a message could not be read: `error` is what `send_reject` takes."""
        reject = await send_reject(self.room, message.raw, message.value, reader, error)
        message.held.sent.append(asyncio.ensure_future(reject))

    async def told(self, held: Held[S]) -> None:
        """Wait until the log has what was told by now."""
        await asyncio.gather(*held.sent)
        held.sent = [sent for sent in held.sent if not sent.done()]

    async def read(self, message: Message[S], decode: Callable[[Message[S], bytes], R]) -> R | None:
        """Return what a message says; None where it says nothing or `decode` raises BadRecord: then it is
        done, once its reject is out."""
        if message.value is not None:
            try:
                return decode(message, message.value)
            except codec.BadRecord as error:
                await self.refuse(message, error)
                await self.told(message.held)
        self.done(message.held, [message.offset])
        return None

    def caught_up(self, held: Held[S]) -> bool:
        """Return whether all that the log holds of a partition was taken, as far as the consumer knows."""
        highwater = self.room.highwater(held.tp)
        if highwater is None:
            return False
        if held.next_offset is not None:
            return held.next_offset >= highwater
        return highwater == 0 or self.room.position(held.tp) == highwater

    async def receive(self, raw: Any) -> Message[S] | None:
        """Return a Faust message that is to be worked on, once its partition's past is known; None where
        the partition was let go or an owner before had done with it."""
        held = self._held.get(raw.tp)
        if held is None:
            return None
        await held.tenure.known.wait()
        if held.over or (held.next_offset is not None and raw.offset < held.next_offset):
            return None
        held.next_offset = raw.offset + 1
        held.acks.read(raw)
        value, raw.value = raw.value, None
        return Message(held, raw.offset, round(raw.timestamp * 1000) * MS, raw.key, value, raw)

    async def _agent(self, stream: Any) -> None:
        self._start()
        async for event in stream.noack().events():
            try:
                raw, event.value = event.message, None
                message = await self.receive(raw)
                if message is not None:
                    await self._take(message)
            except Exception as error:
                self.room.give_up(f"{self.stage}: {type(error).__name__}: {error}", error)
                raise

    async def _recovered(self, tenure: Tenure) -> None:
        """Ask what is committed first: the past that is read then covers it."""
        taken = list(self._held.values())
        for held in taken:
            held.next_offset = await self.room.committed(held.tp)
        await self._recover(taken)
        tenure.known.set()
        log.info("%s: took over %s", self.stage, ", ".join(str(tp.partition) for tp in tenure.tps))

    def _end(self) -> asyncio.Task[None] | None:
        worked_on = list(self)
        serving = super()._end()
        if worked_on:
            self._let_go(worked_on)
        return serving

    async def _sent(self) -> None:
        sent = [each for held in self._held.values() for each in held.sent]
        if sent:
            await asyncio.wait(sent)


async def _nothing() -> None:
    """Stand for an acknowledgement of what was not sent."""
