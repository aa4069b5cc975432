"""The steps of as-read operators: the messages taken before each advance, as records of `fabric.steps`.

The log does not show in which order a worker read its topics. So each advance is recorded as a step: its log
time, and how far each input and table had been read. Equal steps give equal output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import Final

from schemas.kafka.message import Place
from schemas.records import StepChoice, StepChoiceKind, Steps
from streams.runtime.units import NS_PER_MS, NS_PER_S, NS_PER_US

MAX_STEPS: Final = 1024
"""Largest number of steps in one record."""
NO_OFFSET: Final = -1
WHOLE_US: Final = 600_000_000
"""Log time between two records of an epoch from which a replay may begin, us."""
AHEAD_NS: Final = 600 * NS_PER_S
"""Largest time by which a step may be newer than its record."""
BEHIND_NS: Final = 8 * 86_400 * NS_PER_S
"""Largest time by which a step may be older than its record: a worker that was behind takes old messages."""
IN_FORCE: Final = (StepChoiceKind.OFFSET, StepChoiceKind.CORRECTION, StepChoiceKind.LEVEL)
"""Kinds of choices that stay in force after their step."""


class BadSteps(ValueError):
    """Raised if a record of steps contradicts itself or the log."""


class MissingSteps(ValueError):
    """Raised if steps of an epoch are not in the log, so that later steps cannot be replayed."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The initial conditions of an operator, on which its first output depends."""

    stage: str
    partition: int
    epoch: int
    """Log time at the begin, ms."""
    committed: int | None
    """First offset that the owner read; None if no offset had been committed."""
    restored: Mapping[Place, int] = field(default_factory=dict)
    """End offset of each partition up to which the owner restored published records."""
    settings_digest: str = ""
    topology_digest: str = ""
    build: str = ""


@dataclass(slots=True)
class Step:
    """One advance of an operator: its log time, and how far inputs and tables had been read."""

    number: int
    log_ns: int
    moved: list[tuple[Place, int]]
    """Inputs and tables that were read further, each with its new position."""
    choices: list[StepChoice]


def key_of(stage: str, partition: int) -> str:
    """Return the key of an operator's `Steps` records."""
    return f"{stage}/{partition}"


