"""Arrow columns: the types fit the tables that ClickHouse has."""

from __future__ import annotations

import pyarrow as pa
import pytest

from schemas import tables
from streams.history.columns import arrow_schema
from streams.runtime.history_settings import RetentionSettings

ARROW_OF = {
    "DateTime64(9": pa.timestamp("ns", tz="UTC"),
    "LowCardinality(String)": pa.string(),
    "Int64": pa.int64(),
    "UInt32": pa.uint32(),
    "UInt8": pa.uint8(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
}


@pytest.mark.parametrize("table", sorted(tables.TABLES.keys() - {tables.DELAYS_1S}))
def test_every_column_has_the_type_of_its_table(table: str) -> None:
    """The rollup `delays_1s` is left out, because a view fills it."""
    schema = arrow_schema(table)
    assert schema.names == list(tables.TABLES[table].column_names)
    for column, kind in zip(tables.TABLES[table].columns, schema.types, strict=True):
        name, declared = column.name, column.type
        text = declared.removeprefix("Nullable(")
        expected = {arrow for start, arrow in ARROW_OF.items() if text.startswith(start)}
        assert not expected or {kind} == expected, f"{name} {declared}"
        assert pa.types.is_list(kind) == text.startswith("Array("), f"{name} {declared}"


def test_the_settings_name_the_days_of_every_table() -> None:
    assert RetentionSettings().by_table() == tables.DAYS


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(KeyError):
        arrow_schema("nothing")
