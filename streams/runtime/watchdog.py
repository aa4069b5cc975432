"""Gives up a worker whose consumer stands still: known failures of the stream library end that way.

In: the log's end offsets, read by a consumer of its own, and the stages' positions. Out: the worker's end,
when the log grew and a position did not move for `stall_s`. Time in which the worker waited for a processor
does not count, and what it worked counts little: one that is late with much to do would only be later anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from faust.types import TP

from streams.runtime.assignment import Ownership
from streams.runtime.context import WorkerContext

__all__ = ["CpuTimeClock", "StallWatch", "watch"]

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
REBALANCE_S: Final = 60.0
BUSY_PACE: Final = 1 / 6
"""Of a worker that computes all the while: its partitions wait for each other, and none does so for ever."""
TASKS: Final = Path("/proc/self/task")


class CpuTimeClock:
    """Seconds, of which those in which a thread of this process ran, or waited for a processor, count for
    `BUSY_PACE`; all of them where the kernel does not tell."""

    def __init__(self, tasks: Path = TASKS, now_s: Callable[[], float] = time.monotonic) -> None:
        self._tasks = tasks
        self._now_s = now_s
        self._read_s, self._wanted_s = now_s(), self._wanted()
        self._s = 0.0

    def now_s(self) -> float:
        """Return the time since it was made."""
        now_s, wanted_s = self._now_s(), self._wanted()
        passed_s = now_s - self._read_s
        busy_s = min(max(wanted_s - self._wanted_s, 0.0), passed_s)
        self._s += passed_s - (1 - BUSY_PACE) * busy_s
        self._read_s, self._wanted_s = now_s, wanted_s
        return self._s

    def _wanted(self) -> float:
        """Return the s that all threads have run or waited for a processor: the first two of schedstat."""
        ns = 0
        for file in self._tasks.glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError):  # a thread that has just ended
                ns += sum(int(word) for word in file.read_text(encoding="ascii").split()[:2])
        return ns / 1e9


class StallWatch:
    """The judgement alone: since when does a partition stand still although the log holds more?"""

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self._since: dict[TP, tuple[int, float]] = {}

    def look(self, now_s: float, ends: Mapping[TP, int], positions: Mapping[TP, int]) -> list[TP]:
        """Return the partitions that have stood still for too long."""
        stalled = []
        for tp in list(self._since):
            if tp not in positions:
                del self._since[tp]
        for tp, position in positions.items():
            known = self._since.get(tp)
            if known is None or known[0] != position or ends.get(tp, 0) <= position:
                self._since[tp] = (position, now_s)
            elif now_s - known[1] >= self.stall_s:
                stalled.append(tp)
        return stalled


async def watch(context: WorkerContext, owned: Iterable[Ownership]) -> None:
    """Look once a second; returns after giving the worker up, else only by cancellation."""
    watching = StallWatch(context.settings.stall_s)
    clock = CpuTimeClock()
    rebalancing_since: float | None = None
    consumer = AIOKafkaConsumer(
        bootstrap_servers=context.settings.bootstrap, group_id=None, enable_auto_commit=False
    )
    await consumer.start()
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = clock.now_s()
            if context.app.rebalancing:
                rebalancing_since = rebalancing_since or now_s
                if now_s - rebalancing_since > REBALANCE_S:
                    context.abort(f"a rebalance has not ended for {REBALANCE_S:g} s")
                    return
                watching.look(now_s, {}, {})
                continue
            rebalancing_since = None
            positions: dict[TP, int] = {}
            for each in owned:
                positions |= each.positions
            if not positions:
                continue
            try:
                found = await consumer.end_offsets(
                    [TopicPartition(tp.topic, tp.partition) for tp in positions]
                )
            except KafkaError as error:  # the log is away: standing still is no fault of ours
                log.info("watchdog: end offsets not known: %s", error)
                watching.look(now_s, {}, {})
                continue
            ends = {TP(tp.topic, tp.partition): end for tp, end in found.items()}
            for tp in watching.look(now_s, ends, positions):
                context.abort(
                    f"{tp.topic}/{tp.partition}: position {positions[tp]} stood still for "
                    f"{context.settings.stall_s:g} s while the log reached {ends[tp]}"
                )
                return
    finally:
        await consumer.stop()
