"""Publishes messages that could not be used to `fabric.rejects`, with the reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final, Protocol

from schemas.records import Reject, RejectReason
from schemas.topics import REJECTS
from schemas.unexpected import refusal
from streams.runtime.units import NS_PER_MS

if TYPE_CHECKING:
    from streams.runtime.context import WorkerContext

__all__ = [
    "KEY_BYTES",
    "VALUE_BYTES",
    "FailedEvaluation",
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


class RejectedMessage:
    """A message of a reader without a group, with the attributes that `send_reject` reads."""

    def __init__(self, message: _Input, key: bytes | None = None) -> None:
        """`key`: the key's bytes, if they may not be UTF-8."""
        self.topic, self.partition, self.offset = message.topic, message.partition, message.offset
        self.timestamp = message.append_ns // NS_PER_MS
        self.key = message.key.encode() if key is None else key


class FailedEvaluation:
    """Stands for a message in the reject of an evaluation that failed by its state, not by one message."""

    def __init__(self, topic: str, key: str) -> None:
        self.topic, self.partition, self.offset = topic, -1, -1
        self.timestamp = 0
        self.key = key.encode()


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
    context: WorkerContext, message: Any, value: bytes | None, reader: str, error: Exception
) -> Awaitable[Any]:
    """Send the `Reject` of a Faust message or a `RejectedMessage`; await the result for the acknowledgement.

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
        _append_ns(message.timestamp) or time.time_ns(),
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


def _append_ns(timestamp: float | None) -> int:
    """Return ns of a timestamp: Faust has seconds as a float, others whole milliseconds."""
    timestamp = timestamp or 0
    milliseconds = round(timestamp * 1000) if isinstance(timestamp, float) else timestamp
    return milliseconds * NS_PER_MS
