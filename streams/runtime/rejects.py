"""The records of `fabric.rejects`: messages that could not be used, with the reason."""

from __future__ import annotations

from typing import Final

from schemas.kafka.message import Message
from schemas.records import Reject, RejectReason

KEY_BYTES: Final = 256
VALUE_BYTES: Final = 1024
DETAIL_CHARACTERS: Final = 300


def failed_evaluation(topic: str, key: str) -> Message:
    """Return a message to reject for a failed evaluation that no single message caused."""
    return Message(0, topic, -1, -1, key, None)


def reject_record(message: Message, reader: str, reason: RejectReason, detail: str) -> Reject:
    """Return the `Reject` record for a message that `reader` could not use."""
    value = message.value or b""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "append_ns": message.append_ns,
        "reader": reader,
        "reason": reason,
        "detail": _one_line(detail)[:DETAIL_CHARACTERS],
        "key": (message.key_bytes or b"")[:KEY_BYTES],
        "size_bytes": len(value),
        "head": value[:VALUE_BYTES],
    }


def _one_line(text: str) -> str:
    """Return text with its control characters escaped, as the format of `Reject.detail` requires."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
