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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from schemas import codec
from schemas.sanity import sound_offsets
from schemas.topics import CLOCK_FITS, CLOCK_OFFSETS, PROBES
from streams.clock.solver import ShardClocks, SolveParameters
from streams.clock.validation import validate_fits
from streams.clock.window_barrier import CompleteWindow, WindowBarrier
from streams.links.probe_schedule_stage import TurnsKeeper
from streams.runtime.assignment import Assignment, KeyedState, Message, PartitionState
from streams.runtime.context import WorkerContext
from streams.runtime.global_tables import partition_count, read_tail

__all__ = ["ClockStage"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
TICK_S: Final = 0.02
TAIL_RECORDS: Final = 200
"""Newest `ClockOffsets` of each partition in which a new owner looks for its shards' state."""
TAIL_WINDOWS: Final = 8
"""Windows of fits before the last solved one from which a new owner learns the pairs' floors."""


@dataclass(slots=True)
class _Shard:
    clocks: ShardClocks
    barrier: WindowBarrier


_Part = KeyedState[_Shard]
"""What is kept of a partition."""


class ClockStage:
    """One worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.window_ns = context.settings.window_ms * MS
        self.partitions: Assignment[_Part] = Assignment(
            context, "solve", CLOCK_FITS, start=self._start, recover=self._recover, take=self._take
        )
        self._turns = TurnsKeeper(context, self._shards)
        self._come = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, "solve")

    def _shards(self) -> list[str]:
        """Return the shards whose clocks are solved here."""
        return [name for partition in self.partitions for name in partition.state]

    def _start(self) -> None:
        self.context.task("solve timer", self._solve_forever())
        self._turns.start()

    async def _recover(self, taken: list[PartitionState[_Part]]) -> None:
        bootstrap, registry = self.context.settings.bootstrap, self.context.registry
        past = await read_tail(
            bootstrap, CLOCK_OFFSETS.name, TAIL_RECORDS, registry,
            lambda record, append_ns: sound_offsets(record, append_ns, self.window_ns)[0],
        )  # fmt: skip
        count = await partition_count(bootstrap, PROBES.name)
        sources = [f"{PROBES.name}/{number}" for number in range(count)]
        past_fits = await read_tail(
            bootstrap, CLOCK_FITS.name, TAIL_WINDOWS * count, registry,
            lambda record, append_ns: validate_fits(record, append_ns, self.window_ns)[0],
        )  # fmt: skip
        for partition in taken:
            partition.state = KeyedState(partial(self._new_shard, past, past_fits, sources))

    async def _take(self, message: Message[_Part]) -> None:
        fits = await self.partitions.read(message, self._decode)
        if fits is None:
            return
        shard = message.partition.state[fits["shard"]]
        if shard.barrier.add(fits, message.offset, time.monotonic_ns(), message.offset):
            self._come.set()
        else:
            log.info("solve: %s of window %d came after its solve", fits["source"], fits["window"])
            self.partitions.done(message.partition, [message.offset])

    def _decode(self, message: Message[_Part], value: bytes) -> codec.Record:
        fits = codec.decode(value, CLOCK_FITS.record, self.context.registry)
        fits, left_out = validate_fits(fits, message.append_ns, self.window_ns)
        if left_out:
            log.warning("solve: %s of window %d: %d elements no clock can have", fits["source"],
                        fits["window"], left_out)  # fmt: skip
        return fits

    def _new_shard(
        self, past: list[codec.Record], past_fits: list[codec.Record], sources: list[str], name: str
    ) -> _Shard:
        settings = self.context.settings.solve
        clocks = ShardClocks(name, SolveParameters(**settings.model_dump(exclude={"grace_ms"})))
        clocks.recover(past)
        self._remember(clocks, past_fits)
        return _Shard(clocks, WindowBarrier(sources, settings.grace_ms * MS, clocks.last_window))

    def _remember(self, clocks: ShardClocks, past_fits: list[codec.Record]) -> None:
        """Show the shard's new owner the fits of the windows before the last solved one."""
        windows: dict[int, list[codec.Record]] = {}
        for fits in past_fits:
            if fits["shard"] == clocks.shard and fits["window"] <= clocks.last_window:
                windows.setdefault(fits["window"], []).append(fits)
        clock_of = self.context.inventory.clock_of()
        for window in sorted(windows)[-TAIL_WINDOWS:]:
            clocks.remember(window, self.window_ns, windows[window], clock_of)

    async def _solve_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._come.wait(), TICK_S)
            self._come.clear()
            async with self.partitions.lock:
                for partition in self.partitions:
                    for shard in list(partition.state.values()):
                        for window in shard.barrier.ready(time.monotonic_ns()):
                            if not partition.revoking:
                                await self._solve(partition, shard, window)

    async def _solve(self, partition: PartitionState[_Part], shard: _Shard, window: CompleteWindow) -> None:
        if window.missing:
            log.info("solve: window %d without %s", window.window, ", ".join(window.missing))
        clock_of, errors_ns = self.context.inventory.clock_of(), self.context.inventory.stamp_errors_ns()

        def work() -> list[tuple[str, bytes]]:
            records = shard.clocks.solve(
                window.window, self.window_ns, window.fits, clock_of, stamp_error_ns=errors_ns
            )
            return [
                (f"{r['shard']}/{r['part']}", codec.encode(CLOCK_OFFSETS.record, r, self.context.registry))
                for r in records
            ]

        encoded = await asyncio.get_running_loop().run_in_executor(self._pool, work)
        sent = [await self.partitions.send(partition, CLOCK_OFFSETS, key, value) for key, value in encoded]
        await asyncio.gather(*sent)
        self.partitions.done(partition, window.tokens)
