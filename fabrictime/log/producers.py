"""State of a partition's idempotent producers: their epochs and their last five batches.

The state decides from a batch's header whether the batch is its producer's next one, a duplicate or out of
order. A restart rebuilds the state from the headers of the batches on disk, in write order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fabrictime.log.batch import Header
from fabrictime.log.errors import Code, LogError

KEPT_BATCHES: Final = 5
"""Number of batches that are kept per producer: as many as a client may have in flight."""
KEPT_MS: Final = 24 * 3_600_000
MAX_PRODUCERS: Final = 10_000


class Written(NamedTuple):
    """An appended batch of a producer: its sequence numbers and its offset."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    append_ms: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: deque[Written] = field(default_factory=lambda: deque(maxlen=KEPT_BATCHES))


class Producers:
    """The state of one partition's idempotent producers."""

    def __init__(self) -> None:
        self._known: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._known)

    def check(self, header: Header) -> Written | None:
        """Return the earlier batch of which `header` is a duplicate; None if it is the producer's next batch.

        Raises LogError if it is neither a duplicate nor the next batch.
        """
        if header.base_sequence < 0:
            raise LogError(Code.INVALID_RECORD, f"producer {header.producer_id} without a sequence number")
        producer = self._known.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise LogError(
                Code.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} epoch {header.producer_epoch}, already at {producer.epoch}",
            )
        if header.producer_epoch > producer.epoch:
            expected = 0
        else:
            for batch in producer.batches:
                if (batch.first_sequence, batch.last_sequence) == (
                    header.base_sequence,
                    header.last_sequence,
                ):
                    return batch
            expected = (producer.batches[-1].last_sequence + 1) & 0x7FFFFFFF if producer.batches else 0
        if header.base_sequence != expected:
            raise LogError(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
            )
        return None

    def note(self, header: Header) -> None:
        """Store the sequence numbers of an appended batch."""
        if header.producer_id < 0:
            return
        producer = self._known.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            self._known.pop(header.producer_id, None)
            producer = self._known[header.producer_id] = _Producer(header.producer_epoch)
            if len(self._known) > MAX_PRODUCERS:
                self._known.pop(next(iter(self._known)))
        producer.batches.append(
            Written(header.base_sequence, header.last_sequence, header.base_offset, header.max_timestamp)
        )

    def expire(self, now_ms: int) -> None:
        """Remove producers whose newest batch is more than a day old."""
        for producer_id in [
            key for key, producer in self._known.items() if producer.batches[-1].append_ms < now_ms - KEPT_MS
        ]:
            del self._known[producer_id]

    def dump(self) -> list[Any]:
        """Return the producers' state as nested lists, for JSON."""
        return [
            [key, producer.epoch, [list(batch) for batch in producer.batches]]
            for key, producer in self._known.items()
        ]

    def load(self, state: list[Any]) -> None:
        """Replace the state by the result of a `dump`. Raises ValueError or TypeError if it is not valid."""
        producers = {}
        for key, epoch, batches in state:
            producer = _Producer(int(epoch))
            producer.batches.extend(Written(*(int(number) for number in batch)) for batch in batches)
            if producer.batches:
                producers[int(key)] = producer
        self._known = producers
