"""Replays stages over an interval of a log, in one pass, and compares their records with the published ones.

Timed stages (alerts, diagnosis) are replayed like a new owner that takes over at the start of the interval.
The policy follows its recorded cycles; every other operator follows its recorded steps. An operator that
began shortly before the interval is replayed from its beginning, and its output is byte-identical. An older
operator begins `WARM_UP_NS` before the interval, like a new owner.

A worker publishes steps twice a second, so its last outputs before it was killed have none. These outputs,
and those of an operator that cannot be replayed, are counted, but not as differences. Nothing is published.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, zip_longest
from typing import Any, Final

from fabrictime.commands.config.live_config import PLAIN
from fabrictime.commands.replay.compare import Difference, Gap, Partitions, Value, compared, records_of
from fabrictime.commands.replay.reader import Span, partition_counts, read_interval
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.message import Message
from schemas.kafka.partitioning import partition_of
from schemas.kafka.settings import KafkaSettings
from schemas.kafka.start import BEGINNING, Start, since
from schemas.messages import decode_message
from schemas.records import ActuatorConfig, Threshold
from schemas.topics import ALERTS, CONFIG, DECISIONS, DIAGNOSES, POLICY_CYCLES, STEPS, R, Topic
from schemas.topology import Topology
from schemas.unexpected import DATA_ERRORS
from streams import app
from streams.alerts.stage import AlertsStage
from streams.diagnosis.rules import DiagnosisRules
from streams.diagnosis.stage import DiagnosisStage
from streams.policy.replay import recording_of_cycles
from streams.policy.stage import PolicyStage
from streams.runtime.digests import build_digest, settings_digest, topology_digest
from streams.runtime.live_config import EVERYONE
from streams.runtime.log_runner import LogRunner, StepRunner, TimedRunner, earliest
from streams.runtime.operator import NEVER_NS, Output, Stage
from streams.runtime.settings import StreamSettings
from streams.runtime.steps import BadSteps, check_times, recording_of
from streams.runtime.thresholds import THRESHOLDS, check_value
from streams.runtime.units import NS_PER_MS, NS_PER_S

EPOCH_BACK_NS: Final = 900 * NS_PER_S
"""An operator that began at most this long before the interval is replayed from its begin, ns."""
WARM_UP_NS: Final = 120 * NS_PER_S
"""How long before the interval an older operator begins, like a new owner, ns."""
AFTER_NS: Final = 10 * NS_PER_S
"""Time after the end within which a worker must have published its records."""
UNRECORDED_NS: Final = 2 * NS_PER_S
"""Time after an operator's last recorded step in which its worker may still have published outputs, ns."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Rules and thresholds for the replay that replace the original run's."""

    rules: DiagnosisRules = field(default_factory=DiagnosisRules)
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def of(self, messages: Iterable[Message], registry: codec.Registry | None) -> Iterator[Message]:
        """Yield the messages, with the changed thresholds in messages of `fabric.config`."""
        for message in messages:
            if self.thresholds and message.topic == CONFIG.name and message.value is not None:
                with contextlib.suppress(codec.BadRecord):
                    message = self._changed(message, message.decoded(CONFIG, registry))
            yield message

    def first(self) -> Message:
        """Return a configuration message with the changed thresholds, for a log without any such message."""
        return self._changed(Message(0, CONFIG.name, 0, -1, EVERYONE, None), PLAIN)

    def _changed(self, message: Message, record: ActuatorConfig) -> Message:
        values = {threshold["name"]: threshold["value"] for threshold in record["thresholds"]} | dict(
            self.thresholds
        )
        thresholds: list[Threshold] = [{"name": name, "value": values[name]} for name in sorted(values)]
        value = codec.encode(CONFIG.type, {**record, "thresholds": thresholds})
        return Message(message.append_ns, *message.place, message.offset, message.key_bytes, value)


def changes_of(assignments: Sequence[str]) -> Changes:
    """Return the changes in texts such as `slow_ratio=1.3`. Raises ValueError for a bad name or value."""
    rules: dict[str, Any] = {}
    thresholds: dict[str, float] = {}
    kinds = {name: type(value) for name, value in asdict(DiagnosisRules()).items()}
    for text in assignments:
        name, _, value = text.partition("=")
        try:
            if name in kinds:
                rules[name] = kinds[name](value)
            elif name in THRESHOLDS:
                thresholds[name] = check_value(name, float(value))
            else:
                names = ", ".join(sorted([*kinds, *THRESHOLDS]))
                raise InputError(f"expected NAME=NUMBER with a name of {names}")
        except ValueError as error:
            raise InputError(f"--rule {text}: {error}") from None
    return Changes(DiagnosisRules(**rules), thresholds)


@dataclass(frozen=True, slots=True)
class Replay:
    """The interval of a log to replay, with the settings, topology and changes for it."""

    cluster: KafkaSettings | str
    span: Span
    settings: StreamSettings = field(default_factory=StreamSettings)
    topology: Topology | None = None
    registry: codec.Registry | None = None
    changes: Changes = field(default_factory=Changes)
    progress: Callable[[int, int], None] = lambda messages, at_ns: None
    """Called with the number of messages read and the log time reached, ns."""


@dataclass(slots=True)
class Replayed:
    """The result of replaying one stage: its differences and counts."""

    stage: str
    span: Span
    records: list[Any]
    """The replayed records of the interval, for a stage without steps."""
    differences: list[Difference]
    published: int
    messages: int
    took_s: float
    """Time that the stage took, s, including an equal share of the reading."""
    count: int = 0
    """Number of replayed records in the interval."""
    unrecorded: int = 0
    """Number of records without steps, because they were lost with a worker or cannot be replayed."""
    covered_s: float = 0.0
    """Length of the part of the interval that the log covers, s."""
    failed: list[str] = field(default_factory=list)
    """A line for each operator that cannot be replayed."""
    notes: list[str] = field(default_factory=list)
    """Lines about changes of the build or the settings since the original run."""

    @property
    def same(self) -> float:
        """The share of records, 0 to 1, that are equal in the log and in the replay."""
        missing = sum(difference.kind.startswith("was") for difference in self.differences)
        return 1 - len(self.differences) / max(1, self.count + missing)


@dataclass(frozen=True, slots=True)
class _Kind:
    """The outputs of a stage that are compared, and the times around the interval that count."""

    outputs: tuple[Topic, ...]
    edge_ns: int
    """For this long before the interval's end, records may not have been published yet, ns."""
    before_ns: int = AFTER_NS
    after_ns: int = AFTER_NS
    """How long before and after the interval outputs serve as counterparts of those inside, ns."""
    newest_only: bool = True
    """Whether only the last record of each identity counts."""


