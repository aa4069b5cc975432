"""Compares the published records of a stage with those of a replay, by identity and field by field.

Byte-identical values are not decoded, except with `newest_only` and in topics with local facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from fabrictime.commands.replay.reader import Span
from schemas import codec
from schemas.identities import comparable, has_local_facts, identity_of
from schemas.kafka.partitioning import partition_of
from schemas.topics import TOPICS, Topic

LONG: Final = 200
"""Total length of both values, in characters, above which a difference shows only the field's name."""

Identity = tuple[Any, ...]
Dated = tuple[Any, int]
"""A record and its log time, ns."""
Records = dict[Identity, list[Dated]]
"""Identity to the records that have it."""
Value = tuple[str, str, bytes | None]
"""Topic, key and value of a message."""
Outputs = Sequence[tuple[Value, int]]
"""Values, each with its log time, ns."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a published and a replayed record.

    `fields` maps a field's name to (published value, replayed value); it is empty if either record is
    missing.
    """

    topic: str
    identity: Identity
    kind: str
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    text: str = ""
    """The field `text` of the record, if only one of the two exists."""
    published: Dated | None = field(default=None, compare=False)
    """The published record, if the replay has no counterpart."""

    def line(self) -> str:
        """Return the difference as one line of text."""
        more = "; ".join(
            f"{name} {live!r}, replayed {replayed!r}" if len(f"{live!r}{replayed!r}") <= LONG else name
            for name, (live, replayed) in self.fields.items()
        )
        name = " ".join(map(str, self.identity))
        return ": ".join(part for part in (name, self.kind, more or self.text) if part)


class Gap(NamedTuple):
    """Log time in which a worker may have published outputs of a partition without recorded steps."""

    partition: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Partitions:
    """Determines the partition of a stage's owner topic to which an output belongs."""

    owner: Topic
    count: int

    def of(self, record: Mapping[str, Any]) -> int | None:
        """Return the partition of an output; None if the record does not determine it."""
        topic, _, number = str(record.get("source", "")).rpartition("/")
        if topic == self.owner.name and number.isdecimal():
            return int(number)
        key = record.get("shard" if self.owner.key == "shard" else "nic")
        return None if key is None else partition_of(key, self.count)

    def has_no_steps(self, published: Dated, gaps: Iterable[Gap]) -> bool:
        """Return whether an output lies in a gap of its partition; if that is unknown, in any gap."""
        record, at_ns = published
        inside = [gap.partition for gap in gaps if gap.begin_ns <= at_ns < gap.end_ns]
        return bool(inside) and self.of(record) in (None, *inside)


def compared(
    span: Span,
    published: Outputs,
    replayed: Outputs,
    gaps: Sequence[Gap],
    partitions: Partitions,
    registry: codec.Registry | None = None,
    *,
    edge_ns: int = 0,
    newest_only: bool = False,
) -> tuple[list[Difference], int]:
    """Return (differences in an interval, number of published outputs that gaps excuse).

    `edge_ns` is as in `compare`. `newest_only`: only the last record of each identity counts.
    """
    topics = {value[0] for value, _ in (*published, *replayed)}
    differing = {value for value, _ in published} ^ {value for value, _ in replayed}
    differences: list[Difference] = []
    unrecorded = 0
    for name in sorted(topics if newest_only else {topic for topic, _, _ in differing}):
        topic = TOPICS[name]
        values = None if newest_only or has_local_facts(topic) else differing
        was, now = (
            records_of(topic, outputs, values, registry, newest_only=newest_only)
            for outputs in (published, replayed)
        )
        for difference in compare(topic, span, was, now, edge_ns):
            if difference.published is not None and partitions.has_no_steps(difference.published, gaps):
                unrecorded += 1
            else:
                differences.append(difference)
    return differences, unrecorded


def records_of(
    topic: Topic,
    outputs: Outputs,
    values: Container[Value] | None,
    registry: codec.Registry | None = None,
    *,
    newest_only: bool = False,
) -> Records:
    """Return a topic's readable records by identity. `values`, if given, selects the outputs by value."""
    records: Records = defaultdict(list)
    for value, at_ns in outputs:
        name, key, body = value
        if name != topic.name or not (values is None or value in values) or (body is None and newest_only):
            continue
        try:
            record = {} if body is None else codec.decode(body, topic.type, registry)
        except codec.BadRecord:
            continue
        identity = ("", key) if body is None else identity_of(topic, record)
        if newest_only:
            records[identity].clear()
        records[identity].append((record, at_ns))
    return records


def compare(topic: Topic, span: Span, live: Records, replayed: Records, edge_ns: int = 0) -> list[Difference]:
    """Return the differences between published and replayed records of an interval.

    Records outside the interval only help to find counterparts. `edge_ns`: time before the interval's end in
    which records may not have been published yet.
    """
    return [
        difference
        for identity in sorted(live.keys() | replayed.keys())
        for was, now in _pairs(topic, live.get(identity, ()), replayed.get(identity, ()))
        if (difference := _difference(topic, span, identity, was, now, edge_ns))
    ]


def _pairs(
    topic: Topic, live: Sequence[Dated], replayed: Sequence[Dated]
) -> Iterator[tuple[Dated | None, Dated | None]]:
    """Yield pairs of published and replayed records of one identity, in order; None fills the shorter side.

    Records with an equal counterpart are left out. Delivery is at least once, so equal records count once.
    """
    if len(live) == len(replayed) == 1:
        yield live[0], replayed[0]
        return
    old = [record and comparable(topic, record) for record, _ in live]  # a tombstone is empty
    new = [record and comparable(topic, record) for record, _ in replayed]
    differing_live = [
        live[index] for index, record in enumerate(old) if record not in new and record not in old[:index]
    ]
    differing_replayed = [
        replayed[index] for index, record in enumerate(new) if record not in old and record not in new[:index]
    ]
    yield from zip_longest(differing_live, differing_replayed)


def _difference(
    topic: Topic,
    span: Span,
    identity: Identity,
    was: Dated | None,
    replayed: Dated | None,
    edge_ns: int,
) -> Difference | None:
    if was is None:
        if replayed is None or not span.from_ns <= replayed[1] < span.to_ns - edge_ns:
            return None
        text = replayed[0].get("text", "")
        return Difference(topic.name, identity, "is replayed, and was not published", text=text)
    if not span.from_ns <= was[1] < span.to_ns:
        return None
    if replayed is None:
        text = was[0].get("text", "")
        return Difference(
            topic.name, identity, "was published, and is not replayed", text=text, published=was
        )
    if was[0] == replayed[0]:
        return None
    old, new = comparable(topic, was[0]), comparable(topic, replayed[0])
    fields = {name: (value, new.get(name)) for name, value in old.items() if value != new.get(name)}
    return Difference(topic.name, identity, "differs", fields) if fields else None
