"""Runs an as-read operator again by its recorded steps.

The steps say how far each input and table had been read at each advance, so the same messages are taken
before the same advances, and the same build gives the same output. This module does no I/O.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from schemas import codec
from schemas.kafka.message import Message, Place
from schemas.records import StepChoice, StepChoiceKind, Steps
from schemas.topology import Topology
from schemas.unexpected import DATA_ERRORS
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import Moment, Operator, Output, Owner, Restore, Stage
from streams.runtime.past import PastMessages, start_of
from streams.runtime.settings import StreamSettings
from streams.runtime.steps import Epoch, MissingSteps, Step, StepReader, epoch_of
from streams.runtime.units import NS_PER_MS, NS_PER_US

__all__ = ["ReplayedOutput", "StepRunner"]


@dataclass(slots=True)
class ReplayedOutput:
    """An output of a replay, and the log time of its advance."""

    log_ns: int
    output: Output


class StepRunner:
    """One operator in one epoch.

    `records`: the epoch's steps in order, read as they are needed. `from_ns`: log time before which steps
    are only counted; the operator then begins there like a new owner, and its first outputs may differ. The
    records may then begin with any that stands alone. 0: it begins with the epoch.

    Raises MissingSteps or BadSteps, here and while it runs. All messages that were offered wait in memory
    until their step: what tables need of them depends on the table.
    """

    def __init__(
        self,
        stage: Stage,
        records: Iterable[Steps],
        settings: StreamSettings,
        partition_count: int,
        topology: Topology | None = None,
        registry: codec.Registry | None = None,
        from_ns: int = 0,
    ) -> None:
        self._stage, self._settings, self._registry = stage, settings, registry
        self._partition_count = partition_count
        self._reader = StepReader()
        self._starts: dict[Place, int] = {}
        """Positions of inputs and tables at the begin, where that is not the epoch's."""
        usable = self._usable(iter(records), from_ns)
        first = next(usable, None)
        if first is None:
            raise MissingSteps("the steps of the interval are not in the log")
        self.epoch: Epoch = epoch_of(first)
        steps = (step for record in chain([first], usable) for step in self._reader.read(record))
        self.tables = FabricTables(
            settings.default_shard,
            topology,
            registry,
            holdover_s=settings.solve.holdover_s,
            window_ns=settings.window_ms * NS_PER_MS,
        )
        self._topics = {stage.owner.name, *(topic.name for topic in stage.tables)}
        self._owner_place = (stage.owner.name, self.epoch.partition)
        self._waiting: dict[Place, deque[Message]] = {}
        self._past: dict[str, list[Message]] = {
            restore.topic.name: [] for restore in stage.restores(self.tables, partition_count)
        }
        self._read: dict[Place, int] = {}
        """Place to one past the last offset that was offered."""
        self._operator: Operator | None = None
        self._offset_ns: int | None = None
        self._correction_ns = self._newest_ns = 0
        self._level = ""
        self.last_ns = 0
        """Log time of the last step that was taken."""
        self._begin_ns = from_ns
        """Append time up to which published records are restored; 0: as the epoch states."""
        self._committed = self.epoch.committed
        self._steps: Iterator[Step] = self._after(steps, from_ns)
        self._step = next(self._steps, None)
        if not self._reader.begins_epoch:
            self._committed = {**self._reader.starts, **self._starts}.get(self._owner_place)

    def _usable(self, records: Iterator[Steps], from_ns: int) -> Iterator[Steps]:
        """Yield the records that can be read; before `from_ns` a record that stands alone ends a gap."""
        has_gap = False
        for record in records:
            begin_ns = record["begin_us"] * NS_PER_US
            end_ns = begin_ns + sum(record["elapsed_us"]) * NS_PER_US
            has_gap = has_gap or not self._reader.follows(record)
            if has_gap and not record["is_whole"] and end_ns < from_ns:
                continue
            if has_gap and record["is_whole"] and begin_ns <= from_ns:
                self._reader, has_gap = StepReader(), False
                self._starts.clear()
            is_late = self._reader.is_new and record["first_step"] > 0 and not from_ns
            if has_gap or is_late:
                raise MissingSteps(f"steps before step {record['first_step']} are not in the log")
            yield record

    def _after(self, steps: Iterator[Step], from_ns: int) -> Iterator[Step]:
        """Yield the steps from a time on; count those before."""
        for step in steps:
            if step.log_ns >= from_ns:
                yield step
                continue
            for place, position in step.moved:
                self._starts[place] = position
                if place == self._owner_place:
                    self._committed = position
            for choice in step.choices:
                self._note(choice)

    def _note(self, choice: StepChoice) -> None:
        match choice["kind"]:
            case StepChoiceKind.OFFSET:
                self._offset_ns = choice["value"]
            case StepChoiceKind.CORRECTION:
                self._correction_ns = choice["value"]
            case StepChoiceKind.LEVEL:
                self._level = choice["text"]

    @property
    def begin_ns(self) -> int:
        """Log time at which the operator begins."""
        return self._begin_ns or self.epoch.epoch * NS_PER_MS

    @property
    def is_done(self) -> bool:
        """Whether all steps were taken."""
        return self._step is None

    def offer(self, message: Message) -> None:
        """Add a message of an input, a table or a restored topic; offsets of a partition ascend."""
        place = message.place
        self._read[place] = max(self._read.get(place, 0), message.offset + 1)
        if message.topic in self._past and self._is_past(message):
            self._past[message.topic].append(message)
        if place == self._owner_place:
            if message.offset >= (self._committed or 0):
                self._waiting.setdefault(place, deque()).append(message)
        elif message.topic in self._topics:
            self._waiting.setdefault(place, deque()).append(message)

    def _is_past(self, message: Message) -> bool:
        if self._begin_ns:
            return message.append_ns < self._begin_ns
        return message.offset < self.epoch.restored.get(message.place, 0)

    def run(self, *, is_complete: bool = False) -> Iterator[ReplayedOutput]:
        """Take the steps whose messages were offered, or all steps if the log holds no more messages."""
        if self._operator is None:
            starts = {**self._reader.starts, **self._starts}
            if not is_complete and not (self._reached(starts.items()) and self._has_past()):
                return
            self._operator = self._restored()
        while self._step is not None and (is_complete or self._reached(self._step.moved)):
            yield from self._take(self._operator, self._step)
            self._step = next(self._steps, None)

    def _reached(self, positions: Iterable[tuple[Place, int]]) -> bool:
        return all(
            self._read.get(place, 0) >= position for place, position in positions if place[0] in self._topics
        )

    def _has_past(self) -> bool:
        """Return whether the published records that the operator restores have been offered."""
        if self._begin_ns:
            return True  # they are older than the messages of the first step
        return all(self._read.get(place, 0) >= end for place, end in self.epoch.restored.items())

    def _restored(self) -> Operator:
        """Return the operator at the begin of the epoch."""
        epoch = self.epoch
        self._fill_from_starts()
        committed = {} if self._committed is None else {epoch.partition: self._committed}
        owner = Owner(
            epoch.epoch,
            frozenset([epoch.partition]),
            self._partition_count,
            self._settings,
            self._registry,
            committed,
        )
        operator = self._stage.make(owner, epoch.partition, self.tables)
        restores = self._stage.restores(self.tables, self._partition_count)
        past = {restore.topic.name: self._past_of(restore) for restore in restores}
        operator.restore(past, self.tables)
        self._past.clear()
        return operator

    def _past_of(self, restore: Restore) -> Sequence[Message]:
        """Return the messages that the epoch's owner restored."""
        past_messages = PastMessages(restore, self._registry)
        messages = self._past[restore.topic.name]
        count = start_of(restore, self.begin_ns).tail_messages
        ends = {message.place: message.offset + 1 for message in messages}
        if not self._begin_ns:
            ends |= dict(self.epoch.restored)
        for message in messages:
            if count is None or message.offset >= ends[message.place] - count:
                past_messages.add(message)
        return past_messages.messages()

    def _set_log_ns(self, message: Message) -> None:
        if not self._stage.uses_append_time:
            self._newest_ns = max(self._newest_ns, message.append_ns + self._correction_ns)
            message.log_ns = self._newest_ns

    def _fill_from_starts(self) -> None:
        """Fill the tables up to the begin of the epoch, in the order of append times."""
        messages: list[Message] = []
        for place, position in {**self._reader.starts, **self._starts}.items():
            if place != self._owner_place:
                waiting = self._waiting.get(place, deque())
                while waiting and waiting[0].offset < position:
                    messages.append(waiting.popleft())
        for message in sorted(messages):
            self.tables.take(message)

    def _fill_tables(self, place: Place, position: int) -> None:
        waiting = self._waiting.get(place, deque())
        while waiting and waiting[0].offset < position:
            self.tables.take(waiting.popleft())

    def _take(self, operator: Operator, step: Step) -> Iterator[ReplayedOutput]:
        skipped: set[int] = set()
        self.last_ns = step.log_ns
        for choice in step.choices:
            self._note(choice)
            if choice["kind"] == StepChoiceKind.SKIPPED:
                skipped.add(choice["value"])
            elif choice["kind"] == StepChoiceKind.LEVEL:
                operator.set_level(self._level)
        messages: list[Message] = []
        for place, position in step.moved:
            if place != self._owner_place:
                self._fill_tables(place, position)
                continue
            waiting = self._waiting.get(place, deque())
            while waiting and waiting[0].offset < position:
                message = waiting.popleft()
                self._set_log_ns(message)
                if message.offset not in skipped:
                    messages.append(message)
        offset_ns = self.tables.clocks.log_offset_ns if self._offset_ns is None else self._offset_ns
        operator.moment = moment = Moment(step.log_ns, offset_ns)
        outputs: Sequence[Output] = ()
        with contextlib.suppress(*DATA_ERRORS):  # the worker published a reject
            if messages:
                operator.take(messages, self.tables)
            result = operator.advance(moment, self.tables)
            outputs = result() if callable(result) else result
        for output in outputs:
            yield ReplayedOutput(step.log_ns, output)
        operator.rejected.clear()
        operator.failed.clear()
