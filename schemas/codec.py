"""Encodes and decodes records in both wire formats.

The encoder writes Avro single-object encoding (C3 01, CRC-64-AVRO fingerprint, body), or with a schema
registry the Confluent wire format (00, schema id, body). The decoder accepts both formats and distinguishes
them by the first byte. It resolves the schemas of older and newer writers to ours, and raises `BadRecord` for
bytes that no correct writer sends. `use_readers` sets up native readers, which decode our own schemas faster.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Final, NotRequired, Protocol, TypedDict, TypeVar, overload
from weakref import WeakKeyDictionary

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from schemas.bounded_schema import check_bounded
from schemas.checks import MAX_ARRAY, NO_LIMITS, BadRecord, Check, check_of
from schemas.ranges import range_of
from schemas.readers import ReaderMaker, reader_of
from schemas.topics import MAX_MESSAGE_BYTES

__all__ = [
    "MAX_ARRAY",
    "BadRecord",
    "Registry",
    "body_start",
    "decode",
    "decode_head",
    "decode_head_at",
    "encode",
    "encode_head",
    "fingerprint_of",
    "fingerprint_of_schema",
    "header",
    "name_of",
    "other_fingerprints",
    "parsed_schema",
    "raw_schema",
    "record_names",
    "released_schemas",
    "split_signature",
    "use_readers",
]

SINGLE_OBJECT: Final = b"\xc3\x01"
HEADER_BYTES: Final = 10
CONFLUENT_HEADER_BYTES: Final = 5

R = TypeVar("R")
"""The type of a record: a class of `schemas.records`."""


class FieldSchema(TypedDict):
    """A field of an Avro record, as in its `.avsc` file but with `min` and `max` in place of named ranges."""

    name: str
    type: Any
    doc: str
    default: NotRequired[Any]
    min: NotRequired[float]
    max: NotRequired[float]
    format: NotRequired[str]
    max_items: NotRequired[int]
    leave_out: NotRequired[bool]


class RecordSchema(TypedDict):
    """The schema of an Avro record: its name and its fields."""

    name: str
    type: str
    doc: str
    fields: list[FieldSchema]


class Registry(Protocol):
    """A schema registry: returns ids for our schemas, and the schemas of other writers."""

    def __hash__(self) -> int:
        """Hash by identity, because the codec caches schemas per registry object."""

    def id_of(self, name: str, schema: Mapping[str, Any]) -> int | None:
        """Return the id under which `schema` is registered; None if messages carry fingerprints instead."""

    def schema_of(self, schema_id: int | bytes) -> Mapping[str, Any]:
        """Return the writer's schema with this id or fingerprint. Raises KeyError if there is none."""


@cache
def raw_schema(name: str) -> RecordSchema:
    """Return a record's schema, with `min` and `max` in place of named ranges. Raises KeyError if unknown."""
    path = files("schemas") / f"{name}.avsc"
    if not name.isalnum() or not path.is_file():
        raise KeyError(f"record {name!r}: no such schema in schemas/")
    loaded: RecordSchema = json.loads(path.read_text(encoding="utf-8"), object_hook=_with_limits)
    return loaded


def _with_limits(schema: dict[str, Any]) -> dict[str, Any]:
    if "range" not in schema:
        return schema
    minimum, maximum = range_of(schema["range"])
    return {key: part for key, part in schema.items() if key != "range"} | {"min": minimum, "max": maximum}


@cache
def parsed_schema(name: str) -> Any:
    """Return the schema of record `name` in the parsed form that fastavro needs."""
    return fastavro.parse_schema(dict(raw_schema(name)), named_schemas={})


@cache
def fingerprint_of(name: str) -> bytes:
    """Return the fingerprint (8 bytes, CRC-64-AVRO) of the present schema of record `name`."""
    return fingerprint_of_schema(raw_schema(name))


