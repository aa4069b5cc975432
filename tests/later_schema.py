"""A later version's schema of a record, which has a further field with a default, and forged texts of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from schemas import codec
from schemas.kafka.publisher import Publisher
from schemas.signing import Signer
from schemas.topics import SCHEMAS, Topic
from tools.release_schemas import without_docs


def later_schema(record: str) -> tuple[bytes, Any]:
    """Return the fingerprint and the schema of a record with a further field."""
    schema = json.loads(json.dumps(without_docs(codec.raw_schema(record))))
    schema["fields"].append({"name": "later", "type": "string", "default": ""})
    return codec.fingerprint_of_schema(schema), schema


def later_message(record: str, content: Mapping[str, Any]) -> bytes:
    """Return a message of the later version, whose further field holds `red`."""
    body = codec.encode(record, content)[codec.HEADER_BYTES :] + b"\x06red"
    return codec.SINGLE_OBJECT + later_schema(record)[0] + body


def colliding_schema(record: str, one: str, other: str) -> Any:
    """Return a text with the fingerprint of the later version's schema that exchanges two fields' names.

    CRC-64 is affine: with each letter of a name whose case changes, the fingerprint changes by a constant. So
    Gaussian elimination over 80 letters gives a name with any fingerprint.
    """
    fingerprint, schema = later_schema(record)
    names = {one: other, other: one}
    for field in schema["fields"]:
        field["name"] = names.get(field["name"], field["name"])

    def fingerprint_with(letters: int) -> int:
        name = "".join("A" if letters >> at & 1 else "a" for at in range(80))
        schema["fields"][-1]["name"] = name
        return int.from_bytes(codec.fingerprint_of_schema(schema))

    base, rows = fingerprint_with(0), dict[int, tuple[int, int]]()
    for at in range(80):
        change, letters = _reduced(fingerprint_with(1 << at) ^ base, 1 << at, rows)
        if change:
            rows[change.bit_length()] = change, letters
    rest, letters = _reduced(int.from_bytes(fingerprint) ^ base, 0, rows)
    assert rest == 0
    assert fingerprint_with(letters).to_bytes(8) == fingerprint
    return schema


def _reduced(change: int, letters: int, rows: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """Return a change of the fingerprint, and its letters, without the highest bits of the rows."""
    while change and (row := rows.get(change.bit_length())):
        change, letters = change ^ row[0], letters ^ row[1]
    return change, letters


def send_rows(log: str, *rows: tuple[str, bytes | None]) -> None:
    """Publish rows of `fabric.schemas`."""
    publisher = Publisher(log)
    for key, value in rows:
        publisher.send(SCHEMAS.name, key, value)
    publisher.flush(10)


def send_schema(log: str, record: str, text: Any = None) -> None:
    """Publish the later version's schema of a record, or a forged `text` in its place."""
    fingerprint, schema = later_schema(record)
    send_rows(log, (fingerprint.hex(), json.dumps(text or schema).encode()))


class OneSchema:
    """A registry with one schema for each id and fingerprint."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema

    def id_of(self, name: str, schema: Any) -> None:
        """Return None: messages carry fingerprints."""

    def schema_of(self, schema_id: int | bytes) -> Any:
        """Return the schema, whatever the id."""
        return self._schema


def signed_later(signer: Signer, topic: Topic[Any], key: str, content: Mapping[str, Any]) -> bytes:
    """Return a message that the later version signed."""
    registry = OneSchema(later_schema(topic.record)[1])
    part, _ = codec.split_signature(later_message(topic.record, content), topic.record, registry)
    return later_message(topic.record, {**content, "signature": signer.signature(topic, key, part)})
