"""Queue inference in Faust: paths' queueing in, the queues of links out; one writer a shard, by partition.

In: `fabric.path-queueing`, the links of paths and what flows report as lookups. Out: `LinkQueues`, many times
a second. A message is acknowledged once the blocks that it had a part in are out; a new owner begins with
what comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import faust
from faust.types import TP

from schemas import codec
from schemas.topics import PATH_QUEUEING, QUEUES
from streams.agents.acks import OrderedAcks
from streams.agents.rejects import send_reject
from streams.agents.room import Room
from streams.flows import LiveFlows
from streams.map.columnar import decode_columnar
from streams.solve.queues import ShardQueues, sound_queueing

__all__ = ["QueuesStage", "register"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
TICK_S: Final = 0.005
"""For the other sources' messages, which come together."""
IDLE_S: Final = 1.0
BEHIND_NS: Final = 2_000 * MS
"""ns behind the log from where messages are passed over: queues of seconds ago help nobody, and a worker that
has too little processor would fall behind for ever."""
REPEAT_S: Final = 10.0
KEPT_NS: Final = 1_000 * MS
"""ns after which a message is acknowledged: its blocks are out, or came to nothing."""
FLOWS_S: Final = 0.5
"""s between two looks at what flows report."""
REVOKE_S: Final = 3.0


@dataclass(slots=True)
class _Held:
    """One assigned partition."""

    tp: TP
    next_offset: int | None = None
    acks: OrderedAcks = field(default_factory=OrderedAcks)
    kept: deque[tuple[int, int]] = field(default_factory=deque)
    shards: dict[str, _Shard] = field(default_factory=dict)
    dropped: bool = False


@dataclass(slots=True)
class _Shard:
    queues: ShardQueues
    flows: LiveFlows
    flows_at_s: float = 0.0


class QueuesStage:
    """One worker's shards."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._held: dict[TP, _Held] = {}
        self._known = asyncio.Event()
        self._came = asyncio.Event()
        self._solving = asyncio.Lock()
        self._pool = ThreadPoolExecutor(1, "queues")
        self.passed_over = 0
        """Messages that came too late to be worth reading."""
        self._told_s = -REPEAT_S

    @property
    def positions(self) -> dict[TP, int]:
        """One past the last message that was taken of each partition that has one."""
        return {tp: held.next_offset for tp, held in self._held.items() if held.next_offset is not None}

    def start(self) -> None:
        """Begin the timer; call once within the event loop."""
        self.room.task("queues timer", self._tick_forever())

    def assigned(self, partitions: Iterable[TP]) -> None:
        """Take over partitions; they are read once the lookups are filled."""
        self._known.clear()
        self._held = {tp: _Held(tp) for tp in partitions}
        self.room.task("queues recovery", self._recover(dict(self._held)))

    async def revoked(self) -> None:
        """Let go of all partitions, once what is being published is out."""
        for held in self._held.values():
            held.dropped = True
            for shard in held.shards.values():
                self.room.flows.forget(shard.flows)
        self._held.clear()
        self._known.set()
        try:
            await asyncio.wait_for(self._solving.acquire(), REVOKE_S)
            self._solving.release()
        except TimeoutError:
            log.warning("queues: a block still being solved after %g s of a rebalance", REVOKE_S)

    async def ready(self) -> None:
        """Wait until the lookups are filled."""
        if self._held:
            await self._known.wait()

    async def _recover(self, taken: dict[TP, _Held]) -> None:
        await self.room.views_caught_up()
        if all(self._held.get(tp) is held for tp, held in taken.items()):
            for held in taken.values():
                held.next_offset = await self.room.committed(held.tp)
            self._known.set()

    async def take(self, message: Any) -> None:
        """Take one message of `fabric.path-queueing`."""
        held = self._held.get(message.tp)
        if held is None:
            return
        await self._known.wait()
        offset, value = message.offset, message.value
        if held.dropped or (held.next_offset is not None and offset < held.next_offset):
            return
        held.next_offset = offset + 1
        message.value = None
        held.acks.read(message)
        held.kept.append((time.monotonic_ns(), offset))
        if value is None:
            return
        append_ns = round(message.timestamp * 1000) * MS
        if self.room.log_clock.now_ns(time.monotonic_ns()) - append_ns > BEHIND_NS:
            self._pass_over()
            return
        try:
            record = sound_queueing(
                decode_columnar(value, PATH_QUEUEING.record, self.room.registry),
                append_ns + self.room.offsets.log_offset_ns,
            )
        except codec.BadRecord as error:
            await (await send_reject(self.room, message, value, "solve", error))
            return
        shard = held.shards.get(record["shard"])
        if shard is None:
            queues = ShardQueues(record["shard"], self.room.link_rate_bps)
            shard = held.shards[record["shard"]] = _Shard(queues, self.room.flows.of(record["shard"]))
        async with self._solving:
            shard.queues.take(record, self.room.paths)
            self._came.set()
            now_s = time.monotonic()
            if now_s - shard.flows_at_s >= FLOWS_S:
                shard.flows_at_s = now_s
                shard.flows.advance(append_ns)
                shard.queues.set_flow_rates(shard.flows.rates_bps())

    def _pass_over(self) -> None:
        self.passed_over += 1
        now_s = time.monotonic()
        if now_s - self._told_s > REPEAT_S:
            self._told_s = now_s
            log.warning("queues: behind the log, %d messages passed over so far", self.passed_over)

    async def _tick_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), IDLE_S)
            await asyncio.sleep(TICK_S)
            self._came.clear()
            for held in list(self._held.values()):
                for shard in list(held.shards.values()):
                    while shard.queues.ready() and not held.dropped:
                        await self._solve(shard.queues)
                self._acknowledge(held)

    async def _solve(self, shard: ShardQueues) -> None:
        loop = asyncio.get_running_loop()

        def work() -> list[tuple[str, bytes]]:
            records = shard.solve(time.time_ns())
            return [
                (record["shard"], codec.encode(QUEUES.record, record, self.room.registry))
                for record in records
            ]

        async with self._solving:
            encoded = await loop.run_in_executor(self._pool, work)
        sent = [await self.room.send_raw(QUEUES.name, key, value) for key, value in encoded]
        await asyncio.gather(*sent)

    def _acknowledge(self, held: _Held) -> None:
        done = []
        before_ns = time.monotonic_ns() - KEPT_NS
        while held.kept and held.kept[0][0] < before_ns:
            done.append(held.kept.popleft()[1])
        if done and not held.dropped:
            for message in held.acks.done(done):
                message.ack(self.room.app.consumer)


def register(app: faust.App, room: Room) -> QueuesStage:
    """Put the queues agent on the app."""
    stage = QueuesStage(room)
    topic = app.topic(
        PATH_QUEUEING.name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
    )

    async def queueing(stream: Any) -> None:
        stage.start()
        async for event in stream.noack().events():
            try:
                message = event.message
                event.value = None
                await stage.take(message)
            except Exception as error:
                room.give_up(f"queues: {type(error).__name__}: {error}", error)
                raise

    app.agent(topic, name="queues")(queueing)
    return stage
