"""Replays a stage that takes its inputs as read: each of its operators follows its recorded steps.

An operator that began shortly before the interval is replayed from its begin, and gives the same output to
the byte. An older one begins `WARM_UP_NS` before the interval like a new owner, at steps that follow a record
that stands alone. A worker publishes steps twice a second, so the last outputs before its death have none;
they are counted, and are no difference. So are outputs of an operator whose steps are missing or bad.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from fabrictime.commands.replay_compare import Dated, Difference, Records, compare
from fabrictime.commands.replay_reader import partition_count, read_interval
from fabrictime.commands.replay_run import Replay, Replayed
from schemas import codec
from schemas.identities import has_local_facts, identity_of
from schemas.kafka.message import Message
from schemas.kafka.partitioning import partition_of
from schemas.kafka.start import BEGINNING, Start, since
from schemas.records import Steps
from schemas.topics import STEPS, TOPICS, Topic
from streams.runtime.digests import build_digest, settings_digest, topology_digest
from streams.runtime.operator import Stage
from streams.runtime.step_runner import StepRunner
from streams.runtime.steps import Epoch, check_times, key_of
from streams.runtime.units import NS_PER_MS, NS_PER_S

__all__ = ["replay_steps"]

EPOCH_BACK_NS: Final = 900 * NS_PER_S
"""Time before the interval at which an operator may have begun to be replayed from its begin."""
WARM_UP_NS: Final = 120 * NS_PER_S
"""Time before the interval at which an older operator begins like a new owner."""
PAST_NS: Final = 300 * NS_PER_S
"""Time of published records, and of tables that are not compacted, before the begin of an operator."""
EDGE_NS: Final = NS_PER_S
"""Time in which outputs of the end of the interval are published."""
BEFORE_NS: Final = 5 * NS_PER_S
"""Time before the interval whose outputs are only counterparts of those in it."""
UNRECORDED_NS: Final = 2 * NS_PER_S
"""Time after the last step of the log in which its worker may have published outputs."""

Value = tuple[str, str, bytes | None]
"""Topic, key and value of a message."""


class Gap(NamedTuple):
    """Log times in which a worker may have published outputs of a partition without their steps."""

    partition: int
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class _Operator:
    """One operator of the stage in one epoch. `error`: why it cannot be replayed."""

    partition: int
    epoch: int
    messages: list[tuple[int, Message]] = field(default_factory=list)
    """Records of its steps as they are in the log, each with the number of its first step."""
    last_ns: int = 0
    """Append time of the last of them."""
    runner: StepRunner | None = None
    error: str = ""

    @property
    def begin_ns(self) -> int:
        """Log time at which it begins."""
        return self.epoch * NS_PER_MS if self.runner is None else self.runner.begin_ns

    def add(self, message: Message, record: Steps) -> None:
        """Add a record of its steps."""
        self.messages.append((record["first_step"], message))
        self.last_ns = max(self.last_ns, message.append_ns)
        try:
            check_times(record, message.append_ns)
        except ValueError as error:
            self.error = str(error)

    def records(self, run: Replay) -> Iterator[Steps]:
        """Yield the records of its steps in order; they are decoded as they are needed."""
        for _, message in sorted(self.messages, key=lambda pair: pair[0]):
            yield codec.decode(message.value or b"", Steps, run.registry)

    def begin(self, stage: Stage, run: Replay, count: int) -> None:
        """Make its runner, or note why that is impossible. `count`: partitions of the owner topic."""
        is_old = _is_old(self.epoch, run)
        if self.partition >= count:
            self.error = f"partition {self.partition} does not exist"
        if self.error:
            return
        try:
            self.runner = StepRunner(
                stage,
                self.records(run),
                run.settings,
                count,
                run.topology,
                run.registry,
                run.span.from_ns - WARM_UP_NS if is_old else 0,
            )
        except ValueError as error:
            self.error = str(error)

    def outputs(self, run: Replay, *, is_complete: bool) -> Iterator[tuple[Value, int]]:
        """Yield the outputs of the steps whose messages have been read, of those in the interval."""
        if self.runner is None or self.error:
            return
        try:
            for replayed in self.runner.run(is_complete=is_complete):
                if run.span.from_ns - BEFORE_NS <= replayed.log_ns < run.span.to_ns:
                    output = replayed.output
                    yield (output.topic.name, output.key, output.value(run.registry)), replayed.log_ns
        except ValueError as error:
            self.error = str(error)


def replay_steps(stage: Stage, run: Replay) -> Replayed:
    """Replay the operators of a stage over an interval, and compare. Raises ValueError for a bad log."""
    began_s, run.messages, run.first_ns = time.monotonic(), 0, None
    operators = _operators(stage, run)
    published: list[tuple[Value, int]] = []
    replayed: list[tuple[Value, int]] = []
    outputs = {topic.name for topic in stage.outputs}
    count = partition_count(run.cluster, stage.owner) if operators else 1
    for operator in operators:
        operator.begin(stage, run, count)
    if operators:
        runners = [operator.runner for operator in operators if operator.runner is not None]
        from_ns = min((runner.begin_ns for runner in runners), default=run.span.from_ns)
        for messages, _ in run.read(_starts(stage, run, from_ns), run.span.to_ns):
            for message in messages:
                if message.topic in outputs and message.append_ns >= run.span.from_ns - BEFORE_NS:
                    published.append(((message.topic, message.key, message.value), message.append_ns))
                for runner in runners:
                    runner.offer(message)
            for operator in operators:
                replayed += operator.outputs(run, is_complete=False)
        for operator in operators:
            replayed += operator.outputs(run, is_complete=True)
    gaps = _gaps(operators)
    differences, unrecorded = _compared(run, published, replayed, gaps, _Partitions(stage.owner, count))
    return Replayed(
        stage.name,
        run.span,
        [],
        differences,
        sum(append_ns >= run.span.from_ns for _, append_ns in published),
        run.messages,
        time.monotonic() - began_s,
        replayed=sum(log_ns >= run.span.from_ns for _, log_ns in replayed),
        unrecorded=unrecorded,
        covered_s=run.covered_s,
        notes=_notes(stage, operators, run),
    )


def _operators(stage: Stage, run: Replay) -> list[_Operator]:
    """Return the operators of the stage that took a step in the interval, by partition and epoch."""
    operators: dict[tuple[int, int], _Operator] = {}
    start = since(run.span.from_ns - EPOCH_BACK_NS)
    for messages, _ in read_interval(run.cluster, {STEPS: start}, run.span.to_ns):
        for message in messages:
            if not message.key.startswith(f"{stage.name}/") or message.value is None:
                continue
            try:
                record = codec.decode(message.value, Steps, run.registry)
            except codec.BadRecord:
                continue
            if message.key == key_of(record["stage"], record["partition"]):
                name = record["partition"], record["epoch"]
                operators.setdefault(name, _Operator(*name)).add(message, record)
    return [each for _, each in sorted(operators.items()) if each.last_ns >= run.span.from_ns]


def _gaps(operators: Sequence[_Operator]) -> list[Gap]:
    """Return when workers may have published outputs without steps.

    `operators`: by partition and epoch. From the last step of an operator to the begin of the next one; the
    whole time of one that cannot be replayed.
    """
    gaps = []
    for operator, following in zip_longest(operators, operators[1:]):
        is_replaced = following is not None and following.partition == operator.partition
        next_ns = following.begin_ns if following is not None and is_replaced else 0
        if operator.error or operator.runner is None:
            begin_ns, last_ns = operator.epoch * NS_PER_MS, operator.last_ns
        else:
            begin_ns = last_ns = operator.runner.last_ns
        gaps.append(Gap(operator.partition, begin_ns, max(last_ns + UNRECORDED_NS, next_ns)))
    return gaps


def _notes(stage: Stage, operators: Sequence[_Operator], run: Replay) -> list[str]:
    """Return a line for each operator that cannot be replayed, and one for what changed since the steps."""
    notes = [
        f"{key_of(stage.name, each.partition)} cannot be replayed: {each.error}"
        for each in operators
        if each.error
    ]
    changed = set().union(*(_changed(each.runner.epoch, run) for each in operators if each.runner))
    if changed:
        notes.append(f"note: {', '.join(sorted(changed))} changed since the steps of {stage.name}")
    return notes


def _changed(epoch: Epoch, run: Replay) -> set[str]:
    """Return what differs now from the time of an epoch."""
    digests = {
        "build": (epoch.build, build_digest()),
        "settings": (epoch.settings_digest, settings_digest(run.settings)),
        "topology": (epoch.topology_digest, topology_digest(run.topology) if run.topology else ""),
    }
    return {name for name, (then, now) in digests.items() if then and now and then != now}


def _is_old(epoch: int, run: Replay) -> bool:
    return epoch * NS_PER_MS < run.span.from_ns - EPOCH_BACK_NS


def _starts(stage: Stage, run: Replay, from_ns: int) -> dict[Topic, Start]:
    """Return where each topic is read from, given the begin of the oldest operator."""
    restored = [restore.topic for restore in stage.restores(run.tables(()), 1)]
    return {
        topic: BEGINNING if topic.retention_ms is None else since(from_ns - PAST_NS)
        for topic in (stage.owner, *stage.tables, *stage.outputs, *restored)
    }


@dataclass(frozen=True, slots=True)
class _Partitions:
    """Tells of which partition of a stage's owner topic an output is."""

    owner: Topic
    count: int

    def of(self, record: Mapping[str, Any]) -> int | None:
        """Return the partition of an output; None: the record does not tell."""
        topic, _, number = str(record.get("source", "")).rpartition("/")
        if topic == self.owner.name and number.isdecimal():
            return int(number)
        key = record.get("shard" if self.owner.key == "shard" else "nic")
        return None if key is None else partition_of(key, self.count)


