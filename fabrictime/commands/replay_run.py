"""An interval of a log that is replayed: its messages, and changes of rules and thresholds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from fabrictime.commands.live_config import PLAIN
from fabrictime.commands.replay_compare import Difference
from fabrictime.commands.replay_reader import Span, read_interval
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.settings import KafkaSettings
from schemas.kafka.start import BEGINNING, Start, since
from schemas.records import ActuatorConfig
from schemas.topics import CLOCK_OFFSETS, CONFIG, FLOWS, Topic
from schemas.topology import Topology
from streams.diagnosis.rules import DiagnosisRules
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.live_config import EVERYONE
from streams.runtime.settings import StreamSettings
from streams.runtime.thresholds import THRESHOLDS, check_value
from streams.runtime.units import NS_PER_MS, NS_PER_S

__all__ = ["AFTER_NS", "Changes", "Replay", "Replayed", "changes_of"]

AFTER_NS: Final = 10 * NS_PER_S
"""ns after the end within which a worker must have published its records."""
TABLE_BACK_NS: Final[Mapping[Topic, int]] = {CLOCK_OFFSETS: 60 * NS_PER_S, FLOWS: 30 * NS_PER_S}
"""How far back tables that are not compacted are read."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Rules and thresholds other than those of the run that is replayed."""

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
    first_ns: int | None = None
    """Append time of the first message in the interval."""

    @property
    def covered_s(self) -> float:
        """Return the seconds of the interval that the log covers, as far as they have been read."""
        return 0.0 if self.first_ns is None else (self.span.to_ns - self.first_ns) / NS_PER_S

    def read(self, starts: Mapping[Topic, Start], to_ns: int) -> Iterator[tuple[list[Message], int]]:
        """Yield messages and the time before which all have been read; count and show them."""
        for messages, mark_ns in read_interval(self.cluster, starts, to_ns):
            self.messages += len(messages)
            times_ns = [each.append_ns for each in messages if each.append_ns >= self.span.from_ns]
            self.first_ns = min((each for each in (*times_ns, self.first_ns) if each), default=None)
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
    replayed: int = -1
    """Number of replayed records, where `records` does not have them."""
    unrecorded: int = 0
    """Published records whose steps were lost with their worker."""
    covered_s: float = 0.0
    """Seconds of the interval that the log covers."""
    notes: list[str] = field(default_factory=list)
    """Lines on operators without a replay, and on changes of the build or settings."""

    @property
    def count(self) -> int:
        """Number of replayed records."""
        return len(self.records) if self.replayed < 0 else self.replayed

    @property
    def same(self) -> float:
        """The share of the records that are the same."""
        missing = sum(each.kind.startswith("was") for each in self.differences)
        return 1 - len(self.differences) / max(1, self.count + missing)
