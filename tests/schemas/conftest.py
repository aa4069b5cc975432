"""Helpers of the schema tests: honest records of any schema, made from the schema itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import strategies as st

from schemas import codec
from schemas.topics import TOPICS

RECORDS = tuple(sorted(topic.record for topic in TOPICS.values()))


def values_of(schema: Any, minimum: float | None = None) -> st.SearchStrategy[Any]:
    """Values that `schema` and its `min` allow."""
    if isinstance(schema, list):
        return st.one_of([st.none() if branch == "null" else values_of(branch, minimum) for branch in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return st.fixed_dictionaries(
            {field["name"]: values_of(field["type"], field.get("min")) for field in schema["fields"]}
        )
    if kind == "array":
        return st.lists(values_of(schema["items"], minimum), max_size=3)
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    low = None if minimum is None else int(minimum)
    if kind == "int":
        return st.integers(-(2**31) if low is None else low, 2**31 - 1)
    if kind == "long":
        return st.integers(-(2**63) if low is None else low, 2**63 - 1)
    if kind == "double":
        return st.floats(minimum, allow_nan=False, allow_infinity=False)
    if kind == "float":
        return st.floats(minimum, allow_nan=False, allow_infinity=False, width=32)
    if kind == "boolean":
        return st.booleans()
    if kind == "string":
        return st.text(st.characters(codec="utf-8"), max_size=12)
    if kind == "bytes":
        return st.binary(max_size=12)
    raise AssertionError(f"a schema uses {kind!r}: teach the tests and the codec's checks about it")


def plain(schema: Any, minimum: float | None = None) -> Any:
    """One small honest value."""
    if isinstance(schema, list):
        return plain(schema[-1], minimum)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {field["name"]: plain(field["type"], field.get("min")) for field in schema["fields"]}
    if kind == "array":
        return [plain(schema["items"], minimum)]
    if kind == "enum":
        return schema["symbols"][-1]
    numbers = {"int": 3, "long": 4, "double": 5.5, "float": 6.5, "boolean": True}
    return {**numbers, "string": "six", "bytes": b"seven"}[kind]


class FakeRegistry:
    """A schema registry in a dict."""

    def __init__(self) -> None:
        self.schemas: dict[int, Mapping[str, Any]] = {}
        self.asked = 0

    def id_of(self, name: str, schema: Mapping[str, Any]) -> int:
        for number, known in self.schemas.items():
            if known == schema:
                return number
        self.schemas[len(self.schemas) + 1000] = schema
        return len(self.schemas) + 999

    def schema_of(self, schema_id: int) -> Mapping[str, Any]:
        self.asked += 1
        return self.schemas[schema_id]


@pytest.fixture(scope="session")
def honest() -> Callable[[str], Any]:
    """An honest small record by name, made anew on each call."""
    return lambda name: plain(codec.raw_schema(name))


@pytest.fixture(scope="session")
def any_value() -> Callable[..., st.SearchStrategy[Any]]:
    return values_of


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()
