"""The contention stage in Faust: a shard's queues in, its contention windows out; one writer a shard.

In: `fabric.queues`, with flows, paths and inventory as lookups. Out: `ContentionWindow`s; a message of queues
is acknowledged once what it made is, and once a new owner would not need it to be where this one is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import faust
from faust.types import TP

from schemas import codec
from schemas.topics import CONTENTION, QUEUES
from streams.agents.acks import OrderedAcks
from streams.agents.rejects import send_reject
from streams.agents.room import Room
from streams.flows import LiveFlows
from streams.lookups import read_tail
from streams.solve.contention import ContentionRules, ContentionWatch, sound_queues

__all__ = ["ContentionStage", "register"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
FLOW_LAG_NS: Final = 50 * MS
"""Flows are taken as of so long before a message of queues: what came until then has been read."""
TAIL_RECORDS: Final = 4000
"""Newest windows of each partition in which a new owner looks for its shards' open ones."""
HOLD_S: Final = 10.0
"""s after which a message is let go whatever its shard would like to keep: the shard fell silent."""
SWEEP_S: Final = 1.0
REVOKE_S: Final = 3.0


@dataclass(slots=True)
class _Shard:
    watch: ContentionWatch
    flows: LiveFlows
    held: deque[tuple[int, int, float]] = field(default_factory=deque)
    """(end of its window in ns, offset, when it was taken) of each message not acknowledged yet."""


@dataclass(slots=True)
class _Held:
    """One assigned partition."""

    tp: TP
    next_offset: int | None = None
    acks: OrderedAcks = field(default_factory=OrderedAcks)
    shards: dict[str, _Shard] = field(default_factory=dict)
    dropped: bool = False


class ContentionStage:
    """One worker's shards."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._held: dict[TP, _Held] = {}
        self._past: list[codec.Record] = []
        self._known = asyncio.Event()
        self._working = asyncio.Lock()
        self._hosts: tuple[int, dict[str, int]] = (-1, {})

    @property
    def positions(self) -> dict[TP, int]:
        """One past the last message that was taken of each partition that has one."""
        return {tp: held.next_offset for tp, held in self._held.items() if held.next_offset is not None}

    def start(self) -> None:
        """Begin the timer; call once within the event loop."""
        self.room.task("contention timer", self._sweep_forever())

    def assigned(self, partitions: Iterable[TP]) -> None:
        """Take over partitions; they are read once the shards' past is known."""
        self._known.clear()
        self._held = {tp: _Held(tp) for tp in partitions}
        self.room.task("contention recovery", self._recover(dict(self._held)))

    async def revoked(self) -> None:
        """Let go of all partitions, once what is being published is out."""
        for held in self._held.values():
            held.dropped = True
            for shard in held.shards.values():
                self.room.flows.forget(shard.flows)
        self._held.clear()
        self._known.set()
        try:
            await asyncio.wait_for(self._working.acquire(), REVOKE_S)
            self._working.release()
        except TimeoutError:
            log.warning("contention: windows still being published after %g s of a rebalance", REVOKE_S)

    async def ready(self) -> None:
        """Wait until the past is known."""
        if self._held:
            await self._known.wait()

    async def _recover(self, taken: dict[TP, _Held]) -> None:
        await self.room.views_caught_up()
        if taken:
            self._past = await read_tail(
                self.room.settings.bootstrap, CONTENTION.name, TAIL_RECORDS, self.room.registry
            )
        if all(self._held.get(tp) is held for tp, held in taken.items()):
            for held in taken.values():
                held.next_offset = await self.room.committed(held.tp)
            self._known.set()

    async def take(self, message: Any) -> None:
        """Take one message of `fabric.queues`."""
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
        if value is None:
            self._done(held, [offset])
            return
        append_ns = round(message.timestamp * 1000) * MS
        try:
            queues = sound_queues(codec.decode(value, QUEUES.record, self.room.registry), append_ns)
        except codec.BadRecord as error:
            await (await send_reject(self.room, message, value, "solve", error))
            self._done(held, [offset])
            return
        shard = held.shards.get(queues["shard"])
        if shard is None:
            shard = held.shards[queues["shard"]] = self._new_shard(queues["shard"])
        async with self._working:
            if not held.dropped:
                await self._judge(held, shard, queues, offset, append_ns)

    def _new_shard(self, name: str) -> _Shard:
        flows = self.room.flows.of(name)
        members = self.room.inventory.members
        watch = ContentionWatch(
            name, flows, members.__contains__, lambda: self._hosts_of(name), self.room.link_rate_bps
        )
        watch.recover(self._past)
        return _Shard(watch, flows)

    def _hosts_of(self, shard: str) -> int:
        """Return how many hosts of a shard the inventory knows."""
        inventory = self.room.inventory
        if self._hosts[0] != inventory.version:
            hosts: dict[str, set[str]] = {}
            for member in inventory.members.values():
                hosts.setdefault(member.shard, set()).add(member.host)
            self._hosts = (inventory.version, {name: len(each) for name, each in hosts.items()})
        return self._hosts[1].get(shard, 0)

    async def _judge(
        self, held: _Held, shard: _Shard, queues: codec.Record, offset: int, append_ns: int
    ) -> None:
        shard.flows.advance(append_ns - FLOW_LAG_NS)
        rules = ContentionRules.of(self.room.config.thresholds())
        records = shard.watch.take(queues, rules)
        sent = [
            await self.room.send(CONTENTION.name, record["link"], CONTENTION.record, record)
            for record in records
        ]
        await asyncio.gather(*sent)
        end_ns = queues["window_start_ns"] + queues["slot_ns"] * queues["slots"]
        shard.held.append((end_ns, offset, time.monotonic()))
        self._let_go(held, shard)

    def _let_go(self, held: _Held, shard: _Shard) -> None:
        needed_ns, since_s = shard.watch.needed_from_ns, time.monotonic() - HOLD_S
        done = []
        while shard.held and (shard.held[0][0] <= needed_ns or shard.held[0][2] < since_s):
            done.append(shard.held.popleft()[1])
        if done:
            self._done(held, done)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for held in list(self._held.values()):
                for shard in held.shards.values():
                    self._let_go(held, shard)

    def _done(self, held: _Held, offsets: list[int]) -> None:
        if held.dropped:
            return
        for message in held.acks.done(offsets):
            message.ack(self.room.app.consumer)


def register(app: faust.App, room: Room) -> ContentionStage:
    """Put the contention agent on the app."""
    stage = ContentionStage(room)
    topic = app.topic(
        QUEUES.name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
    )

    async def queues(stream: Any) -> None:
        stage.start()
        async for event in stream.noack().events():
            try:
                message = event.message
                event.value = None
                await stage.take(message)
            except Exception as error:
                room.give_up(f"contention: {type(error).__name__}: {error}", error)
                raise

    app.agent(topic, name="contention")(queues)
    return stage
