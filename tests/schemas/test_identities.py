"""Identities of records."""

from __future__ import annotations

import pytest

from schemas.codec import raw_schema
from schemas.identities import IDENTITY, comparable, identity_of
from schemas.topics import ALERTS, CLOCK_FITS, PATH_QUEUEING, TOPICS
from tests.records import make


@pytest.mark.parametrize("topic", IDENTITY)
def test_an_identity_names_fields_of_its_record(topic: str) -> None:
    fields = {each["name"] for each in raw_schema(TOPICS[topic].record)["fields"]}
    assert fields >= set(IDENTITY[topic])


def test_an_update_of_an_alert_has_an_identity_of_its_own() -> None:
    assert identity_of(ALERTS, make("Alert", alert_id="a", update=3)) == ("a", 3)


def test_records_of_other_shards_and_parts_have_identities_of_their_own() -> None:
    fits = [make("ClockFits", shard=shard, source="fabric.probes/0") for shard in ("pod1", "pod2")]
    parts = [make("PathQueueing", shard="pod1", part=part) for part in (0, 1)]
    assert len({identity_of(CLOCK_FITS, record) for record in fits}) == 2
    assert len({identity_of(PATH_QUEUEING, record) for record in parts}) == 2


def test_fields_of_local_facts_are_left_out_at_any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    element = {
        "type": "record",
        "name": "E",
        "fields": [{"name": "kept", "type": "int"}, {"name": "lag", "type": "int", "replay": "exempt"}],
    }
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "elements", "type": {"type": "array", "items": element}},
            {"name": "maybe", "type": ["null", element]},
            {"name": "took_ns", "type": "long", "replay": "exempt"},
        ],
    }
    monkeypatch.setattr("schemas.identities.raw_schema", lambda name: schema)
    record = {"elements": [{"kept": 1, "lag": 2}], "maybe": {"kept": 3, "lag": 4}, "took_ns": 5}
    assert comparable(ALERTS, record) == {"elements": [{"kept": 1}], "maybe": {"kept": 3}}
    assert comparable(ALERTS, record | {"maybe": None})["maybe"] is None
