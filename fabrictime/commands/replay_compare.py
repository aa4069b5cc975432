"""Compares the published records of a topic with those of a replay, by identity and field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

from fabrictime.commands.replay_reader import Span
from schemas.identities import comparable
from schemas.topics import Topic

__all__ = ["Dated", "Difference", "Records", "compare", "inside"]

LONG: Final = 200
"""Characters of both values above which a difference names the field alone."""

Identity = tuple[Any, ...]
Dated = tuple[Any, int]
"""A record and its log time, ns."""
Records = dict[Identity, list[Dated]]
"""Identity to the records that have it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of the replay. `fields`: name to (as published, as replayed); empty if one of both does
    not exist."""

    topic: str
    identity: Identity
    kind: str
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    text: str = ""
    """The text of a record that exists once."""
    published: Dated | None = field(default=None, compare=False)
    """The published record, where it is not replayed."""

    def line(self) -> str:
        """Return it as one line."""
        more = "; ".join(
            f"{name} {live!r}, replayed {again!r}" if len(f"{live!r}{again!r}") <= LONG else name
            for name, (live, again) in self.fields.items()
        )
        name = " ".join(map(str, self.identity))
        return ": ".join(each for each in (name, self.kind, more or self.text) if each)


def compare(topic: Topic, span: Span, live: Records, again: Records, edge_ns: int = 0) -> list[Difference]:
    """Return the differences between published and replayed records of an interval.

    Records outside the interval only help to find counterparts. `edge_ns`: time before the end in which
    records may not have been published yet.
    """
    return [
        difference
        for identity in sorted(live.keys() | again.keys())
        for was, replayed in _pairs(topic, live.get(identity, ()), again.get(identity, ()))
        if (difference := _difference(topic, span, identity, was, replayed, edge_ns))
    ]


def _pairs(
    topic: Topic, live: Sequence[Dated], again: Sequence[Dated]
) -> Iterator[tuple[Dated | None, Dated | None]]:
    """Yield the published and replayed records of one identity that have no equal counterpart, in order.

    Delivery is at least once: several equal records count as one.
    """
    if len(live) == len(again) == 1:
        yield live[0], again[0]
        return
    old = [record and comparable(topic, record) for record, _ in live]  # a tombstone is empty
    new = [record and comparable(topic, record) for record, _ in again]
    differing_live = [
        live[index] for index, each in enumerate(old) if each not in new and each not in old[:index]
    ]
    differing_again = [
        again[index] for index, each in enumerate(new) if each not in old and each not in new[:index]
    ]
    yield from zip_longest(differing_live, differing_again)


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


def inside(span: Span, records: Records) -> list[Any]:
    """Return the records of an interval."""
    return [
        record for dated in records.values() for record, at_ns in dated if span.from_ns <= at_ns < span.to_ns
    ]
