"""Columns of the history tables: the field of a record that fills each, and the type that follows from it.

A column takes the field of its own name, of an item first and then of the record. Otherwise:

- `since` takes `since_ns`, as a time.
- `flow_nic` takes the field `nic` of `flow`, `flows` or `flowes`: an array where these are items.
- `recorded_ns` is the time at which the log appended the message.
- `name=field` names the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas.codec import raw_schema

TIME: Final = "DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))"
COUNTER: Final = "Int64 CODEC(Delta, ZSTD(1))"
NAME: Final = "LowCardinality(String)"
COUNT: Final = "UInt32 CODEC(T64, ZSTD(1))"
APPEND_TIME: Final = "recorded_ns"

TYPES: Final[Mapping[str, str]] = {
    "time": TIME,
    "string": NAME,
    "enum": NAME,
    "bytes": "String CODEC(ZSTD(1))",
    "boolean": "UInt8",
    "int": COUNT,
    "long": COUNTER,
    "double": "Float64 CODEC(ZSTD(1))",
    "string?": "LowCardinality(Nullable(String))",
    "int?": "Nullable(UInt32) CODEC(ZSTD(1))",
    "long?": "Nullable(Int64) CODEC(ZSTD(1))",
    "double?": "Nullable(Float32) CODEC(ZSTD(1))",
    "record[]": COUNT,
    "string[]": "Array(LowCardinality(String)) CODEC(ZSTD(1))",
    "enum[]": "Array(LowCardinality(String)) CODEC(ZSTD(1))",
    "string?[]": "Array(LowCardinality(String)) CODEC(ZSTD(1))",
    "boolean[]": "Array(UInt8) CODEC(ZSTD(1))",
    "int[]": "Array(UInt32) CODEC(ZSTD(1))",
    "long[]": "Array(Int64) CODEC(ZSTD(1))",
    "double[]": "Array(Float32) CODEC(ZSTD(1))",
    "double?[]": "Array(Nullable(Float64)) CODEC(ZSTD(1))",
}
"""ClickHouse type by the kind of a column: its Avro type, `?` where it may be null, `[]` for an array."""

_PRIMITIVES: Final = frozenset({"string", "bytes", "boolean", "int", "long", "double", "record", "enum"})


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `path` are the fields that lead to its value, from the item or from the record."""

    name: str
    type: str
    kind: str
    path: tuple[str, ...]
    in_item: bool


def columns_of(
    record: str, items: str | None, names: str, types: Mapping[str, str], derived: Mapping[str, str]
) -> Iterator[Column]:
    """Yield the columns of a table whose rows are the `items` of a record, or the records.

    Of `types` and `derived`, see `schemas.tables.Table`. Raises KeyError for a column without a field.
    """
    type_of, derived_type = ({name: kind for kind in by for name in by[kind].split()} for by in (types, derived))
    fields = _fields(raw_schema(record))
    item_fields = _fields(fields[items]["items"]) if items in fields else {}
    for word in names.split():
        name, _, field = word.partition("=")
        if name in derived_type:
            kind = "time" if derived_type[name] == TIME else ""
            yield Column(name, derived_type[name], kind, (name,), items is not None)
            continue
        in_item = _resolved(field or name, item_fields)
        path, kind = in_item or _resolved(field or name, fields | {APPEND_TIME: "long"})
        if path[-1].endswith("_ns") and not name.endswith("_ns"):
            kind = "time"
        yield Column(name, type_of.get(name) or TYPES[kind], kind, path, in_item is not None)


def _fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {each["name"]: each["type"] for each in schema["fields"]}


def _resolved(name: str, fields: Mapping[str, Any]) -> tuple[tuple[str, ...], str] | None:
    """Return the path to the field of a column and its kind; None if there is none."""
    for field in (name, f"{name}_ns"):
        if field in fields:
            return (field,), _kind(fields[field])
    stem, _, rest = name.partition("_")
    for field in (stem, f"{stem}s", f"{stem}es"):
        part = fields.get(field)
        if isinstance(part, Mapping):
            inner = _fields(part.get("items", part)) if _kind(part) in ("record", "record[]") else {}
            if rest in inner:
                return (field, rest), _kind(inner[rest]) + "[]" * (part["type"] == "array")
    return None


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return _kind(next(each for each in schema if each != "null")) + "?" * ("null" in schema)
    if isinstance(schema, Mapping):
        return f"{_kind(schema['items'])}[]" if schema["type"] == "array" else _kind(schema["type"])
    return schema if schema in _PRIMITIVES else "enum"
