"""The clock stage: solves the clocks of each shard, one writer per shard.

Reads `fabric.clock.fits` and publishes the `ClockOffsets` of each window in order; then the window's fits are
acknowledged. A new owner continues from the last published `ClockOffsets`, the fits just before them and the
unacknowledged fits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import ClockFits, ClockOffsets
from schemas.topics import CLOCK_FITS, CLOCK_OFFSETS, PROBES
from schemas.unexpected import DATA_ERRORS
from schemas.validation import validate_offsets
from streams.clock.solver import ShardClocks, SolveParameters
from streams.clock.validation import validate_fits
from streams.clock.window_barrier import CompleteWindow, WindowBarrier
from streams.runtime.assignment import KeyedState, PartitionState
from streams.runtime.context import WorkerContext
from streams.runtime.global_tables import partition_count, read_tail
from streams.runtime.shard_stage import ShardStage
from streams.runtime.units import NS_PER_MS

__all__ = ["ClockStage"]

log = logging.getLogger(__name__)

CHECK_S: Final = 0.05
"""s between two checks for windows whose grace period has ended."""
TAIL_RECORDS: Final = 200
"""Newest `ClockOffsets` of each partition from which a new owner recovers its shards."""
TAIL_WINDOWS: Final = 8
"""Windows of fits before the last solved one from which a new owner learns the pairs' delay floors."""


@dataclass(slots=True)
class _Shard:
    clocks: ShardClocks
    barrier: WindowBarrier


_Partition = PartitionState[KeyedState[_Shard]]


class ClockStage(ShardStage[_Shard]):
    """The clocks of one worker's shards."""

    name = "solve"
    topic = CLOCK_FITS

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.window_ns = context.settings.window_ms * NS_PER_MS
        self._arrived = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, "solve")

    def start(self) -> None:
        """Solve windows as soon as they are complete."""
        self.every(CHECK_S, self._solve_all, wake=self._arrived)

    async def recover_shards(self) -> Callable[[_Partition, str], _Shard]:
        """Read the newest offsets and fits; return a function that creates a shard's state from them."""
        cluster, registry = self.context.settings.kafka, self.context.registry
        past = await read_tail(
            cluster,
            CLOCK_OFFSETS,
            TAIL_RECORDS,
            registry,
            lambda record, append_ns: validate_offsets(record, append_ns, self.window_ns)[0],
        )
        count = await partition_count(cluster, PROBES.name)
        sources = [f"{PROBES.name}/{number}" for number in range(count)]
        past_fits = await read_tail(
            cluster,
            CLOCK_FITS,
            TAIL_WINDOWS * count,
            registry,
            lambda record, append_ns: validate_fits(record, append_ns, self.window_ns)[0],
        )

        def create(partition: _Partition, name: str) -> _Shard:
            settings = self.context.settings.solve
            clocks = ShardClocks(name, SolveParameters(**settings.model_dump(exclude={"grace_ms"})))
            clocks.recover(past)
            self._learn_floors(clocks, past_fits)
            read = {
                each["source"]: each["first_offset"]
                for record in past
                if record["shard"] == name and record["window"] == clocks.last_window
                for each in record["source_ranges"]
            }
            grace_ns = settings.grace_ms * NS_PER_MS
            return _Shard(clocks, WindowBarrier(sources, grace_ns, clocks.last_window, read))

        return create

    def _learn_floors(self, clocks: ShardClocks, past_fits: Iterable[ClockFits]) -> None:
        """Replay the fits of the windows before the last solved one."""
        windows: dict[int, list[ClockFits]] = {}
        for fits in past_fits:
            if fits["shard"] == clocks.shard and fits["window"] <= clocks.last_window:
                windows.setdefault(fits["window"], []).append(fits)
        clock_of = self.context.inventory.clock_of()
        for window in sorted(windows)[-TAIL_WINDOWS:]:
            clocks.learn_floors(window, self.window_ns, windows[window], clock_of)

    async def process(self, partition: _Partition, message: Message) -> None:
        """Add a message's fits to the barrier of its shard."""
        fits = await self.partitions.read(partition, message, self._decode)
        if fits is None:
            return
        shard = partition.state[fits["shard"]]
        if shard.barrier.add(fits, message.offset, time.monotonic_ns(), message.offset):
            self._arrived.set()
        else:
            log.info("solve: %s of window %d arrived after its solve", fits["source"], fits["window"])
            self.partitions.done(partition, [message.offset])

    def _decode(self, message: Message, value: bytes) -> ClockFits:
        decoded = message.decoded(CLOCK_FITS, self.context.registry)
        fits, left_out = validate_fits(decoded, message.append_ns, self.window_ns)
        if left_out:
            source, window = fits["source"], fits["window"]
            log.warning("solve: %s of window %d: ignored %d implausible elements", source, window, left_out)
        return fits

    async def _solve_all(self) -> None:
        async with self.partitions.lock:
            for partition, _, shard in self.shards():
                for window in shard.barrier.ready(time.monotonic_ns()):
                    if partition.revoking:
                        break
                    with self.context.survive(self.name, CLOCK_OFFSETS, shard.clocks.shard):
                        await self._solve(partition, shard, window)

    async def _solve(self, partition: _Partition, shard: _Shard, window: CompleteWindow) -> None:
        if window.missing:
            log.info("solve: window %d without %s", window.window, ", ".join(window.missing))
        clock_of = self.context.inventory.clock_of()
        errors_ns = self.context.inventory.stamp_errors_ns()

        def solve() -> list[tuple[str, bytes]]:
            records = shard.clocks.solve(
                window.window, self.window_ns, window.fits, clock_of, stamp_error_ns=errors_ns
            )
            solved_ns = time.time_ns()
            return [
                (f"{r['shard']}/{r['part']}", self._encode({**r, "solved_ns": solved_ns})) for r in records
            ]

        try:
            encoded = await asyncio.get_running_loop().run_in_executor(self._pool, solve)
        except DATA_ERRORS:
            self.partitions.done(partition, window.tokens)
            raise
        sent = [await self.partitions.send(partition, CLOCK_OFFSETS, key, value) for key, value in encoded]
        await asyncio.gather(*sent)
        self.partitions.done(partition, window.tokens)

    def _encode(self, offsets: ClockOffsets) -> bytes:
        return codec.encode(CLOCK_OFFSETS.record, offsets, self.context.registry)
