"""Link health in Faust: evidence about links in, what is UP, GREY, FLAPPING or DOWN out; one writer a shard.

In: `fabric.links`, and the links of paths as a lookup. Out: `LinkHealth` on `fabric.flaps`, at once. Evidence
is acknowledged when what it led to is, and some seconds later: a new owner goes on from the last record of
each subject and that much evidence, of which it counts nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import faust
from faust.types import TP

from schemas import codec
from schemas.topics import FLAPS, LINKS
from streams.agents.acks import OrderedAcks
from streams.agents.rejects import send_reject
from streams.agents.room import Room
from streams.lookups import read_last
from streams.solve.evidence import sound_event
from streams.solve.liveness import Change, ShardHealth

__all__ = ["LinksStage", "register"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
TICK_S: Final = 0.005
IDLE_TICK_S: Final = 0.1
KEPT_NS: Final = 4_000 * MS
"""ns of evidence that a new owner reads again: a NIC that fell silent is waited for nearly as long."""
REVOKE_S: Final = 3.0


@dataclass(slots=True)
class _Held:
    """One assigned partition."""

    tp: TP
    next_offset: int | None = None
    acks: OrderedAcks = field(default_factory=OrderedAcks)
    kept: deque[tuple[int, int]] = field(default_factory=deque)
    """(append time, offset) of what is not acknowledged yet."""
    sent: list[Awaitable[Any]] = field(default_factory=list)
    shards: dict[str, ShardHealth] = field(default_factory=dict)
    newest_ns: int = 0
    dropped: bool = False


class LinksStage:
    """One worker's shards."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._held: dict[TP, _Held] = {}
        self._past: list[codec.Record] = []
        self._known = asyncio.Event()
        self._sending = asyncio.Lock()
        self._taken = asyncio.Event()
        self._config_version = -1

    @property
    def positions(self) -> dict[TP, int]:
        """One past the last message that was taken of each partition that has one."""
        return {tp: held.next_offset for tp, held in self._held.items() if held.next_offset is not None}

    def start(self) -> None:
        """Begin the timers; call once within the event loop."""
        self.room.task("links timer", self._tick_forever())
        self.room.task("links acknowledgement", self._acknowledge_forever())

    def assigned(self, partitions: Iterable[TP]) -> None:
        """Take over partitions; they are read once their subjects' past is known."""
        self._known.clear()
        self._held = {tp: _Held(tp) for tp in partitions}
        self.room.task("links recovery", self._recover(dict(self._held)))

    async def revoked(self) -> None:
        """Let go of all partitions, once what is being published is out."""
        for held in self._held.values():
            held.dropped = True
        self._held.clear()
        self._known.set()
        try:
            await asyncio.wait_for(self._sending.acquire(), REVOKE_S)
            self._sending.release()
        except TimeoutError:
            log.warning("links: health still being published after %g s of a rebalance", REVOKE_S)

    async def ready(self) -> None:
        """Wait until the past is known."""
        if self._held:
            await self._known.wait()

    async def _recover(self, taken: dict[TP, _Held]) -> None:
        await self.room.views_caught_up()
        if taken:
            past = await read_last(self.room.settings.bootstrap, FLAPS, self.room.registry)
            self._past = [record for record, _ in past.values()]
        if all(self._held.get(tp) is held for tp, held in taken.items()):
            for held in taken.values():
                held.next_offset = await self.room.committed(held.tp)
            self._known.set()
            log.info("links: took over %s", ", ".join(str(tp.partition) for tp in taken) or "nothing")

    async def take(self, message: Any) -> None:
        """Take one message of `fabric.links`."""
        held = self._held.get(message.tp)
        if held is None:
            return
        await self._known.wait()
        offset, value = message.offset, message.value
        if held.dropped or (held.next_offset is not None and offset < held.next_offset):
            return
        append_ns = round(message.timestamp * 1000) * MS
        self.room.log_clock.observe(append_ns, time.monotonic_ns())
        held.next_offset, held.newest_ns = offset + 1, max(held.newest_ns, append_ns)
        message.value = None
        held.acks.read(message)
        held.kept.append((held.newest_ns, offset))
        if value is None:
            return
        try:
            event = sound_event(codec.decode(value, LINKS.record, self.room.registry))
            if message.key != event["shard"].encode():
                raise codec.BadRecord("WRONG_KEY", f"key {message.key!r}, expected shard {event['shard']!r}")
        except codec.BadRecord as error:
            held.sent.append(await send_reject(self.room, message, value, "solve", error))
            return
        self.room.hear(held.tp.partition, offset, append_ns, event)
        health = held.shards.get(event["shard"])
        if health is None:
            health = held.shards[event["shard"]] = self._new_shard(held, event["shard"])
        self._tell(health)
        async with self._sending:
            await self._publish(held, health.take(event, append_ns, self.room.paths, offset))
        self._taken.set()

    def _new_shard(self, held: _Held, name: str) -> ShardHealth:
        members = self.room.inventory.members
        health = ShardHealth(
            name, self.room.config.thresholds(), f"{held.tp.topic}/{held.tp.partition}",
            lambda nic: not members or nic in members,
        )  # fmt: skip
        health.log_offset_ns = self.room.offsets.log_offset_ns
        end = self.room.highwater(held.tp)
        health.recover(
            record if end is None or record["evidence_offset"] < end else {**record, "evidence_offset": -1}
            for record in self._past
        )  # what counts evidence that is not there is of a log that was made anew
        return health

    def _tell(self, health: ShardHealth) -> None:
        """Tell a shard what may have changed since."""
        offsets = self.room.offsets
        health.thresholds = self.room.config.thresholds()
        health.log_offset_ns = health.evidence.log_offset_ns = offsets.log_offset_ns
        health.evidence.lines = offsets.lines()

    async def _publish(self, held: _Held, changes: list[Change]) -> None:
        for subject, record in changes:
            if record is not None and record["seq"] and record["judged_ns"] >= held.newest_ns:
                log.info("links: %s", record["text"])
            value = None if record is None else codec.encode(FLAPS.record, record, self.room.registry)
            held.sent.append(await self.room.send_raw(FLAPS.name, subject, value))

    async def _tick_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._taken.wait(), self._left_s())
            self._taken.clear()
            await asyncio.sleep(TICK_S)
            now_ns = self.room.log_clock.now_ns(time.monotonic_ns())
            for held in list(self._held.values()):
                due = [health for health in held.shards.values() if health.due_ns <= now_ns]
                if not due or not self._caught_up(held):
                    continue
                async with self._sending:
                    for health in due:
                        if not held.dropped:
                            self._tell(health)
                            await self._publish(held, health.tick(now_ns))

    def _left_s(self) -> float:
        """Return s until a shard wants to judge again, as far as it knows by now."""
        due_ns = [health.due_ns for held in self._held.values() for health in held.shards.values()]
        now_ns = self.room.log_clock.now_ns(time.monotonic_ns())
        return min(IDLE_TICK_S, max(0.0, (min(due_ns) - now_ns) / 1e9)) if due_ns else IDLE_TICK_S

    def _caught_up(self, held: _Held) -> bool:
        highwater = self.room.highwater(held.tp)
        return highwater is not None and held.next_offset is not None and held.next_offset >= highwater

    async def _acknowledge_forever(self) -> None:
        while True:
            await asyncio.sleep(IDLE_TICK_S)
            now_ns = self.room.log_clock.now_ns(time.monotonic_ns())
            for held in list(self._held.values()):
                done = []
                while held.kept and held.kept[0][0] < now_ns - KEPT_NS:
                    done.append(held.kept.popleft()[1])
                sent, held.sent = held.sent, []
                await asyncio.gather(*sent)
                if not held.dropped:
                    for message in held.acks.done(done):
                        message.ack(self.room.app.consumer)


def register(app: faust.App, room: Room) -> LinksStage:
    """Put the links agent on the app."""
    stage = LinksStage(room)
    topic = app.topic(
        LINKS.name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
    )

    async def links(stream: Any) -> None:
        stage.start()
        async for event in stream.noack().events():
            try:
                message = event.message
                event.value = None
                await stage.take(message)
            except Exception as error:
                room.give_up(f"links: {type(error).__name__}: {error}", error)
                raise

    app.agent(topic, name="links")(links)
    return stage
