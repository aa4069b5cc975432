"""The generated record types, and the records that tests build."""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from pathlib import Path

import pytest

from schemas import codec, records
from schemas.topics import LINK_HEALTH, TOPICS
from tests.records import make, make_part

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "schemas").glob("*.avsc"))


def test_the_module_is_current():
    """If this fails: python tools/make_records.py, and commit the module."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools/make_records.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_types_have_the_fields_of_their_schemas(name):
    schema = codec.raw_schema(name)
    kind = getattr(records, name)
    assert list(kind.__annotations__) == [field["name"] for field in schema["fields"]]
    enums = {field["name"]: field["type"] for field in schema["fields"] if _is_enum(field["type"])}
    for field, enum in enums.items():
        members = getattr(records, kind.__annotations__[field].__forward_arg__)
        assert issubclass(members, StrEnum)
        assert list(members) == enum["symbols"]


def _is_enum(schema):
    return isinstance(schema, dict) and schema["type"] == "enum"


@pytest.mark.parametrize("name", NAMES)
def test_records_from_defaults_encode_and_decode(name):
    record = make(name)
    assert codec.decode(codec.encode(name, record), name) == record


def test_given_fields_count_and_unknown_ones_raise():
    record = make(records.LinkHealth, state=records.LinkState.DOWN, links=["a:1>b:2"])
    assert (record["state"], record["links"], record["candidates"]) == ("DOWN", ["a:1>b:2"], [])
    decoded = codec.decode(codec.encode(LINK_HEALTH.type, record), LINK_HEALTH.type)
    assert decoded["state"] == records.LinkState.DOWN
    with pytest.raises(TypeError, match="LinkHealth has no field colour"):
        make("LinkHealth", colour="red")


def test_nested_records():
    flow = make_part("FlowReports", "Flow", nic="h1/eth0")
    assert (flow["nic"], flow["links"], flow["state"]) == ("h1/eth0", [], "UNKNOWN")
    with pytest.raises(TypeError, match="FlowReports contains no Tree"):
        make_part("FlowReports", "Tree")


def test_topics_name_the_types_of_their_records():
    for topic in TOPICS.values():
        assert topic.type is getattr(records, topic.record)
