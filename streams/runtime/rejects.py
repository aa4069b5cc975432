"""Publishes messages that could not be used to `fabric.rejects`, with the reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from typing import Any, Final, Protocol

from schemas.records import Reject, RejectReason
from schemas.topics import REJECTS
from streams.runtime.context import WorkerContext
from streams.runtime.units import NS_PER_MS

__all__ = ["KEY_BYTES", "VALUE_BYTES", "RejectedMessage", "reject_record", "send_reject"]

log = logging.getLogger(__name__)

KEY_BYTES: Final = 256
VALUE_BYTES: Final = 1024
DETAIL_CHARACTERS: Final = 300


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
        "detail": detail[:DETAIL_CHARACTERS],
        "key": (key or b"")[:KEY_BYTES],
        "size_bytes": len(value),
        "head": value[:VALUE_BYTES],
    }


async def send_reject(
    context: WorkerContext, message: Any, value: bytes | None, reader: str, error: Exception
) -> Awaitable[Any]:
    """Send the `Reject` of a Faust message or a `RejectedMessage`; await the result for the acknowledgement.

    `error` is a `BadRecord` or `BadBatch`; its `reason` is a symbol of `Reject.reason`.
    """
    context.rejected += 1
    topic, partition, offset = message.topic, message.partition, message.offset
    log.warning("%s rejected %s/%d offset %d: %s", reader, topic, partition, offset, error)
    record = reject_record(
        topic,
        partition,
        offset,
        _append_ns(message.timestamp) or time.time_ns(),
        message.key,
        value,
        reader,
        RejectReason(getattr(error, "reason", RejectReason.OTHER)),
        str(error),
    )
    return await context.send(REJECTS, message.topic, record)


def _append_ns(timestamp: float | None) -> int:
    """Return ns of a timestamp: Faust has seconds as a float, others whole milliseconds."""
    timestamp = timestamp or 0
    milliseconds = round(timestamp * 1000) if isinstance(timestamp, float) else timestamp
    return milliseconds * NS_PER_MS
