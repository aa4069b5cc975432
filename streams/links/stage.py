"""The link health stage: publishes `LinkHealth` as soon as probe evidence arrives, one writer per shard.

A new owner continues from the last record of each subject and reads the evidence of the last seconds again.
Evidence that a record already includes is not counted twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from schemas.kafka.message import Message
from schemas.kafka.start import BEGINNING
from schemas.records import LinkHealth
from schemas.topics import CLOCK_OFFSETS, CONFIG, INVENTORY, LINK_HEALTH, LINKS, PATHS
from schemas.unexpected import DATA_ERRORS
from schemas.validation import validate_link_event
from streams.links.health.shard_health import ShardHealth
from streams.links.health.subjects import Change
from streams.runtime.fabric_tables import FabricTables
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
from streams.runtime.units import NS_PER_MS

SETTLE_NS: Final = 1 * NS_PER_MS
"""Time, ns, from new evidence to its evaluation: evidence in quick succession is evaluated together."""
RETAIN_NS: Final = 4_000 * NS_PER_MS
"""Age, ns, of the evidence that a new owner reads again: about the time after which a silent NIC is down."""


class LinksOperator(Operator):
    """Link health of one partition's shards."""

    def __init__(self, owner: Owner, partition: int) -> None:
        super().__init__()
        self._registry = owner.registry
        self._place_name = f"{LINKS.name}/{partition}"
        self._past: list[LinkHealth] = []
        self._shards: dict[str, ShardHealth] = {}
        self._newest_ns = self._now_ns = 0
        """Log time of the newest evidence, and of the last advance."""
        self._settled_ns = 0
        """Log time at which new evidence is evaluated at the earliest; 0 if there is none."""
        self._retained: deque[tuple[int, int]] = deque()
        """Log time and offset of each message that a new owner needs."""
        self._outputs: list[Output] = []

    def restore(self, past: Past, tables: FabricTables) -> None:
        """Keep the last record of each subject; shards continue from them at their first evidence."""
        self._past = records_of(past, LINK_HEALTH, self._registry)

    def take_one(self, message: Message, tables: FabricTables) -> None:
        """Ingest one message of probe evidence."""
        self._settled_ns = self._settled_ns or message.log_ns + SETTLE_NS
        self._newest_ns = max(self._newest_ns, message.log_ns)
        self._retained.append((message.log_ns, message.offset))
        if message.value is None:
            return
        event = validate_link_event(message.decoded(LINKS, self._registry))
        health = self._shard(event["shard"], tables)
        self._update(health, tables)
        self._add(health.ingest(event, message.log_ns, tables.routes, message.offset))

    def _shard(self, name: str, tables: FabricTables) -> ShardHealth:
        health = self._shards.get(name)
        if health is None:
            members = tables.inventory.members
            health = ShardHealth(
                name,
                tables.config.thresholds(),
                self._place_name,
                lambda nic: not members or nic in members,
            )
            health.log_offset_ns = tables.clocks.log_offset_ns
            end = self.end_offset
            # An offset beyond the end belongs to a log that has been replaced.
            health.recover(
                record
                if end is None or record["evidence_offset"] < end
                else {**record, "evidence_offset": -1}
                for record in self._past
            )
            self._shards[name] = health
        return health

    def _update(self, health: ShardHealth, tables: FabricTables) -> None:
        """Pass the current thresholds and clock models to a shard."""
        health.thresholds, health.topology = tables.config.thresholds(), tables.topology
        health.log_offset_ns = self.moment.offset_ns
        health.evidence.clock_models = tables.clocks.models()

    def _add(self, changes: Sequence[Change]) -> None:
        for subject, record in changes:
            is_new = record is not None and record["seq"] and record["evaluated_ns"] >= self._newest_ns
            text = record["text"] if record is not None and is_new else ""
            self._outputs.append(Output(LINK_HEALTH, subject, record, text=text))

    def due_ns(self) -> int:
        """Return the log time at which the next shard is due, ns; `NEVER_NS` without shards."""
        if not self._shards:
            return NEVER_NS
        due_ns = min(_due_ns(health) for health in self._shards.values())
        return max(due_ns, self._settled_ns)

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output]:
        """Evaluate the shards that are due, and return the health records to publish."""
        self._now_ns = max(self._now_ns, moment.log_ns)
        if moment.log_ns >= self.due_ns():
            self._settled_ns = 0
            for name, health in self._shards.items():
                if _due_ns(health) <= moment.log_ns:
                    try:
                        self._update(health, tables)
                        self._add(health.evaluate(moment.log_ns))
                    except DATA_ERRORS as error:
                        self.failed.append((name, error))
        outputs, self._outputs = self._outputs, []
        return outputs

    def needed_from(self) -> int:
        """Return the offset of the oldest evidence that a new owner needs; `NEVER_NS` if it needs none."""
        while self._retained and self._retained[0][0] < self._now_ns - RETAIN_NS:
            self._retained.popleft()
        return self._retained[0][1] if self._retained else NEVER_NS


def _due_ns(health: ShardHealth) -> int:
    """Return the log time at which a shard is evaluated next if no new evidence arrives."""
    return health.due_ns + health.evidence.time.lost_ns


class LinksStage(Stage):
    """The stage that evaluates link health, one writer per shard."""

    name = "links"
    owner = LINKS
    inputs = (Input(LINKS),)
    outputs = (LINK_HEALTH,)
    tables = (INVENTORY, PATHS, CONFIG, CLOCK_OFFSETS)

    def restores(self, tables: FabricTables, partition_count: int) -> Sequence[Restore]:
        """Return the reads with which a new owner starts: of the last record of each subject."""
        return (Restore(LINK_HEALTH, BEGINNING, last_per_key=True),)

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> LinksOperator:
        """Return the link-health operator of a partition."""
        return LinksOperator(owner, partition)
