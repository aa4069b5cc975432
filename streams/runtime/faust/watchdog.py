"""Aborts a worker whose consumer has stopped.

Known defects of Faust stop a consumer (faust-streaming/faust#175, #532, #640). The watchdog compares the
log's end offsets, read by its own consumer, with the stages' positions. A partition is stalled if its log
grew and its position has not moved for `stall_s`. Time in which the process gets no CPU does not count, and
time at work counts little: a restart would only make a busy worker later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from faust.types import TP

from schemas.kafka.async_reader import AsyncTopicReader
from streams.runtime.faust.context import WorkerContext
from streams.runtime.faust.ownership import Ownership
from streams.runtime.faust.topic_watch import TopicWatch

log = logging.getLogger(__name__)

CHECK_S: Final = 1.0
REBALANCE_S: Final = 60.0
TOPICS_CHECK_S: Final = 5.0
BUSY_WEIGHT: Final = 1 / 6
"""Weight of time in which the worker computes. Partitions then wait for others, but not for ever."""
BACKLOG_WEIGHT: Final = 1 / 10
"""Weight of time in which the worker processes the backlog of another partition."""
TASKS: Final = Path("/proc/self/task")


class CpuTimeClock:
    """A clock in seconds that runs at `BUSY_WEIGHT` while a thread of this process runs or waits for a CPU.

    It runs at full speed if the kernel does not report scheduling times.
    """

    def __init__(self, tasks: Path = TASKS, now_s: Callable[[], float] = time.monotonic) -> None:
        self._tasks = tasks
        self._now_s = now_s
        self._read_s, self._wanted_s = now_s(), self._wanted()
        self._s = 0.0

    def now_s(self) -> float:
        """Return the seconds that this clock has counted since its construction."""
        now_s, wanted_s = self._now_s(), self._wanted()
        passed_s = now_s - self._read_s
        busy_s = min(max(wanted_s - self._wanted_s, 0.0), passed_s)
        self._s += passed_s - (1 - BUSY_WEIGHT) * busy_s
        self._read_s, self._wanted_s = now_s, wanted_s
        return self._s

    def _wanted(self) -> float:
        """Return for how long all threads ran or waited for a CPU, s: the first two fields of schedstat."""
        ns = 0
        for file in self._tasks.glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError):  # the thread has just ended
                ns += sum(int(field) for field in file.read_text(encoding="ascii").split()[:2])
        return ns / 1e9


class StallWatch:
    """Decides which partitions have stalled. Time counts less while another partition works off a backlog."""

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self._checked_s: float | None = None
        self._since: dict[TP, tuple[int, float]] = {}

    def check(self, now_s: float, ends: Mapping[TP, int], positions: Mapping[TP, int]) -> list[TP]:
        """Return the partitions stalled for `stall_s`. `ends`: end offsets; `positions`: offsets reached."""
        stalled = []
        passed_s = 0.0 if self._checked_s is None else now_s - self._checked_s
        self._checked_s = now_s
        if any(self._works_off(tp, position, ends) for tp, position in positions.items()):
            for tp, (position, since_s) in self._since.items():
                self._since[tp] = (position, since_s + (1 - BACKLOG_WEIGHT) * passed_s)
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

    def _works_off(self, tp: TP, position: int, ends: Mapping[TP, int]) -> bool:
        """Return whether a partition has moved since the last check but has not reached its end."""
        known = self._since.get(tp)
        return known is not None and known[0] < position < ends.get(tp, 0)


async def watch(context: WorkerContext, owned: Iterable[Ownership]) -> None:
    """Check the owned partitions once a second; abort the worker and return if a partition has stalled."""
    owned = list(owned)
    stalls, topics = StallWatch(context.settings.stall_s), TopicWatch()
    clock = CpuTimeClock()
    rebalancing_since_s: float | None = None
    topics_checked_s = clock.now_s()
    async with AsyncTopicReader(context.settings.kafka) as reader:
        while context.failed is None:
            await asyncio.sleep(CHECK_S)
            now_s = clock.now_s()
            if context.app.rebalancing:
                rebalancing_since_s = rebalancing_since_s or now_s
                if now_s - rebalancing_since_s > REBALANCE_S:
                    context.abort(f"a rebalance has not ended for {REBALANCE_S:g} s")
                    return
                stalls.check(now_s, {}, {})
                continue
            rebalancing_since_s = None
            reason = await _stall_reason(context, stalls, topics, now_s, reader, owned)
            if reason is None and now_s - topics_checked_s >= TOPICS_CHECK_S:
                topics_checked_s = now_s
                reason = await _lost_topic_reason(topics, now_s, reader, owned)
                missing = topics.missing
                context.note("topics", f"missing: {', '.join(missing)}" if missing else "")
            if reason is not None:
                context.abort(reason)
                return


async def _lost_topic_reason(
    topics: TopicWatch, now_s: float, reader: AsyncTopicReader, owned: Iterable[Ownership]
) -> str | None:
    generations = {each.topic.name: each.generation for each in owned}
    try:
        counts = await reader.partition_counts(generations)
    except KafkaError as error:  # the broker is down: its topics are not known
        log.info("watchdog: topics are unknown: %s", error)
        return None
    return topics.check_topics(now_s, counts, generations)


async def _stall_reason(
    context: WorkerContext,
    stalls: StallWatch,
    topics: TopicWatch,
    now_s: float,
    reader: AsyncTopicReader,
    owned: Iterable[Ownership],
) -> str | None:
    positions: dict[TP, int] = {}
    reached: dict[TP, int] = {}
    for each in owned:
        positions |= each.positions
        reached |= each.reached
    if not reached:
        return None
    partitions = [TopicPartition(tp.topic, tp.partition) for tp in reached]
    try:
        found = await reader.consumer.end_offsets(partitions)
    except KafkaError as error:  # the broker is down, which is no stall
        log.info("watchdog: end offsets are unknown: %s", error)
        stalls.check(now_s, {}, {})
        return None
    ends = {TP(tp.topic, tp.partition): end for tp, end in found.items()}
    context.end_offsets = ends
    for tp in stalls.check(now_s, ends, positions):
        return (
            f"{tp.topic}/{tp.partition}: position {positions[tp]} has not moved for "
            f"{stalls.stall_s:g} s, while the log has reached {ends[tp]}"
        )
    return topics.check_ends(now_s, ends, reached)
