"""Links stage: publishes the `LinkHealth` records of one worker's shards, at once.

The stage reads `fabric.links`, with routes as a global table. It has one writer per shard. Evidence is
acknowledged some seconds after the records that follow from it. A new owner restores each subject's last
record and reads that much evidence again, which counts nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from schemas import codec
from schemas.topics import LINK_HEALTH, LINKS
from streams.links.health import ShardHealth
from streams.links.subjects import Change
from streams.links.validation import validate_link_event
from streams.runtime.assignment import KeyedState, Message, PartitionState
from streams.runtime.context import WorkerContext
from streams.runtime.global_tables import read_last
from streams.runtime.units import NS_PER_MS

__all__ = ["LinksStage"]

log = logging.getLogger(__name__)

TICK_S: Final = 0.005
"""Longest pause after new evidence, so that events in quick succession share an evaluation."""
MIN_TICK_S: Final = 0.001
IDLE_TICK_S: Final = 0.1
"""Longest time between two checks of what is due."""
RETAIN_NS: Final = 4_000 * NS_PER_MS
"""Evidence that a new owner reads again: a silent NIC needs nearly as long until it is DOWN."""

_Partition = PartitionState[KeyedState[ShardHealth]]

@dataclass(slots=True)
class _Part:
    """State of one partition."""

    shards: KeyedState[ShardHealth]
    retained: deque[tuple[int, int]] = field(default_factory=deque)
    """(append time, offset) of each processed message that is not acknowledged."""
    newest_ns: int = 0


class LinksStage:
    """Link health of one worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions: Assignment[_Part] = Assignment(
            context, "links", LINKS, start=self._start, recover=self._recover, take=self._process
        )
        self._has_new_evidence = asyncio.Event()

    def _start(self) -> None:
        self.context.task("links timer", self._evaluate_forever())
        self.context.task("links acknowledgement", self._acknowledge_forever())

    async def recover_shards(self) -> Callable[[_Partition, str], ShardHealth]:
        """Read the last record of each subject; return a function that creates a shard's state from them."""
        last = await read_last(self.context.settings.bootstrap, LINK_HEALTH, self.context.registry)
        past = [record for record, _ in last.values()]

    def _new_shard(
        self, partition: PartitionState[_Part], past: list[codec.Record], name: str
    ) -> ShardHealth:
        members = self.context.inventory.members
        health = ShardHealth(
            name,
            self.context.config.thresholds(),
            f"{partition.tp.topic}/{partition.tp.partition}",
            lambda nic: not members or nic in members,
        )
        health.log_offset_ns = self.context.clocks.log_offset_ns
        end = self.context.highwater(partition.tp)
        # An offset beyond the end belongs to a log that has been replaced.
        health.recover(
            record if end is None or record["evidence_offset"] < end else {**record, "evidence_offset": -1}
            for record in past
        )
        return health

    async def _process(self, message: Message[_Part]) -> None:
        partition, part = message.partition, message.partition.state
        self.context.log_clock.observe(message.append_ns, time.monotonic_ns())
        newest_ns = max(self._newest_ns.get(partition, 0), message.append_ns)
        self._newest_ns[partition] = newest_ns
        async with self.partitions.lock:
            if not partition.revoking:
                await self._ingest(message)
                part.retained.append((part.newest_ns, message.offset))

    async def _ingest(self, message: Message[_Part]) -> None:
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
        self._update(health)
        changes = health.ingest(event, message.append_ns, self.context.routes, message.offset)
        await self._publish(message.partition, changes)
        self._has_new_evidence.set()

    def _update(self, health: ShardHealth) -> None:
        """Pass the present thresholds and clocks to a shard."""
        clocks = self.context.clocks
        health.thresholds = self.context.config.thresholds()
        health.log_offset_ns = health.evidence.log_offset_ns = clocks.log_offset_ns
        health.evidence.clock_models = clocks.models()

    async def _publish(self, partition: PartitionState[_Part], changes: list[Change]) -> None:
        registry = self.context.registry
        for subject, record in changes:
            newest_ns = self._newest_ns.get(partition, 0)
            if record is not None and record["seq"] and record["evaluated_ns"] >= newest_ns:
                log.info("links: %s", record["text"])
            value = None if record is None else codec.encode(LINK_HEALTH.record, record, registry)
            await self.partitions.publish(partition, LINK_HEALTH, subject, value)

    async def _evaluate_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_new_evidence.wait(), self._until_due_s())
            self._has_new_evidence.clear()
            await asyncio.sleep(min(TICK_S, max(MIN_TICK_S, self._until_due_s())))
            now_ns = self._log_now_ns()
            for partition in self.partitions:
                due = [health for health in partition.state.shards.values() if health.due_ns <= now_ns]
                if due and self.partitions.caught_up(partition):
                    await self._evaluate(partition, due, now_ns)

    async def _evaluate(self, partition: PartitionState[_Part], due: list[ShardHealth], now_ns: int) -> None:
        async with self.partitions.lock:
            for health in due:
                if not partition.revoking:
                    self._update(health)
                    await self._publish(partition, health.evaluate(now_ns))

    def _until_due_s(self) -> float:
        """Return s until a shard is due, `IDLE_TICK_S` at most."""
        shards = [health for partition in self.partitions for health in partition.state.shards.values()]
        if not shards:
            return IDLE_TICK_S
        due_ns = min(health.due_ns for health in shards)
        return min(IDLE_TICK_S, max(0.0, (due_ns - self._log_now_ns()) / 1e9))

    async def _acknowledge_forever(self) -> None:
        while True:
            await asyncio.sleep(IDLE_TICK_S)
            for partition in self.partitions:
                async with self.partitions.lock:  # records from old evidence may be on their way
                    offsets = pop_before(partition.state.retained, self._log_now_ns() - RETAIN_NS)
                await self.partitions.flush(partition)
                self.partitions.done(partition, offsets)

    def _log_now_ns(self) -> int:
        return self.context.log_clock.now_ns(time.monotonic_ns())