def fingerprint_of_schema(schema: Any) -> bytes:
    """Return a schema's fingerprint: 8 bytes, CRC-64-AVRO, little endian (Avro 1.12)."""
    return _fingerprint_of_text(to_parsing_canonical_form(schema))


def _fingerprint_of_text(canonical: str) -> bytes:
    return bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))


def record_names() -> list[str]:
    """Return the names of all records that have a schema."""
    paths = (path.name for path in files("schemas").iterdir())
    return sorted(name.removesuffix(".avsc") for name in paths if name.endswith(".avsc"))


@cache
def released_schemas() -> dict[bytes, RecordSchema]:
    """Return the schemas of all released writers by fingerprint, from `released.jsonl`."""
    text = (files("schemas") / "released.jsonl").read_text(encoding="utf-8")
    rows = map(json.loads, text.splitlines())
    return {bytes.fromhex(row["fingerprint"]): row["schema"] for row in rows}


@cache
def _schemas() -> Mapping[bytes, RecordSchema]:
    """Return all released schemas and our current schemas, by fingerprint."""
    return {**released_schemas(), **{fingerprint_of(name): raw_schema(name) for name in record_names()}}


@cache
def _writer(written: bytes) -> _Writer:
    """Return the released or present schema with this fingerprint. Raises KeyError if there is none."""
    return _Writer(_schemas()[written])


def header(name: str, registry: Registry | None = None) -> bytes:
    """Return the bytes before the Avro body of a record `name`, in single-object or Confluent format."""
    schema_id = None if registry is None else registry.id_of(name, raw_schema(name))
    if schema_id is None:
        return SINGLE_OBJECT + fingerprint_of(name)
    return b"\x00" + schema_id.to_bytes(4, "big")


_reader_maker: ReaderMaker | None = None


def use_readers(maker: ReaderMaker | None) -> None:
    """Decode by native readers of `maker`, the module `native.core.avro`; with None, by fastavro alone."""
    global _reader_maker
    _reader_maker = maker


def name_of(record: str | type[Any]) -> str:
    """Return the name of a record, given by its name or by its type in `schemas.records`."""
    return record if isinstance(record, str) else record.__name__


@overload
def encode(kind: type[R], record: R, registry: Registry | None = None) -> bytes: ...
@overload
def encode(kind: str, record: Mapping[str, Any], registry: Registry | None = None) -> bytes: ...
def encode(kind: Any, record: Any, registry: Registry | None = None) -> bytes:
    """Encode a record of `kind`, a name or a type of `schemas.records`; missing fields take their defaults.

    Raises ValueError if the record does not fit its schema.
    """
    name = name_of(kind)
    return header(name, registry) + _written(name, record, parsed_schema(name))


def _written(name: str, record: Mapping[str, Any], schema: Any) -> bytes:
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, schema, record, strict_allow_default=True)
    except (TypeError, KeyError, AttributeError, OverflowError, ValueError) as error:
        raise ValueError(f"{name}: record does not fit its schema: {error}") from error
    return out.getvalue()


def body_start(data: bytes, name: str, registry: Registry | None = None) -> int:
    """Return the offset of the body in a message that was written with *our* schema of `name`.

    It serves native decoders, which support one schema only. Raises BadRecord for any other writer's schema.
    """
    writer, start = _writer_of(data, name, registry)
    if writer is not _current(name):
        raise BadRecord("UNKNOWN_SCHEMA", f"{name}: written with another schema than ours")
    return start


