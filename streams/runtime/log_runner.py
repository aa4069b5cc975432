"""Runs a stage's operator over a recorded log, at full speed and without I/O.

Timed stages follow the log's time. Stages that take their inputs as read follow the steps of the run that is
replayed. Both read the same messages and give their outputs with the moments at which they were due.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from schemas.kafka.message import Message, Place
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import Moment, Operator, Output, Stage
from streams.runtime.pipeline_constants import INPUT_DELAY_NS
from streams.runtime.units import NS_PER_S

__all__ = ["Reads", "Step", "run_steps", "run_timed"]

STEP_NS: Final = NS_PER_S
"""Log time between two advances of a replay."""

Reads = Iterable[tuple[Sequence[Message], int]]
"""Messages as they are read, and the log time before which every partition has been read."""
Outputs = Iterator[tuple[Moment, Output]]


class _Ordered:
    """Messages that wait for their time; tables are filled before the operator takes its messages."""

    def __init__(self, stage: Stage, operator: Operator, tables: FabricTables) -> None:
        self._operator, self._tables = operator, tables
        self._inputs = frozenset(each.topic.name for each in stage.inputs)
        self._table_topics = frozenset(topic.name for topic in stage.tables)
        self._waiting: list[Message] = []

    def add(self, messages: Iterable[Message]) -> None:
        """Add messages in any order."""
        for message in messages:
            heapq.heappush(self._waiting, message)

    def take_until(self, log_ns: int) -> None:
        """Let the tables and the operator take the messages up to a time."""
        due: list[Message] = []
        while self._waiting and self._waiting[0].log_ns <= log_ns:
            message = heapq.heappop(self._waiting)
            read_to = self._tables.positions.get(message.place, 0)
            if message.topic in self._table_topics and message.offset >= read_to:
                self._tables.take(message)
            if message.topic in self._inputs:
                due.append(message)
        if due:
            self._operator.take(due, self._tables)


def run_timed(
    stage: Stage, operator: Operator, tables: FabricTables, reads: Reads, from_ns: int, to_ns: int
) -> Outputs:
    """Yield the outputs of a timed stage up to `to_ns`, each with the moment of its advance.

    `tables` are filled up to `from_ns`, where the replayed owner began. `reads`: messages of the stage's
    inputs and tables.
    """
    ordered = _Ordered(stage, operator, tables)
    at_ns = 0

    def advance(log_ns: int) -> Outputs:
        moment = operator.moment = Moment(log_ns, tables.clocks.log_offset_ns)
        ordered.take_until(log_ns + INPUT_DELAY_NS)
        for output in outputs_of(operator, moment, tables):
            yield moment, output

    for messages, mark_ns in reads:
        ordered.add(messages)
        reached_ns = mark_ns - INPUT_DELAY_NS - 1
        past_ns = min(reached_ns, from_ns - 1)
        if past_ns > at_ns:
            at_ns = past_ns
            yield from advance(at_ns)
        end_ns = min(reached_ns, to_ns - 1)
        while from_ns - 1 <= at_ns and (next_ns := (at_ns // STEP_NS + 1) * STEP_NS) <= end_ns:
            at_ns = next_ns
            yield from advance(at_ns)
    yield from advance(to_ns - 1)


class Step(NamedTuple):
    """An advance of the run that is replayed."""

    moment: Moment
    positions: Mapping[Place, int]
    """The offsets up to which partitions were read before it, exclusive; only of those that moved."""


def run_steps(
    operator: Operator, tables: FabricTables, steps: Iterable[Step], messages: Iterable[Message]
) -> Outputs:
    """Yield the outputs of a stage that takes its inputs as read, by the recorded steps.

    Messages with an offset below 0 are taken before the first step.
    """
    waiting: dict[Place, deque[Message]] = defaultdict(deque)
    for message in sorted(messages, key=lambda each: each.offset):
        if message.offset < 0:
            operator.take([message], tables)
        else:
            waiting[message.place].append(message)
    for moment, positions in steps:
        messages_of_step: list[Message] = []
        for place, position in positions.items():
            of_place = waiting[place]
            while of_place and of_place[0].offset < position:
                messages_of_step.append(of_place.popleft())
        operator.moment = moment
        if messages_of_step:
            operator.take(messages_of_step, tables)
        for output in outputs_of(operator, moment, tables):
            yield moment, output


def outputs_of(operator: Operator, moment: Moment, tables: FabricTables) -> Sequence[Output]:
    """Advance an operator; return its outputs, after its work if it has some."""
    result = operator.advance(moment, tables)
    return result() if callable(result) else result
