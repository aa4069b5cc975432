"""History tables: columns for each field of a record, and their retention."""

import pytest

from schemas import codec, table_statements, tables


def test_each_table_keeps_the_fields_of_its_record():
    def names(schema):
        return {f["name"] for f in schema["fields"]}

    def items(record, name):
        schema = codec.raw_schema(record)
        return next(f for f in schema["fields"] if f["name"] == name)["type"]["items"]

    delays = set(tables.TABLES[tables.DELAYS].column_names)
    assert names(items("PathDelays", "paths")) | {"nic", "shard", "window", "state"} <= delays
    clocks = set(tables.TABLES[tables.CLOCKS].column_names)
    assert names(items("ClockOffsets", "clocks")) <= clocks
    assert names(items("ClockOffsets", "suspects")) <= set(tables.TABLES[tables.SUSPECTS].column_names)
    hulls = {f"{direction}_{axis}_ns" for direction in tables.DIRECTIONS for axis in ("after", "delay")}
    assert names(items("ClockFits", "pairs")) - hulls <= set(tables.TABLES[tables.PAIR_FITS].column_names)
    assert names(items("ClockFits", "nics")) <= set(tables.TABLES[tables.NIC_WINDOWS].column_names)
    assert names(codec.raw_schema("Nic")) <= set(tables.TABLES[tables.NICS].column_names)
    assert names(codec.raw_schema("Reject")) <= set(tables.TABLES[tables.REJECTS].column_names)


def test_retention_below_a_day_is_refused():
    with pytest.raises(ValueError, match="delays_days: 0"):
        table_statements.create_all(tables.DAYS | {"delays": 0})