BY_STEPS: Final[Mapping[str, type[Stage]]] = {
    stage.name: stage for _, stage in app.STAGES if stage.per_partition
}
"""The stages that are replayed by their recorded steps."""
KINDS: Final[Mapping[str, _Kind]] = {
    **{
        name: _Kind(stage.outputs, NS_PER_S, 5 * NS_PER_S, 0, newest_only=False)
        for name, stage in BY_STEPS.items()
    },
    AlertsStage.name: _Kind((ALERTS,), 2 * NS_PER_S),
    DiagnosisStage.name: _Kind((DIAGNOSES,), 5 * NS_PER_S),
    PolicyStage.name: _Kind((DECISIONS,), 0),
}
STAGES: Final = tuple(KINDS)
"""The stages that can be replayed."""
OWNERS: Final = {stage.name: stage.owner for _, stage in app.STAGES}


@dataclass(slots=True)
class Operator:
    """One operator of a stage in one epoch. `error`: why it cannot be replayed; empty if it can."""

    name: str
    partition: int
    began_ns: int
    records: list[tuple[int, Message]] = field(default_factory=list)
    """(number of its first step, message) for each record of the operator's steps or cycles in the log."""
    last_ns: int = 0
    """Largest append time of these messages, ns."""
    runner: LogRunner | None = None
    error: str = ""

    @property
    def begin_ns(self) -> int:
        """Log time at which the replay of the operator begins, ns."""
        return self.runner.recording.begin_ns if isinstance(self.runner, StepRunner) else self.began_ns

    def add(self, message: Message, first: int) -> None:
        """Add a message with steps or cycles of the operator. `first`: number of the message's first step."""
        self.records.append((first, message))
        self.last_ns = max(self.last_ns, message.append_ns)

    def decoded(self, topic: Topic[R], registry: codec.Registry | None) -> Iterator[R]:
        """Yield the decoded records of the operator in order; decode each only when it is consumed."""
        for _, message in sorted(self.records, key=lambda pair: pair[0]):
            yield codec.decode(message.value or b"", topic.type, registry)

    def outputs(self, mark_ns: int) -> Iterator[tuple[int, Output]]:
        """Yield (log time, output) for messages appended before `mark_ns`; store an error and stop."""
        try:
            if self.runner is not None and not self.error:
                yield from self.runner.run(mark_ns)
        except ValueError as error:
            self.error = str(error)


