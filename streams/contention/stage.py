"""Contention stage: publishes `ContentionWindow` records for the shards of one worker.

The stage reads `fabric.queues`, with flows, routes and inventory as global tables. It has one writer per
shard. A message is acknowledged once its records are acknowledged and a new owner would not need the message.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from schemas import codec
from schemas.topics import CONTENTION, QUEUES
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.contention.validation import validate_queues
from streams.runtime.assignment import Assignment, KeyedState, Message, PartitionState
from streams.runtime.context import WorkerContext
from streams.runtime.flow_table import LiveFlows
from streams.runtime.global_tables import read_tail
from streams.runtime.units import NS_PER_MS

__all__ = ["ContentionStage"]

FLOW_LAG_NS: Final = 50 * NS_PER_MS
"""Flows are used as of this long before a message of queues: all reports up to then have been read."""
TAIL_RECORDS: Final = 4000
"""Newest records of each partition in which a new owner searches for its shards' open windows."""
MAX_RETAIN_S: Final = 10.0
"""A message is acknowledged after this time in any case: its shard sends no more."""
SWEEP_S: Final = 1.0
"""Period of acknowledgement for shards without new messages."""


@dataclass(slots=True)
class _Shard:
    detector: ContentionDetector
    flows: LiveFlows
    retained: deque[tuple[int, int, float]] = field(default_factory=deque)
    """(end of its window in ns, offset, time of processing in s) of each unacknowledged message."""


_Part = KeyedState[_Shard]
"""State of one partition."""


class ContentionStage:
    """Contention of one worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions: Assignment[_Part] = Assignment(
            context,
            "contention",
            QUEUES,
            start=self._start,
            recover=self._recover,
            take=self._process,
            on_revoke=self._on_revoke,
        )
        self._hosts: tuple[int, dict[str, int]] = (-1, {})

    def _start(self) -> None:
        self.context.task("contention timer", self._sweep_forever())

    async def _recover(self, taken: list[PartitionState[_Part]]) -> None:
        past = await read_tail(
            self.context.settings.bootstrap, CONTENTION.name, TAIL_RECORDS, self.context.registry
        )
        for partition in taken:
            partition.state = KeyedState(partial(self._new_shard, past))

    def _on_revoke(self, parts: list[PartitionState[_Part]]) -> None:
        for partition in parts:
            for shard in partition.state.values():
                self.context.flows.forget(shard.flows)

    async def _process(self, message: Message[_Part]) -> None:
        queues = await self.partitions.read(message, self._decode)
        if queues is None:
            return
        async with self.partitions.lock:
            if not message.partition.revoking:
                await self._evaluate(message, queues)

    def _decode(self, message: Message[_Part], value: bytes) -> codec.Record:
        return validate_queues(codec.decode(value, QUEUES.record, self.context.registry), message.append_ns)

    def _new_shard(self, past: list[codec.Record], name: str) -> _Shard:
        flows = self.context.flows.of(name)
        members = self.context.inventory.members
        detector = ContentionDetector(
            name, flows, members.__contains__, lambda: self._hosts_of(name), self.context.link_rate_bps
        )
        detector.recover(past)
        return _Shard(detector, flows)

    def _hosts_of(self, shard: str) -> int:
        """Return the number of a shard's hosts in the inventory."""
        inventory = self.context.inventory
        if self._hosts[0] != inventory.version:
            hosts: dict[str, set[str]] = {}
            for member in inventory.members.values():
                hosts.setdefault(member.shard, set()).add(member.host)
            self._hosts = (inventory.version, {name: len(each) for name, each in hosts.items()})
        return self._hosts[1].get(shard, 0)

    async def _evaluate(self, message: Message[_Part], queues: codec.Record) -> None:
        partition, shard = message.partition, message.partition.state[queues["shard"]]
        shard.flows.advance(message.append_ns - FLOW_LAG_NS)
        rules = ContentionRules.of(self.context.config.thresholds())
        sent = []
        for record in shard.detector.ingest(queues, rules):
            value = codec.encode(CONTENTION.record, record, self.context.registry)
            sent.append(await self.partitions.send(partition, CONTENTION, record["link"], value))
        await asyncio.gather(*sent)
        end_ns = queues["window_start_ns"] + queues["slot_ns"] * queues["slots"]
        shard.retained.append((end_ns, message.offset, time.monotonic()))
        self._acknowledge(partition, shard)

    def _acknowledge(self, partition: PartitionState[_Part], shard: _Shard) -> None:
        needed_ns, since_s = shard.detector.needed_from_ns, time.monotonic() - MAX_RETAIN_S
        offsets = []
        while shard.retained and (shard.retained[0][0] <= needed_ns or shard.retained[0][2] < since_s):
            offsets.append(shard.retained.popleft()[1])
        self.partitions.done(partition, offsets)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for partition in self.partitions:
                for shard in partition.state.values():
                    self._acknowledge(partition, shard)
