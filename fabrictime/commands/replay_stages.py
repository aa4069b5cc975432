"""Replays stages over an interval of a log: which stages, how, and what is compared.

A replay reads what a new owner would read that takes over at the start of the interval. Nothing is published.
Beyond the compaction lag (24 h) the inputs are only as complete as the log.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from fabrictime.commands.live_config import PLAIN
from fabrictime.commands.replay_compare import Difference, Records, compare, inside
from fabrictime.commands.replay_reader import Span, read_interval
from schemas import codec
from schemas.identities import identity_of
from schemas.kafka.message import Message
from schemas.kafka.settings import KafkaSettings
from schemas.kafka.start import BEGINNING, Start, since
from schemas.records import ActuatorConfig, PolicyCycles
from schemas.topics import (
    ALERTS,
    CLOCK_OFFSETS,
    CONFIG,
    DECISIONS,
    DIAGNOSES,
    FLOWS,
    POLICY_CYCLES,
    Topic,
)
from schemas.topology import Topology
from streams.alerts.stage import AlertsStage
from streams.diagnosis.rules import DiagnosisRules
from streams.diagnosis.stage import DiagnosisStage
from streams.policy.inputs import DECISION_LOOKBACK_NS, INPUTS, read_from
from streams.policy.stage import PolicyStage, replay_epoch
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.live_config import EVERYONE
from streams.runtime.log_runner import run_timed
from streams.runtime.operator import Moment, Output, Owner, Stage
from streams.runtime.past import PastMessages, start_of
from streams.runtime.settings import StreamSettings
from streams.runtime.thresholds import THRESHOLDS, check_value
from streams.runtime.units import NS_PER_MS, NS_PER_S

__all__ = ["STAGES", "Changes", "Replay", "Replayed", "changes_of", "replay"]

AFTER_NS: Final = 10 * NS_PER_S
"""ns after the end within which a worker must have published its records."""
TABLE_BACK_NS: Final[Mapping[Topic, int]] = {CLOCK_OFFSETS: 60 * NS_PER_S, FLOWS: 30 * NS_PER_S}
"""How far back tables that are not compacted are read."""

Outputs = Iterator[tuple[Moment, Output]]


@dataclass(frozen=True, slots=True)
class Changes:
    """What is different from the run that is replayed."""

    rules: DiagnosisRules = field(default_factory=DiagnosisRules)
    thresholds: Mapping[str, float] = field(default_factory=dict)


def changes_of(given: Sequence[str]) -> Changes:
    """Return changes such as `slow_ratio=1.3` or `alert_clear_s=5`. Raises ValueError for an unknown one."""
    rules: dict[str, Any] = {}
    thresholds: dict[str, float] = {}
    kinds = {name: type(value) for name, value in asdict(DiagnosisRules()).items()}
    for text in given:
        name, _, value = text.partition("=")
        try:
            if name in kinds:
                rules[name] = kinds[name](value)
            elif name in THRESHOLDS:
                thresholds[name] = check_value(name, float(value))
            else:
                names = ", ".join(sorted([*kinds, *THRESHOLDS]))
                raise ValueError(f"expected NAME=NUMBER with a name of {names}")
        except ValueError as error:
            raise ValueError(f"--rule {text}: {error}") from None
    return Changes(DiagnosisRules(**rules), thresholds)


@dataclass(slots=True)
class Replay:
    """An interval of a log, and what the stages need besides it."""

    cluster: KafkaSettings | str
    span: Span
    settings: StreamSettings = field(default_factory=StreamSettings)
    topology: Topology | None = None
    registry: codec.Registry | None = None
    changes: Changes = field(default_factory=Changes)
    progress: Callable[[int, int], None] = lambda messages, at_ns: None
    """Gets the number of messages and the time reached."""
    messages: int = 0
    """Messages of the stage's inputs."""

    def read(self, starts: Mapping[Topic, Start], to_ns: int) -> Iterator[tuple[list[Message], int]]:
        """Yield messages and the time before which all have been read; count and show them."""
        for messages, mark_ns in read_interval(self.cluster, starts, to_ns):
            self.messages += len(messages)
            self.progress(self.messages, mark_ns)
            yield [self._changed(message) for message in messages], mark_ns

    def collect(self, topic: Topic, start: Start, to_ns: int) -> Iterator[tuple[Message, Any]]:
        """Yield the records of an interval with their messages; unreadable ones are left out."""
        for messages, _ in read_interval(self.cluster, {topic: start}, to_ns):
            for message in messages:
                if message.value is not None:
                    try:
                        record = message.decoded(topic, self.registry)
                    except codec.BadRecord:
                        continue
                    yield message, record

    def tables(self, topics: Iterable[Topic]) -> FabricTables:
        """Return the tables as they were at the start of the interval, filled from these topics."""
        solve, window_ns = self.settings.solve, self.settings.window_ms * NS_PER_MS
        tables = FabricTables(
            self.settings.default_shard,
            self.topology,
            self.registry,
            holdover_s=solve.holdover_s,
            window_ns=window_ns,
        )
        from_ns = self.span.from_ns
        starts = {
            topic: since(from_ns - TABLE_BACK_NS[topic]) if topic in TABLE_BACK_NS else BEGINNING
            for topic in topics
        }
        for messages, _ in read_interval(self.cluster, starts, from_ns) if starts else ():
            for message in messages:
                tables.take(self._changed(message))
        return tables

    def first_config(self) -> list[Message]:
        """Return a message with the changed thresholds, for a log that has none that could carry them."""
        if not self.changes.thresholds:
            return []
        return [self._with_thresholds(Message(0, CONFIG.name, 0, -1, EVERYONE, None), PLAIN)]

    def _changed(self, message: Message) -> Message:
        """Return a message of configuration with the changed thresholds."""
        if message.topic != CONFIG.name or not self.changes.thresholds or message.value is None:
            return message
        try:
            return self._with_thresholds(message, message.decoded(CONFIG, self.registry))
        except codec.BadRecord:
            return message

    def _with_thresholds(self, message: Message, record: ActuatorConfig) -> Message:
        values = {each["name"]: each["value"] for each in record["thresholds"]} | dict(
            self.changes.thresholds
        )
        changed: ActuatorConfig = {
            **record,
            "thresholds": [{"name": name, "value": values[name]} for name in sorted(values)],
        }
        value = codec.encode(CONFIG.type, changed)
        return Message(message.append_ns, *message.place, message.offset, message.key_bytes, value)