class StageReplay:
    """The replay of one stage, which processes the messages of a pass over the log."""

    def __init__(
        self, name: str, run: Replay, operators: Sequence[Operator], counts: Mapping[str, int]
    ) -> None:
        """Store the operators to replay. `counts`: number of partitions by topic name."""
        owner = OWNERS[name]
        self._run, self._kind, self._operators = run, KINDS[name], operators
        self._result = Replayed(name, run.span, [], [], 0, 0, 0.0)
        self._partitions = Partitions(owner, counts[owner.name])
        self.from_ns = run.span.from_ns - self._kind.before_ns
        self.to_ns = run.span.to_ns + self._kind.after_ns
        is_compared = operators or self._kind.newest_only
        outputs = dict.fromkeys(self._kind.outputs if is_compared else (), since(self.from_ns))
        self.starts = earliest(
            [outputs, *(operator.runner.starts for operator in operators if operator.runner)]
        )
        self.took_s = 0.0
        """Time that this stage's own work took, s."""
        self._first_ns = NEVER_NS
        self._published: list[tuple[Value, int]] = []
        self._replayed: list[tuple[Value, int]] = []

    def take(self, messages: Mapping[str, Sequence[Message]], mark_ns: int) -> None:
        """Process messages by topic. `mark_ns`: all messages appended before this log time have been read."""
        began_s = time.perf_counter()
        runners = [operator.runner for operator in self._operators if operator.runner and not operator.error]
        for topic, start in self.starts.items():
            from_ns = start.since_ns or 0
            own = [
                message
                for message in messages.get(topic.name, ())
                if from_ns <= message.append_ns < self.to_ns
            ]
            self._count(topic, own, mark_ns)
            for runner in runners:
                for message in own:
                    runner.offer(message)
        for operator in self._operators:
            for log_ns, output in operator.outputs(mark_ns):
                if output.topic in self._kind.outputs and self.from_ns <= log_ns < self.to_ns:
                    try:
                        value = output.value(self._run.registry)
                    except DATA_ERRORS:
                        continue  # the worker publishes none either
                    self._replayed.append(((output.topic.name, output.key, value), log_ns))
        self.took_s += time.perf_counter() - began_s

    def _count(self, topic: Topic, messages: Sequence[Message], mark_ns: int) -> None:
        self._result.messages += len(messages)
        if self._first_ns > mark_ns:
            times_ns = (
                message.append_ns for message in messages if message.append_ns >= self._run.span.from_ns
            )
            self._first_ns = min(self._first_ns, min(times_ns, default=NEVER_NS))
        if topic in self._kind.outputs:
            self._published += [
                ((topic.name, message.key, message.value), message.append_ns)
                for message in messages
                if message.append_ns >= self.from_ns
            ]

    def result(self, read_s: float) -> Replayed:
        """Return the comparison after the last messages. `read_s`: this stage's share of the reading time."""
        began_s, run, result, is_newest = time.perf_counter(), self._run, self._result, self._kind.newest_only
        result.differences, result.unrecorded = compared(
            run.span,
            self._published,
            self._replayed,
            gaps_of(self._operators, has_steps=not is_newest),
            self._partitions,
            run.registry,
            edge_ns=self._kind.edge_ns,
            newest_only=is_newest,
        )
        published, replayed = (
            [value for value, at_ns in self._distinct(outputs) if run.span.from_ns <= at_ns < run.span.to_ns]
            for outputs in (self._published, self._replayed)
        )
        result.published, result.count = len(published), len(replayed)
        result.records = replayed if is_newest else []
        covered_ns = max(0, run.span.to_ns - self._first_ns)
        result.covered_s, result.failed = covered_ns / NS_PER_S, failures_of(self._operators)
        changed = changes_since(self._operators, run)
        result.notes = [f"note: {changed} changed since the steps of {result.stage}"] if changed else []
        result.took_s = self.took_s + read_s + time.perf_counter() - began_s
        return result

    def _distinct(self, outputs: Sequence[tuple[Value, int]]) -> Iterator[tuple[Any, int]]:
        """Yield each distinct output with its log time; with `newest_only`, one record per identity."""
        if not self._kind.newest_only:
            yield from outputs
            return
        for topic in self._kind.outputs:
            of_topic = records_of(topic, outputs, None, self._run.registry, newest_only=True)
            yield from (dated for records in of_topic.values() for dated in records)


