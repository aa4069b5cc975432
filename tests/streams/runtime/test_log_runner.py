"""Replays of operators over recorded messages: in order, with tables as of their time, however read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from schemas import codec
from schemas.kafka.message import Message, Place
from schemas.kafka.start import since
from schemas.topics import ALERTS, CONFIG, LINKS
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.log_runner import StepRunner, TimedRunner
from streams.runtime.operator import Input, Moment, Operator, Output
from streams.runtime.pipeline_constants import INPUT_DELAY_NS
from streams.runtime.settings import StreamSettings
from streams.runtime.steps import Epoch, Recording, Step
from tests.records import make

MS = 1_000_000
S = 1_000_000_000
T = 1_900_000_000 * S


def stage_of(operator: Operator) -> Any:
    """Return a stage that has one operator."""
    return SimpleNamespace(
        owner=LINKS,
        inputs=(Input(LINKS, lambda log_ns, tables: since(log_ns)),),
        tables=(CONFIG,),
        per_partition=True,
        uses_append_time=False,
        restores=lambda tables, partition_count: (),
        epoch=lambda log_ns, past, registry: log_ns // MS,
        make=lambda owner, partition, tables: operator,
    )


class Ticks(Operator):
    """States at each full second what it has taken by then, and a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Message] = []
        self.tick_ns = T
        self.early: list[int] = []

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        self.early += [each.offset for each in messages if each.log_ns > self.tick_ns + S + INPUT_DELAY_NS]
        self.waiting += messages

    def due_ns(self) -> int:
        return self.tick_ns + S

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output]:
        out = []
        while self.tick_ns + S <= moment.log_ns:
            self.tick_ns += S
            due = sorted(each for each in self.waiting if each.log_ns <= self.tick_ns)
            self.waiting = [each for each in self.waiting if each.log_ns > self.tick_ns]
            text = f"{[each.offset for each in due]} {tables.config.thresholds()['alert_clear_s']:g}"
            out.append(Output(ALERTS, str((self.tick_ns - T) // S), text=text))
        return out


def config(at_ns: int, offset: int, clear_s: float) -> Message:
    fields = {"host": "*", "thresholds": [{"name": "alert_clear_s", "value": clear_s}]}
    return Message(
        at_ns, CONFIG.name, 0, offset, "*", codec.encode(CONFIG.record, make("ActuatorConfig", **fields))
    )


def log() -> list[Message]:
    events = [Message(T + n * 300 * MS, LINKS.name, n % 2, n, "fabric", None) for n in range(1, 30)]
    return [*events, config(T + 2 * S + 100 * MS, 1, 5.0), config(T + 4 * S + 500 * MS, 2, 7.0)]


def reads(messages: list[Message], rng: random.Random | None) -> Iterator[tuple[list[Message], int]]:
    """Read partition by partition in pieces; with a generator, unevenly."""
    by_place: dict[tuple[str, int], list[Message]] = {}
    for message in messages:
        by_place.setdefault(message.place, []).append(message)
    while by_place:
        found = []
        for place in list(by_place):
            count = 100 if rng is None else rng.randrange(4)
            found += by_place[place][:count]
            by_place[place] = by_place[place][count:]
            if not by_place[place]:
                del by_place[place]
        yield found, min((each[0].append_ns for each in by_place.values()), default=T + 10 * S)


def replayed(rng: random.Random | None) -> list[tuple[int, str, str]]:
    operator = Ticks()
    runner = TimedRunner(stage_of(operator), (), T, T + 9 * S + 1, StreamSettings())
    runner.offer(config(T - S, 0, 3.0))
    run = []
    for messages, mark_ns in reads(log(), rng):
        for message in messages:
            runner.offer(message)
        run += runner.run(mark_ns)
    run += runner.run()
    outputs = [((log_ns - T) // S, output.key, output.text) for log_ns, output in run]
    assert operator.early == [], "nothing is taken long before its time"
    return outputs


def test_each_moment_has_the_messages_up_to_it_and_the_tables_of_then() -> None:
    found = replayed(None)
    assert [(at, key) for at, key, _ in found] == [(n, str(n)) for n in range(1, 10)]
    assert [text.split()[-1] for _, _, text in found] == ["3", "5", "5", "5", "7", "7", "7", "7", "7"]
    assert found[0][2].startswith("[1, 2, 3] "), "by time"


@pytest.mark.parametrize("seed", range(5))
def test_reading_in_any_pieces_makes_no_difference(seed: int) -> None:
    assert replayed(random.Random(seed)) == replayed(None)


class Echo(Operator):
    """Repeats the offsets that it has taken since the last advance."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets: list[int] = []

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        self.offsets += [each.offset for each in messages]

    def due_ns(self) -> int:
        return 0

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output]:
        found, self.offsets = self.offsets, []
        return [Output(ALERTS, "", text=str(found))]


def stepped(*moves: dict[Place, int]) -> list[str]:
    steps = (Step(number, T, list(moved.items()), []) for number, moved in enumerate(moves))
    recording = Recording(Epoch("links", 0, T // MS, None), steps)
    runner = StepRunner(stage_of(Echo()), recording, StreamSettings(), 1)
    for offset in (-1, 0, 1, 2, 3):
        runner.offer(Message(T, LINKS.name, 0, offset, "", None))
    return [output.text for _, output in runner.run()]


def test_a_step_takes_the_messages_below_its_positions() -> None:
    place = (LINKS.name, 0)
    assert stepped({place: 2}, {}, {place: 3, ("other", 1): 9}) == ["[-1, 0, 1]", "[]", "[2]"]
