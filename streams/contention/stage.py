"""The contention stage in Faust: a shard's queues in, its contention windows out; one writer a shard.

In: `fabric.queues`, with flows, paths and inventory as lookups. Out: `ContentionWindow`s; a message of queues
is acknowledged once what it made is, and once a new owner would not need it to be where this one is.
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
from streams.contention.windows import ContentionRules, ContentionWatch, sound_queues
from streams.runtime.assignment import Assignment, KeyedState, Message, PartitionState
from streams.runtime.context import WorkerContext
from streams.runtime.flow_table import LiveFlows
from streams.runtime.global_tables import read_tail

__all__ = ["ContentionStage"]

MS: Final = 1_000_000
FLOW_LAG_NS: Final = 50 * MS
"""Flows are taken as of so long before a message of queues: what came until then has been read."""
TAIL_RECORDS: Final = 4000
"""Newest windows of each partition in which a new owner looks for its shards' open ones."""
HOLD_S: Final = 10.0
"""s after which a message is let go whatever its shard would like to keep: the shard fell silent."""
SWEEP_S: Final = 1.0


@dataclass(slots=True)
class _Shard:
    watch: ContentionWatch
    flows: LiveFlows
    kept: deque[tuple[int, int, float]] = field(default_factory=deque)
    """(end of its window in ns, offset, when it was taken) of each message not acknowledged yet."""


_Part = KeyedState[_Shard]
"""What is kept of a partition."""


class ContentionStage:
    """One worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions: Assignment[_Part] = Assignment(
            context, "contention", QUEUES,
            start=self._start, recover=self._recover, take=self._take, on_revoke=self._on_revoke,
        )  # fmt: skip
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

    async def _take(self, message: Message[_Part]) -> None:
        queues = await self.partitions.read(message, self._decode)
        if queues is None:
            return
        async with self.partitions.lock:
            if not message.partition.revoking:
                await self._judge(message, queues)

    def _decode(self, message: Message[_Part], value: bytes) -> codec.Record:
        return sound_queues(codec.decode(value, QUEUES.record, self.context.registry), message.append_ns)

    def _new_shard(self, past: list[codec.Record], name: str) -> _Shard:
        flows = self.context.flows.of(name)
        members = self.context.inventory.members
        watch = ContentionWatch(
            name, flows, members.__contains__, lambda: self._hosts_of(name), self.context.link_rate_bps
        )
        watch.recover(past)
        return _Shard(watch, flows)

    def _hosts_of(self, shard: str) -> int:
        """Return how many hosts of a shard the inventory knows."""
        inventory = self.context.inventory
        if self._hosts[0] != inventory.version:
            hosts: dict[str, set[str]] = {}
            for member in inventory.members.values():
                hosts.setdefault(member.shard, set()).add(member.host)
            self._hosts = (inventory.version, {name: len(each) for name, each in hosts.items()})
        return self._hosts[1].get(shard, 0)

    async def _judge(self, message: Message[_Part], queues: codec.Record) -> None:
        partition, shard = message.partition, message.partition.state[queues["shard"]]
        shard.flows.advance(message.append_ns - FLOW_LAG_NS)
        rules = ContentionRules.of(self.context.config.thresholds())
        sent = []
        for record in shard.watch.take(queues, rules):
            value = codec.encode(CONTENTION.record, record, self.context.registry)
            sent.append(await self.partitions.send(partition, CONTENTION, record["link"], value))
        await asyncio.gather(*sent)
        end_ns = queues["window_start_ns"] + queues["slot_ns"] * queues["slots"]
        shard.kept.append((end_ns, message.offset, time.monotonic()))
        self._acknowledge(partition, shard)

    def _acknowledge(self, partition: PartitionState[_Part], shard: _Shard) -> None:
        needed_ns, since_s = shard.watch.needed_from_ns, time.monotonic() - HOLD_S
        offsets = []
        while shard.kept and (shard.kept[0][0] <= needed_ns or shard.kept[0][2] < since_s):
            offsets.append(shard.kept.popleft()[1])
        self.partitions.done(partition, offsets)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for partition in self.partitions:
                for shard in partition.state.values():
                    self._acknowledge(partition, shard)
