"""The queue inference stage: one writer per shard.

Reads `fabric.path-queueing` with routes and flow rates from the global tables, and publishes `LinkQueues`
many times a second. A message is acknowledged after its blocks are published. A new owner starts with new
messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import PathQueueing
from schemas.topics import PATH_QUEUEING, QUEUES
from schemas.unexpected import DATA_ERRORS
from streams.queues.inference import ShardQueues
from streams.queues.slot_fold import SKIP_LATE_NS
from streams.queues.validation import validate_queueing
from streams.runtime.assignment import KeyedState, PartitionState
from streams.runtime.columnar import decode_columnar
from streams.runtime.context import WorkerContext
from streams.runtime.flow_table import LiveFlows
from streams.runtime.pipeline_constants import FLOWS_NS
from streams.runtime.shard_stage import ShardStage
from streams.runtime.units import NS_PER_MS, NS_PER_S

__all__ = ["QueuesStage", "fold_text", "waited_ns"]

log = logging.getLogger(__name__)

SETTLE_S: Final = 0.005
"""s that a block waits for the messages of other sources, which arrive together."""
IDLE_S: Final = 1.0
SKIP_BEHIND_NS: Final = 500 * NS_PER_MS
"""ns behind the log at which messages are skipped: old queues are useless, and a slow worker must catch
up."""
WARN_S: Final = 10.0
RETAIN_NS: Final = 1_000 * NS_PER_MS
"""ns after which the blocks of a message are published or dropped."""
MAX_SOLVE_NS: Final = 50 * NS_PER_MS
"""ns of solving after which messages are taken."""


@dataclass(slots=True)
class _Shard:
    queues: ShardQueues
    flows: LiveFlows
    flows_at_ns: int = 0
    fold: int = 1
    """Slots combined into one, as reported last."""


_Partition = PartitionState[KeyedState[_Shard]]


def waited_ns(age_ns: int, offset: int, highwater: int | None) -> int:
    """Return how long a message has waited, and others wait behind it; 0 if it is the partition's newest.

    A leader whose clock is behind is not late. `highwater` is the offset after the partition's last message;
    None if it is unknown.
    """
    is_newest = highwater is not None and offset >= highwater - 1
    return 0 if is_newest else max(0, age_ns)


def fold_text(shard: str, slot_ns: int, fold: int) -> str:
    """Return how much longer than usual a shard's slots are; empty if they are not."""
    if fold == 1:
        return ""
    usual_us, now_us = slot_ns / 1e3, slot_ns * fold / 1e3
    return f"queues of {shard}: slots of {now_us:g} us instead of {usual_us:g} us, inference is too slow"


