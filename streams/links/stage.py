"""Link health in Faust: evidence about links in, what is UP, GREY, FLAPPING or DOWN out; one writer a shard.

In: `fabric.links`, and the links of paths as a lookup. Out: `LinkHealth` on `fabric.link-health`, at once. Evidence
is acknowledged when what it led to is, and some seconds later: a new owner goes on from the last record of
each subject and that much evidence, of which it counts nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from schemas import codec
from schemas.topics import LINK_HEALTH, LINKS
from streams.links.health import Change, ShardHealth
from streams.links.validation import validate_link_event
from streams.runtime.acks import pop_before
from streams.runtime.assignment import Assignment, KeyedState, Message, PartitionState
from streams.runtime.context import WorkerContext
from streams.runtime.global_tables import read_last

__all__ = ["LinksStage"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
TICK_S: Final = 0.005
LEAST_TICK_S: Final = 0.001
IDLE_TICK_S: Final = 0.1
KEPT_NS: Final = 4_000 * MS
"""ns of evidence that a new owner reads again: a NIC that fell silent is waited for nearly as long."""


@dataclass(slots=True)
class _Part:
    """What is kept of a partition."""

    shards: KeyedState[ShardHealth]
    kept: deque[tuple[int, int]] = field(default_factory=deque)
    """(append time, offset) of what is worked on and not acknowledged yet."""
    newest_ns: int = 0


class LinksStage:
    """One worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions: Assignment[_Part] = Assignment(
            context, "links", LINKS, start=self._start, recover=self._recover, take=self._take
        )
        self._taken = asyncio.Event()

    def _start(self) -> None:
        self.context.task("links timer", self._tick_forever())
        self.context.task("links acknowledgement", self._acknowledge_forever())

    async def _recover(self, taken: list[PartitionState[_Part]]) -> None:
        last = await read_last(self.context.settings.bootstrap, LINK_HEALTH, self.context.registry)
        past = [record for record, _ in last.values()]
        for partition in taken:
            partition.state = _Part(KeyedState(partial(self._new_shard, partition, past)))

    async def _take(self, message: Message[_Part]) -> None:
        partition, part = message.partition, message.partition.state
        self.context.log_clock.observe(message.append_ns, time.monotonic_ns())
        part.newest_ns = max(part.newest_ns, message.append_ns)
        async with self.partitions.lock:
            if not partition.revoking:
                await self._judge(message)
                part.kept.append((part.newest_ns, message.offset))

    async def _judge(self, message: Message[_Part]) -> None:
        if message.value is None:
            return
        try:
            event = validate_link_event(codec.decode(message.value, LINKS.record, self.context.registry))
            if message.key != event["shard"].encode():
                raise codec.BadRecord("WRONG_KEY", f"key {message.key!r}, expected shard {event['shard']!r}")
        except codec.BadRecord as error:
            await self.partitions.reject(message, error)
            return
        self.context.evidence_tap(message.partition.tp.partition, message.offset, message.append_ns, event)
        health = message.partition.state.shards[event["shard"]]
        self._tell(health)
        changes = health.ingest(event, message.append_ns, self.context.paths, message.offset)
        await self._publish(message.partition, changes)
        self._taken.set()

    def _new_shard(
        self, partition: PartitionState[_Part], past: list[codec.Record], name: str
    ) -> ShardHealth:
        members = self.context.inventory.members
        health = ShardHealth(
            name, self.context.config.thresholds(), f"{partition.tp.topic}/{partition.tp.partition}",
            lambda nic: not members or nic in members,
        )  # fmt: skip
        health.log_offset_ns = self.context.clocks.log_offset_ns
        end = self.context.highwater(partition.tp)
        health.recover(
            record if end is None or record["evidence_offset"] < end else {**record, "evidence_offset": -1}
            for record in past
        )  # what counts evidence that is not there is of a log that was made anew
        return health

    def _tell(self, health: ShardHealth) -> None:
        """Tell a shard what may have changed since."""
        offsets = self.context.clocks
        health.thresholds = self.context.config.thresholds()
        health.log_offset_ns = health.evidence.log_offset_ns = offsets.log_offset_ns
        health.evidence.lines = offsets.models()

    async def _publish(self, partition: PartitionState[_Part], changes: list[Change]) -> None:
        for subject, record in changes:
            if record is not None and record["seq"] and record["evaluated_ns"] >= partition.state.newest_ns:
                log.info("links: %s", record["text"])
            value = None if record is None else codec.encode(LINK_HEALTH.record, record, self.context.registry)
            await self.partitions.publish(partition, LINK_HEALTH, subject, value)

    async def _tick_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._taken.wait(), self._left_s())
            self._taken.clear()
            await asyncio.sleep(min(TICK_S, max(LEAST_TICK_S, self._left_s())))
            now_ns = self.context.log_clock.now_ns(time.monotonic_ns())
            for partition in self.partitions:
                due = [health for health in partition.state.shards.values() if health.due_ns <= now_ns]
                if not due or not self.partitions.caught_up(partition):
                    continue
                async with self.partitions.lock:
                    for health in due:
                        if not partition.revoking:
                            self._tell(health)
                            await self._publish(partition, health.evaluate(now_ns))

    def _left_s(self) -> float:
        """Return s until a shard wants to judge again, as far as it knows by now."""
        due_ns = [
            health.due_ns for partition in self.partitions for health in partition.state.shards.values()
        ]
        now_ns = self.context.log_clock.now_ns(time.monotonic_ns())
        return min(IDLE_TICK_S, max(0.0, (min(due_ns) - now_ns) / 1e9)) if due_ns else IDLE_TICK_S

    async def _acknowledge_forever(self) -> None:
        while True:
            await asyncio.sleep(IDLE_TICK_S)
            for partition in self.partitions:
                async with self.partitions.lock:  # what old evidence leads to is being told
                    before_ns = self.context.log_clock.now_ns(time.monotonic_ns()) - KEPT_NS
                    offsets = pop_before(partition.state.kept, before_ns)
                await self.partitions.flush(partition)
                self.partitions.done(partition, offsets)
