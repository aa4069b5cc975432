"""Gives up a worker whose consumer stands still: known failures of the stream library end that way.

In: the log's end offsets, read by a consumer of its own, and the stages' positions. Out: the worker's end,
when the log grew and a position did not move for `stall_s`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from faust.types import TP

from streams.agents.partitions import Ownership
from streams.agents.room import Room

__all__ = ["StallWatch", "watch"]

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
REBALANCE_S: Final = 60.0


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


async def watch(room: Room, owned: Iterable[Ownership]) -> None:
    """Look once a second; returns after giving the worker up, else only by cancellation."""
    watching = StallWatch(room.settings.stall_s)
    loop = asyncio.get_running_loop()
    rebalancing_since: float | None = None
    consumer = AIOKafkaConsumer(
        bootstrap_servers=room.settings.bootstrap, group_id=None, enable_auto_commit=False
    )
    await consumer.start()
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            if room.app.rebalancing:
                rebalancing_since = rebalancing_since or loop.time()
                if loop.time() - rebalancing_since > REBALANCE_S:
                    room.give_up(f"a rebalance has not ended for {REBALANCE_S:g} s")
                    return
                watching.look(loop.time(), {}, {})
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
                watching.look(loop.time(), {}, {})
                continue
            ends = {TP(tp.topic, tp.partition): end for tp, end in found.items()}
            for tp in watching.look(loop.time(), ends, positions):
                room.give_up(
                    f"{tp.topic}/{tp.partition}: position {positions[tp]} stood still for "
                    f"{room.settings.stall_s:g} s while the log reached {ends[tp]}"
                )
                return
    finally:
        await consumer.stop()
