"""Publishes `ContentionWindow` records from the queues, flows, routes and inventory of each shard."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemas.kafka.message import Message
from schemas.kafka.start import tail
from schemas.records import ContentionWindow
from schemas.topics import CLOCK_OFFSETS, CONFIG, CONTENTION, FLOWS, INVENTORY, PATHS, QUEUES
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.contention.validation import validate_queues
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.flow_table import LiveFlows
from streams.runtime.operator import (
    NEVER_NS,
    Input,
    Moment,
    Operator,
    Output,
    Owner,
    Past,
    Restore,
    Stage,
    records_of,
)
from streams.runtime.pipeline_constants import FLOW_LAG_NS
from streams.runtime.units import NS_PER_S

TAIL_RECORDS: Final = 4000
"""Number of newest records of each partition in which a new owner searches for its shards' open windows."""
MAX_RETAIN_NS: Final = 10 * NS_PER_S
"""Time after which a new owner no longer needs a message in any case: the shard sends nothing more."""


@dataclass(slots=True)
class _Shard:
    detector: ContentionDetector
    flows: LiveFlows


@dataclass(slots=True)
class _Taken:
    """A processed message that a new owner of the shard may have to read again."""

    offset: int
    log_ns: int
    end_ns: int
    shard: _Shard


class ContentionOperator(Operator):
    """Detects contention in the shards of one partition."""

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._registry = owner.registry
        self._shards: dict[str, _Shard] = {}
        self._past: list[ContentionWindow] = []
        self._retained: deque[_Taken] = deque()
        self._newest_ns = 0
        self._outputs: list[Output] = []
        self._hosts: tuple[int, dict[str, int]] = (-1, {})

    def restore(self, past: Past, tables: FabricTables) -> None:
        """Restore the open windows from the newest published records."""
        self._past = records_of(past, CONTENTION, self._registry)

    def take_one(self, message: Message, tables: FabricTables) -> None:
        """Update contention windows with the link queues of a message."""
        self._newest_ns = max(self._newest_ns, message.log_ns)
        if message.value is None:
            return
        record = message.decoded(QUEUES, self._registry)
        queues = validate_queues(record, message.append_ns + tables.clocks.log_offset_ns)
        shard = self._shard(queues["shard"], tables)
        shard.flows.advance(message.append_ns - FLOW_LAG_NS)
        rules = ContentionRules.of(tables.config.thresholds())
        self._outputs += [
            Output(CONTENTION, window["link"], window) for window in shard.detector.ingest(queues, rules)
        ]
        end_ns = queues["window_start_ns"] + queues["slot_ns"] * queues["slots"]
        self._retained.append(_Taken(message.offset, message.log_ns, end_ns, shard))

    def _shard(self, name: str, tables: FabricTables) -> _Shard:
        shard = self._shards.get(name)
        if shard is None:
            flows, members = tables.flows.of(name), tables.inventory.members
            detector = ContentionDetector(
                name, flows, members.__contains__, lambda: self._hosts_of(name, tables), tables.link_rate_bps
            )
            detector.recover(self._past)
            shard = self._shards[name] = _Shard(detector, flows)
        return shard

    def _hosts_of(self, shard: str, tables: FabricTables) -> int:
        """Return the number of a shard's hosts in the inventory."""
        inventory = tables.inventory
        if self._hosts[0] != inventory.version:
            hosts: dict[str, set[str]] = {}
            for member in inventory.members.values():
                hosts.setdefault(member.shard, set()).add(member.host)
            self._hosts = (inventory.version, {name: len(names) for name, names in hosts.items()})
        return self._hosts[1].get(shard, 0)

    def due_ns(self) -> int:
        """Return the log time, ns, of the next `advance`; `take_one` evaluates messages at once."""
        return 0 if self._outputs else NEVER_NS

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output]:
        """Return records of the windows that messages since the last call opened, updated or closed."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def needed_from(self) -> int:
        """Return the offset of the first message from which a new owner can rebuild the open windows."""
        while self._retained and self._is_over(self._retained[0]):
            self._retained.popleft()
        return self._retained[0].offset if self._retained else NEVER_NS

    def _is_over(self, message: _Taken) -> bool:
        expired = self._newest_ns - message.log_ns > MAX_RETAIN_NS
        return expired or message.end_ns <= message.shard.detector.needed_from_ns

    def close(self, tables: FabricTables) -> None:
        """Stop updating the tables of live flows, one per shard, that detection uses."""
        for shard in self._shards.values():
            tables.flows.forget(shard.flows)


class ContentionStage(Stage):
    """Publishes the contention windows of each shard, with one writer per shard."""

    name = "contention"
    owner = QUEUES
    inputs = (Input(QUEUES),)
    outputs = (CONTENTION,)
    tables = (INVENTORY, PATHS, CONFIG, FLOWS, CLOCK_OFFSETS)

    def restores(self, tables: FabricTables, partition_count: int) -> Sequence[Restore]:
        """Return the topic that a new owner reads first: the newest contention windows."""
        return (Restore(CONTENTION, tail(TAIL_RECORDS)),)

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> ContentionOperator:
        """Return the operator that detects contention in the shards of one partition."""
        return ContentionOperator(owner)
