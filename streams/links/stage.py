"""The link health stage: one writer per shard.

Reads `fabric.links`, with routes from a global table, and publishes `LinkHealth` on `fabric.link-health` at
once. Evidence is acknowledged some seconds after its records. A new owner continues from the last record of
each subject and reads that much evidence again; evidence that a record covers is not counted twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import LINK_HEALTH, LINKS
from schemas.unexpected import DATA_ERRORS
from schemas.validation import validate_link_event
from streams.links.health import ShardHealth
from streams.links.subjects import Change
from streams.runtime.assignment import KeyedState, PartitionState
from streams.runtime.context import WorkerContext
from streams.runtime.global_tables import read_last
from streams.runtime.log_time import LogClock, SteadyTime
from streams.runtime.shard_stage import ShardStage
from streams.runtime.units import NS_PER_MS

__all__ = ["LinksStage"]

log = logging.getLogger(__name__)

SETTLE_S: Final = 0.005
"""s between evidence and the next evaluation, so that evidence in quick succession is evaluated together."""
MIN_SETTLE_S: Final = 0.001
IDLE_S: Final = 0.1
RETAIN_NS: Final = 4_000 * NS_PER_MS
"""ns of evidence that a new owner reads again: about as long as a silent NIC is waited for."""

_Partition = PartitionState[KeyedState[ShardHealth]]


class LinksStage(ShardStage[ShardHealth]):
    """Link health of one worker's shards."""

    name = "links"
    topic = LINKS

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._ingested = asyncio.Event()
        self._newest_ns: dict[_Partition, int] = {}
        """Newest steady time of each partition."""
        self._steady: dict[_Partition, SteadyTime] = {}
        self._log_clock: LogClock | None = None
        """The clock of steady time."""

    def start(self) -> None:
        """Evaluate shards when they are due."""
        self.every(
            self._until_due_s,
            self._evaluate_due,
            wake=self._ingested,
            settle_s=lambda: min(SETTLE_S, max(MIN_SETTLE_S, self._until_due_s())),
        )

    async def recover_shards(self) -> Callable[[_Partition, str], ShardHealth]:
        """Read the last record of each subject; return a function that creates a shard's state from them."""
        last = await read_last(self.context.settings.kafka, LINK_HEALTH, self.context.registry)
        past = [record for record, _ in last.values()]

        def create(partition: _Partition, name: str) -> ShardHealth:
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
                record
                if end is None or record["evidence_offset"] < end
                else {**record, "evidence_offset": -1}
                for record in past
            )
            return health

        return create

    def on_revoke(self, partitions: list[_Partition]) -> None:
        """Release the state of revoked partitions."""
        super().on_revoke(partitions)
        self._newest_ns.clear()
        self._steady.clear()
        self._log_clock = None

    async def process(self, partition: _Partition, message: Message) -> None:
        """Ingest evidence and publish the changes of health."""
        received_ns = time.monotonic_ns()
        self.context.log_clock.observe(message.append_ns, received_ns)
        newest_ns = self._steady.setdefault(partition, SteadyTime()).of(message.append_ns, received_ns)
        if self._log_clock is None:
            self._log_clock = LogClock(newest_ns, received_ns)
        self._log_clock.observe(newest_ns, received_ns)
        self._newest_ns[partition] = newest_ns
        async with self.partitions.lock:
            if partition.revoking:
                return
            await self._ingest(partition, message, newest_ns)
            # another message may have arrived meanwhile
            newest_ns = self._newest_ns.get(partition, newest_ns)
            self.retain(partition, message, until=lambda: newest_ns < self._log_ns() - RETAIN_NS)

    async def _ingest(self, partition: _Partition, message: Message, steady_ns: int) -> None:
        if message.value is None:
            return
        try:
            event = message.decoded(LINKS, self.context.registry, validate_link_event)
        except DATA_ERRORS as error:
            await self.partitions.reject(partition, message, error)
            return
        tap = self.context.taps.get(LINKS.name)
        if tap is not None:
            tap(message)
        health = partition.state[event["shard"]]
        self._update(partition, health)
        changes = health.ingest(event, steady_ns, self.context.routes, message.offset)
        await self._publish(partition, changes)
        self._ingested.set()

    def _update(self, partition: _Partition, health: ShardHealth) -> None:
        """Pass the current thresholds and clock models to a shard."""
        clocks = self.context.clocks
        health.thresholds, health.topology = self.context.config.thresholds(), self.context.topology
        steady = self._steady.setdefault(partition, SteadyTime())
        offset_ns = steady.offset_ns(clocks.log_offset_ns, time.monotonic_ns())
        health.log_offset_ns = health.evidence.log_offset_ns = offset_ns
        health.evidence.clock_models = clocks.models()

    async def _publish(self, partition: _Partition, changes: list[Change]) -> None:
        for subject, record in changes:
            newest_ns = self._newest_ns.get(partition, 0)
            if record is not None and record["seq"] and record["evaluated_ns"] >= newest_ns:
                log.info("links: %s", record["text"])
            value = None
            if record is not None:
                value = codec.encode(LINK_HEALTH.record, record, self.context.registry)
            await self.partitions.publish(partition, LINK_HEALTH, subject, value)

    async def _evaluate_due(self) -> None:
        now_ns = self._log_ns()
        for partition in self.partitions:
            due = [health for health in partition.state.values() if health.due_ns <= now_ns]
            if not due or not self.partitions.caught_up(partition):
                continue
            async with self.partitions.lock:
                for health in due:
                    if partition.revoking:
                        break
                    with self.context.survive(self.name, LINK_HEALTH, health.shard):
                        self._update(partition, health)
                        await self._publish(partition, health.evaluate(now_ns))

    def _log_ns(self) -> int:
        clock = self.context.log_clock if self._log_clock is None else self._log_clock
        return clock.now_ns(time.monotonic_ns())

    def _until_due_s(self) -> float:
        """Return s until a shard is due, at most `IDLE_S`."""
        due_ns = [health.due_ns for _, _, health in self.shards()]
        return min(IDLE_S, max(0.0, (min(due_ns) - self._log_ns()) / 1e9)) if due_ns else IDLE_S
