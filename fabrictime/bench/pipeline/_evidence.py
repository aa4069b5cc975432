"""Reads an interval of a log and computes message rates and the ages of evidence, as readers see them.

A record's age is its append time minus the instant that its content describes. A reader's age at an instant
is the age of the newest content appended so far, which grows while no record comes. The clock of a simulated
fleet falls behind if the simulation is slower than real time; ages of contents in fabric time are on the
fleet's clock. Ages of windows, which the log's time cuts, are on the log's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import TopicReader, since
from schemas.topics import (
    CLOCK_OFFSETS,
    CONTENTION,
    DELAYS,
    PATH_QUEUEING,
    PROBES,
    QUEUES,
    TOPICS,
)

Float64s = NDArray[np.float64]
BEFORE_NS: Final = 10_000_000_000
"""Time before the interval that is also read, for the content that was newest at the interval's begin."""
SAMPLED: Final = 500
"""Number of probe batches whose samples are counted."""
GRID_NS: Final = 10_000_000
"""Time between the instants at which the age of the newest content is taken."""


def _end_of_queueing(value: bytes) -> int:
    return int(codec.decode_head(value, PATH_QUEUEING.record, "complete_ns")["complete_ns"])


def _end_of_queues(value: bytes) -> int:
    head = codec.decode_head(value, QUEUES.record, "slots")
    return int(head["window_start_ns"] + head["slot_ns"] * head["slots"])


def _end_of_contention(value: bytes) -> int:
    return int(codec.decode_head(value, CONTENTION.record, "updated_ns")["updated_ns"])


CONTENT_END_NS: Final[Mapping[str, Callable[[bytes], int]]] = {
    PATH_QUEUEING.name: _end_of_queueing,
    QUEUES.name: _end_of_queues,
    CONTENTION.name: _end_of_contention,
}
"""Functions that return the end of what a record describes, ns of fabric time, by topic."""


