"""Decoding of messages of `fabric.probes`: validation, and messages of other versions."""

from __future__ import annotations

import fastavro
import numpy as np

from native.core import ProbeColumns, encode_probe_batch
from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import PROBES
from streams.delays.messages import decode_messages

NIC = "h1/eth0"


def body(nic: str = NIC, peer: str = "h2/eth0") -> bytes:
    one = np.zeros(1, np.int32)
    columns = np.arange(2, dtype=np.int64)
    start = np.array([0, 2], np.int64)
    return encode_probe_batch(
        ProbeColumns(nic, 1, 5, 7, 9, [peer], one, one, one, one, start, columns, columns, columns, columns)
    )


def stored(value: bytes | None, key: bytes | None = NIC.encode(), offset: int = 0) -> Message:
    return Message(1, PROBES.name, 0, offset, key, value)


def test_invalid_messages_are_rejected_one_by_one_with_their_reasons() -> None:
    header = codec.header("ProbeBatch")
    messages = [
        stored(header + body()),
        stored(b"\xc3\x01" + bytes(20)),
        stored(header + body(peer="no slash")),
        stored(None),
        stored(header + body(), b"other/eth0"),
        stored(header + body()[:-2]),
        stored(header + body()),
    ]
    batches, rejected = decode_messages(messages)
    assert [(number, error.reason) for number, error in rejected] == [
        (1, "UNKNOWN_SCHEMA"),
        (2, "OUT_OF_RANGE"),
        (4, "WRONG_KEY"),
        (5, "TRUNCATED"),
    ]
    assert [number for number in range(7) if batches.head(number) is not None] == [0, 6]


def test_a_message_through_a_registry_is_decoded() -> None:
    class Registry:
        """Our schema as number 7."""

        def id_of(self, name: str, schema: object) -> int:
            return 7

        def schema_of(self, schema_id: int) -> object:
            return fastavro.parse_schema(dict(codec.raw_schema("ProbeBatch")), named_schemas={})

    registry = Registry()
    values = [codec.header("ProbeBatch", registry) + body(), codec.header("ProbeBatch") + body()]
    batches, rejected = decode_messages([stored(value) for value in values], registry)
    assert rejected == []
    assert [batches.head(number) for number in range(2)] == [(NIC, 1, 5, 7, 9, 0, 2)] * 2
