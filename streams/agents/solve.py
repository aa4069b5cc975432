"""The solve stage in Faust: a shard's fits in, its clocks out; one writer a shard, by partition.

In: `fabric.clock.fits`. Out: `ClockOffsets` of each window, in order; then the window's fits are
acknowledged. A new owner goes on from the last published `ClockOffsets`, the fits just before it and the
unacknowledged ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import faust
from faust.types import TP

from schemas import codec
from schemas.sanity import sound_offsets
from schemas.topics import CLOCK_FITS, CLOCK_OFFSETS, PROBES
from streams.agents.acks import OrderedAcks
from streams.agents.rejects import send_reject
from streams.agents.room import Room
from streams.agents.turns import TurnsKeeper
from streams.lookups import partition_count, read_tail
from streams.solve.clocks import ShardClocks, SolveParameters
from streams.solve.door import sound
from streams.solve.gate import CompleteWindow, WindowGate

__all__ = ["SolveStage", "register"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
TICK_S: Final = 0.02
TAIL_RECORDS: Final = 200
"""Newest `ClockOffsets` of each partition in which a new owner looks for its shards' state."""
TAIL_WINDOWS: Final = 8
"""Windows of fits before the last solved one from which a new owner learns the pairs' floors."""
REVOKE_S: Final = 3.0


@dataclass(slots=True)
class _Held:
    """One assigned partition of the fits."""

    tp: TP
    next_offset: int | None = None
    acks: OrderedAcks = field(default_factory=OrderedAcks)
    shards: dict[str, _Shard] = field(default_factory=dict)
    dropped: bool = False


@dataclass(slots=True)
class _Shard:
    clocks: ShardClocks
    gate: WindowGate