class QueuesStage(ShardStage[_Shard]):
    """The queues of one worker's shards."""

    name = "queues"
    topic = PATH_QUEUEING

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._arrived = asyncio.Event()
        self._solving = asyncio.Lock()
        """Taken to change a shard, but not to send its blocks: messages need not wait for those."""
        self._pool = ThreadPoolExecutor(1, "queues")
        self._solved_ns: dict[_Partition, int] = {}
        """Partition to the start of its last completed solve."""
        self._waited_ns = 0
        """How long the last message waited in the log."""
        self.skipped = 0
        """Messages that arrived too late."""
        self._warned_s = -WARN_S

    def start(self) -> None:
        """Solve soon after messages arrive."""
        self.every(IDLE_S, self._solve_all, wake=self._arrived, settle_s=SETTLE_S)

    async def recover_shards(self) -> Callable[[_Partition, str], _Shard]:
        """Return a function that creates a shard's state; nothing is read from the log."""

        def create(partition: _Partition, name: str) -> _Shard:
            return _Shard(ShardQueues(name, self.context.link_rate_bps), self.context.flows.of(name))

        return create

    def drop(self, state: _Shard) -> None:
        """Stop to update the shard's flows."""
        self.context.flows.forget(state.flows)
        self.context.note(f"queues of {state.queues.shard}", "")

    def on_revoke(self, partitions: list[_Partition]) -> None:
        """Release the state of revoked partitions."""
        super().on_revoke(partitions)
        self._solved_ns.clear()

    async def process(self, partition: _Partition, message: Message) -> None:
        """Add a message's path queueing to its shard."""
        received_ns = time.monotonic_ns()
        highwater = self.context.highwater(partition.tp)
        age_ns = self.context.log_clock.now_ns(received_ns) - message.append_ns
        self._waited_ns = waited_ns(age_ns, message.offset, highwater)
        if self._waited_ns > SKIP_BEHIND_NS:
            self._skip()
            self.partitions.done(partition, [message.offset])
            return
        record = await self.partitions.read(partition, message, self._decode)
        if record is None:
            return
        async with self._solving:
            if partition.revoking:
                return
            shard = partition.state[record["shard"]]
            shard.queues.take(record, self.context.routes)
            self.retain(partition, message, until=lambda: self._is_solved(partition, received_ns))
            self._arrived.set()
            self._update_flow_rates(shard, message.append_ns)

    def _is_solved(self, partition: _Partition, received_ns: int) -> bool:
        return received_ns < self._solved_ns.get(partition, 0) - RETAIN_NS

    def _update_flow_rates(self, shard: _Shard, append_ns: int) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - shard.flows_at_ns >= FLOWS_NS:
            shard.flows_at_ns = now_ns
            shard.flows.advance(append_ns)
            shard.queues.set_flow_rates(shard.flows.rates_bps())

    def _decode(self, message: Message, value: bytes) -> PathQueueing:
        record = decode_columnar(value, PATH_QUEUEING.type, self.context.registry)
        return validate_queueing(record, message.append_ns + self.context.clocks.log_offset_ns)

    def _skip(self) -> None:
        self.skipped += 1
        self._warn("queues: behind the log, %d messages skipped so far", self.skipped)

    def _warn(self, text: str, *values: object) -> None:
        """Log a warning, at most one each `WARN_S`."""
        now_s = time.monotonic()
        if now_s - self._warned_s > WARN_S:
            self._warned_s = now_s
            log.warning(text, *values)

    async def _solve_all(self) -> None:
        for partition in self.partitions:
            start_ns = time.monotonic_ns()
            async with self.partitions.lock:
                for name, shard in list(partition.state.items()):
                    while shard.queues.ready() and not partition.revoking:
                        self._skip_late(name, shard.queues)
                        with self.context.survive(self.name, QUEUES, name):
                            await self._solve(partition, shard.queues)
                            self._report_fold(name, shard)
            self._solved_ns[partition] = start_ns

    def _skip_late(self, name: str, queues: ShardQueues) -> None:
        """Leave out the blocks that are too old."""
        if queues.skip_late(SKIP_LATE_NS):
            self._warn("queues of %s: too slow, %.1f s skipped so far", name, queues.skipped_ns / NS_PER_S)

    def _report_fold(self, name: str, shard: _Shard) -> None:
        """Report a change of the length of slots to the log and the service manager."""
        queues = shard.queues
        if queues.fold == shard.fold:
            return
        shard.fold = queues.fold
        text = fold_text(name, queues.usual_slot_ns, queues.fold)
        self.context.note(f"queues of {name}", text)
        log.warning("%s", text or f"queues of {name}: slots have their usual length again")

    async def _solve(self, partition: _Partition, queues: ShardQueues) -> None:
        """Solve the blocks that are ready in one change of thread, and publish them together."""

        def solve() -> tuple[list[tuple[str, bytes]], Exception | None]:
            began_ns = block_ns = time.monotonic_ns()
            encoded: list[tuple[str, bytes]] = []
            while queues.ready() and block_ns - began_ns < MAX_SOLVE_NS:
                try:
                    encoded += [
                        (record["shard"], codec.encode(QUEUES.type, record, self.context.registry))
                        for record in queues.solve(time.time_ns())
                    ]
                except DATA_ERRORS as error:
                    return encoded, error
                start_ns, block_ns = block_ns, time.monotonic_ns()
                queues.keep_up(block_ns - start_ns, self._waited_ns)
            return encoded, None

        async with self._solving:
            encoded, error = await asyncio.get_running_loop().run_in_executor(self._pool, solve)
        sent = [await self.partitions.send(partition, QUEUES, key, value) for key, value in encoded]
        await asyncio.gather(*sent)
        if error is not None:
            raise error
