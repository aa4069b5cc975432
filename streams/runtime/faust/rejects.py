"""Publishes unusable messages to `fabric.rejects`, within a budget."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from schemas.kafka.message import Message
from schemas.records import RejectReason
from schemas.topics import REJECTS
from schemas.unexpected import refusal
from streams.runtime.rejects import reject_record

if TYPE_CHECKING:
    from streams.runtime.faust.context import WorkerContext

log = logging.getLogger(__name__)

REJECTS_PER_S: Final = 20.0
BURST: Final = 1_000


class RejectBudget:
    """A token bucket of rejects per second, so that a flood of bad messages does not fill the log."""

    def __init__(self) -> None:
        self.dropped = 0
        """Number of rejects that were counted but not published."""
        self._tokens, self._at_s = float(BURST), 0.0

    def take(self, now_s: float) -> bool:
        """Return whether one more reject may be published. `now_s`: time of a monotonic clock."""
        self._tokens = min(BURST, self._tokens + (now_s - self._at_s) * REJECTS_PER_S)
        self._at_s = now_s
        if self._tokens < 1:
            self.dropped += 1
            return False
        self._tokens -= 1
        return True


async def send_reject(context: WorkerContext, message: Message, reader: str, error: Exception) -> None:
    """Publish the `Reject` of a message, and wait until the log has acknowledged it.

    For an `error` other than `BadRecord` and `BadBatch`, the reject names the error's class and code
    location. Rejects beyond `RejectBudget` are only counted, so no flood fills the log.
    """
    context.rejected += 1
    budget = context.reject_budget
    if not budget.take(time.monotonic()):
        if budget.dropped % BURST == 1:
            log.warning("%d bad messages have no record in %s: too many", budget.dropped, REJECTS.name)
        return
    refused = refusal(error)
    topic, partition, offset = message.topic, message.partition, message.offset
    log.warning("%s rejected %s/%d offset %d: %s", reader, topic, partition, offset, refused)
    record = reject_record(message, reader, RejectReason(refused.reason), str(refused))
    record["append_ns"] = record["append_ns"] or time.time_ns()
    await (await context.send(REJECTS, topic, record))
