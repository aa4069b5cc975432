"""A message that an agent of the simulated fleet would publish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from native.core import ProbeColumns, decode_probe_batch
from schemas import codec
from schemas.topics import PROBES, Topic


@dataclass(frozen=True, slots=True)
class SimMessage:
    """One message. `at_ns` is fabric time, ns since the Unix epoch.

    It has either a record in `content` or an encoded Avro body; a tombstone (`is_tombstone`) has neither.
    """

    topic: Topic
    key: str
    at_ns: int
    content: Any = None
    """The record, of the topic's type; None if there is a body."""
    body: bytes | None = None
    is_tombstone: bool = False

    def value(self, registry: codec.Registry | None = None) -> bytes | None:
        """Return the message's value on the wire; None for a tombstone."""
        if self.is_tombstone:
            return None
        if self.body is not None:
            return codec.header(self.topic.record, registry) + self.body
        return codec.encode(self.topic.record, self.content or {}, registry)

    def record(self) -> Any:
        """Return the message's record. A body is decoded and validated."""
        return (
            self.content if self.content is not None else codec.decode(self.value() or b"", self.topic.record)
        )

    def columns(self) -> ProbeColumns:
        """Return the columns of a `ProbeBatch`. Raises ValueError for a message on another topic."""
        if self.topic is not PROBES or self.body is None:
            raise ValueError(f"{self.topic.name}: expected a ProbeBatch")
        return decode_probe_batch(self.body)
