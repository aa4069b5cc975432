"""Golden logs as the operators' messages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from schemas.kafka.message import Message
from schemas.topology import Topology
from streams.clock.stage import ClockStage
from streams.contention.stage import ContentionStage
from streams.delays.stage import DelayStage
from streams.links.stage import LinksStage
from streams.queues.stage import QueuesStage
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import Operator, Owner, Stage
from streams.runtime.settings import StreamSettings
from tests.golden import replay, stages
from tests.golden.goldens import FOLDER

PARTITIONS: Final = 4
TABLES: Final = {table.topic.name for table in FabricTables().tables}
GOLDEN_NAMES: Final[dict[type[Stage], str]] = {
    DelayStage: "map",
    ClockStage: "clocks",
    LinksStage: "health",
    QueuesStage: "queues",
    ContentionStage: "contention",
}


@cache
def golden(case: str, stage: type[Stage]) -> tuple[list[Message], Topology]:
    """Return a stage's recorded messages, those of one partition of its owner topic, and the topology."""
    rows = replay.rows_of(case, GOLDEN_NAMES[stage])
    partitions = [row.partition for row in rows if row.topic == stage.owner.name]
    busiest = max(set(partitions), key=partitions.count)
    mine = [row for row in rows if row.topic != stage.owner.name or row.partition == busiest]
    return mine, stages.topology_of(FOLDER / case / "topology.json")


def copies(messages: Iterable[Message]) -> list[Message]:
    """Return messages as another reader gets them."""
    return [Message(m.append_ns, m.topic, m.partition, m.offset, m.key_bytes, m.value) for m in messages]


def begun(case: str, stage: type[Stage]) -> tuple[Operator, FabricTables, list[Message]]:
    """Return a new operator of a stage, filled tables, and the recorded messages of the operator."""
    messages, topology = golden(case, stage)
    tables = FabricTables(topology=topology)
    for message in copies(messages):
        if message.topic in TABLES:
            tables.take(message)
    own = copies(message for message in messages if message.topic == stage.owner.name)
    partition = own[0].partition
    owner = Owner(own[0].append_ns // 1_000_000, frozenset([partition]), PARTITIONS, StreamSettings())
    return stage().make(owner, partition, tables), tables, own
