"""The queue inference stage: `LinkQueues` many times a second from path queueing, routes and flow rates.

The stage has one writer per shard. A new owner starts with new messages. If the machine is too slow, slots
become longer. Old blocks and messages are skipped, because old queues are useless.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from schemas.kafka.message import Message
from schemas.records import LinkQueues
from schemas.topics import CLOCK_OFFSETS, FLOWS, INVENTORY, PATH_QUEUEING, PATHS, QUEUES
from schemas.topology import Topology
from schemas.unexpected import DATA_ERRORS
from streams.queues.inference import ShardQueues
from streams.queues.slot_fold import SKIP_LATE_NS
from streams.queues.validation import validate_queueing
from streams.runtime.columnar import decode_columnar
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.flow_table import LiveFlows
from streams.runtime.operator import NEVER_NS, Input, Moment, Operator, Output, Owner, Stage, Work
from streams.runtime.pipeline_constants import FLOWS_NS
from streams.runtime.route_table import link_rate_bps
from streams.runtime.units import NS_PER_MS, NS_PER_S

log = logging.getLogger(__name__)

SETTLE_NS: Final = 5 * NS_PER_MS
"""Time, ns, for which a complete block waits for messages of other sources, which arrive together."""
SKIP_BEHIND_NS: Final = 500 * NS_PER_MS
"""ns behind the log at which messages are skipped, so that a slow worker catches up."""
RETAIN_NS: Final = 1_000 * NS_PER_MS
"""Age of a message, ns, after which its blocks have been published or dropped."""
MAX_BLOCKS: Final = 8
"""Most blocks of a shard that are solved at once, before further messages are taken."""


@dataclass(slots=True)
class _Shard:
    queues: ShardQueues
    flows: LiveFlows
    rates_ns: int = 0
    """Log time at which the flow rates were last set, ns."""


def slots_text(shard: str, slot_ns: int, slots: int) -> str:
    """Return a text on how much longer than usual a shard's slots are; '' if they have the usual length."""
    if slots == 1:
        return ""
    usual_us, now_us = slot_ns / 1e3, slot_ns * slots / 1e3
    return f"queues of {shard}: slots of {now_us:g} us instead of {usual_us:g} us, inference is too slow"


