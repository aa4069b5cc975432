"""Publishes messages that could not be used to `fabric.rejects`, with the reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from schemas.records import Reject, RejectReason
from schemas.topics import REJECTS
from schemas.unexpected import refusal

if TYPE_CHECKING:
    from streams.runtime.context import WorkerContext

__all__ = [
    "KEY_BYTES",
    "VALUE_BYTES",
    "RejectBudget",
    "RejectedMessage",
    "reject_record",
    "send_reject",
]

log = logging.getLogger(__name__)

KEY_BYTES: Final = 256
VALUE_BYTES: Final = 1024
DETAIL_CHARACTERS: Final = 300
REJECTS_PER_S: Final = 20.0
BURST: Final = 1_000


class _Input(Protocol):
    """A message of `schemas.kafka.reader` or of ordered inputs."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def append_ns(self) -> int: ...
    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """The identity of a message that could not be used."""

    topic: str
    partition: int
    offset: int
    append_ns: int
    key: bytes | None

    @classmethod
    def of(cls, message: _Input, key: bytes | None = None) -> RejectedMessage:
        """Return the identity of a reader's message. `key`: the key's bytes, if they may not be UTF-8."""
        key = message.key.encode() if key is None else key
        return cls(message.topic, message.partition, message.offset, message.append_ns, key)

    @classmethod
    def of_evaluation(cls, topic: str, key: str) -> RejectedMessage:
        """Return an identity for an evaluation that failed by its state, not by one message."""
        return cls(topic, -1, -1, 0, key.encode())


def reject_record(
    topic: str,
    partition: int,
    offset: int,
    append_ns: int,
    key: bytes | None,
    value: bytes | None,
    reader: str,
    reason: RejectReason,
    detail: str,
) -> Reject:
    """Return the `Reject` of one message."""
    value = value or b""
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "append_ns": append_ns,
        "reader": reader,
        "reason": reason,
        "detail": _one_line(detail)[:DETAIL_CHARACTERS],
        "key": (key or b"")[:KEY_BYTES],
        "size_bytes": len(value),
        "head": value[:VALUE_BYTES],
    }


class RejectBudget:
    """A token bucket of rejects per second, so that a flood of bad messages does not fill the log."""

    def __init__(self) -> None:
        self.dropped = 0
        """Rejects that were only counted."""
        self._tokens, self._at_s = float(BURST), 0.0

    def take(self, now_s: float) -> bool:
        """Return whether one more reject may be published at `now_s` of a monotonic clock."""
        self._tokens = min(BURST, self._tokens + (now_s - self._at_s) * REJECTS_PER_S)
        self._at_s = now_s
        if self._tokens < 1:
            self.dropped += 1
            return False
        self._tokens -= 1
        return True


async def send_reject(
    context: WorkerContext, message: RejectedMessage, value: bytes | None, reader: str, error: Exception
) -> Awaitable[Any]:
    """Send the `Reject` of a message; await the result for the acknowledgement.

    An `error` other than `BadRecord` and `BadBatch` is published with its class and place. A flood of bad
    messages does not become a flood of rejects: those beyond `RejectBudget` are only counted.
    """
    context.rejected += 1
    if not context.reject_budget.take(time.monotonic()):
        return _nothing()
    refused = refusal(error)
    topic, partition, offset = message.topic, message.partition, message.offset
    log.warning("%s rejected %s/%d offset %d: %s", reader, topic, partition, offset, refused)
    record = reject_record(
        topic,
        partition,
        offset,
        message.append_ns or time.time_ns(),
        message.key,
        value,
        reader,
        RejectReason(refused.reason),
        str(refused),
    )
    return await context.send(REJECTS, message.topic, record)


def _one_line(text: str) -> str:
    """Return text whose control characters are escaped, as the format of `Reject.detail` requires."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


async def _nothing() -> None:
    """Return at once: the acknowledgement of a reject that was only counted."""
