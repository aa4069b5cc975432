"""Maps each column of a history table to the record field that fills it, and derives the column's type.

A column takes the field of its own name, from the item if it has that field, else from the record. Otherwise:

- `since` takes `since_ns`, as a time.
- `fact_text` takes the field `text` of the record, or array of records, `fact`, `facts` or `factes`.
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
"""ClickHouse type by kind of column: the Avro type, with `?` if it may be null, `[]` for an array."""

_NAMELESS: Final = frozenset({"string", "bytes", "boolean", "int", "long", "double", "record"})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a history table, and the record field that fills it."""

    name: str
    type: str
    kind: str
    """A key of `TYPES`; empty if no field determines the type."""
    path: tuple[str, ...]
    """Names of the nested fields to the value, beginning at the item or at the record."""
    in_item: bool


def columns_of(
    record: str, items: str | None, names: str, types: Mapping[str, str], derived: Mapping[str, str]
) -> Iterator[Column]:
    """Yield the columns of a `Table` with these fields. Raises KeyError for a column that no field fills."""
    fields = _fields(raw_schema(record)) | {APPEND_TIME: "long"}
    item_fields = _fields(fields[items]["items"]) if items in fields else {}
    type_of, derived_type = (
        {name: kind for kind in by for name in by[kind].split()} for by in (types, derived)
    )
    for entry in names.split():
        name, _, field = entry.partition("=")
        if kind := derived_type.get(name):
            yield Column(name, kind, "time" if kind == TIME else "", (name,), items is not None)
            continue
        of_item = _source(field or name, item_fields)
        source = of_item or _source(field or name, fields)
        if source is None:
            raise KeyError(f"{record}: no field fills the column {name}")
        path, kind = source
        if path[-1].endswith("_ns") and not name.endswith("_ns"):
            kind = "time"
        yield Column(name, type_of.get(name) or TYPES[kind], kind, path, of_item is not None)


def _fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in schema["fields"]}


def _source(name: str, fields: Mapping[str, Any]) -> tuple[tuple[str, ...], str] | None:
    """Return (names of nested fields, key of `TYPES`) of the field that fills a column, None without one."""
    for field in (name, f"{name}_ns"):
        if field in fields:
            return (field,), _kind(fields[field])
    stem, _, rest = name.partition("_")
    for field in (stem, f"{stem}s", f"{stem}es"):
        kind = _kind(fields.get(field, "null"))
        if kind in ("record", "record[]"):
            inner = _fields(fields[field].get("items", fields[field]))
            if rest in inner:
                return (field, rest), _kind(inner[rest]) + kind.removeprefix("record")
    return None


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return _kind(next(variant for variant in schema if variant != "null")) + "?" * ("null" in schema)
    if isinstance(schema, Mapping):
        return f"{_kind(schema['items'])}[]" if schema["type"] == "array" else _kind(schema["type"])
    return schema if schema in _NAMELESS else "enum"