class QueuesOperator(Operator):
    """Infers the queues of one partition's shards."""

    adapts = True

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._registry = owner.registry
        self._shards: dict[str, _Shard] = {}
        self._retained: deque[tuple[int, int]] = deque()
        """Log time and offset of each message whose blocks may not be published yet."""
        self._newest_ns = 0
        self._ready_ns: int | None = None
        """Log time of the message that completed a block; None if no block is complete."""
        self._topology, self._speeds_bps = Topology(), dict[str, int]()
        self._blocks: dict[str, int] = {}
        """Number of blocks that were last solved for each shard."""

    def take_one(self, message: Message, tables: FabricTables) -> None:
        """Add a `PathQueueing` message to its shard."""
        self._newest_ns = max(self._newest_ns, message.log_ns)
        self._retained.append((message.log_ns, message.offset))
        if message.value is None:
            return
        decoded = decode_columnar(message.value, PATH_QUEUEING.type, self._registry)
        record = validate_queueing(decoded, message.append_ns + tables.clocks.log_offset_ns)
        shard = self._shard(record["shard"], tables)
        try:
            shard.queues.take(record, tables.routes)
        finally:
            self._note_ready()
        if not 0 <= message.log_ns - shard.rates_ns < FLOWS_NS:
            shard.rates_ns = message.log_ns
            shard.flows.advance(message.append_ns)
            shard.queues.set_flow_rates(shard.flows.rates_bps())

    def _note_ready(self) -> None:
        if not any(shard.queues.ready() for shard in self._shards.values()):
            self._ready_ns = None
        elif self._ready_ns is None:
            self._ready_ns = self._newest_ns

    def _shard(self, name: str, tables: FabricTables) -> _Shard:
        shard = self._shards.get(name)
        if shard is None:
            queues = ShardQueues(name, self._rate_bps)
            shard = self._shards[name] = _Shard(queues, tables.flows.of(name))
        return shard

    def due_ns(self) -> int:
        """Return the log time at which complete blocks are solved, ns; `NEVER_NS` if no block is complete."""
        return NEVER_NS if self._ready_ns is None else self._ready_ns + SETTLE_NS

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output] | Work:
        """Return the work that solves the complete blocks if they are due, else nothing."""
        if moment.log_ns < self.due_ns():
            return ()
        self._topology, self._speeds_bps = tables.topology, dict(tables.inventory.speeds_bps)
        return partial(self._solve_all, moment.log_ns)

    def _rate_bps(self, link: str) -> int:
        return link_rate_bps(link, self._topology, self._speeds_bps)

    def _solve_all(self, log_ns: int) -> list[Output]:
        outputs = [
            Output(QUEUES, record["shard"], record)
            for shard in self._shards.values()
            for record in self._solve(shard.queues, log_ns)
        ]
        self._ready_ns = None
        self._note_ready()
        return outputs

    def _solve(self, queues: ShardQueues, log_ns: int) -> list[LinkQueues]:
        """Solve the complete blocks of a shard, except blocks that are too old; return their records."""
        records: list[LinkQueues] = []
        if queues.skip_late(SKIP_LATE_NS):
            skipped_s = queues.skipped_ns / NS_PER_S
            log.warning("queues of %s: too slow, %.1f s skipped so far", queues.shard, skipped_s)
        self._blocks[queues.shard] = 0
        while queues.ready() and self._blocks[queues.shard] < MAX_BLOCKS:
            self._blocks[queues.shard] += 1
            try:
                records += queues.solve(log_ns)
            except DATA_ERRORS as error:
                self.failed.append((queues.shard, error))
        return records

    def needed_from(self) -> int:
        """Return the offset of the oldest message whose blocks may not be published yet."""
        while self._retained and self._retained[0][0] < self._newest_ns - RETAIN_NS:
            self._retained.popleft()
        return self._retained[0][1] if self._retained else NEVER_NS

    def keep_up(self, spent_ns: int, waited_ns: int) -> None:
        """Decide for each shard how many slots to combine, from the time spent and the messages' age."""
        blocks = sum(self._blocks.values())
        for name, count in self._blocks.items():
            for _ in range(count):
                self._shards[name].queues.keep_up(spent_ns // blocks, waited_ns)
        self._blocks.clear()

    def level(self) -> str:
        """Return 'shard=slots ...': the number of slots combined, for each shard that combines slots."""
        slots = ((name, shard.queues.next_fold) for name, shard in sorted(self._shards.items()))
        return " ".join(f"{name}={fold}" for name, fold in slots if fold != 1)

    def set_level(self, level: str) -> None:
        """Combine the same number of slots as the replayed run; `level`: a string that `level` returned."""
        folds = dict(pair.rsplit("=", 1) for pair in level.split())
        for name, shard in self._shards.items():
            shard.queues.next_fold = int(folds.get(name, 1))

    def status(self) -> str:
        """Return a text on the shards whose slots are longer than usual."""
        texts = (
            slots_text(name, shard.queues.usual_slot_ns, shard.queues.fold)
            for name, shard in sorted(self._shards.items())
        )
        return "; ".join(text for text in texts if text)

    def close(self, tables: FabricTables) -> None:
        """Stop updating the shards' flows."""
        for shard in self._shards.values():
            tables.flows.forget(shard.flows)


class QueuesStage(Stage):
    """The stage that infers queues, one writer per shard."""

    name = "queues"
    owner = PATH_QUEUEING
    inputs = (Input(PATH_QUEUEING, skip_after_ns=SKIP_BEHIND_NS),)
    outputs = (QUEUES,)
    tables = (INVENTORY, PATHS, FLOWS, CLOCK_OFFSETS)

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> QueuesOperator:
        """Return the queue-inference operator of a partition."""
        return QueuesOperator(owner)
