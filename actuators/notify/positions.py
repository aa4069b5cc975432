"""Offsets of messages whose notifications a receiver has not accepted yet.

Notifications are accepted in another order than their messages were appended. So a commit holds the offset of
the first message that is not settled (handled), and in its metadata the offsets of settled messages after it.
A successor then repeats no more than the notification that was being sent.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from schemas.kafka.message import Place

Token = tuple[Place, int]
"""A message: its partition and offset."""

MAX_METADATA: Final = 3_500
"""Bytes of metadata in a commit; Kafka's default limit is 4 KiB."""


@dataclass(slots=True)
class Mark:
    """A committed position: the offset, and the offsets after it whose messages are already handled.

    `handled_ns`: time up to which silences and reminders are handled.
    """

    offset: int
    settled: set[int] = field(default_factory=set)
    handled_ns: int = 0


def encode_metadata(settled: Iterable[int], handled_ns: int) -> str:
    """Return the metadata of a commit; if it is too long, the highest offsets are dropped."""
    ranges = _ranges(settled)
    while len(text := json.dumps([handled_ns, ranges], separators=(",", ":"))) > MAX_METADATA:
        ranges = ranges[: len(ranges) * 3 // 4]
    return text


def decode_mark(offset: int, metadata: str) -> Mark:
    """Return the mark of a commit. Metadata in another format counts as empty."""
    try:
        handled_ns, ranges = json.loads(metadata)
        settled = {
            number for low, high in ranges for number in range(int(low), min(int(high), low + 10**6) + 1)
        }
        return Mark(offset, settled, int(handled_ns))
    except (ValueError, TypeError, RecursionError):
        return Mark(offset)


def _ranges(offsets: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    return ranges


class Positions:
    """The positions of one receiver in the partitions of a topic."""

    def __init__(self, marks: Mapping[Place, Mark]) -> None:
        self._next = {place: mark.offset for place, mark in marks.items()}
        self._settled = defaultdict(set, {place: set(mark.settled) for place, mark in marks.items()})
        self._open: dict[Place, set[int]] = defaultdict(set)
        self._changed: set[Place] = set()

    def add_places(self, places: Iterable[Place]) -> None:
        """Add partitions, so that empty ones are committed too."""
        for place in places:
            self._next.setdefault(place, 0)

    def is_news(self, place: Place, offset: int) -> bool:
        """Return whether a message has not been handled yet."""
        return offset >= self._next.get(place, 0) and offset not in self._settled[place]

    def open(self, token: Token) -> None:
        """Note that the handling of a message has begun."""
        place, offset = token
        self._open[place].add(offset)
        self._next.setdefault(place, 0)

    def settle(self, tokens: Iterable[Token]) -> None:
        """Note that messages are fully handled."""
        for place, offset in tokens:
            self._open[place].discard(offset)
            self._settled[place].add(offset)
            self._changed.add(place)

    def commits(self, handled_ns: int, *, everywhere: bool = False) -> dict[Place, tuple[int, str]]:
        """Return, by partition, the offset and metadata to commit; `everywhere`: of unchanged ones too."""
        places = set(self._next) if everywhere else self._changed
        return {place: self._commit(place, handled_ns) for place in sorted(places)}

    def committed(self) -> None:
        """Note that the log has stored the last commits."""
        self._changed.clear()

    def _commit(self, place: Place, handled_ns: int) -> tuple[int, str]:
        settled, pending = self._settled[place], self._open[place]
        first_open = min(pending) if pending else None
        if first_open is None:
            self._next[place] = max(self._next.get(place, 0), max(settled, default=-1) + 1)
        else:
            self._next[place] = max(self._next.get(place, 0), first_open)
        above = {offset for offset in settled if offset >= self._next[place]}
        self._settled[place] = above
        return self._next[place], encode_metadata(above, handled_ns)
