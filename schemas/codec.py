"""Records to bytes and back, in both wire formats.

Out: Avro single-object encoding (C3 01, CRC-64-AVRO fingerprint, body), or the Confluent wire format (00,
schema id, body) where a schema registry is given. In: both, told apart by their first byte; older and newer
writers' schemas are resolved to ours. What cannot be read, or no honest writer would say, is a `BadRecord`.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

SINGLE_OBJECT: Final = b"\xc3\x01"
HEADER_BYTES: Final = 10
CONFLUENT_HEADER_BYTES: Final = 5

Record = dict[str, Any]


class BadRecord(ValueError):
    """A message that cannot be read. `reason`: a symbol of `Reject.reason`; the text: what was found."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Registry(Protocol):
    """What the codec needs of a schema registry: ids for our schemas, schemas for foreign ids."""

    def id_of(self, name: str, schema: Mapping[str, Any]) -> int:
        """Return the id under which `schema` is registered for record `name`."""

    def schema_of(self, schema_id: int) -> Mapping[str, Any]:
        """Return the writer's schema of `schema_id`. Raises KeyError where the registry has none."""


@cache
def raw_schema(name: str) -> Record:
    """Return the .avsc of a record as it stands. Raises KeyError for an unknown name."""
    path = files("schemas") / f"{name}.avsc"
    if not name.isalnum() or not path.is_file():
        raise KeyError(f"record {name!r}: no such schema in schemas/")
    loaded: Record = json.loads(path.read_text(encoding="utf-8"))
    return loaded


@cache
def parsed_schema(name: str) -> Any:
    """Return the schema as fastavro takes it."""
    return fastavro.parse_schema(raw_schema(name), named_schemas={})


@cache
def fingerprint_of(name: str) -> bytes:
    """Return the 8 bytes that name the schema on the wire: CRC-64-AVRO, little endian (Avro 1.12, 'Parsing
    Canonical Form')."""
    return _fingerprint(raw_schema(name))


def _fingerprint(schema: Any) -> bytes:
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@cache
def _known_writers() -> dict[bytes, tuple[str, Any]]:
    """Fingerprint to (record name, parsed writer's schema): ours and every released one."""
    root = files("schemas")
    known: dict[bytes, tuple[str, Any]] = {}
    for folder in (root / "released", root):
        for path in folder.iterdir():
            if path.name.endswith(".avsc"):
                schema = json.loads(path.read_text(encoding="utf-8"))
                parsed = fastavro.parse_schema(schema, named_schemas={})
                known[_fingerprint(schema)] = (schema["name"], parsed)
    return known


def header(name: str, registry: Registry | None = None) -> bytes:
    """Return the bytes that go before an Avro body of record `name`."""
    if registry is None:
        return SINGLE_OBJECT + fingerprint_of(name)
    return b"\x00" + registry.id_of(name, raw_schema(name)).to_bytes(4, "big")


def encode(name: str, record: Mapping[str, Any], registry: Registry | None = None) -> bytes:
    """Return `record` on the wire. Raises ValueError where it does not fit its schema."""
    out = io.BytesIO()
    out.write(header(name, registry))
    try:
        fastavro.schemaless_writer(out, parsed_schema(name), record, strict=True)
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"{name}: record does not fit its schema: {error}") from error
    return out.getvalue()


def body_start(data: bytes, name: str, registry: Registry | None = None) -> int:
    """Return where the body begins in a message that was written with *our* schema of `name`.

    For native decoders, which know one schema. Raises BadRecord for any other writer.
    """
    _, writer, start = _writer_of(data, name, registry)
    if writer is not _current(name):
        raise BadRecord("UNKNOWN_SCHEMA", f"{name}: written with another schema than ours")
    return start


def decode(data: bytes, name: str, registry: Registry | None = None) -> Record:
    """Return the record in `data`, checked. Raises BadRecord for anything that is not an honest `name`."""
    _, writer, start = _writer_of(data, name, registry)
    body = io.BytesIO(data)
    body.seek(start)
    ours = _current(name)
    record: Any
    try:
        record = fastavro.schemaless_reader(body, writer, None if writer is ours else ours)
    except EOFError as error:
        raise BadRecord("TRUNCATED", f"{name}: ends after {len(data)} bytes in mid-record") from error
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, fastavro.schema.SchemaParseException,
            fastavro.read.SchemaResolutionError, MemoryError) as error:  # fmt: skip
        raise BadRecord("MALFORMED", f"{name}: {type(error).__name__}: {error}"[:300]) from error
    rest = len(data) - body.tell()
    if rest:
        raise BadRecord("MALFORMED", f"{name}: {rest} bytes after the record's end")
    _checker(name)(record, name)
    checked: Record = record
    return checked


