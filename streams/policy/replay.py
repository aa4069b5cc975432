"""Replays one epoch of a shard's policy from the log.

The inputs are the epoch's `PolicyCycles`, the messages of its inputs and the `Decision`s of earlier epochs.
The output equals the published decisions, in OBSERVE as in ACT.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import Decision, PolicyCycle, PolicyCycles
from schemas.topology import Topology
from streams.policy.inputs import DECISION_LOOKBACK_NS, PolicyInputs, TopicPartition
from streams.policy.rules import Rules
from streams.runtime.units import NS_PER_MS

__all__ = ["earlier_decisions", "replay_cycles"]


def earlier_decisions(epoch: int, decisions: Iterable[tuple[Decision, int]]) -> list[Decision]:
    """Return the decisions from which the owner of an epoch recovered; input: (record, append ns)."""
    oldest_ns = epoch * NS_PER_MS - DECISION_LOOKBACK_NS
    found = [
        decision for decision, append_ns in decisions if decision["epoch"] < epoch and append_ns >= oldest_ns
    ]
    return sorted(found, key=lambda decision: (decision["epoch"], decision["seq"]))


def replay_cycles(
    records: Sequence[PolicyCycles],
    messages: Iterable[Message],
    decisions: Iterable[Decision] = (),
    *,
    default_shard: str = "fabric",
    topology: Topology | None = None,
    registry: codec.Registry | None = None,
    rules: Rules | None = None,
) -> list[Decision]:
    """Return the decisions of one shard and epoch. `records` are its `PolicyCycles` from the first one on.

    Raises ValueError if one of them is missing, because later cycles then cannot be replayed.
    """
    records = sorted(records, key=lambda record: record["first_cycle"])
    if not records:
        return []
    shard, epoch = records[0]["shard"], records[0]["epoch"]
    names = (each.rpartition("/") for each in records[0]["inputs"])
    partitions = [(topic, int(number)) for topic, _, number in names]
    waiting = _by_partition(partitions, messages)
    inputs = PolicyInputs(
        epoch,
        partitions,
        shard.__eq__,
        default_shard=default_shard,
        topology=topology,
        registry=registry,
        decisions=decisions,
        rules=rules,
    )
    made: list[Decision] = []
    positions = [0] * len(partitions)
    for cycle in _cycles(records):
        if cycle["positions"]:
            positions = [at + step for at, step in zip(positions, cycle["positions"], strict=True)]
        for partition, position in zip(partitions, positions, strict=True):
            of_partition = waiting[partition]
            while of_partition and of_partition[-1].offset < position:
                inputs.offer(of_partition.pop())
        inputs.take()
        if shard in inputs.shards:
            output = inputs.run_cycle(shard, cycle["now_ns"], cycle["flows_ns"])
            made += [outgoing.record for outgoing in output.decisions]
    return made


def _cycles(records: Sequence[PolicyCycles]) -> Iterator[PolicyCycle]:
    """Yield the cycles of all records. Raises ValueError if one is missing."""
    number = 0
    for record in records:
        if record["first_cycle"] != number:
            shard, epoch, last = record["shard"], record["epoch"], record["first_cycle"] - 1
            raise ValueError(f"{shard}, epoch {epoch}: cycles {number} to {last} are not in the log")
        yield from record["cycles"]
        number += len(record["cycles"])


def _by_partition(
    partitions: Iterable[TopicPartition], messages: Iterable[Message]
) -> dict[TopicPartition, list[Message]]:
    """Return the messages of each partition, the highest offset first."""
    waiting: dict[TopicPartition, list[Message]] = {partition: [] for partition in partitions}
    for message in messages:
        if message.place in waiting:
            waiting[message.place].append(message)
    for of_partition in waiting.values():
        of_partition.sort(key=lambda message: -message.offset)
    return waiting
