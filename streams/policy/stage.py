"""Policy stage: publishes decisions, fallbacks and cycles of an owner's shards.

The worker that owns a shard's partition of `fabric.policy-cycles` owns the shard's policy, in an epoch of its
own. Actuators refuse decisions of older epochs. `PolicyCycles` are the steps from which an epoch replays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from schemas import codec
from schemas.kafka.message import Message, Place
from schemas.kafka.start import Start, since
from schemas.records import PolicyCycles
from schemas.topics import DECISIONS, FALLBACKS, POLICY_CYCLES, Topic
from schemas.topology import Topology
from schemas.validation import EPOCH_AHEAD_MS
from streams.policy.inputs import DECISION_LOOKBACK_NS, INPUTS, PolicyInputs, read_from
from streams.policy.rules import Rules
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.log_runner import Step, run_steps
from streams.runtime.operator import Input, Moment, Order, Output, Owner, Past, Restore, Stage, records_of
from streams.runtime.units import NS_PER_MS

__all__ = ["PolicyStage", "replay_epoch"]


def _input(topic: Topic) -> Input:
    def start(log_ns: int, tables: FabricTables) -> Start:
        return since(read_from(log_ns // NS_PER_MS)[topic.name])

    return Input(topic, start)


class PolicyStage(Stage):
    """Policy: what flows do about links that fail, and about contention."""

    name = "policy"
    owner = POLICY_CYCLES
    inputs = tuple(_input(topic) for topic in INPUTS)
    outputs = (DECISIONS, FALLBACKS, POLICY_CYCLES)
    order = Order.AS_READ
    per_partition = False
    uses_append_time = True

    def restores(self, tables: FabricTables, partition_count: int) -> Sequence[Restore]:
        """Return the published records from which a new owner continues."""
        return (Restore(DECISIONS, lambda log_ns: since(log_ns - DECISION_LOOKBACK_NS)),)

    def epoch(self, log_ns: int, past: Past, registry: codec.Registry | None = None) -> int:
        """Return an epoch after those of all recent decisions that actuators accept."""
        began_ms = log_ns // NS_PER_MS
        epochs = (decision["epoch"] for decision in records_of(past, DECISIONS, registry))
        return max((began_ms, *(epoch + 1 for epoch in epochs if epoch <= began_ms + EPOCH_AHEAD_MS)))

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> PolicyInputs:
        """Return the operator of all partitions of an owner."""
        return PolicyInputs(
            owner.epoch,
            owner.places,
            owner.owns,
            default_shard=owner.settings.default_shard,
            topology=tables.topology,
            registry=owner.registry,
        )


def replay_epoch(
    records: Sequence[PolicyCycles],
    messages: Iterable[Message],
    decisions: Iterable[Message] = (),
    *,
    default_shard: str = "fabric",
    topology: Topology | None = None,
    registry: codec.Registry | None = None,
    rules: Rules | None = None,
) -> Iterator[tuple[Moment, Output]]:
    """Yield the outputs of one shard and epoch again. `records` are its `PolicyCycles` from the first one on.

    `decisions`: those of the time before. Raises ValueError if a cycle is missing, because later ones then
    cannot be replayed.
    """
    records = sorted(records, key=lambda record: record["first_cycle"])
    if not records:
        return
    shard, epoch = records[0]["shard"], records[0]["epoch"]
    names = (each.rpartition("/") for each in records[0]["inputs"])
    places = [(topic, int(number)) for topic, _, number in names]
    tables = FabricTables(default_shard, topology)
    operator = PolicyInputs(
        epoch,
        places,
        shard.__eq__,
        default_shard=default_shard,
        topology=topology,
        registry=registry,
        rules=rules,
    )
    oldest_ns = epoch * NS_PER_MS - DECISION_LOOKBACK_NS
    operator.restore({DECISIONS.name: [each for each in decisions if each.append_ns >= oldest_ns]}, tables)
    starts_ns = read_from(epoch)
    read = (each for each in messages if each.append_ns >= starts_ns.get(each.topic, 0))
    yield from run_steps(operator, tables, _steps(records, places), read)


def _steps(records: Sequence[PolicyCycles], places: Sequence[Place]) -> Iterator[Step]:
    """Yield the steps of all records. Raises ValueError if one is missing."""
    number, read = 0, [0] * len(places)
    for record in records:
        if record["first_cycle"] != number:
            shard, epoch, last = record["shard"], record["epoch"], record["first_cycle"] - 1
            raise ValueError(f"{shard}, epoch {epoch}: cycles {number} to {last} are not in the log")
        for cycle in record["cycles"]:
            moved = cycle["positions"] or [0] * len(places)
            read = [at + step for at, step in zip(read, moved, strict=True)]
            positions = {place: at for place, at, step in zip(places, read, moved, strict=True) if step}
            yield Step(Moment(cycle["flows_ns"], cycle["now_ns"] - cycle["flows_ns"]), positions)
        number += len(record["cycles"])
