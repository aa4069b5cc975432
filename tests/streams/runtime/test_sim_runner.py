"""The runner of stages over a simulated log: order, due times, hops, partitions, time in several parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schemas.kafka import partition_of
from schemas.kafka.message import Message
from schemas.topics import CLOCK_FITS, CONFIG, LINK_HEALTH, LINKS, PROBES, QUEUES, Topic
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import NEVER_NS, Input, Moment, Operator, Order, Output, Owner, Stage
from streams.runtime.pipeline_constants import HOP_NS, INPUT_DELAY_NS
from streams.runtime.sim_runner import SimRunner

MS = 1_000_000
START_NS = 1_800_000_000_000_000_000
KEYS = [next(f"nic{n}" for n in range(100) if partition_of(f"nic{n}", 2) == number) for number in (0, 1)]
"""A key of each of two partitions."""


class Echo(Operator):
    """Publishes a message for each that it takes, `wait_ns` later; notes what happens."""

    def __init__(self, notes: list[tuple[Any, ...]], name: str, to: Topic, wait_ns: int) -> None:
        super().__init__()
        self.notes, self.name, self.to, self.wait_ns = notes, name, to, wait_ns
        self.waiting: list[Message] = []

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        for each in messages:
            self.notes.append(
                (
                    self.name,
                    "take",
                    each.append_ns - START_NS,
                    each.topic,
                    each.offset,
                    sum(tables.positions.values()),
                )
            )
        self.waiting += messages

    def due_ns(self) -> int:
        return min((each.log_ns for each in self.waiting), default=NEVER_NS - self.wait_ns) + self.wait_ns

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output]:
        due = [each for each in self.waiting if each.log_ns + self.wait_ns <= moment.log_ns]
        self.waiting = [each for each in self.waiting if each not in due]
        self.notes.append((self.name, "advance", moment.log_ns - START_NS, len(due)))
        return [Output(self.to, each.key, body=each.value) for each in due]


class EchoStage(Stage):
    outputs = ()

    def __init__(
        self, notes: list[tuple[Any, ...]], topics: Sequence[Topic], to: Topic, wait_ns: int = 0, **more: Any
    ) -> None:
        self.notes, self.to, self.wait_ns = notes, to, wait_ns
        self.name = f"echo-{topics[0].name}"  # type: ignore[misc]
        self.owner, self.inputs = topics[0], tuple(map(Input, topics))  # type: ignore[misc]
        for key, value in more.items():
            setattr(self, key, value)

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> Echo:
        return Echo(self.notes, f"{self.owner.name}/{partition}", self.to, self.wait_ns)


def send(runner: SimRunner, topic: Topic, key: str, at_ms: float, body: bytes = b"x") -> None:
    runner.publish(Output(topic, key, body=body), START_NS + round(at_ms * MS))


def test_outputs_reach_the_next_stage_a_hop_later() -> None:
    notes: list[tuple[Any, ...]] = []
    stages = [EchoStage(notes, [PROBES], CLOCK_FITS), EchoStage(notes, [CLOCK_FITS], QUEUES)]
    runner = SimRunner(stages, START_NS, hop_ns={CLOCK_FITS.name: 7 * MS})
    send(runner, PROBES, "nic", 1)
    outputs = runner.advance(START_NS + 100 * MS)
    assert [(each.log_ns - START_NS, each.output.topic) for each in outputs] == [
        (1 * MS, CLOCK_FITS),
        (8 * MS, QUEUES),
    ]
    assert runner.messages[QUEUES.name] == 1
    assert runner.now_ns == START_NS + 100 * MS
    assert HOP_NS != 7 * MS


def test_without_hops_nothing_is_fed_back() -> None:
    notes: list[tuple[Any, ...]] = []
    stages = [EchoStage(notes, [PROBES], CLOCK_FITS), EchoStage(notes, [CLOCK_FITS], QUEUES)]
    runner = SimRunner(stages, START_NS, hop_ns=None)
    send(runner, PROBES, "nic", 1)
    assert [each.output.topic for each in runner.advance(START_NS + MS)] == [CLOCK_FITS]
    assert runner.advance(START_NS + 100 * MS) == []


def test_messages_are_taken_in_the_order_of_append_times_and_tables_first() -> None:
    notes: list[tuple[Any, ...]] = []
    runner = SimRunner([EchoStage(notes, [PROBES, LINKS], QUEUES)], START_NS)
    send(runner, PROBES, "nic", 3)
    send(runner, LINKS, "nic", 1)
    send(runner, PROBES, "nic", 1)
    send(runner, CONFIG, "*", 3, b"no record")
    runner.advance(START_NS + 10 * MS)
    assert [note[2:] for note in notes if note[1] == "take"] == [
        (1 * MS, PROBES.name, 0, 0),  # of one moment: by the stage's inputs
        (1 * MS, LINKS.name, 0, 0),
        (3 * MS, PROBES.name, 1, 1),
    ]
    assert [message.topic for message, _ in runner.rejected] == [CONFIG.name]


def test_time_does_not_go_back() -> None:
    notes: list[tuple[Any, ...]] = []
    runner = SimRunner([EchoStage(notes, [PROBES], QUEUES)], START_NS)
    runner.advance(START_NS + 10 * MS)
    send(runner, PROBES, "nic", 5)
    runner.advance(START_NS + 10 * MS)
    assert notes[0][2] == 10 * MS


def test_operators_are_advanced_when_they_are_due() -> None:
    notes: list[tuple[Any, ...]] = []
    runner = SimRunner([EchoStage(notes, [PROBES], QUEUES, 20 * MS)], START_NS)
    send(runner, PROBES, "nic", 1)
    send(runner, PROBES, "nic", 2)
    assert runner.advance(START_NS + 20 * MS) == []
    outputs = runner.advance(START_NS + 22 * MS)
    assert [each.log_ns - START_NS for each in outputs] == [21 * MS, 22 * MS]


def test_timed_operators_are_behind_the_log() -> None:
    notes: list[tuple[Any, ...]] = []
    runner = SimRunner([EchoStage(notes, [PROBES], QUEUES, order=Order.TIMED, per_partition=False)], START_NS)
    send(runner, PROBES, "nic", 1)
    assert runner.advance(START_NS + INPUT_DELAY_NS) == []
    (made,) = runner.advance(START_NS + INPUT_DELAY_NS + 5 * MS)
    assert made.log_ns == START_NS + INPUT_DELAY_NS + MS
    assert notes[-1] == ("fabric.probes/-1", "advance", MS, 1)


def test_each_partition_has_an_operator_and_offsets_of_its_own() -> None:
    notes: list[tuple[Any, ...]] = []
    stages = [
        EchoStage(notes, [PROBES, CONFIG], QUEUES),
        EchoStage(notes, [LINKS], LINK_HEALTH, per_partition=False),
    ]
    runner = SimRunner(stages, START_NS, partition_count=2)
    for number, key in enumerate([*KEYS, KEYS[0]]):
        send(runner, PROBES, key, 1 + number)
        send(runner, LINKS, key, 1 + number)
    send(runner, CONFIG, "*", 9)
    runner.advance(START_NS + 9 * MS)
    taken = [(note[0], note[3], note[4]) for note in notes if note[1] == "take"]
    assert [each for each in taken if each[1] == PROBES.name] == [
        ("fabric.probes/0", PROBES.name, 0),
        ("fabric.probes/1", PROBES.name, 0),
        ("fabric.probes/0", PROBES.name, 1),
    ]
    assert {each[0] for each in taken if each[1] == LINKS.name} == {"fabric.links/-1"}
    assert [each[0] for each in taken if each[1] == CONFIG.name] == ["fabric.probes/0", "fabric.probes/1"]


def test_an_operator_that_is_always_due_is_an_error() -> None:
    stage = EchoStage([], [PROBES], QUEUES)
    stage.make = lambda owner, partition, tables: AlwaysDue([], "", QUEUES, 0)  # type: ignore[method-assign]
    runner = SimRunner([stage], START_NS)
    send(runner, PROBES, "nic", 1)
    with pytest.raises(RuntimeError, match="again and again"):
        runner.advance(START_NS + MS)


class AlwaysDue(Echo):
    def due_ns(self) -> int:
        return 0


def history(parts: Sequence[float]) -> tuple[list[Any], list[Any]]:
    """Return the outputs and notes of two stages in a circle, whose time passes in these parts."""
    notes: list[tuple[Any, ...]] = []
    stages = [
        EchoStage(notes, [PROBES, LINK_HEALTH], CLOCK_FITS, 3 * MS),
        EchoStage(notes, [CLOCK_FITS], LINK_HEALTH, order=Order.TIMED, per_partition=False),
    ]
    runner = SimRunner(stages, START_NS, partition_count=2, hop_ns=4 * MS)
    for number in range(20):
        send(runner, PROBES, KEYS[number % 2], number * 7.5)
    outputs = [
        (each.log_ns, each.output.topic.name, each.output.key)
        for part in parts
        for each in runner.advance(START_NS + round(part * MS))
    ]
    return outputs, notes


@pytest.mark.parametrize("parts", [[100, 800], [1, 2, 10.5, 11, 11, 163.000001, 800], range(0, 801, 10)])
def test_time_in_parts_gives_the_same(parts: Sequence[float]) -> None:
    whole, notes = history([800])
    assert len(whole) > 100
    assert history(parts) == (whole, notes)
