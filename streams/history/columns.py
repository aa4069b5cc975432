"""Defines the Arrow types of the history tables' columns."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from schemas import tables
from schemas.columns import Column

_ARROW_OF: Final[dict[str, pa.DataType]] = {
    "DateTime64": pa.timestamp("ns", tz="UTC"),
    "Enum8": pa.string(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "String": pa.string(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
}
"""Maps innermost ClickHouse type to Arrow type."""


def arrow_schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a table's rows, columns in the table's order."""
    return pa.schema([(column.name, _arrow_type(column)) for column in tables.TABLES[table].columns])


def _arrow_type(column: Column) -> pa.DataType:
    if column.kind == "bytes":
        return pa.binary()
    outer = re.findall(r"\w+", re.sub(r"(Nullable|LowCardinality)\(", "", column.type))
    return pa.list_(_ARROW_OF[outer[1]]) if outer[0] == "Array" else _ARROW_OF[outer[0]]
