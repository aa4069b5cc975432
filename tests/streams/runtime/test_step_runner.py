"""Every as-read stage replays to the byte: golden logs through a worker in miniature, then by its steps.

The worker takes messages in irregular batches, reads tables early or late, lets operators wait or be late,
and is killed in the middle; its successor continues from the published outputs.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from schemas import codec
from schemas.kafka import partition_of
from schemas.kafka.message import Message, Place
from schemas.records import StepChoiceKind, Steps
from schemas.topics import STEPS
from schemas.topology import Topology
from streams.links.stage import LinksStage
from streams.queues.stage import QueuesStage
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.log_runner import StepRunner
from streams.runtime.operator import NEVER_NS, Moment, Operator, Owner, Past, Restore, Stage
from streams.runtime.past import PastMessages, start_of
from streams.runtime.settings import StreamSettings
from streams.runtime.steps import Epoch, MissingSteps, StepLog, recording_of
from tests.streams.runtime.recorded import GOLDEN_NAMES, PARTITIONS, TABLES, copies, golden

MS = 1_000_000
S = 1_000 * MS

Published = tuple[int, str, str, bytes | None]
"""Log time of the advance, topic, key and value."""


@dataclass
class Log:
    """What workers publish, and their steps."""

    published: list[Published] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    """The same as messages of the log."""
    steps: list[list[Steps]] = field(default_factory=list)
    """Records of steps by epoch."""
    _ends: dict[Place, int] = field(default_factory=dict)

    def publish(self, log_ns: int, topic: str, key: str, value: bytes | None) -> None:
        """Append an output."""
        self.published.append((log_ns, topic, key, value))
        place = (topic, partition_of(key, PARTITIONS))
        offset = self._ends.get(place, 0)
        self._ends[place] = offset + 1
        self.messages.append(Message(log_ns + MS, *place, offset, key, value))

    def past(self, restores: Sequence[Restore], inputs: Sequence[Message]) -> tuple[Past, dict[Place, int]]:
        """Return what a new owner restores after `inputs`, with its end offsets."""
        past: dict[str, list[Message]] = {}
        ends: dict[Place, int] = {}
        for restore in restores:
            topic, count = restore.topic.name, start_of(restore, 0).tail_messages
            messages = copies(m for m in [*inputs, *self.messages] if m.topic == topic)
            messages.sort(key=lambda message: (message.partition, message.offset))
            ends |= {message.place: message.offset + 1 for message in messages}
            if count is not None:
                messages = [m for m in messages if m.offset >= ends[m.place] - count]
            kept = PastMessages(restore)
            for message in messages:
                kept.add(message)
            past[topic] = list(kept.messages())
        return past, ends


class Worker:
    """Runs the operator of one partition for one epoch, as the worker does, at its own pace."""

    def __init__(
        self,
        log: Log,
        stage: Stage,
        owner_place: Place,
        committed: int | None,
        topology: Topology,
        inputs: Sequence[Message],
        pace: random.Random,
    ) -> None:
        """`inputs`: the messages that were in the log when it started."""
        self.log, self.stage, self._place, self._pace = log, stage, owner_place, pace
        self.settings = StreamSettings()
        self.tables = FabricTables(self.settings.default_shard, topology)
        for message in sorted(m for m in copies(inputs) if m.topic in TABLES):
            self.tables.take(message)
        now_ns = inputs[-1].append_ns if inputs else 0
        partition = owner_place[1]
        owner = Owner(
            now_ns // MS + 1, frozenset([partition]), PARTITIONS, self.settings,
            committed={} if committed is None else {partition: committed},
        )  # fmt: skip
        self.operator: Operator = stage.make(owner, partition, self.tables)
        past, ends = log.past(stage.restores(self.tables, PARTITIONS), inputs)
        self.operator.restore(past, self.tables)
        epoch = Epoch(stage.name, partition, owner.epoch, committed, ends)
        self.steps = StepLog(epoch, owner_place)
        topics = {topic.name for topic in stage.tables}
        self.steps.start(each for each in self.tables.positions.items() if each[0][0] in topics)
        self.moves = self.tables.moves(topics)
        self.committed = committed
        self._next_offset = committed
        self._newest_ns, self._now_ns, self._level = 0, now_ns, ""
        self._waiting: deque[Message] = deque()
        self._unread: dict[Place, deque[Message]] = {}
        self._records: list[Steps] = []
        log.steps.append(self._records)

    def receive(self, message: Message) -> None:
        """Let time pass to a message of the log, and receive it; it may be taken later."""
        if not self._waiting:
            self._pass_to(message.append_ns)
        self._now_ns = max(self._now_ns, message.append_ns)
        if message.topic in TABLES:
            self._unread.setdefault(message.place, deque()).append(message)
        elif message.offset >= (self.committed or 0):
            self._waiting.append(message)
        for place in self._pace.sample(sorted(self._unread), len(self._unread)):
            if self._pace.random() < 0.7:
                unread = self._unread[place]
                for _ in range(self._pace.randint(0, len(unread))):
                    self.tables.take(unread.popleft())
        if self._waiting and self._pace.random() < 0.5:
            self._advance(0)

    def end(self, log_ns: int) -> None:
        """Take what waits, and let time pass; then the worker is killed."""
        while self._waiting:
            self._advance(0)
        self._pass_to(log_ns)
        self._publish_steps()

    def _pass_to(self, log_ns: int) -> None:
        """Advance the operator where it is due up to a time, sometimes late."""
        for _ in range(100):
            due_ns = self.operator.due_ns()
            at_ns = max(due_ns, self._newest_ns, self._now_ns) + self._pace.choice(
                (0, 0, 999, 3 * MS, 20 * MS)
            )
            if due_ns >= NEVER_NS or at_ns > log_ns:
                return
            self._now_ns = at_ns
            self._advance(at_ns)

    def _advance(self, log_ns: int) -> None:
        messages = list(self._next_messages())
        operator = self.operator
        if operator.level() != self._level:
            self._level = operator.level()
            self.steps.choose(StepChoiceKind.LEVEL, text=self._level)
        positions = [] if self._next_offset is None else [(self._place, self._next_offset)]
        log_ns = self.steps.note(max(log_ns, self._newest_ns), [*positions, *self.moves])
        self.moves.clear()
        operator.moment = moment = Moment(log_ns, self.tables.clocks.log_offset_ns)
        if messages:
            operator.take(messages, self.tables)
        is_due = operator.due_ns() <= log_ns
        result = operator.advance(moment, self.tables)
        outputs = list(result() if callable(result) else result)
        if not is_due and not outputs:
            self.steps.note_idle()
        if outputs and operator.adapts:
            operator.keep_up(self._pace.choice((MS, 300 * MS)), self._pace.choice((0, 250 * MS)))
        for output in outputs:
            self.log.publish(log_ns, output.topic.name, output.key, output.value())
        assert not operator.failed
        if self._next_offset is not None:
            self.committed = min(operator.needed_from(), self._next_offset)
        if self._pace.random() < 0.02 or self.steps.is_full:
            self._publish_steps()

    def _next_messages(self) -> Iterator[Message]:
        is_late = self._pace.random() < 0.02 and self.stage.inputs[0].skip_after_ns < NEVER_NS
        for _ in range(min(len(self._waiting), self._pace.randint(1, 12))):
            message = self._waiting.popleft()
            self._next_offset, self._newest_ns = message.offset + 1, message.append_ns
            if is_late:
                self.steps.choose(StepChoiceKind.SKIPPED, message.place, message.offset)
            else:
                yield message

    def _publish_steps(self) -> None:
        record = self.steps.record()
        if record is not None:
            self._records.append(codec.decode(codec.encode(STEPS.type, record), STEPS.record))


def recorded(stage: type[Stage], messages: Sequence[Message], topology: Topology, pace: random.Random) -> Log:
    """Return what a worker and its successor publish."""
    log = Log()
    place = next(m.place for m in messages if m.topic == stage.owner.name)
    owned = [number for number, message in enumerate(messages) if message.place == place]
    restart = owned[int(len(owned) * pace.uniform(0.4, 0.7))]
    worker = Worker(log, stage(), place, None, topology, (), pace)
    for message in copies(messages[:restart]):
        worker.receive(message)
    worker.end(messages[restart].append_ns)
    again = worker.committed or 0
    worker = Worker(log, stage(), place, worker.committed, topology, messages[:restart], pace)
    read_again = (m for m in messages[:restart] if m.place == place and m.offset >= again)
    for message in copies([*read_again, *messages[restart:]]):
        worker.receive(message)
    worker.end(messages[-1].append_ns + 3 * S)
    return log


def replayed(
    stage: type[Stage], log: Log, messages: Sequence[Message], topology: Topology
) -> list[Published]:
    """Return what the steps of a log give."""
    outputs: list[Published] = []
    for records in log.steps:
        runner = StepRunner(stage(), recording_of(records), StreamSettings(), PARTITIONS, topology)
        for message in [*copies(messages), *copies(log.messages)]:
            runner.offer(message)
        for log_ns, made in runner.run():
            outputs.append((log_ns, made.topic.name, made.key, made.value()))
        assert runner.is_done
    return outputs


CASES = (("fabric", 0), ("fabric", 1), ("sim", 2))
LONG = pytest.mark.slow("replays the links of 256 NICs twice; make test replays those of the testbed")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("case", "seed", "stage"),
    [
        pytest.param(case, seed, stage, marks=[LONG] if (case, stage) == ("sim", LinksStage) else [])
        for case, seed in CASES
        for stage in GOLDEN_NAMES
    ],
)
def test_a_stage_replays_to_the_byte(case: str, stage: type[Stage], seed: int) -> None:
    messages, topology = golden(case, stage)
    log = recorded(stage, messages, topology, random.Random(seed))
    topics = {topic for _, topic, _, _ in log.published}
    assert topics == {topic.name for topic in stage.outputs}
    assert [len(records) > 0 for records in log.steps] == [True, True]
    if stage is QueuesStage and case == "fabric":
        choices = {
            choice["kind"] for of_epoch in log.steps for each in of_epoch for choice in each["choices"]
        }
        assert choices == {StepChoiceKind.LEVEL, StepChoiceKind.SKIPPED}
    outputs = replayed(stage, log, messages, topology)
    for number, (output, original) in enumerate(zip(outputs, log.published, strict=False)):
        assert output == original, f"output {number} of {len(log.published)}"
    assert len(outputs) == len(log.published)


def idle_records(minutes: int) -> list[Steps]:
    """Return a record each minute, of an owner that takes a message each minute."""
    steps = StepLog(Epoch("queues", 1, 1000, 7), ("fabric.path-queueing", 1))
    records = []
    for minute in range(1, minutes + 1):
        steps.note(S + minute * 60 * S, [(("fabric.path-queueing", 1), 7 + minute)])
        records.append(steps.record())
    return [record for record in records if record is not None]


def runner_of(records: Sequence[Steps], from_minute: int) -> StepRunner:
    from_ns = from_minute and S + from_minute * 60 * S
    return StepRunner(QueuesStage(), recording_of(records, from_ns), StreamSettings(), PARTITIONS)


def test_an_operator_begins_with_any_record_that_stands_alone() -> None:
    records = idle_records(40)
    for gone in (records[1:], records[5:], [records[0], *records[2:]], [*records[:12], *records[14:]]):
        runner = runner_of(gone, 25)
        assert (runner.recording.epoch.partition, runner.recording.epoch.committed) == (1, 7)
        assert runner._first_offset == 31, "the position before the step of minute 25"
        assert list(runner.run()) == []
        assert runner.last_ns == S + 40 * 60 * S


@pytest.mark.parametrize(
    ("records", "from_minute"),
    [
        (idle_records(9)[1:], 5),
        (idle_records(12)[10:], 0),
        (idle_records(25)[1:], 5),
        (idle_records(9)[1:], 0),
    ],
)
def test_steps_that_are_needed_and_missing_are_an_error(records: list[Steps], from_minute: int) -> None:
    with pytest.raises(MissingSteps):
        runner_of(records, from_minute)


def test_a_gap_after_the_begin_is_an_error() -> None:
    records = idle_records(40)
    runner = runner_of([*records[:30], *records[35:]], 25)
    with pytest.raises(MissingSteps):
        list(runner.run())
