"""Runs operators over a recorded log, at full speed and without I/O.

`TimedRunner` follows the log's time. `StepRunner` follows the recorded steps of the run that is replayed.
A step states how far each input and table had been read, so that the same build gives the same output. Both
runners accept the same messages and leave them unchanged. They yield each output with the log time of its
advance.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Final

from schemas import codec
from schemas.kafka.message import Message, Place
from schemas.kafka.start import BEGINNING, Start, since
from schemas.records import StepChoice, StepChoiceKind
from schemas.topics import CLOCK_OFFSETS, FLOWS, Topic
from schemas.topology import Topology
from schemas.unexpected import DATA_ERRORS
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import NEVER_NS, Moment, Operator, Output, Owner, Past, Stage
from streams.runtime.past import past_of, start_of
from streams.runtime.pipeline_constants import INPUT_DELAY_NS
from streams.runtime.settings import StreamSettings
from streams.runtime.steps import Recording, Step
from streams.runtime.units import NS_PER_MS, NS_PER_S

STEP_NS: Final = NS_PER_S
"""Log time between two advances of a timed stage."""
TABLE_BACK_NS: Final[Mapping[Topic, int]] = {CLOCK_OFFSETS: 60 * NS_PER_S, FLOWS: 30 * NS_PER_S}
"""For timed stages: how far before the begin messages of tables that are not compacted still count."""
PAST_NS: Final = 300 * NS_PER_S
"""For stages that follow steps: how far before the begin tables, inputs and restored records count."""

Outputs = Iterator[tuple[int, Output]]


def earliest(starts: Iterable[Mapping[Topic, Start]]) -> dict[Topic, Start]:
    """Return the earliest of the given starts for each topic, so that no reader misses a message."""
    merged: dict[Topic, Start] = {}
    for of_one in starts:
        for topic, start in of_one.items():
            other = merged.get(topic, start)
            merged[topic] = start if (start.since_ns or 0) < (other.since_ns or 0) else other
    return merged


class LogRunner:
    """Runs one operator of a stage from its start. Offered messages wait until their log time."""

    def __init__(
        self,
        stage: Stage,
        settings: StreamSettings,
        topology: Topology | None = None,
        registry: codec.Registry | None = None,
    ) -> None:
        self._stage, self._settings, self._registry = stage, settings, registry
        self.tables = FabricTables(
            settings.default_shard,
            topology,
            registry,
            holdover_s=settings.solve.holdover_s,
            window_ns=settings.window_ms * NS_PER_MS,
        )
        self._inputs = frozenset(stage_input.topic.name for stage_input in stage.inputs)
        self._lookups = frozenset(topic.name for topic in stage.tables)
        self.starts: dict[Topic, Start] = {}
        """Place from which each of its topics is read."""
        self.last_ns = 0
        """Log time of the last step that was taken."""
        self._restores = stage.restores(self.tables, 1)
        self._past: dict[str, list[Message]] = {restore.topic.name: [] for restore in self._restores}
        self._operator: Operator | None = None

    def offer(self, message: Message) -> None:
        """Add a message of an input, a table or a restored topic; offsets must ascend within a partition.

        A message with an offset below 0 is taken when the operator starts.
        """
        raise NotImplementedError

    def run(self, mark_ns: int = NEVER_NS) -> Outputs:
        """Yield the outputs that can be computed once all messages appended before `mark_ns` were offered."""
        raise NotImplementedError

    def _restored(self, begin_ns: int, partition_count: int, ends: Mapping[Place, int]) -> Past:
        restores = self._stage.restores(self.tables, partition_count)
        past = past_of(restores, self._past, begin_ns, ends)
        self._past.clear()
        return past

    def _advance(self, operator: Operator, messages: Sequence[Message], moment: Moment) -> Outputs:
        operator.moment = moment
        outputs: Sequence[Output] = ()
        with contextlib.suppress(*DATA_ERRORS):  # the worker published a reject
            if messages:
                operator.take(messages, self.tables)
            result = operator.advance(moment, self.tables)
            outputs = result() if callable(result) else result
        for output in outputs:
            yield moment.log_ns, output
        operator.rejected.clear()
        operator.failed.clear()


class TimedRunner(LogRunner):
    """Runs the operator of a timed stage for an owner of all partitions, from `from_ns` up to `to_ns`.

    `config`: messages of `fabric.config` from before `from_ns`, on which the starts of topics depend.
    """

    def __init__(
        self,
        stage: Stage,
        config: Iterable[Message],
        from_ns: int,
        to_ns: int,
        settings: StreamSettings,
        topology: Topology | None = None,
        registry: codec.Registry | None = None,
    ) -> None:
        super().__init__(stage, settings, topology, registry)
        self._from_ns, self._to_ns = from_ns, to_ns
        for message in config:
            self.tables.take(message)
        inputs = {
            stage_input.topic: stage_input.start(from_ns, self.tables)
            for stage_input in stage.inputs
            if stage_input.start
        }
        self._inputs_ns = {topic.name: start.since_ns or 0 for topic, start in inputs.items()}
        lookups = {
            topic: since(from_ns - TABLE_BACK_NS[topic]) if topic in TABLE_BACK_NS else BEGINNING
            for topic in stage.tables
        }
        self._lookups_ns = {topic.name: start.since_ns or 0 for topic, start in lookups.items()}
        restored = {restore.topic: start_of(restore, from_ns) for restore in self._restores}
        self.starts = earliest([inputs, lookups, restored])
        self._at_ns = from_ns - 1
        self._early: list[Message] = []
        """Messages of tables that were appended before the begin."""
        self._waiting: list[tuple[int, str, int, int, Message]] = []

    def offer(self, message: Message) -> None:
        """Add a message of an input, a table or a restored topic, in any order."""
        topic, append_ns = message.topic, message.append_ns
        if append_ns >= self._to_ns:
            return
        is_lookup = append_ns >= self._lookups_ns.get(topic, NEVER_NS)
        if append_ns < self._from_ns:
            if topic in self._past:
                self._past[topic].append(message)
            if is_lookup:
                self._early.append(message)
            is_lookup = False
        if is_lookup or append_ns >= self._inputs_ns.get(topic, NEVER_NS):
            at = (message.log_ns, topic, message.partition, message.offset)
            heapq.heappush(self._waiting, (*at, message))

    def run(self, mark_ns: int = NEVER_NS) -> Outputs:
        """Yield the outputs that can be computed once all messages appended before `mark_ns` were offered."""
        reached_ns = mark_ns - INPUT_DELAY_NS - 1
        if self._operator is None:
            if reached_ns < self._at_ns:
                return
            self._operator = self._begun()
            yield from self._advance_to(self._operator, self._at_ns)
        while (next_ns := (self._at_ns // STEP_NS + 1) * STEP_NS) <= min(reached_ns, self._to_ns - 1):
            yield from self._advance_to(self._operator, next_ns)
        if mark_ns == NEVER_NS:
            yield from self._advance_to(self._operator, self._to_ns - 1)

    def _begun(self) -> Operator:
        for message in sorted(self._early):
            if message.offset >= self.tables.positions.get(message.place, 0):
                self.tables.take(message)
        self._early.clear()
        past = self._restored(self._from_ns, 1, {})
        epoch = self._stage.epoch(self._from_ns, past, self._registry)
        owner = Owner(epoch, frozenset((0,)), 1, self._settings, self._registry)
        operator = self._stage.make(owner, -1, self.tables)
        operator.restore(past, self.tables)
        return operator

    def _advance_to(self, operator: Operator, log_ns: int) -> Outputs:
        """Advance the operator to a log time; fill tables before it takes messages of the same time."""
        self._at_ns = log_ns
        moment = Moment(log_ns, self.tables.clocks.log_offset_ns)
        messages: list[Message] = []
        while self._waiting and self._waiting[0][0] <= log_ns + INPUT_DELAY_NS:
            message = heapq.heappop(self._waiting)[-1]
            if message.topic in self._lookups and message.append_ns >= self._from_ns:
                self.tables.take(message)
            if message.topic in self._inputs:
                messages.append(message)
        return self._advance(operator, messages, moment)


class StepRunner(LogRunner):
    """Replays an operator from a recording. The constructor and `run` raise MissingSteps or BadSteps.

    All offered messages stay in memory until their step: each table decides which messages it needs.
    """

    def __init__(
        self,
        stage: Stage,
        recording: Recording,
        settings: StreamSettings,
        partition_count: int,
        topology: Topology | None = None,
        registry: codec.Registry | None = None,
    ) -> None:
        super().__init__(stage, settings, topology, registry)
        self.recording, epoch = recording, recording.epoch
        self._place = (stage.owner.name, epoch.partition)
        committed = recording.starts.get(self._place) or epoch.committed
        self._first_offset = committed or 0
        self._owner = Owner(
            epoch.epoch,
            frozenset((epoch.partition,)),
            partition_count,
            settings,
            registry,
            {} if committed is None else {epoch.partition: committed},
        )
        for stage_input in stage.inputs:
            start = stage_input.start and stage_input.start(epoch.epoch * NS_PER_MS, self.tables)
            self.starts[stage_input.topic] = start or self._back(stage_input.topic)
        for restore in self._restores:
            start = start_of(restore, recording.begin_ns)
            self.starts[restore.topic] = self._back(restore.topic) if start.tail_messages else start
        self.starts |= {topic: self._back(topic) for topic in stage.tables}
        self._starts_ns = {topic.name: start.since_ns or 0 for topic, start in self.starts.items()}
        self._waiting: dict[Place, deque[Message] | None] = {}
        """Maps partition to its waiting messages; None for a partition that is not read."""
        self._read: dict[Place, int] = {}
        """Maps partition to one past the last offset that was offered."""
        self._offset_ns: int | None = None
        self._correction_ns = self._newest_ns = 0
        self._level = ""
        for choice in recording.in_force:
            self._note(choice)
        self._step = next(recording.steps, None)

    def _back(self, topic: Topic) -> Start:
        return BEGINNING if topic.retention_ms is None else since(self.recording.begin_ns - PAST_NS)

    @property
    def is_done(self) -> bool:
        """Whether all steps were taken."""
        return self._step is None

    def offer(self, message: Message) -> None:
        """Add a message of an input, a table or a restored topic; offsets of a partition ascend."""
        if self._step is None:
            return
        topic, place = message.topic, message.place
        self._read[place] = message.offset + 1
        if message.append_ns < self._starts_ns.get(topic, NEVER_NS) and message.offset >= 0:
            return
        if topic in self._past and self._is_past(message):
            self._past[topic].append(message)
        if place not in self._waiting:
            self._waiting[place] = deque() if self._reads(place) else None
        waiting = self._waiting[place]
        if waiting is not None and not (place == self._place and 0 <= message.offset < self._first_offset):
            waiting.append(message)

    def _reads(self, place: Place) -> bool:
        if place[0] in self._inputs:
            return place == self._place or not self._stage.per_partition
        return place[0] in self._lookups

    def _is_past(self, message: Message) -> bool:
        if self.recording.from_ns:
            return message.append_ns < self.recording.from_ns
        return message.offset < self.recording.epoch.restored.get(message.place, 0)

    def run(self, mark_ns: int = NEVER_NS) -> Outputs:
        """Yield outputs of all steps whose messages were offered; if the log has ended, of all steps."""
        is_complete = mark_ns == NEVER_NS
        if self._operator is None:
            if not is_complete and not self._can_begin(mark_ns):
                return
            self._operator = self._begun()
        while self._step is not None and (is_complete or self._reached(self._step.moved)):
            yield from self._take(self._operator, self._step)
            self._step = next(self.recording.steps, None)

    def _can_begin(self, mark_ns: int) -> bool:
        """Return whether all restored records and all messages before the first step have been offered."""
        restored = self.recording.epoch.restored.items()
        has_past = (
            mark_ns >= self.recording.from_ns
            if self.recording.from_ns
            else all(self._read.get(place, 0) >= end for place, end in restored)
        )
        return has_past and self._reached(self.recording.starts.items())

    def _reached(self, positions: Iterable[tuple[Place, int]]) -> bool:
        return all(
            self._read.get(place, 0) >= position or not self._reads(place) for place, position in positions
        )

    def _begun(self) -> Operator:
        """Return the operator in its initial state, after filling the tables in the order of append times."""
        early: list[Message] = []
        for place, waiting in self._waiting.items():
            start = self.recording.starts.get(place, 0)
            while waiting and waiting[0].offset < start:
                early.append(waiting.popleft())
        for message in sorted(message for message in early if message.topic in self._lookups):
            self.tables.take(message)
        ends = {} if self.recording.from_ns else self.recording.epoch.restored
        past = self._restored(self.recording.begin_ns, self._owner.partition_count, ends)
        partition = self._place[1] if self._stage.per_partition else -1
        operator = self._stage.make(self._owner, partition, self.tables)
        operator.restore(past, self.tables)
        if inputs := [message for message in early if message.topic in self._inputs]:
            operator.take(inputs, self.tables)
        return operator

    def _note(self, choice: StepChoice) -> None:
        match choice["kind"]:
            case StepChoiceKind.OFFSET:
                self._offset_ns = choice["value"]
            case StepChoiceKind.CORRECTION:
                self._correction_ns = choice["value"]
            case StepChoiceKind.LEVEL:
                self._level = choice["text"]

    def _take(self, operator: Operator, step: Step) -> Outputs:
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
            waiting, is_input = self._waiting.get(place), place[0] in self._inputs
            while waiting and waiting[0].offset < position:
                message = waiting.popleft()
                if not is_input:
                    self.tables.take(message)
                    continue
                message = self._dated(message)
                if message.offset not in skipped:
                    messages.append(message)
        offset_ns = self.tables.clocks.log_offset_ns if self._offset_ns is None else self._offset_ns
        return self._advance(operator, messages, Moment(step.log_ns, offset_ns))

    def _dated(self, message: Message) -> Message:
        """Return the message with the log time at which the recorded worker took it."""
        if self._stage.uses_append_time:
            return message
        self._newest_ns = max(self._newest_ns, message.append_ns + self._correction_ns)
        if message.log_ns != self._newest_ns:
            message = copy(message)  # other runners have it too
            message.log_ns = self._newest_ns
        return message
