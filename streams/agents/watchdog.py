"""Gives up a worker whose consumer stands still: known failures of the stream library end that way.

In: the log's end offsets, read by a consumer of its own, and the stages' positions. Out: the worker's end,
when the log grew and a position did not move for `stall_s`. Time in which the worker waited for a processor
does not count, and what it worked counts little: one that is late with much to do would only be later anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from faust.types import TP

from streams.agents.room import Room

__all__ = ["StallWatch", "own_s", "watch"]

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
REBALANCE_S: Final = 60.0
BUSY_PACE: Final = 1 / 6
"""Of a worker that computes all the while: its partitions wait for each other, and none does so for ever."""
SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
"""ns that the thread that reads it ran, ns that it waited for a processor, how often it was put on one."""


def own_s(schedstat: Path = SCHEDSTAT) -> float:
    """Return a clock, s, that stands while this thread waits for a processor and goes at the pace `BUSY_PACE`
    while it runs; the plain monotonic one where the kernel does not tell."""
    try:
        ran_ns, waited_ns = (int(word) for word in schedstat.read_text(encoding="ascii").split()[:2])
    except (OSError, ValueError):
        ran_ns = waited_ns = 0
    return time.monotonic() - ((1 - BUSY_PACE) * ran_ns + waited_ns) / 1e9


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


async def watch(room: Room, stages: Iterable[object]) -> None:
    """Look once a second; returns after giving the worker up, else only by cancellation."""
    watching = StallWatch(room.settings.stall_s)
    rebalancing_since: float | None = None
    consumer = AIOKafkaConsumer(
        bootstrap_servers=room.settings.bootstrap, group_id=None, enable_auto_commit=False
    )
    await consumer.start()
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            if room.app.rebalancing:
                rebalancing_since = rebalancing_since or own_s()
                if own_s() - rebalancing_since > REBALANCE_S:
                    room.give_up(f"a rebalance has not ended for {REBALANCE_S:g} s")
                    return
                watching.look(own_s(), {}, {})
                continue
            rebalancing_since = None
            positions: dict[TP, int] = {}
            for stage in stages:
                positions |= getattr(stage, "positions", {})
            if not positions:
                continue
            try:
                found = await consumer.end_offsets(
                    [TopicPartition(tp.topic, tp.partition) for tp in positions]
                )
            except KafkaError as error:  # the log is away: standing still is no fault of ours
                log.info("watchdog: end offsets not known: %s", error)
                watching.look(own_s(), {}, {})
                continue
            ends = {TP(tp.topic, tp.partition): end for tp, end in found.items()}
            for tp in watching.look(own_s(), ends, positions):
                room.give_up(
                    f"{tp.topic}/{tp.partition}: position {positions[tp]} stood still for "
                    f"{room.settings.stall_s:g} s while the log reached {ends[tp]}"
                )
                return
    finally:
        await consumer.stop()