@overload
def decode(data: bytes, kind: type[R], registry: Registry | None = None) -> R: ...
@overload
def decode(data: bytes, kind: str, registry: Registry | None = None) -> dict[str, Any]: ...
def decode(data: bytes, kind: Any, registry: Registry | None = None) -> Any:
    """Decode and check a record of `kind`, a name or a type of `schemas.records`.

    Raises BadRecord for bytes that no correct writer of this record sends. With a registry, all errors of its
    `schema_of` except KeyError are raised unchanged: an unreachable registry does not make a message bad.
    """
    name = name_of(kind)
    if len(data) > MAX_MESSAGE_BYTES:
        raise BadRecord("TOO_LARGE", f"{name}: {len(data)} bytes, expected at most {MAX_MESSAGE_BYTES}")
    writer, start = _writer_of(data, name, registry)
    is_current = writer is _current(name)
    if is_current and (value := writer.read(data, start)) is not None and value[1] == len(data):
        return value[0]
    # Enums are read as their numbers first: fastavro takes negative ones for positions from the end.
    record: dict[str, Any] = _read(data, start, name, writer.numbered, None)
    writer.check([record], name)
    if not is_current:
        record = _read(data, start, name, writer.parsed, _current(name).parsed)
        _current(name).check([record], name)
    return record


def split_signature(data: bytes, name: str, registry: Registry | None = None) -> tuple[bytes, bytes]:
    """Return (signed part, signature) of a message. The signature is the field `signature`, empty if absent.

    The signed part is the SHA-256 digest of the schema that decodes the message, in Avro's parsing canonical
    form, and the body with an empty signature. It is equal for all readers that use the same schema. The
    fingerprint does not serve here: a CRC can be made to collide. Raises BadRecord, also for a body that
    differs from our encoding of its values.
    """
    writer, start = _writer_of(data, name, registry)
    record = _read(data, start, name, writer.parsed, None)
    signature: Any = record.get("signature") or b""
    if not isinstance(signature, bytes):  # by the schema of a foreign writer
        raise BadRecord("MALFORMED", f"{name}.signature: {type(signature).__name__}, expected bytes")
    try:
        body = _written(name, record, writer.parsed)
        signed_body = _written(name, {**record, "signature": b""} if signature else record, writer.parsed)
    except ValueError as error:
        raise BadRecord("MALFORMED", str(error)[:300]) from None
    if body != data[start:]:
        raise BadRecord("MALFORMED", f"{name}: not the shortest encoding, which is the signed one")
    return writer.digest + signed_body, signature


def decode_head(data: bytes, name: str, last: str, registry: Registry | None = None) -> dict[str, Any]:
    """Decode and check only the first fields of the record in `data`, up to and including `last`.

    It serves readers that must identify a record before they decode it. Raises BadRecord as `decode` does,
    and KeyError if the record has no field `last`.
    """
    writer, start = _writer_of(data, name, registry)
    _head_schema(name, last)
    if writer is not _current(name):
        return decode(data, name, registry)
    return decode_head_at(data, start, name, last)[0]


def decode_head_at(data: bytes, start: int, name: str, last: str) -> tuple[dict[str, Any], int]:
    """Decode and check the first fields, up to `last`, of a body of our own schema that begins at `start`.

    Return the fields and the offset behind them. Raises BadRecord, and KeyError without a field `last`.
    """
    writer = _head_schema(name, last)
    if (value := writer.read(data, start)) is not None:
        return value
    body = io.BytesIO(data)
    body.seek(start)
    record: dict[str, Any] = _read_one(body, len(data), name, writer.numbered, None)
    writer.check([record], name)
    return record, body.tell()


def encode_head(name: str, record: Mapping[str, Any], last: str, registry: Registry | None = None) -> bytes:
    """Encode the fields of `record` up to `last`. Raises as `encode`, and KeyError without a field `last`."""
    schema = _head_schema(name, last)
    head = {field: record[field] for field in schema.fields if field in record}
    return header(name, registry) + _written(name, head, schema.parsed)


@cache
def _head_schema(name: str, last: str) -> _Writer:
    schema = raw_schema(name)
    names = [field["name"] for field in schema["fields"]]
    if last not in names:
        raise KeyError(f"{name} has no field {last}")
    return _Writer({**schema, "fields": schema["fields"][: names.index(last) + 1]})


