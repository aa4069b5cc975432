"""One epoch of a shard's policy again, from the log.

In: the epoch's `PolicyCycles`, the messages of its inputs, the `Decision`s of earlier epochs. Out: the
decisions that it made, which are those that it published, in OBSERVE as in ACT. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from schemas import codec
from schemas.topology import Topology
from streams.alerts.ordered_inputs import Message
from streams.policy.inputs import DECISION_LOOKBACK_NS, PolicyInputs
from streams.policy.policy import Rules

__all__ = ["earlier_decisions", "replay_cycles"]

Record = dict[str, Any]
MS = 1_000_000


def earlier_decisions(epoch: int, decisions: Iterable[tuple[Record, int]]) -> list[Record]:
    """Return, of (`Decision`, append time in ns), those that the owner that began `epoch` went on from."""
    found = [
        decision
        for decision, append_ns in decisions
        if decision["epoch"] < epoch and append_ns >= epoch * MS - DECISION_LOOKBACK_NS
    ]
    return sorted(found, key=lambda decision: (decision["epoch"], decision["seq"]))


def replay_cycles(
    rounds: Sequence[Record],
    messages: Iterable[Message],
    decisions: Iterable[Record] = (),
    *,
    default_shard: str = "fabric",
    topology: Topology | None = None,
    registry: codec.Registry | None = None,
    rules: Rules | None = None,
) -> list[Record]:
    """Return the decisions of one shard and epoch. `rounds`: its `PolicyCycles` from the first on.

    Raises ValueError where a record of them is missing, so that nothing can be said of what follows.
    """
    told = sorted(rounds, key=lambda record: record["first_cycle"])
    if not told:
        return []
    shard, epoch = told[0]["shard"], told[0]["epoch"]
    places = [
        (topic, int(number)) for topic, _, number in (each.rpartition("/") for each in told[0]["inputs"])
    ]
    waiting: dict[tuple[str, int], list[Message]] = {place: [] for place in places}
    for message in messages:
        if (message.topic, message.partition) in waiting:
            waiting[message.topic, message.partition].append(message)
    for of_place in waiting.values():
        of_place.sort(key=lambda message: -message.offset)
    feed = PolicyInputs(
        epoch, places, shard.__eq__, default_shard=default_shard, topology=topology, registry=registry,
        decisions=decisions, rules=rules,
    )  # fmt: skip
    positions = [0] * len(places)
    made: list[Record] = []
    number = 0
    for record in told:
        if record["first_cycle"] != number:
            raise ValueError(
                f"{shard}, epoch {epoch}: rounds {number} to {record['first_cycle'] - 1} are not in the log"
            )
        for each in record["cycles"]:
            positions = (
                [at + step for at, step in zip(positions, each["positions"], strict=True)]
                if each["positions"]
                else positions
            )
            for place, position in zip(places, positions, strict=True):
                of_place = waiting[place]
                while of_place and of_place[-1].offset < position:
                    feed.offer(of_place.pop())
            feed.take()
            if shard in feed.shards:
                made += [
                    said.record for said in feed.round(shard, each["now_ns"], each["flows_ns"]).decisions
                ]
            number += 1
    return made