class StepLog:
    """Collects the steps of one operator until they are published."""

    def __init__(self, epoch: Epoch, owner: Place) -> None:
        """Begin with no steps. `owner`: the partition that the operator owns."""
        self._epoch, self._owner = epoch, owner
        self._is_idle = False
        self._numbers: dict[Place, int] = {}
        self._positions: list[int] = []
        self._new_inputs: list[Place] = []
        self._starts: list[int] = []
        self._begin_us = self._last_us = epoch.epoch * 1000
        self._count = self._first = 0
        self._elapsed_us: list[int] = []
        self._moved: list[int] = []
        self._input_numbers: list[int] = []
        self._messages: list[int] = []
        self._choices: list[StepChoice] = []
        self._in_force: dict[StepChoiceKind, StepChoice] = {}
        self._begin_topology = self._topology_digest = epoch.topology_digest
        self._is_whole, self._whole_us = True, self._begin_us
        """Whether the next record must stand alone, and the begin of the last one that does, us."""

    def start(self, positions: Iterable[tuple[Place, int]]) -> None:
        """Note the positions of inputs and tables before the first step."""
        for place, position in positions:
            self._number_of(place, position)

    @property
    def is_full(self) -> bool:
        """Whether the steps should be published now."""
        return len(self._elapsed_us) >= MAX_STEPS

    def note(self, log_ns: int, positions: Iterable[tuple[Place, int]]) -> int:
        """Record a step with the present positions; return its log time, rounded as a replay will read it."""
        at_us = log_ns // NS_PER_US
        moves: list[tuple[int, int]] = []
        for place, position in positions:
            number = self._number_of(place, 0)
            if position != self._positions[number]:
                moves.append((number, position - self._positions[number]))
                self._positions[number] = position
        if self._is_idle and self._moves_owner_alone(moves):
            self._extend(at_us, moves)
        else:
            self._elapsed_us.append(at_us - self._last_us)
            self._moved.append(len(moves))
            self._input_numbers += [number for number, _ in moves]
            self._messages += [messages for _, messages in moves]
            self._count += 1
        self._last_us, self._is_idle = at_us, False
        return at_us * NS_PER_US

    def note_idle(self) -> None:
        """Mark the last advance as without effect, so that its messages can be merged into the next step."""
        if not self._elapsed_us:
            return  # its record was published while it worked
        has_choices = bool(self._choices) and self._choices[-1]["step"] == self._count - 1
        owner = self._numbers.get(self._owner)
        moved = self._moved[-1]
        self._is_idle = not has_choices and moved <= 1 and (not moved or self._input_numbers[-1] == owner)

    def _moves_owner_alone(self, moves: Sequence[tuple[int, int]]) -> bool:
        has_choices = bool(self._choices) and self._choices[-1]["step"] == self._count
        return not has_choices and all(number == self._numbers.get(self._owner) for number, _ in moves)

    def _extend(self, at_us: int, moves: Sequence[tuple[int, int]]) -> None:
        """Move the last step, which had no effect, to `at_us`, and add message counts (`moves`) to it."""
        self._elapsed_us[-1] += at_us - self._last_us
        for number, messages in moves:
            if self._moved[-1]:
                self._messages[-1] += messages
            else:
                self._moved[-1] = 1
                self._input_numbers.append(number)
                self._messages.append(messages)

    def choose(
        self, kind: StepChoiceKind, place: Place | None = None, value: int = 0, text: str = ""
    ) -> None:
        """Note a decision of the runner, as part of the next step."""
        number = NO_OFFSET if place is None else self._number_of(place, 0)
        choice: StepChoice = {
            "step": self._count,
            "kind": kind,
            "input_number": number,
            "value": value,
            "text": text,
        }
        self._choices.append(choice)
        if kind in IN_FORCE:
            self._in_force[kind] = choice
        elif kind == StepChoiceKind.TOPOLOGY:
            self._topology_digest = text

    def record(self) -> Steps | None:
        """Return the steps since the last record; None if there are no new steps."""
        if not self._elapsed_us:
            return None
        epoch, is_whole = self._epoch, self._is_whole
        record: Steps = {
            "stage": epoch.stage,
            "partition": epoch.partition,
            "epoch": epoch.epoch,
            "first_step": self._first,
            "is_whole": is_whole,
            "begin_us": self._begin_us,
            "inputs": [f"{topic}/{number}" for topic, number in self._new_inputs],
            "starts": self._starts,
            "restored": [f"{topic}/{number}" for topic, number in epoch.restored] if is_whole else [],
            "restored_ends": list(epoch.restored.values()) if is_whole else [],
            "committed": NO_OFFSET if epoch.committed is None or not is_whole else epoch.committed,
            "settings_digest": epoch.settings_digest if is_whole else "",
            "topology_digest": self._begin_topology if is_whole else "",
            "build": epoch.build if is_whole else "",
            "elapsed_us": self._elapsed_us,
            "moved": self._moved,
            "input_numbers": self._input_numbers,
            "messages": self._messages,
            "choices": self._choices,
        }
        self._new_inputs, self._starts = [], []
        self._elapsed_us, self._moved, self._input_numbers, self._messages = [], [], [], []
        self._choices, self._is_idle = [], False
        self._begin_us, self._first = self._last_us, self._count
        self._is_whole = abs(self._begin_us - self._whole_us) >= WHOLE_US
        if self._is_whole:
            self._begin_whole()
        return record

    def _begin_whole(self) -> None:
        """Make the next record self-contained: repeat the values of earlier records that still hold."""
        self._whole_us, self._begin_topology = self._begin_us, self._topology_digest
        self._new_inputs, self._starts = list(self._numbers), list(self._positions)
        self._choices = [{**choice, "step": self._count} for choice in self._in_force.values()]

    def _number_of(self, place: Place, start: int) -> int:
        number = self._numbers.get(place)
        if number is None:
            number = self._numbers[place] = len(self._positions)
            self._positions.append(start)
            self._new_inputs.append(place)
            self._starts.append(start)
        return number


