"""Publishes messages that could not be used to `fabric.rejects`, with the reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from schemas.kafka.message import Message
from schemas.records import Reject, RejectReason
from schemas.topics import REJECTS
from schemas.unexpected import refusal

if TYPE_CHECKING:
    from streams.runtime.context import WorkerContext

__all__ = [
    "KEY_BYTES",
    "VALUE_BYTES",
    "RejectBudget",
    "failed_evaluation",
    "reject_record",
    "send_reject",
]

log = logging.getLogger(__name__)

KEY_BYTES: Final = 256
VALUE_BYTES: Final = 1024
DETAIL_CHARACTERS: Final = 300
REJECTS_PER_S: Final = 20.0
BURST: Final = 1_000


def failed_evaluation(topic: str, key: str) -> Message:
    """Return a message to reject for an evaluation that failed by its state, not by one message."""
    return Message(0, topic, -1, -1, key, None)


def reject_record(message: Message, reader: str, reason: RejectReason, detail: str) -> Reject:
    """Return the `Reject` of one message."""
    value = message.value or b""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "append_ns": message.append_ns or time.time_ns(),
        "reader": reader,
        "reason": reason,
        "detail": _one_line(detail)[:DETAIL_CHARACTERS],
        "key": (message.key_bytes or b"")[:KEY_BYTES],
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
    context: WorkerContext, message: Message, reader: str, error: Exception
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
    record = reject_record(message, reader, RejectReason(refused.reason), str(refused))
    return await context.send(REJECTS, topic, record)


def _one_line(text: str) -> str:
    """Return text whose control characters are escaped, as the format of `Reject.detail` requires."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


async def _nothing() -> None:
    """Return at once: the acknowledgement of a reject that was only counted."""
