"""Decodes messages of `fabric.probes`, many in one call; each invalid message is rejected individually."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from native.core import BadBatch, NameCache, ProbeBatches, decode_probe_batches
from schemas import codec
from schemas.formats import format_of
from schemas.kafka.message import Message
from schemas.topics import PROBES
from schemas.unexpected import DATA_ERRORS, refusal

_NAMES: Final = NameCache(format_of("nic").first_wrong, format_of("nic").expected)

Rejected = tuple[int, BadBatch | codec.BadRecord]
"""The index of an invalid message, and the reason."""


def decode_messages(
    messages: Sequence[Message], registry: codec.Registry | None = None
) -> tuple[ProbeBatches, list[Rejected]]:
    """Decode the probe batches of all valid messages, by message index; also return the invalid messages."""
    header = codec.header(PROBES.record, registry)
    size = len(header)
    rejected: list[Rejected] = []
    values: list[bytes | None] = []
    starts: list[int] = []
    for number, message in enumerate(messages):
        value, start = message.value, size
        if value is not None and not value.startswith(header):
            try:
                value, start = _in_our_schema(value, registry)
            except DATA_ERRORS as error:
                rejected.append((number, refusal(error)))
                value = None
        values.append(value)
        starts.append(start)
    batches = decode_probe_batches(values, starts, [message.key_bytes for message in messages], _NAMES)
    return batches, sorted([*rejected, *batches.errors], key=lambda invalid: invalid[0])


def _in_our_schema(value: bytes, registry: codec.Registry | None) -> tuple[bytes, int]:
    """Convert a message to the present schema; return its bytes and its body's offset. Raises BadRecord."""
    try:
        return value, codec.body_start(value, PROBES.record, registry)
    except codec.BadRecord:
        record = codec.decode(value, PROBES.record, registry)  # an earlier schema, or an unknown one
        return codec.encode(PROBES.record, record), codec.HEADER_BYTES