def _read(data: bytes, start: int, name: str, writer: Any, reader: Any) -> Any:
    body = io.BytesIO(data)
    body.seek(start)
    record = _read_one(body, len(data), name, writer, reader)
    rest = len(data) - body.tell()
    if rest:
        raise BadRecord("MALFORMED", f"{name}: {rest} bytes after the record's end")
    return record


def _read_one(body: io.BytesIO, size: int, name: str, writer: Any, reader: Any) -> Any:
    try:
        return fastavro.schemaless_reader(body, writer, reader)
    except EOFError as error:
        raise BadRecord("TRUNCATED", f"{name}: ends after {size} bytes in mid-record") from error
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, fastavro.schema.SchemaParseException,
            fastavro.read.SchemaResolutionError, MemoryError) as error:  # fmt: skip
        if isinstance(error, IndexError) and body.tell() == size:
            raise BadRecord("TRUNCATED", f"{name}: ends after {size} bytes in mid-number") from error
        raise BadRecord("MALFORMED", f"{name}: {type(error).__name__}: {error}"[:300]) from error


def _current(name: str) -> _Writer:
    return _writer(fingerprint_of(name))


def _writer_of(data: bytes, name: str, registry: Registry | None) -> tuple[_Writer, int]:
    """Return the writer's schema of the message `data`, and the offset of its body."""
    if data[:2] == SINGLE_OBJECT:
        if len(data) < HEADER_BYTES:
            raise BadRecord("TRUNCATED", f"{name}: {len(data)} bytes, expected a header of {HEADER_BYTES}")
        written = data[2:HEADER_BYTES]
        if written not in _schemas():
            if registry is None:
                raise BadRecord("UNKNOWN_SCHEMA", f"{name}: fingerprint {written.hex()} is none of ours")
            return _registered(written, name, registry), HEADER_BYTES
        writer = _writer(written)
        if writer.name != name:
            raise BadRecord("UNKNOWN_SCHEMA", f"{name}: message holds a {writer.name}")
        return writer, HEADER_BYTES
    if data[:1] == b"\x00":
        if len(data) < CONFLUENT_HEADER_BYTES:
            raise BadRecord("TRUNCATED", f"{name}: {len(data)} bytes, expected a schema id")
        if registry is None:
            raise BadRecord("UNKNOWN_SCHEMA", f"{name}: Confluent wire format, but no schema registry is set")
        return _registered(int.from_bytes(data[1:CONFLUENT_HEADER_BYTES], "big"), name, registry), (
            CONFLUENT_HEADER_BYTES
        )
    raise BadRecord(
        "UNKNOWN_SCHEMA", f"{name}: begins with {data[:2].hex() or 'nothing'}, expected c301 or 00"
    )


def other_fingerprints(values: Iterable[bytes | None]) -> Counter[bytes]:
    """Count messages by the fingerprint of their schema; leave out released schemas and our current ones."""
    released = _schemas()
    written = (value[2:HEADER_BYTES] for value in values if value and value[:2] == SINGLE_OBJECT)
    return Counter(fingerprint for fingerprint in written if fingerprint not in released)


_registered_writers: WeakKeyDictionary[Registry, dict[int | bytes, _Writer]] = WeakKeyDictionary()
"""Writers' schemas by registry and id or fingerprint. A registry never changes the schema of an id."""


