"""Replays the policy by its `PolicyCycles`, which name the inputs of each cycle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from schemas import codec
from schemas.kafka.message import Message, Place
from schemas.records import PolicyCycles
from schemas.topics import DECISIONS
from schemas.topology import Topology
from streams.policy.inputs import DECISION_LOOKBACK_NS, PolicyInputs, read_from
from streams.policy.rules import Rules
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.log_runner import Step, run_steps
from streams.runtime.operator import Moment, Output
from streams.runtime.units import NS_PER_MS

__all__ = ["replay_epoch"]


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
    names = (input_name.rpartition("/") for input_name in records[0]["inputs"])
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
    operator.restore(
        {DECISIONS.name: [decision for decision in decisions if decision.append_ns >= oldest_ns]}, tables
    )
    starts_ns = read_from(epoch)
    read = (message for message in messages if message.append_ns >= starts_ns.get(message.topic, 0))
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
