"""The only module of the golden tests that imports product code: each stage behind one function.

Follow a move or a rename of product code here. `run` gives the rows of a stage's inputs to the stage in log
order, and yields `(topic, key, record)` of its outputs. Field names are those of today's schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import PolicyCycles
from schemas.topics import (
    ACTIONS,
    CLOCK_OFFSETS,
    CONFIG,
    CONTENTION,
    DECISIONS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    PATH_QUEUEING,
    PATHS,
    POLICY_CYCLES,
    QUEUES,
    TOPICS,
    Topic,
)
from schemas.topology import Topology, load_topology
from streams.alerts.stage import AlertsStage
from streams.clock.stage import ClockStage
from streams.contention.stage import ContentionStage
from streams.delays.stage import DelayStage
from streams.links.stage import LinksStage
from streams.policy.replay import recording_of_cycles
from streams.policy.stage import PolicyStage
from streams.queues.stage import QueuesStage
from streams.runtime.columnar import decode_columnar, encode_columnar
from streams.runtime.log_runner import StepRunner
from streams.runtime.operator import Output, Stage
from streams.runtime.settings import StreamSettings
from streams.runtime.sim_runner import SimRunner

S = 1_000_000_000
PARTITIONS = 4

Record = dict[str, Any]
Keyed = tuple[str, str, Record | None]


def message_of(
    append_ns: int, topic: str, partition: int, offset: int, key: str, record: Record | None
) -> Message:
    """Return a recorded message as a stage receives it."""
    value = None
    if record is not None and topic == PATH_QUEUEING.name:
        # recorded before classes
        value = encode_columnar(PATH_QUEUEING.type, {"dscp": [], "ce": [], **record})
    elif record is not None:
        value = codec.encode(TOPICS[topic].record, record)
    return Message(append_ns, topic, partition, offset, key, value)


def topology_of(path: Path) -> Topology:
    """Return what the topology file says, or an empty topology."""
    return load_topology(path) if path.exists() else Topology()


@dataclass(frozen=True)
class Replayed:
    """A stage that a runner runs. `tables`: the topics that it looks up.

    `rest_ns`: time after its last input until the end; None: the end is that of the tables.
    """

    stage: Stage
    tables: tuple[Topic, ...]
    rest_ns: int | None = None
    times_are_exact: ClassVar[bool] = False
    """Whether append times are compared with times inside records, so that none may be moved by 1 ns."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics that it reads, the one that it works through last."""
        topics = (*self.tables, *(each.topic for each in self.stage.inputs))
        return tuple(sorted((topic.name for topic in topics), key=self.stage.owner.name.__eq__))

    def run(self, rows: Sequence[Message], topology: Topology) -> Iterator[Keyed]:
        """Yield the outputs of the stage."""
        runner = SimRunner(
            [self.stage], rows[0].append_ns, partition_count=PARTITIONS, topology=topology, hop_ns=None
        )
        for row in rows:
            runner.append(row)
        for _, output in runner.advance(self._end_ns(rows)):
            yield output.topic.name, output.key, record_of(output)
        assert not runner.failed, runner.failed[0]
        assert not runner.rejected, runner.rejected[0]

    def _end_ns(self, rows: Sequence[Message]) -> int:
        if self.rest_ns is None:
            return rows[-1].append_ns
        return max(row.append_ns for row in rows if row.topic == self.inputs[-1]) + self.rest_ns


def record_of(output: Output) -> Any:
    """Return the record of an output, which an operator may have encoded; None: a tombstone."""
    if output.body is None:
        return output.record
    if output.topic is PATH_QUEUEING:
        return decode_columnar(output.body, PATH_QUEUEING.type)
    return codec.decode(output.body, output.topic.record)


class Policy:
    """Recorded cycles and the inputs that they read in, `Decision` out."""

    inputs = tuple(
        topic.name
        for topic in (
            *(CONFIG, INVENTORY, FLOW_ROUTES, LINK_HEALTH, CONTENTION, QUEUES, FLOWS, ACTIONS),
            POLICY_CYCLES,
        )
    )
    times_are_exact = True

    def run(self, rows: Sequence[Message], topology: Topology) -> Iterator[Keyed]:
        """Decide every cycle again."""
        cycles: dict[tuple[str, int], list[PolicyCycles]] = {}
        for row in rows:
            if row.topic == POLICY_CYCLES.name and row.value is not None:
                record = row.decoded(POLICY_CYCLES)
                cycles.setdefault((record["shard"], record["epoch"]), []).append(record)
        messages = [row for row in rows if row.topic != POLICY_CYCLES.name]
        for (shard, _), records in sorted(cycles.items()):
            recording = recording_of_cycles(records)
            runner = StepRunner(PolicyStage(shard), recording, StreamSettings(), 1, topology)
            for message in messages:
                runner.offer(message)
            for _, output in runner.run():
                if output.topic is DECISIONS:
                    yield DECISIONS.name, output.key, output.record


STAGES: dict[str, Replayed | Policy] = {
    "map": Replayed(DelayStage(), (INVENTORY, CLOCK_OFFSETS), 2 * S),
    "clocks": Replayed(ClockStage(), (INVENTORY,), 2 * S),
    "health": Replayed(LinksStage(), (INVENTORY, PATHS, CONFIG, CLOCK_OFFSETS)),
    "queues": Replayed(QueuesStage(), (INVENTORY, PATHS, FLOWS, CLOCK_OFFSETS)),
    "contention": Replayed(ContentionStage(), (INVENTORY, PATHS, CONFIG, FLOWS)),
    "alerts": Replayed(AlertsStage(), ()),
    "policy": Policy(),
}

__all__ = ["STAGES", "Keyed", "message_of", "topology_of"]