def _registered(schema_id: int | bytes, name: str, registry: Registry) -> _Writer:
    shown = schema_id.hex() if isinstance(schema_id, bytes) else schema_id
    writers = _registered_writers.setdefault(registry, {})
    writer = writers.get(schema_id)
    if writer is None:
        try:
            schema = registry.schema_of(schema_id)
        except KeyError as error:
            raise BadRecord("UNKNOWN_SCHEMA", f"{name}: registry has no schema {shown}") from error
        try:
            canonical = to_parsing_canonical_form(dict(schema))
            written = _fingerprint_of_text(canonical)
            if isinstance(schema_id, bytes) and written != schema_id:
                raise ValueError(f"its fingerprint is {written.hex()}")
            writer = writers[schema_id] = (
                _writer(written) if written in _schemas() else _Writer(schema, _parsed_text(canonical))
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError,
                fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:  # fmt: skip
            raise BadRecord(
                "UNKNOWN_SCHEMA", f"{name}: schema {shown} of the registry: {error}"[:300]
            ) from error
    if writer.name != name:
        raise BadRecord("UNKNOWN_SCHEMA", f"{name}: message holds a {writer.name}")
    return writer


def _parsed_text(canonical: str) -> dict[str, Any]:
    """Return the schema that a canonical text describes. Raises ValueError if the text has another form.

    fastavro escapes nothing in names, so a field's name could pretend further fields. The schema of the text
    has these fields, so that equal texts decode alike.
    """
    schema: dict[str, Any] = json.loads(canonical)
    if to_parsing_canonical_form(schema) != canonical:
        raise ValueError("it has a name that is none in Avro")
    check_bounded(schema)
    return schema


class _Writer:
    """A writer's schema: parsed for fastavro, parsed with enums as numbers, and its compiled checks."""

    def __init__(self, schema: Mapping[str, Any], form: Mapping[str, Any] | None = None) -> None:
        """Parse `schema`, which has the limits. `form`: the schema that decodes records; None: `schema`."""
        check_bounded(schema)
        self.name: str = schema["name"]
        self._form = dict(form or schema)
        self.fields = tuple(field["name"] for field in schema.get("fields", ()))
        self.parsed = fastavro.parse_schema(self._form, named_schemas={})
        numbered = self._numbered = _numbered(schema, {})
        self.numbered = fastavro.parse_schema(numbered, named_schemas={})
        # Not from the parsed schema: fastavro drops `symbols` from all types except enums.
        self.check: Check = check_of(numbered, NO_LIMITS) or (lambda values, where: None)
        self._readers: tuple[ReaderMaker, Any] | None = None
        """The maker of the native reader, and the reader; None if the schema has none."""

    def read(self, data: bytes, start: int) -> tuple[dict[str, Any], int] | None:
        """Return (checked record at `start`, its end offset); None if fastavro must decode the record."""
        maker = _reader_maker
        if maker is None:
            return None
        if self._readers is None or self._readers[0] is not maker:
            self._readers = maker, reader_of(self._numbered, maker)
        reader = self._readers[1]
        if reader is None:
            return None
        try:
            return maker.read(reader, data, start)
        except maker.Refused:
            return None

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 digest of the canonical text of the schema by which records are decoded."""
        return hashlib.sha256(to_parsing_canonical_form(self._form).encode()).digest()


def _numbered(schema: Any, enums: dict[str, Any]) -> Any:
    """Return `schema` with each enum replaced by an int with the attribute `symbols`."""
    if isinstance(schema, str):
        return enums.get(schema, schema)
    if isinstance(schema, list):
        return [_numbered(branch, enums) for branch in schema]
    if not isinstance(schema, dict | Mapping):
        raise ValueError(f"{schema!r:.80}: expected an Avro schema")
    kind = schema["type"]
    if kind == "enum":
        numbered = {"type": "int", "symbols": list(schema["symbols"])}
        enums[schema["name"]] = enums[f"{schema.get('namespace', '')}.{schema['name']}"] = numbered
        return numbered
    if isinstance(kind, str) and kind in enums:
        return enums[kind]
    changed = dict(schema)
    changed.pop("logicalType", None)
    if kind in ("record", "error"):
        # without defaults: a symbol is none for a number, and nothing is filled in from this form
        changed["fields"] = [
            {name: part for name, part in field.items() if name != "default"}
            | {"type": _numbered(field["type"], enums)}
            for field in schema["fields"]
        ]
    elif kind in ("array", "map"):
        part = "items" if kind == "array" else "values"
        changed[part] = _numbered(schema[part], enums)
    elif isinstance(kind, dict | list):
        changed["type"] = _numbered(kind, enums)
    return changed