def gaps_of(operators: Sequence[Operator], *, has_steps: bool) -> list[Gap]:
    """Return the intervals in which workers may have published outputs without steps.

    `operators` are ordered by partition and epoch. A gap lasts from the last step of an operator to the start
    of the next one. For an operator that cannot be replayed, it lasts for the operator's whole time.
    """
    gaps = []
    for operator, following in zip_longest(operators, operators[1:]):
        is_replaced = following is not None and following.partition == operator.partition
        next_ns = following.begin_ns if following is not None and is_replaced else 0
        if operator.error or operator.runner is None:
            gaps.append(
                Gap(operator.partition, operator.began_ns, max(operator.last_ns + UNRECORDED_NS, next_ns))
            )
        elif has_steps:
            last_ns = operator.runner.last_ns
            gaps.append(Gap(operator.partition, last_ns, max(last_ns + UNRECORDED_NS, next_ns)))
    return gaps


def failures_of(operators: Iterable[Operator]) -> list[str]:
    """Return a line with the reason for each operator that cannot be replayed."""
    return [
        f"{operator.name} cannot be replayed: {operator.error}" for operator in operators if operator.error
    ]


def changes_since(operators: Iterable[Operator], run: Replay) -> str:
    """Return which of build, settings and topology changed since the steps were recorded; '' if none."""
    now = {
        "build": build_digest(),
        "settings": settings_digest(run.settings),
        "topology": topology_digest(run.topology) if run.topology else "",
    }
    changed: set[str] = set()
    for epoch in (
        operator.runner.recording.epoch for operator in operators if isinstance(operator.runner, StepRunner)
    ):
        then = {
            "build": epoch.build,
            "settings": epoch.settings_digest,
            "topology": epoch.topology_digest,
        }
        changed |= {name for name, digest in then.items() if digest and now[name] not in ("", digest)}
    return ", ".join(sorted(changed))


# ------------------------------------------------------------------------------------------- operators


def operators_of(name: str, messages: Iterable[Message], count: int, run: Replay) -> list[Operator]:
    """Return the operators of a stage with a step in the interval or later, ordered by partition and epoch.

    `messages` come from `fabric.steps`; for the policy, from `fabric.policy-cycles`. `count`: number of
    partitions of the stage's owner topic.
    """
    operators: dict[tuple[int, str, int], Operator] = {}
    for message in messages:
        error, value = "", message.value
        if value is None or not (name == PolicyStage.name or message.key.startswith(f"{name}/")):
            continue
        try:
            if name == PolicyStage.name:
                cycles = message.decoded(POLICY_CYCLES, run.registry)
                partition, epoch = partition_of(cycles["shard"], count), cycles["epoch"]
                key, first = f"{name}/{cycles['shard']}", cycles["first_cycle"]
            else:
                steps = decode_message(STEPS, message.key_bytes, value, run.registry)
                partition, epoch = steps["partition"], steps["epoch"]
                key, first = message.key, steps["first_step"]
                check_times(steps, message.append_ns)
        except codec.BadRecord:
            continue
        except BadSteps as bad:
            error = str(bad)
        operator = operators.setdefault((partition, key, epoch), Operator(key, partition, epoch * NS_PER_MS))
        operator.add(message, first)
        operator.error = error or operator.error
    return [operator for _, operator in sorted(operators.items()) if operator.last_ns >= run.span.from_ns]


