"""A later version's schema of a record: it has a further field with a default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from schemas import codec
from schemas.kafka.publisher import Publisher
from schemas.topics import SCHEMAS
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


def send_rows(log: str, *rows: tuple[str, bytes | None]) -> None:
    """Publish rows of `fabric.schemas`."""
    publisher = Publisher(log)
    for key, value in rows:
        publisher.send(SCHEMAS.name, key, value)
    publisher.flush(10)


def send_schema(log: str, record: str) -> None:
    """Publish the later version's schema of a record."""
    fingerprint, schema = later_schema(record)
    send_rows(log, (fingerprint.hex(), json.dumps(schema).encode()))
