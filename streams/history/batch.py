"""When a batch is full, and the token that names it.

In: messages as they come. Out: whether to insert now, and a name for exactly these messages. A batch that
is sent again because the answer was lost carries the same name, so the server drops it; one that is cut
anew after a crash does not, and the tables' own keys make it overwrite.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

TOKEN_BYTES: Final = 12

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message stands in the log, and since when (ns since the Unix epoch)."""

    partition: int
    offset: int
    append_ns: int


@dataclass(slots=True)
class Policy:
    """How much a batch holds and how long it waits."""

    batch_bytes: int
    batch_messages: int
    batch_s: float


@dataclass(slots=True)
class Batch(Generic[Item]):
    """Messages of one topic, to be inserted together. Times are a monotonic clock's seconds."""

    policy: Policy
    items: list[Item] = field(default_factory=list)
    size_bytes: int = 0
    since_s: float = 0.0

    def add(self, item: Item, size_bytes: int, now_s: float) -> None:
        """Take one message."""
        if not self.items:
            self.since_s = now_s
        self.items.append(item)
        self.size_bytes += size_bytes

    def full(self) -> bool:
        """Whether it is to be sent however young it is."""
        return self.size_bytes >= self.policy.batch_bytes or len(self.items) >= self.policy.batch_messages

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until it is to be sent, 0 if now; None while it is empty."""
        if not self.items:
            return None
        return 0.0 if self.full() else max(0.0, self.since_s + self.policy.batch_s - now_s)

    def take(self) -> list[Item]:
        """Return the messages and be empty again."""
        items, self.items, self.size_bytes = self.items, [], 0
        return items

    def put_back(self, items: list[Item], now_s: float) -> None:
        """Hold messages again that could not be sent; they come first."""
        self.items = items + self.items
        self.since_s = now_s


def token(topic: str, places: list[Place]) -> str:
    """Return the deduplication token of the messages at `places`: topic, partitions and offsets.

    The first message's append time is in it, so that a log that was begun anew does not repeat old tokens.
    """
    digest = hashlib.sha256()
    for place in sorted(places, key=lambda place: (place.partition, place.offset)):
        digest.update(f"{place.partition}:{place.offset}@{place.append_ns};".encode())
    partitions = sorted({place.partition for place in places})
    return f"{topic}/{','.join(map(str, partitions))}/{len(places)}/{digest.hexdigest()[: 2 * TOKEN_BYTES]}"
