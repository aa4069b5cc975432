"""Contention stage: publishes `ContentionWindow` records for the shards of one worker.

The stage reads `fabric.queues`, with flows, routes and inventory as global tables. It has one writer per
shard. A message is acknowledged once its records are acknowledged and a new owner would not need the message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import LinkQueues
from schemas.topics import CONTENTION, QUEUES
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.contention.validation import validate_queues
from streams.runtime.assignment import KeyedState, PartitionState
from streams.runtime.context import WorkerContext
from streams.runtime.flow_table import LiveFlows
from streams.runtime.global_tables import read_tail
from streams.runtime.pipeline_constants import FLOW_LAG_NS
from streams.runtime.shard_stage import ShardStage

__all__ = ["ContentionStage"]

TAIL_RECORDS: Final = 4000
"""Newest records of each partition in which a new owner searches for its shards' open windows."""
MAX_RETAIN_S: Final = 10.0
"""A message is acknowledged after this time in any case: its shard sends no more."""


@dataclass(slots=True)
class _Shard:
    detector: ContentionDetector
    flows: LiveFlows


_Partition = PartitionState[KeyedState[_Shard]]


class ContentionStage(ShardStage[_Shard]):
    """Contention of one worker's shards."""

    name = "contention"
    topic = QUEUES

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._hosts: tuple[int, dict[str, int]] = (-1, {})

    async def recover_shards(self) -> Callable[[_Partition, str], _Shard]:
        """Read the newest windows; return a function that creates a shard's state from them."""
        past = await read_tail(self.context.settings.kafka, CONTENTION, TAIL_RECORDS, self.context.registry)

        def create(partition: _Partition, name: str) -> _Shard:
            flows = self.context.flows.of(name)
            members = self.context.inventory.members
            detector = ContentionDetector(
                name, flows, members.__contains__, lambda: self._hosts_of(name), self.context.link_rate_bps
            )
            detector.recover(past)
            return _Shard(detector, flows)

        return create

    def drop(self, state: _Shard) -> None:
        """Stop to update the shard's flows."""
        self.context.flows.forget(state.flows)

    async def process(self, partition: _Partition, message: Message) -> None:
        """Evaluate one message of queues."""
        queues = await self.partitions.read(partition, message, self._decode)
        if queues is None:
            return
        async with self.partitions.lock:
            if not partition.revoking:
                await self._evaluate(partition, message, queues)

    def _decode(self, message: Message, value: bytes) -> LinkQueues:
        queues = message.decoded(QUEUES, self.context.registry)
        return validate_queues(queues, message.append_ns + self.context.clocks.log_offset_ns)

    def _hosts_of(self, shard: str) -> int:
        """Return the number of a shard's hosts in the inventory."""
        inventory = self.context.inventory
        if self._hosts[0] != inventory.version:
            hosts: dict[str, set[str]] = {}
            for member in inventory.members.values():
                hosts.setdefault(member.shard, set()).add(member.host)
            self._hosts = (inventory.version, {name: len(each) for name, each in hosts.items()})
        return self._hosts[1].get(shard, 0)

    async def _evaluate(self, partition: _Partition, message: Message, queues: LinkQueues) -> None:
        shard = partition.state[queues["shard"]]
        shard.flows.advance(message.append_ns - FLOW_LAG_NS)
        rules = ContentionRules.of(self.context.config.thresholds())
        sent = []
        for record in shard.detector.ingest(queues, rules):
            value = codec.encode(CONTENTION.type, record, self.context.registry)
            sent.append(await self.partitions.send(partition, CONTENTION, record["link"], value))
        await asyncio.gather(*sent)
        end_ns = queues["window_start_ns"] + queues["slot_ns"] * queues["slots"]
        expires_s = time.monotonic() + MAX_RETAIN_S
        self.retain(
            partition,
            message,
            until=lambda: end_ns <= shard.detector.needed_from_ns or time.monotonic() > expires_s,
        )
