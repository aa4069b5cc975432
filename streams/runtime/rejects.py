"""Messages that could not be read: to `fabric.rejects`, with the reason, and the stream goes on.

In: a message and why it was refused. Out: a `Reject` record, a log line, a count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from typing import Any, Final

from schemas import codec
from schemas.topics import REJECTS
from streams.alerts.ordered_inputs import Message
from streams.runtime.context import WorkerContext

__all__ = ["KEY_BYTES", "VALUE_BYTES", "RejectedMessage", "reject_record", "send_reject"]

log = logging.getLogger(__name__)

KEY_BYTES: Final = 256
VALUE_BYTES: Final = 1024
MS: Final = 1_000_000


class RejectedMessage:
    """A message of a feed, as `send_reject` names it."""

    def __init__(self, message: Message) -> None:
        self.topic, self.partition, self.offset = message.topic, message.partition, message.offset
        self.timestamp, self.key = message.append_ns // MS, message.key.encode()


def reject_record(
    topic: str,
    partition: int,
    offset: int,
    append_ns: int,
    key: bytes | None,
    value: bytes | None,
    reader: str,
    reason: str,
    detail: str,
) -> codec.Record:
    """Return the `Reject` of one message."""
    value = value or b""
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "append_ns": append_ns,
        "reader": reader,
        "reason": reason,
        "detail": detail[:300],
        "key": (key or b"")[:KEY_BYTES],
        "size_bytes": len(value),
        "head": value[:VALUE_BYTES],
    }


async def send_reject(
    context: WorkerContext, message: Any, value: bytes | None, reader: str, error: Exception
) -> Awaitable[Any]:
    """Send the `Reject` of a Faust or aiokafka message; awaiting the result waits for the acknowledgement.

    `error` is a `BadRecord` or `BadBatch`: its `reason` is a symbol of `Reject.reason`.
    """
    context.rejected += 1
    log.warning(
        "%s refused %s/%d offset %d: %s", reader, message.topic, message.partition, message.offset, error
    )
    seconds_or_ms = message.timestamp or 0
    append_ns = round(seconds_or_ms * 1000) * MS if isinstance(seconds_or_ms, float) else seconds_or_ms * MS
    record = reject_record(
        message.topic, message.partition, message.offset, append_ns or time.time_ns(), message.key, value,
        reader, str(getattr(error, "reason", "OTHER")), str(error),
    )  # fmt: skip
    return await context.send(REJECTS.name, message.topic, "Reject", record)