def _compared(
    run: Replay,
    published: Sequence[tuple[Value, int]],
    replayed: Sequence[tuple[Value, int]],
    gaps: Sequence[Gap],
    partitions: _Partitions,
) -> tuple[list[Difference], int]:
    """Return the differences, and the number of published outputs whose steps are not in the log.

    Values that are equal to the byte are not decoded, except where records differ by local facts.
    """
    differing = {value for value, _ in published} ^ {value for value, _ in replayed}
    differences: list[Difference] = []
    unrecorded = 0
    for topic in sorted({topic for topic, _, _ in differing}):
        was = _records(run, topic, published, differing)
        now = _records(run, topic, replayed, differing)
        for difference in compare(TOPICS[topic], run.span, was, now, EDGE_NS):
            if difference.published is not None and _has_no_steps(difference.published, gaps, partitions):
                unrecorded += 1
            else:
                differences.append(difference)
    return differences, unrecorded


def _has_no_steps(published: Dated, gaps: Iterable[Gap], partitions: _Partitions) -> bool:
    record, at_ns = published
    inside = [gap.partition for gap in gaps if gap.begin_ns <= at_ns < gap.end_ns]
    return bool(inside) and partitions.of(record) in (None, *inside)


def _records(run: Replay, topic: str, values: Iterable[tuple[Value, int]], differing: set[Value]) -> Records:
    """Return the records of a topic among those that differ, with their log time."""
    records: Records = defaultdict(list)
    decodes_all = has_local_facts(TOPICS[topic])
    for value, at_ns in values:
        name, key, body = value
        if name == topic and (value in differing or decodes_all):
            record = {} if body is None else codec.decode(body, TOPICS[topic].type, run.registry)
            identity = ("", key) if body is None else identity_of(TOPICS[topic], record)
            records[identity].append((record, at_ns))
    return records