def _current(name: str) -> Any:
    return _known_writers()[fingerprint_of(name)][1]


def _writer_of(data: bytes, name: str, registry: Registry | None) -> tuple[str, Any, int]:
    if data[:2] == SINGLE_OBJECT:
        if len(data) < HEADER_BYTES:
            raise BadRecord("TRUNCATED", f"{name}: {len(data)} bytes, expected a header of {HEADER_BYTES}")
        written = data[2:HEADER_BYTES]
        found = _known_writers().get(written)
        if found is None:
            raise BadRecord("UNKNOWN_SCHEMA", f"{name}: fingerprint {written.hex()} is none of ours")
        if found[0] != name:
            raise BadRecord("UNKNOWN_SCHEMA", f"{name}: message holds a {found[0]}")
        return found[0], found[1], HEADER_BYTES
    if data[:1] == b"\x00":
        if len(data) < CONFLUENT_HEADER_BYTES:
            raise BadRecord("TRUNCATED", f"{name}: {len(data)} bytes, expected a schema id")
        if registry is None:
            raise BadRecord("UNKNOWN_SCHEMA", f"{name}: Confluent wire format, but no schema registry is set")
        schema_id = int.from_bytes(data[1:CONFLUENT_HEADER_BYTES], "big")
        try:
            schema = dict(registry.schema_of(schema_id))
        except KeyError as error:
            raise BadRecord("UNKNOWN_SCHEMA", f"{name}: registry has no schema {schema_id}") from error
        if schema.get("name") != name:
            raise BadRecord("UNKNOWN_SCHEMA", f"{name}: message holds a {schema.get('name')}")
        ours = _fingerprint(schema) == fingerprint_of(name)
        parsed = _current(name) if ours else fastavro.parse_schema(schema, named_schemas={})
        return name, parsed, CONFLUENT_HEADER_BYTES
    raise BadRecord(
        "UNKNOWN_SCHEMA", f"{name}: begins with {data[:2].hex() or 'nothing'}, expected c301 or 00"
    )


MAX_STRING: Final = 512
Check = Callable[[Any, str], None]


@cache
def _checker(name: str) -> Check:
    return _check_of(raw_schema(name), None) or (lambda value, where: None)


def _check_of(schema: Any, least: float | None) -> Check | None:
    """Compile the checks of a schema: finite numbers, `min` where a field states it, bounded lengths."""
    if isinstance(schema, list):
        branches = [_check_of(branch, least) for branch in schema if branch != "null"]
        inner = branches[0] if branches else None
        if inner is None:
            return None
        return lambda value, where: None if value is None else inner(value, where)
    if isinstance(schema, dict) and schema["type"] == "record":
        return _record_check(schema)
    if isinstance(schema, dict) and schema["type"] == "array":
        return _array_check(schema["items"], least)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in ("double", "float"):
        return lambda value, where: _check_number(value, where, least)
    if kind in ("int", "long") and least is not None:
        return lambda value, where: _check_number(value, where, least)
    if kind == "string":
        return _check_string
    return None


def _record_check(schema: Any) -> Check | None:
    checks = [(field["name"], _check_of(field["type"], field.get("min"))) for field in schema["fields"]]
    active = [(field, check) for field, check in checks if check is not None]

    def check_record(value: Any, where: str) -> None:
        for field, check in active:
            check(value[field], f"{where}.{field}")

    return check_record if active else None


def _array_check(items: Any, least: float | None) -> Check:
    inner = _check_of(items, least)

    def check_array(value: Any, where: str) -> None:
        if len(value) > MAX_ARRAY:
            raise BadRecord("TOO_LARGE", f"{where}: {len(value)} elements, expected at most {MAX_ARRAY}")
        if inner is not None:
            for element in value:
                inner(element, where)

    return check_array


MAX_ARRAY: Final = 65_536


def _check_number(value: float, where: str, least: float | None) -> None:
    if not math.isfinite(value):
        raise BadRecord("OUT_OF_RANGE", f"{where}: {value}, expected a finite number")
    if least is not None and value < least:
        raise BadRecord("OUT_OF_RANGE", f"{where}: {value}, expected at least {least:g}")


def _check_string(value: str, where: str) -> None:
    if len(value) > MAX_STRING:
        raise BadRecord("TOO_LARGE", f"{where}: {len(value)} characters, expected at most {MAX_STRING}")
