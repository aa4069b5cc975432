"""Columns of history: the field that fills each, and the type that follows from it."""

from __future__ import annotations

import pytest

from schemas import tables
from schemas.columns import COUNT, NAME, TIME, TYPES, Column, columns_of


def columns(record: str, names: str, items: str | None = None, **types: str) -> list[Column]:
    return list(columns_of(record, items, names, {kind: name for name, kind in types.items()}, {}))


@pytest.mark.parametrize(
    ("record", "name", "expected"),
    [
        ("LinkHealth", "shard", Column("shard", NAME, "string", ("shard",), False)),
        ("LinkHealth", "since", Column("since", TIME, "time", ("since_ns",), False)),
        ("LinkHealth", "recorded_ns", Column("recorded_ns", TYPES["long"], "long", ("recorded_ns",), False)),
        ("Decision", "decided=at_ns", Column("decided", TIME, "time", ("at_ns",), False)),
        (
            "LinkHealth",
            "class_loss_rate",
            Column("class_loss_rate", TYPES["double[]"], "double[]", ("classes", "loss_rate"), False),
        ),
        ("Decision", "reason_seq", Column("reason_seq", TYPES["long?"], "long?", ("reason", "seq"), False)),
        ("ClockFits", "pairs", Column("pairs", COUNT, "record[]", ("pairs",), False)),
    ],
)
def test_a_column_takes_the_field_of_its_name(record: str, name: str, expected: Column) -> None:
    assert columns(record, name) == [expected]


def test_a_field_of_the_item_goes_before_one_of_the_record() -> None:
    assert [column.in_item for column in columns("Diagnosis", "job nic number", "flows")] == [
        False,
        True,
        False,
    ]


def test_a_type_that_does_not_follow_is_named() -> None:
    [column] = columns("Decision", "text", text="String")
    assert (column.type, column.kind) == ("String", "string")


def test_a_column_that_no_field_fills_is_an_error() -> None:
    with pytest.raises(KeyError, match="Decision: no field fills the column colour"):
        columns("Decision", "colour")


@pytest.mark.parametrize("table", tables.TABLES.values(), ids=lambda table: table.name)
def test_only_types_that_do_not_follow_from_a_field_are_named(table: tables.Table) -> None:
    named = {name for names in table.types.values() for name in names.split()}
    assert named <= set(table.column_names)
    columns = [column for column in table.columns if column.name in named]
    assert not [column.name for column in columns if column.type == TYPES.get(column.kind)]
