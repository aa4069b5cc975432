"""Converts the `PolicyCycles` of one shard and epoch to the steps from which its policy can be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from schemas.kafka.message import Place
from schemas.records import PolicyCycles, StepChoice, StepChoiceKind
from streams.policy.stage import PolicyStage
from streams.runtime.steps import Epoch, MissingSteps, Recording, Step


def recording_of_cycles(records: Iterable[PolicyCycles], partition: int = 0) -> Recording:
    """Return the replayable steps of the given `PolicyCycles`, which may be in any order.

    `partition`: the shard's partition. Raises MissingSteps if a cycle is missing, because later cycles then
    cannot be replayed. The error may occur here or while the returned steps are read.
    """
    records = sorted(records, key=lambda record: record["first_cycle"])
    steps = _steps(records)
    first = list(islice(steps, 1))
    if not first:
        raise MissingSteps("the cycles are not in the log")
    epoch = Epoch(PolicyStage.name, partition, records[0]["epoch"], None)
    return Recording(epoch, chain(first, steps), from_ns=first[0].log_ns)


def _steps(records: Sequence[PolicyCycles]) -> Iterator[Step]:
    number, positions = 0, dict[Place, int]()
    for record in records:
        if record["first_cycle"] > number:
            missing = f"cycles {number} to {record['first_cycle'] - 1}"
            raise MissingSteps(f"{record['shard']}, epoch {record['epoch']}: {missing} are not in the log")
        if record["first_cycle"] < number:
            continue  # published twice
        names = (each.rpartition("/") for each in record["inputs"])
        places = [(topic, int(number)) for topic, _, number in names]
        for cycle in record["cycles"]:
            moved: list[tuple[Place, int]] = []
            for place, messages in zip(places, cycle["positions"], strict=bool(cycle["positions"])):
                if messages:
                    positions[place] = positions.get(place, 0) + messages
                    moved.append((place, positions[place]))
            offset: StepChoice = {
                "step": number,
                "kind": StepChoiceKind.OFFSET,
                "input_number": -1,
                "value": cycle["now_ns"] - cycle["flows_ns"],
                "text": "",
            }
            yield Step(number, cycle["flows_ns"], moved, [offset])
            number += 1
