"""Helpers of the schema tests: honest records of any schema, made from the schema itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import strategies as st

from schemas import codec
from schemas.formats import FORMATS
from schemas.topics import TOPICS

RECORDS = tuple(sorted(topic.record for topic in TOPICS.values()))


def _enums(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and definition of the enums in a schema; other fields refer to them by name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _enums(branch)
    elif isinstance(schema, dict):
        if schema["type"] == "enum":
            yield schema["name"], schema
        for each in [*(field["type"] for field in schema.get("fields", ())), schema.get("items")]:
            yield from _enums(each)


ENUMS = {name: schema for record in RECORDS for name, schema in _enums(codec.raw_schema(record))}


def values_of(schema: Any, field: Mapping[str, Any] | None = None) -> st.SearchStrategy[Any]:
    """Values that `schema` and the limits of its `field` allow."""
    field = field or {}
    if isinstance(schema, list):
        return st.one_of([st.none() if branch == "null" else values_of(branch, field) for branch in schema])
    schema = ENUMS.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema["type"] if isinstance(schema, dict) else schema
    low, high = field.get("min"), field.get("max")
    if kind == "record":
        return st.fixed_dictionaries(
            {each["name"]: values_of(each["type"], each) for each in schema["fields"]}
        )
    if kind == "array":
        return st.lists(values_of(schema["items"], field), max_size=3)
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    if kind in ("int", "long"):
        bits = 31 if kind == "int" else 63
        return st.integers(-(2**bits) if low is None else low, 2**bits - 1 if high is None else high)
    if kind in ("double", "float"):
        if kind == "float":  # its limits need not be numbers of 32 bits
            return st.floats(low and max(low, -(2**30)), min(high, 2**30), width=32)
        return st.floats(low, high)
    if kind == "boolean":
        return st.booleans()
    if kind == "string":
        return st.sampled_from(EXAMPLES[field["format"]])
    if kind == "bytes":
        return st.binary(max_size=12)
    raise AssertionError(f"a schema uses {kind!r}: teach the tests and the codec's checks about it")


EXAMPLES: dict[str, list[str]] = {name: [form.example] for name, form in FORMATS.items()}
EXAMPLES |= {
    "nic": ["h1/eth0", "h22/mlx5_0", "gpu-1.rack/enp1s0f0np0"],
    "address": ["10.0.0.1", "fe80::1%eth1", "::1"],
    "text": ["", "one line, with äöü and 100 %"],
    "label": ["", "train", "a job with spaces"],
}


def plain(schema: Any, field: Mapping[str, Any] | None = None) -> Any:
    """One small honest value."""
    field = field or {}
    if isinstance(schema, list):
        return plain(schema[-1], field)
    schema = ENUMS.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {each["name"]: plain(each["type"], each) for each in schema["fields"]}
    if kind == "array":
        return [plain(schema["items"], field)]
    if kind == "enum":
        return schema["symbols"][-1]
    if kind == "string":
        return FORMATS[field["format"]].example
    if kind in ("boolean", "bytes"):
        return True if kind == "boolean" else b"seven"
    number = {"int": 3, "long": 4, "double": 5.5, "float": 6.5}[kind]
    return type(number)(min(number, field.get("max", number)))


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
