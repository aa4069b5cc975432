"""Schemas whose values no message's bytes limit are refused; all of ours pass."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import codec
from schemas.bounded_schema import MAX_EMPTY, check_bounded


def record(*kinds: Any, name: str = "Nic") -> dict[str, Any]:
    fields = [{"name": f"x{number}", "type": kind} for number, kind in enumerate(kinds)]
    return {"type": "record", "name": name, "fields": fields}


def doubled(depth: int) -> Any:
    """Return a record with 2 ** (depth - 1) nulls."""
    kind = record("null", name="R1")
    for number in range(2, depth + 1):
        kind = record(kind, f"R{number - 1}", name=f"R{number}")
    return kind


def test_our_schemas_and_those_of_released_writers_pass() -> None:
    for schema in (*codec.released_schemas().values(), *map(codec.raw_schema, codec.record_names())):
        check_bounded(schema)


@pytest.mark.parametrize(
    "schema",
    [
        record(*["null"] * MAX_EMPTY),
        record({"type": "array", "items": ["null", "long"]}),
        record({"type": "map", "values": record("null", "int", name="N")}, "N"),
        record({"type": {"type": "enum", "name": "a.E", "symbols": ["X"]}}, "a.E"),
        doubled(5),
    ],
)
def test_values_that_take_bytes_are_bounded(schema: Any) -> None:
    check_bounded(schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record({"type": "array", "items": "null"}), "array of elements without a byte"),
        (record({"type": "map", "values": {"type": "fixed", "name": "F", "size": 0}}), "map of elements"),
        (record({"type": "array", "items": record(name="N")}), "array of elements without a byte"),
        (record(record("null", name="N"), {"type": "array", "items": "N"}), "array of elements"),
        (record(["null", "Nic"]), "type Nic contains itself"),
        (record({"type": "array", "items": "a.Nic"}), "type a.Nic contains itself"),
        (record({"type": "map", "values": {"type": "Nic"}}), "type Nic contains itself"),
        (record(record("null", name="a.N"), record("null", name="b.N")), "type N is defined twice"),
        (record(*["null"] * (MAX_EMPTY + 1)), "17 parts without a byte"),
        (doubled(40), "32 parts without a byte"),
    ],
)
def test_values_without_bytes_and_types_in_themselves_are_refused(schema: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_bounded(schema)