@dataclass(frozen=True, slots=True)
class Ages:
    """Append times and content ends of a topic's records, in the order of the append times."""

    append_ns: NDArray[np.int64]
    content_ns: NDArray[np.int64]
    is_windowed: bool = False
    """Whether contents are on the log's clock, not in fabric time."""

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int]], *, is_windowed: bool) -> Ages:
        """Return `Ages` from rows of (append time, content end), which may be in any order."""
        table = np.array(sorted(rows), np.int64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1], is_windowed)

    def record_ages_s(self, clock: FleetClock, span_ns: tuple[int, int]) -> Float64s:
        """Return the age, s, of each record that was appended within a span."""
        inside = (self.append_ns >= span_ns[0]) & (self.append_ns < span_ns[1])
        return np.asarray((self._now_ns(clock, self.append_ns[inside]) - self.content_ns[inside]) / 1e9)

    def reader_ages_s(self, clock: FleetClock, span_ns: tuple[int, int]) -> Float64s:
        """Return the age, s, of the newest content at regular instants from the first record on."""
        instants = np.arange(*span_ns, GRID_NS, dtype=np.int64)
        place = np.searchsorted(self.append_ns, instants, "right") - 1
        instants, place = instants[place >= 0], place[place >= 0]
        newest = np.maximum.accumulate(self.content_ns)
        return np.asarray((self._now_ns(clock, instants) - newest[place]) / 1e9)

    def _now_ns(self, clock: FleetClock, append_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        return append_ns if self.is_windowed else clock.at(append_ns)


class FleetClock:
    """The fleet's system clock as a function of log append time; for a real fleet, the log's own time."""

    def __init__(self, marks: Sequence[tuple[int, int]]) -> None:
        """Set up the clock by (append time, system time) of probe batches; empty for a real fleet."""
        newest: list[tuple[int, int]] = []
        for append_ns, system_ns in sorted(marks):
            if not newest or append_ns - newest[-1][0] >= 100_000_000:
                newest.append((append_ns, system_ns))
            elif system_ns > newest[-1][1] + append_ns - newest[-1][0]:
                newest[-1] = (append_ns, system_ns)
        self._append_ns = [append_ns for append_ns, _ in newest]
        self._system_ns = [system_ns for _, system_ns in newest]

    def at(self, append_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the fleet's time, ns, at the given append times; between marks it advances in real time."""
        if not self._append_ns:
            return append_ns
        place = np.maximum(np.searchsorted(self._append_ns, append_ns, "right") - 1, 0)
        appended, system = np.array(self._append_ns)[place], np.array(self._system_ns)[place]
        return np.asarray(system + (append_ns - appended))


@dataclass(slots=True)
class Interval:
    """The messages of the log in an interval of append times."""

    begin_ns: int
    end_ns: int
    messages: dict[str, int] = field(default_factory=dict)
    """Number of messages within the interval, by topic."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Total bytes of the message values within the interval, by topic."""
    ages: dict[str, Ages] = field(default_factory=dict)
    clock: FleetClock = field(default_factory=lambda: FleetClock(()))
    probe_samples: list[int] = field(default_factory=list)
    """Number of samples in each of the first probe batches."""
    slots: int = 0
    """Number of slots that queue inference published."""
    folds: set[int] = field(default_factory=set)
    """Numbers of slots of the usual length that published slots combined."""

    @property
    def seconds(self) -> float:
        """Length of the interval, s."""
        return (self.end_ns - self.begin_ns) / 1e9


def read_interval(bootstrap: str, begin_ns: int, end_ns: int, *, simulated: bool) -> Interval:
    """Read all topics of a log over an interval of append times, ns; return its messages."""
    records = _Records(Interval(begin_ns, end_ns), simulated=simulated)
    topics = dict.fromkeys(TOPICS.values(), since(begin_ns - BEFORE_NS))
    with TopicReader.open(bootstrap, topics) as reader:
        for message in reader.read_to_end():
            if message.append_ns < end_ns and message.value is not None:
                records.take(message, message.value)
    return records.interval_with_ages()


class _Records:
    """The messages of an interval, and of the time before it, that have been read so far."""

    def __init__(self, interval: Interval, *, simulated: bool) -> None:
        self._interval, self._simulated = interval, simulated
        self._marks: list[tuple[int, int]] = []
        self._content: dict[str, list[tuple[int, int]]] = {}
        self._window_end_ns: dict[int, int] = {}
        """End of each window on the log's clock, by the window's number."""
        self._windows: dict[str, list[tuple[int, int]]] = {}
        """(append time, window) of records, by topic."""

    def take(self, message: Message, value: bytes) -> None:
        """Process a message that was appended before the interval's end."""
        topic, append_ns = message.topic, message.append_ns
        if topic in CONTENT_END_NS:
            self._content.setdefault(topic, []).append((append_ns, CONTENT_END_NS[topic](value)))
        elif topic == CLOCK_OFFSETS.name:
            head = codec.decode_head(value, CLOCK_OFFSETS.record, "log_offset_ns")
            self._window_end_ns[head["window"]] = head["window_end_ns"] - head["log_offset_ns"]
            self._windows.setdefault(topic, []).append((append_ns, head["window"]))
        elif topic == DELAYS.name:
            head = codec.decode_head(value, DELAYS.record, "window")
            self._windows.setdefault(topic, []).append((append_ns, head["window"]))
        elif topic == PROBES.name and self._simulated:
            head = codec.decode_head(value, PROBES.record, "system_ns")
            self._marks.append((append_ns, head["system_ns"]))
        if append_ns >= self._interval.begin_ns:
            self._count(topic, value)

    def _count(self, topic: str, value: bytes) -> None:
        interval = self._interval
        interval.messages[topic] = interval.messages.get(topic, 0) + 1
        interval.sizes[topic] = interval.sizes.get(topic, 0) + len(value)
        if topic == PROBES.name and len(interval.probe_samples) < SAMPLED:
            batch = codec.decode(value, PROBES.type)
            interval.probe_samples.append(sum(len(element["sent"]) for element in batch["samples"]))
        elif topic == QUEUES.name:
            head = codec.decode_head(value, QUEUES.record, "fold")
            interval.folds.add(head["fold"])
            interval.slots += head["slots"] if head["part"] == 0 else 0

    def interval_with_ages(self) -> Interval:
        """Return the interval including ages, after all messages were read."""
        ages = {topic: Ages.of(rows, is_windowed=False) for topic, rows in self._content.items()}
        for topic, rows in self._windows.items():
            ends = [
                (append_ns, self._window_end_ns[window])
                for append_ns, window in rows
                if window in self._window_end_ns
            ]
            ages[topic] = Ages.of(ends, is_windowed=True)
        self._interval.ages, self._interval.clock = ages, FleetClock(self._marks)
        return self._interval
