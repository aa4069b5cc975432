"""Defines `Message`, one message of the log, as all readers return it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from schemas import codec
from schemas.messages import decode_message
from schemas.topics import R, Topic

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(slots=True, eq=False, init=False)
class Message:
    """One message of the log. Messages sort by (log time, topic, partition, offset)."""

    append_ns: int
    """Append time as the log stamped it, ns since the Unix epoch."""
    topic: str
    partition: int
    offset: int
    key: str
    """The key as text, empty without a key; bytes that are not UTF-8 are replaced."""
    value: bytes | None
    """The encoded record; None for a tombstone, which removes the key."""
    key_bytes: bytes | None
    """The key as it was sent; None without a key."""
    log_ns: int
    """Append time corrected for steps of the log's clock; equal to `append_ns` if the log is read again."""
    record: Any
    """The decoded record, set by the first call of `decoded`."""

    def __init__(
        self,
        append_ns: int,
        topic: str,
        partition: int,
        offset: int,
        key: str | bytes | None,
        value: bytes | None,
        record: Any = None,
        *,
        log_ns: int | None = None,
    ) -> None:
        """Store the fields. `key`: bytes as sent, or their text. `log_ns`: by default `append_ns`."""
        self.append_ns, self.topic, self.partition, self.offset = append_ns, topic, partition, offset
        if isinstance(key, str):
            self.key, self.key_bytes = key, key.encode()
        else:
            self.key, self.key_bytes = "" if key is None else key.decode("utf-8", "replace"), key
        self.value, self.record = value, record
        self.log_ns = append_ns if log_ns is None else log_ns

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition

    def __lt__(self, other: Message) -> bool:
        return (self.log_ns, self.topic, self.partition, self.offset) < (
            other.log_ns,
            other.topic,
            other.partition,
            other.offset,
        )

    def decoded(self, topic: Topic[R], registry: codec.Registry | None = None) -> R:
        """Return the record of a message that is no tombstone.

        Callers share the record and must not change it. The first call decodes the message. Raises BadRecord.
        """
        if self.record is None:
            self.record = decode_message(topic, self.key_bytes, self.value or b"", registry)
        return cast("R", self.record)
