"""Queue inference in Faust: paths' queueing in, the queues of links out; one writer a shard, by partition.

In: `fabric.path-queueing`, the links of paths and what flows report as lookups. Out: `LinkQueues`, many times
a second. A message is acknowledged once the blocks that it had a part in are out; a new owner begins with
what comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from schemas import codec
from schemas.topics import PATH_QUEUEING, QUEUES
from streams.queues.inference import ShardQueues, validate_queueing
from streams.runtime.acks import pop_before
from streams.runtime.assignment import Assignment, KeyedState, Message, PartitionState
from streams.runtime.columnar import decode_columnar
from streams.runtime.context import WorkerContext
from streams.runtime.flow_table import LiveFlows

__all__ = ["QueuesStage"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
TICK_S: Final = 0.005
"""For the other sources' messages, which come together."""
IDLE_S: Final = 1.0
BEHIND_NS: Final = 2_000 * MS
"""ns behind the log from where messages are passed over: queues of seconds ago help nobody, and a worker that
has too little processor would fall behind for ever."""
REPEAT_S: Final = 10.0
KEPT_NS: Final = 1_000 * MS
"""ns after which a message is acknowledged: its blocks are out, or came to nothing."""
FLOWS_S: Final = 0.5
"""s between two looks at what flows report."""


@dataclass(slots=True)
class _Shard:
    queues: ShardQueues
    flows: LiveFlows
    flows_at_s: float = 0.0


@dataclass(slots=True)
class _Part:
    """What is kept of a partition."""

    shards: KeyedState[_Shard]
    kept: deque[tuple[int, int]] = field(default_factory=deque)
    """(when it was taken in ns, offset) of what is not acknowledged yet."""


class QueuesStage:
    """One worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions: Assignment[_Part] = Assignment(
            context, "queues", PATH_QUEUEING,
            start=self._start, recover=self._recover, take=self._take, on_revoke=self._on_revoke,
        )  # fmt: skip
        self._came = asyncio.Event()
        self._solving = asyncio.Lock()
        """Held by who changes a shard, not while its blocks are sent: messages need not wait for that."""
        self._pool = ThreadPoolExecutor(1, "queues")
        self.passed_over = 0
        """Messages that came too late to be worth reading."""
        self._told_s = -REPEAT_S

    def _start(self) -> None:
        self.context.task("queues timer", self._tick_forever())

    async def _recover(self, taken: list[PartitionState[_Part]]) -> None:
        for partition in taken:
            partition.state = _Part(KeyedState(self._new_shard))

    def _on_revoke(self, parts: list[PartitionState[_Part]]) -> None:
        for partition in parts:
            for shard in partition.state.shards.values():
                self.context.flows.forget(shard.flows)

    def _new_shard(self, name: str) -> _Shard:
        return _Shard(ShardQueues(name, self.context.link_rate_bps), self.context.flows.of(name))

    async def _take(self, message: Message[_Part]) -> None:
        partition, taken_ns = message.partition, time.monotonic_ns()
        if self.context.log_clock.now_ns(taken_ns) - message.append_ns > BEHIND_NS:
            self._pass_over()
            self.partitions.done(partition, [message.offset])
            return
        record = await self.partitions.read(message, self._decode)
        if record is None:
            return
        async with self._solving:
            if partition.revoking:
                return
            shard = partition.state.shards[record["shard"]]
            shard.queues.take(record, self.context.routes)
            partition.state.kept.append((taken_ns, message.offset))
            self._came.set()
            now_s = time.monotonic()
            if now_s - shard.flows_at_s >= FLOWS_S:
                shard.flows_at_s = now_s
                shard.flows.advance(message.append_ns)
                shard.queues.set_flow_rates(shard.flows.rates_bps())

    def _decode(self, message: Message[_Part], value: bytes) -> codec.Record:
        return validate_queueing(
            decode_columnar(value, PATH_QUEUEING.record, self.context.registry),
            message.append_ns + self.context.clocks.log_offset_ns,
        )

    def _pass_over(self) -> None:
        self.passed_over += 1
        now_s = time.monotonic()
        if now_s - self._told_s > REPEAT_S:
            self._told_s = now_s
            log.warning("queues: behind the log, %d messages passed over so far", self.passed_over)

    async def _tick_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), IDLE_S)
            await asyncio.sleep(TICK_S)
            self._came.clear()
            for partition in self.partitions:
                before_ns = time.monotonic_ns() - KEPT_NS
                async with self.partitions.lock:
                    for shard in list(partition.state.shards.values()):
                        while shard.queues.ready() and not partition.revoking:
                            await self._solve(partition, shard.queues)
                self.partitions.done(partition, pop_before(partition.state.kept, before_ns))

    async def _solve(self, partition: PartitionState[_Part], shard: ShardQueues) -> None:
        loop = asyncio.get_running_loop()

        def work() -> list[tuple[str, bytes]]:
            records = shard.solve(time.time_ns())
            return [
                (record["shard"], codec.encode(QUEUES.record, record, self.context.registry))
                for record in records
            ]

        async with self._solving:
            encoded = await loop.run_in_executor(self._pool, work)
        sent = [await self.partitions.send(partition, QUEUES, key, value) for key, value in encoded]
        await asyncio.gather(*sent)