class SolveStage:
    """One worker's shards."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.window_ns = room.settings.window_ms * MS
        self._held: dict[TP, _Held] = {}
        self._past: list[codec.Record] = []
        self._past_fits: list[codec.Record] = []
        self._sources: list[str] = []
        self._known = asyncio.Event()
        self._solving = asyncio.Lock()
        self._come = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, "solve")

    def shards(self) -> list[str]:
        """Return the shards whose clocks are solved here."""
        return [name for held in self._held.values() for name in held.shards]

    @property
    def positions(self) -> dict[TP, int]:
        """One past the last message that was taken of each partition that has one."""
        return {tp: held.next_offset for tp, held in self._held.items() if held.next_offset is not None}

    def start(self) -> None:
        """Begin the timer; call once within the event loop."""
        self.room.task("solve timer", self._solve_forever())

    def assigned(self, partitions: Iterable[TP]) -> None:
        """Take over partitions; they are read once the shards' past is known."""
        self._known.clear()
        self._held = {tp: _Held(tp) for tp in partitions}
        self.room.task("solve recovery", self._recover(dict(self._held)))

    async def revoked(self) -> None:
        """Let go of all partitions, once the window that is being published is out."""
        for held in self._held.values():
            held.dropped = True
        self._held.clear()
        self._known.set()
        try:
            await asyncio.wait_for(self._solving.acquire(), REVOKE_S)
            self._solving.release()
        except TimeoutError:
            log.warning("solve: a window still being published after %g s of a rebalance", REVOKE_S)

    async def ready(self) -> None:
        """Wait until the past is known."""
        if self._held:
            await self._known.wait()

    async def _recover(self, taken: dict[TP, _Held]) -> None:
        await self.room.views_caught_up()
        if taken:
            settings = self.room.settings
            self._past = await read_tail(
                settings.bootstrap, CLOCK_OFFSETS.name, TAIL_RECORDS, self.room.registry,
                lambda record, append_ns: sound_offsets(record, append_ns, self.window_ns)[0],
            )  # fmt: skip
            count = await partition_count(settings.bootstrap, PROBES.name)
            self._sources = [f"{PROBES.name}/{number}" for number in range(count)]
            self._past_fits = await read_tail(
                settings.bootstrap, CLOCK_FITS.name, TAIL_WINDOWS * count, self.room.registry,
                lambda record, append_ns: sound(record, append_ns, self.window_ns)[0],
            )  # fmt: skip
        if all(self._held.get(tp) is held for tp, held in taken.items()):
            for held in taken.values():
                held.next_offset = await self.room.committed(held.tp)
            self._known.set()
            log.info("solve: took over %s", ", ".join(str(tp.partition) for tp in taken) or "nothing")

    async def take(self, message: Any) -> None:
        """Take one message of `fabric.clock.fits`."""
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
        try:
            fits = codec.decode(value, CLOCK_FITS.record, self.room.registry)
            append_ns = round(message.timestamp * 1000) * MS
            fits, left_out = sound(fits, append_ns, self.window_ns)
            if left_out:
                log.warning("solve: %s of window %d: %d elements no clock can have", fits["source"],
                            fits["window"], left_out)  # fmt: skip
        except codec.BadRecord as error:
            await (await send_reject(self.room, message, value, "solve", error))
            self._done(held, [offset])
            return
        shard = held.shards.get(fits["shard"])
        if shard is None:
            shard = held.shards[fits["shard"]] = self._new_shard(fits["shard"])
        if shard.gate.add(fits, offset, time.monotonic_ns(), offset):
            self._come.set()
        else:
            log.info("solve: %s of window %d came after its solve", fits["source"], fits["window"])
            self._done(held, [offset])

    def _new_shard(self, name: str) -> _Shard:
        settings = self.room.settings.solve
        parameters = SolveParameters(**settings.model_dump(exclude={"grace_ms"}))
        clocks = ShardClocks(name, parameters)
        clocks.recover(self._past)
        self._remember(clocks)
        return _Shard(clocks, WindowGate(self._sources, settings.grace_ms * MS, clocks.last_window))

    def _remember(self, clocks: ShardClocks) -> None:
        """Show the shard's new owner the fits of the windows before the last solved one."""
        windows: dict[int, list[codec.Record]] = {}
        for fits in self._past_fits:
            if fits["shard"] == clocks.shard and fits["window"] <= clocks.last_window:
                windows.setdefault(fits["window"], []).append(fits)
        clock_of = self.room.inventory.clock_of()
        for window in sorted(windows)[-TAIL_WINDOWS:]:
            clocks.remember(window, self.window_ns, windows[window], clock_of)

    async def _solve_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._come.wait(), TICK_S)
            self._come.clear()
            async with self._solving:
                for held in list(self._held.values()):
                    for shard in list(held.shards.values()):
                        for window in shard.gate.ready(time.monotonic_ns()):
                            if not held.dropped:
                                await self._solve(held, shard, window)

    async def _solve(self, held: _Held, shard: _Shard, window: CompleteWindow) -> None:
        if window.missing:
            log.info("solve: window %d without %s", window.window, ", ".join(window.missing))
        clock_of = self.room.inventory.clock_of()

        def work() -> list[tuple[str, bytes]]:
            records = shard.clocks.solve(window.window, self.window_ns, window.fits, clock_of)
            return [
                (f"{r['shard']}/{r['part']}", codec.encode(CLOCK_OFFSETS.record, r, self.room.registry))
                for r in records
            ]

        encoded = await asyncio.get_running_loop().run_in_executor(self._pool, work)
        sent = [await self.room.send_raw(CLOCK_OFFSETS.name, key, value) for key, value in encoded]
        await asyncio.gather(*sent)
        self._done(held, window.tokens)

    def _done(self, held: _Held, offsets: list[int]) -> None:
        if held.dropped:
            return
        for message in held.acks.done(offsets):
            message.ack(self.room.app.consumer)


def register(app: faust.App, room: Room) -> SolveStage:
    """Put the solve agent on the app."""
    stage = SolveStage(room)
    turns = TurnsKeeper(room, stage.shards)
    topic = app.topic(
        CLOCK_FITS.name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
    )

    async def fits(stream: Any) -> None:
        stage.start()
        turns.start()
        async for event in stream.noack().events():
            try:
                message = event.message
                event.value = None
                await stage.take(message)
            except Exception as error:
                room.give_up(f"solve: {type(error).__name__}: {error}", error)
                raise

    app.agent(topic, name="solve")(fits)
    return stage
