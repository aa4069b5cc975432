"""Collects messages into batches, and names each batch by a deduplication token.

If the answer to an insert is lost, the batch is sent again with the same token, and the server drops the
duplicate. A batch that is cut differently after a crash has another token; then the tables' keys overwrite
its rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from schemas.kafka.message import Message

TOKEN_BYTES: Final = 12

Item = TypeVar("Item")


@dataclass(slots=True)
class Policy:
    """Limits of a batch's size and age."""

    batch_bytes: int
    batch_messages: int
    batch_s: float


@dataclass(slots=True)
class Batch(Generic[Item]):
    """Messages of one topic to insert together. Times are seconds of a monotonic clock."""

    policy: Policy
    items: list[Item] = field(default_factory=list)
    size_bytes: int = 0
    since_s: float = 0.0

    def add(self, item: Item, size_bytes: int, now_s: float) -> None:
        """Add one message."""
        if not self.items:
            self.since_s = now_s
        self.items.append(item)
        self.size_bytes += size_bytes

    def full(self) -> bool:
        """Whether the batch must be sent regardless of its age."""
        return self.size_bytes >= self.policy.batch_bytes or len(self.items) >= self.policy.batch_messages

    def wait_s(self, now_s: float) -> float | None:
        """Return seconds until the batch must be sent, 0 if now; None while it is empty."""
        if not self.items:
            return None
        return 0.0 if self.full() else max(0.0, self.since_s + self.policy.batch_s - now_s)

    def take(self) -> list[Item]:
        """Return the messages and empty the batch."""
        items, self.items, self.size_bytes = self.items, [], 0
        return items

    def put_back(self, items: list[Item], now_s: float) -> None:
        """Put messages back that could not be sent; they stay first."""
        self.items = items + self.items
        self.since_s = now_s


def token(topic: str, messages: Sequence[Message]) -> str:
    """Return the deduplication token of some messages: topic, partitions and offsets.

    It includes the first message's append time, so that a recreated log does not repeat old tokens.
    """
    digest = hashlib.sha256()
    for message in sorted(messages, key=lambda message: (message.partition, message.offset)):
        digest.update(f"{message.partition}:{message.offset}@{message.append_ns};".encode())
    partitions = ",".join(map(str, sorted({message.partition for message in messages})))
    return f"{topic}/{partitions}/{len(messages)}/{digest.hexdigest()[: 2 * TOKEN_BYTES]}"