def epoch_of(record: Steps) -> Epoch:
    """Return the initial conditions of an operator from a self-contained record. Raises BadSteps."""
    _check_lengths(record)
    ends = zip(map(_place_of, record["restored"]), record["restored_ends"], strict=True)
    return Epoch(
        record["stage"],
        record["partition"],
        record["epoch"],
        None if record["committed"] == NO_OFFSET else record["committed"],
        dict(ends),
        record["settings_digest"],
        record["topology_digest"],
        record["build"],
    )


class StepReader:
    """Converts an operator's records of an epoch, in order, to steps, from any self-contained record on."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.epoch: Epoch | None = None
        """The epoch as the first record states it."""
        self.starts: dict[Place, int] = {}
        """Positions of inputs and tables before the first step that was yielded."""
        self.in_force: list[StepChoice] = []
        """Choices that are in force from the steps before the first one that was yielded."""
        self._places: list[Place] = []
        self._positions: list[int] = []
        self._next: int | None = None
        """Number of the next step; None before the first record."""

    def steps(self, records: Iterable[Steps], from_ns: int = 0) -> Iterator[Step]:
        """Yield the steps from a log time on. Raises MissingSteps or BadSteps.

        A gap before `from_ns` is allowed if a self-contained record follows it. If `from_ns` is 0, all
        steps of the epoch are yielded.
        """
        has_gap = False
        for record in records:
            begin_ns = record["begin_us"] * NS_PER_US
            end_ns = begin_ns + sum(record["elapsed_us"]) * NS_PER_US
            has_gap = has_gap or not self.follows(record)
            if has_gap and not record["is_whole"] and end_ns < from_ns:
                continue
            if has_gap and record["is_whole"] and begin_ns <= from_ns:
                self._begin()
                has_gap = False
            is_late = self._next is None and record["first_step"] > 0 and not from_ns
            if has_gap or is_late:
                raise MissingSteps(f"steps before step {record['first_step']} are not in the log")
            self.epoch = self.epoch or epoch_of(record)
            for step in self.read(record):
                if step.log_ns >= from_ns:
                    yield step
                else:
                    self.starts.update(step.moved)
                    self.in_force += step.choices

    def follows(self, record: Steps) -> bool:
        """Return whether the record continues the previous one, with no step missing between them."""
        if self._next is None:
            return record["is_whole"]
        return record["first_step"] <= self._next

    def read(self, record: Steps) -> Iterator[Step]:
        """Yield the steps of the next record. Raises BadSteps, or MissingSteps if it leaves a gap."""
        if not self.follows(record):
            missing = f"{self._next or 0} to {record['first_step'] - 1}"
            raise MissingSteps(f"{_name_of(record)}: steps {missing} are not in the log")
        if self._next is not None and record["first_step"] < self._next:
            return  # published twice
        _check_lengths(record)
        self._add_inputs(record)
        _check_numbers(record, len(self._places))
        choices, choice_index = record["choices"], 0
        at_us, index = record["begin_us"], 0
        self._next = record["first_step"]
        for elapsed_us, moved in zip(record["elapsed_us"], record["moved"], strict=True):
            at_us += elapsed_us
            step = Step(self._next, at_us * NS_PER_US, [], [])
            for number, messages in zip(
                record["input_numbers"][index : index + moved],
                record["messages"][index : index + moved],
                strict=True,
            ):
                self._positions[number] += messages
                step.moved.append((self._places[number], self._positions[number]))
            while choice_index < len(choices) and choices[choice_index]["step"] <= step.number:
                step.choices.append(choices[choice_index])
                choice_index += 1
            index += moved
            self._next += 1
            yield step

    def _add_inputs(self, record: Steps) -> None:
        if record["is_whole"]:
            self._places, self._positions = [], []
        for place, start in zip(map(_place_of, record["inputs"]), record["starts"], strict=True):
            self.starts.setdefault(place, start)
            self._places.append(place)
            self._positions.append(start)

    def place_of(self, choice: StepChoice) -> Place | None:
        """Return the input partition that a choice concerns; None if it concerns none."""
        return None if choice["input_number"] < 0 else self._places[choice["input_number"]]


@dataclass(frozen=True, slots=True)
class Recording:
    """The steps of one operator and epoch that a replay runs."""

    epoch: Epoch
    steps: Iterator[Step]
    """Iterating raises MissingSteps or BadSteps."""
    starts: Mapping[Place, int] = field(default_factory=dict)
    """Positions of inputs and tables at the begin."""
    in_force: Sequence[StepChoice] = ()
    """Choices that are in force from earlier steps."""
    from_ns: int = 0
    """Log time up to which published records are restored; 0: as the epoch states."""

    @property
    def begin_ns(self) -> int:
        """Log time at which the operator begins, ns."""
        return self.from_ns or self.epoch.epoch * NS_PER_MS


def recording_of(records: Iterable[Steps], from_ns: int = 0) -> Recording:
    """Return the steps of an epoch, given its records in order. The records are read only when needed.

    `from_ns`: log time before which steps are only counted. The operator then begins at this time like a new
    owner, and its first outputs may differ. With 0 it begins with the epoch. Raises MissingSteps or BadSteps.
    """
    reader = StepReader()
    steps = reader.steps(records, from_ns)
    first = list(islice(steps, 1))
    if reader.epoch is None:
        raise MissingSteps("the steps of the interval are not in the log")
    return Recording(reader.epoch, chain(first, steps), reader.starts, reader.in_force, from_ns)


def check_times(record: Steps, append_ns: int) -> None:
    """Raise BadSteps if times in a record are implausibly far from its append time `append_ns`, ns."""
    steps_ns = [at_us * NS_PER_US for at_us in accumulate(record["elapsed_us"], initial=record["begin_us"])]
    begin_ns = record["epoch"] * NS_PER_MS
    if max(begin_ns, *steps_ns) > append_ns + AHEAD_NS or any(
        step_ns < append_ns - BEHIND_NS for step_ns in steps_ns[1:]
    ):
        raise BadSteps(f"{_name_of(record)}: the time of a step is far from the time of its record")


def _check_lengths(record: Steps) -> None:
    lengths = (
        len(record["inputs"]) == len(record["starts"]),
        len(record["restored"]) == len(record["restored_ends"]),
        len(record["elapsed_us"]) == len(record["moved"]),
        sum(record["moved"]) == len(record["input_numbers"]) == len(record["messages"]),
        min(record["moved"], default=0) >= 0,
    )
    if not all(lengths):
        raise BadSteps(f"{_name_of(record)}: arrays of different lengths")


def _check_numbers(record: Steps, inputs: int) -> None:
    """Raise BadSteps if an input number has no name in the record, or choices are not in step order."""
    input_numbers = [choice["input_number"] for choice in record["choices"]]
    if (
        not all(0 <= number < inputs for number in record["input_numbers"])
        or max(input_numbers, default=-1) >= inputs
    ):
        raise BadSteps(f"{_name_of(record)}: an input that no record names")
    steps = [record["first_step"], *(choice["step"] for choice in record["choices"])]
    if steps != sorted(steps):
        raise BadSteps(f"{_name_of(record)}: choices of other steps")


def _name_of(record: Steps) -> str:
    return f"{key_of(record['stage'], record['partition'])}, epoch {record['epoch']}"


def _place_of(name: str) -> Place:
    topic, _, number = name.rpartition("/")
    if not topic or not number.isdecimal():
        raise BadSteps(f"{name!r}: expected topic/partition")
    return topic, int(number)