# ------------------------------------------------------------------------------------------------ runs


def _timed(run: Replay, stage: Stage) -> Outputs:
    """Replay a timed stage from the start of the interval."""
    from_ns, to_ns = run.span.from_ns, run.span.to_ns
    tables = run.tables(stage.tables)
    past = {}
    for restore in stage.restores(tables, 1):
        kept = PastMessages(restore, run.registry)
        for messages, _ in read_interval(run.cluster, {restore.topic: start_of(restore, from_ns)}, from_ns):
            for message in messages:
                kept.add(message)
        past[restore.topic.name] = kept.messages()
    first = [] if EVERYONE in tables.config.all() else run.first_config()
    for message in first:
        tables.take(message)
    owner = Owner(stage.epoch(from_ns, past, run.registry), frozenset((0,)), 1, run.settings, run.registry)
    operator = stage.make(owner, -1, tables)
    operator.restore(past, tables)
    operator.take(first, tables)
    starts = {topic: since(from_ns) for topic in stage.tables}
    starts |= {each.topic: each.start(from_ns, tables) for each in stage.inputs if each.start is not None}
    inputs = {each.topic.name for each in stage.inputs}
    yield from run_timed(operator, tables, inputs, run.read(starts, to_ns), from_ns, to_ns)


def _by_cycles(run: Replay, stage: Stage) -> Outputs:
    """Replay the policy by its published cycles, each epoch from its first cycle on."""
    span, end_ns = run.span, run.span.to_ns + AFTER_NS
    cycles = run.collect(POLICY_CYCLES, since(span.from_ns), end_ns)
    epochs = {(record["shard"], record["epoch"]) for _, record in cycles}
    if not epochs:
        return
    first = min(epoch for _, epoch in epochs)
    first_ns = first * NS_PER_MS
    past = [message for message, _ in run.collect(DECISIONS, since(first_ns - DECISION_LOOKBACK_NS), end_ns)]
    published: dict[tuple[str, int], list[PolicyCycles]] = defaultdict(list)
    for _, record in run.collect(POLICY_CYCLES, since(first_ns), end_ns):
        published[record["shard"], record["epoch"]].append(record)
    starts_ns = read_from(first)
    starts = {topic: since(starts_ns[topic.name]) for topic in INPUTS}
    messages = [message for read, _ in run.read(starts, end_ns) for message in read]
    if not any(each.topic == CONFIG.name and each.key == EVERYONE for each in messages):
        messages += run.first_config()
    for shard_epoch in sorted(epochs):
        yield from replay_epoch(
            published[shard_epoch],
            messages,
            past,
            default_shard=run.settings.default_shard,
            topology=run.topology,
            registry=run.registry,
        )


@dataclass(frozen=True, slots=True)
class _Replayable:
    """How a stage is replayed. `edge_ns`: see `compare`."""

    make: Callable[[Changes], Stage]
    run: Callable[[Replay, Stage], Outputs]
    compared: Topic
    edge_ns: int


STAGES: Final[Mapping[str, _Replayable]] = {
    "alerts": _Replayable(lambda changes: AlertsStage(), _timed, ALERTS, 2 * NS_PER_S),
    "diagnosis": _Replayable(lambda changes: DiagnosisStage(changes.rules), _timed, DIAGNOSES, 5 * NS_PER_S),
    "policy": _Replayable(lambda changes: PolicyStage(), _by_cycles, DECISIONS, 0),
}
"""The stages that replay."""


@dataclass(slots=True)
class Replayed:
    """The result of a stage's replay."""

    stage: str
    span: Span
    records: list[Any]
    """Those of the interval as replayed."""
    differences: list[Difference]
    published: int
    messages: int
    took_s: float

    @property
    def same(self) -> float:
        """The share of the records that are the same."""
        missing = sum(each.kind.startswith("was") for each in self.differences)
        return 1 - len(self.differences) / max(1, len(self.records) + missing)


def replay(name: str, run: Replay) -> Replayed:
    """Replay a stage over an interval, and compare. Raises ValueError if the log cannot be read."""
    began_s, how = time.monotonic(), STAGES[name]
    span, topic, run.messages = run.span, how.compared, 0
    stage = how.make(run.changes)
    live: Records = {}
    for message, record in run.collect(topic, since(span.from_ns - AFTER_NS), span.to_ns + AFTER_NS):
        live[identity_of(topic, record)] = (record, message.append_ns)
    again: Records = {}
    for moment, output in how.run(run, stage):
        value = output.value(run.registry)
        if output.topic is topic and value is not None:
            record = codec.decode(value, topic.type, run.registry)  # through the codec, as the published ones
            again[identity_of(topic, record)] = (record, moment.log_ns)
    run.progress(run.messages, span.to_ns)
    return Replayed(
        name,
        span,
        [again[identity][0] for identity in inside(span, again)],
        compare(topic, span, live, again, how.edge_ns),
        len(inside(span, live)),
        run.messages,
        time.monotonic() - began_s,
    )