def begin(operator: Operator, count: int, run: Replay) -> None:
    """Create the runner of an operator, or set its `error` if that is impossible.

    `count`: number of partitions of the operator's owner topic.
    """
    name, _, shard = operator.name.partition("/")
    stage: Stage = PolicyStage(shard) if name == PolicyStage.name else BY_STEPS[name]()
    try:
        if operator.partition >= count:
            raise BadSteps(f"partition {operator.partition} does not exist")
        if operator.error:
            return
        if name == PolicyStage.name:
            recording = recording_of_cycles(operator.decoded(POLICY_CYCLES, run.registry), operator.partition)
        else:
            is_old = operator.began_ns < run.span.from_ns - EPOCH_BACK_NS
            from_ns = run.span.from_ns - WARM_UP_NS if is_old else 0
            recording = recording_of(operator.decoded(STEPS, run.registry), from_ns)
        operator.runner = StepRunner(stage, recording, run.settings, count, run.topology, run.registry)
    except ValueError as error:
        operator.error = str(error)


def _begun(name: str, run: Replay, index: _Index) -> list[Operator]:
    """Return the operators of a stage that took part in the interval, with their runners created."""
    if name in BY_STEPS or name == PolicyStage.name:
        topic, count = STEPS if name in BY_STEPS else POLICY_CYCLES, index.counts[OWNERS[name].name]
        operators = operators_of(name, index.messages[topic.name], count, run)
        for operator in operators:
            begin(operator, count, run)
        return operators
    operator = Operator(name, 0, run.span.from_ns)
    operator.runner = TimedRunner(
        AlertsStage() if name == AlertsStage.name else DiagnosisStage(run.changes.rules),
        index.config,
        run.span.from_ns,
        run.span.to_ns,
        run.settings,
        run.topology,
        run.registry,
    )
    return [operator]


# -------------------------------------------------------------------------------------------- the pass


class _Index:
    """The messages that a replay reads before its pass: steps, cycles, and the configuration at its start."""

    def __init__(self, names: Sequence[str], run: Replay) -> None:
        self._run = run
        self.counts = partition_counts(run.cluster, {OWNERS[name] for name in names})
        from_ns = run.span.from_ns
        back_ns = from_ns - EPOCH_BACK_NS
        starts: dict[Topic, Start] = {CONFIG: BEGINNING}
        starts |= {STEPS: since(back_ns)} if BY_STEPS.keys() & names else {}
        starts |= {POLICY_CYCLES: since(back_ns)} if PolicyStage.name in names else {}
        self.messages = self._read(starts)
        policies = operators_of(PolicyStage.name, self.messages[POLICY_CYCLES.name], 1, run)
        first_ns = min((policy.began_ns for policy in policies), default=back_ns)
        if first_ns < back_ns:
            self.messages |= self._read({POLICY_CYCLES: since(first_ns)})
        config = [message for message in self.messages[CONFIG.name] if message.append_ns < from_ns]
        needs_first = run.changes.thresholds and not any(message.key == EVERYONE for message in config)
        self.first = [run.changes.first()] if needs_first else []
        self.config = [*self.first, *config]

    def _read(self, starts: Mapping[Topic, Start]) -> dict[str, list[Message]]:
        run, messages = self._run, defaultdict[str, list[Message]](list)
        for batch, _ in read_interval(run.cluster, starts, run.span.to_ns + AFTER_NS):
            for message in run.changes.of(batch, run.registry):
                if message.topic != STEPS.name or message.append_ns < run.span.to_ns:
                    messages[message.topic].append(message)
        return messages


def replay(names: Sequence[str], run: Replay) -> list[Replayed]:
    """Replay stages and compare their records. Raises ValueError if the log cannot be read."""
    began_s = time.perf_counter()
    index = _Index(names, run)
    stages = [StageReplay(name, run, _begun(name, run, index), index.counts) for name in names]
    starts = earliest(stage.starts for stage in stages)
    reads = read_interval(run.cluster, starts, max(stage.to_ns for stage in stages)) if starts else ()
    messages = 0
    for batch, mark_ns in chain([(index.first, 0)], reads, [([], NEVER_NS)]):
        by_topic: dict[str, list[Message]] = defaultdict(list)
        for message in run.changes.of(batch, run.registry):
            by_topic[message.topic].append(message)
        for stage in stages:
            stage.take(by_topic, mark_ns)
        messages += len(batch)
        run.progress(messages, min(mark_ns, run.span.to_ns))
    read_s = (time.perf_counter() - began_s - sum(stage.took_s for stage in stages)) / len(stages)
    return [stage.result(read_s) for stage in stages]
