"""Published records against replayed ones: equal, missing, further, and with other fields."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.commands.replay.compare import Difference, Records, compare
from fabrictime.commands.replay.reader import Span
from schemas import codec
from schemas.topics import ALERTS, DECISIONS, DIAGNOSES
from tests.fabrictime.commands.jobs.job_diagnoses import contended, healthy
from tests.records import make

S = 1_000_000_000
SPAN = Span(100 * S, 200 * S)
AT = 150 * S
EDGE = 2 * S


def decisions(*records: Any) -> Records:
    return {(each["decision_id"],): [(each, AT)] for each in records}


def decision(name: str, **fields: Any) -> Any:
    return make("Decision", decision_id=name, action="REROUTE", text=f"move {name}", **fields)


def test_the_same_records_do_not_differ() -> None:
    both = decisions(decision("a"), decision("b"))
    assert compare(DECISIONS, SPAN, both, dict(both)) == compare(DECISIONS, SPAN, {}, {}) == []


def test_a_difference_names_the_record_and_both_values() -> None:
    live = decisions(decision("a", to_path=5), decision("b"))
    again = decisions(decision("a", to_path=6), decision("c"))
    changed, missing, further = compare(DECISIONS, SPAN, live, again)
    assert changed == Difference(DECISIONS.name, ("a",), "differs", {"to_path": (5, 6)})
    assert [each.line() for each in (changed, missing, further)] == [
        "a: differs: to_path 5, replayed 6",
        "b: was published, and is not replayed: move b",
        "c: is replayed, and was not published: move c",
    ]


def test_records_on_an_edge_of_the_interval_are_no_difference() -> None:
    one = ("LINK_DOWN:x:1", 0)
    a, b = make("Alert", text="a"), make("Alert", text="b")

    def differences(live: Records, again: Records) -> list[Difference]:
        return compare(ALERTS, SPAN, live, again, EDGE)

    assert differences({one: [(a, AT)]}, {one: [(a, 90 * S)]}) == []
    assert differences({one: [(a, 90 * S)]}, {}) == [], "of before"
    assert differences({}, {one: [(a, 199 * S)]}) == [], "not published yet"
    assert [each.kind for each in differences({}, {one: [(a, AT)]})] == ["is replayed, and was not published"]
    (difference,) = differences({one: [(a, AT)]}, {one: [(b, AT)]})
    assert difference.line() == "LINK_DOWN:x:1 0: differs: text 'a', replayed 'b'"


def test_long_fields_are_named_without_their_values() -> None:
    identity = ("A", 0, 5)
    was, now = healthy("A", 5, 0), contended("A", 5, 0)
    (difference,) = compare(DIAGNOSES, SPAN, {identity: [(was, AT)]}, {identity: [(now, AT)]})
    assert "verdict 'HEALTHY', replayed 'CONTENTION'" in difference.line()
    assert "; time_splits; flows" in difference.line()


def test_fields_of_local_facts_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = codec.raw_schema("Decision")
    fields = [each | {"replay": "exempt"} if each["name"] == "at_ns" else each for each in schema["fields"]]
    monkeypatch.setattr("schemas.identities.raw_schema", lambda name: {**schema, "fields": fields})
    live, again = decisions(decision("a", at_ns=1)), decisions(decision("a", at_ns=2))
    assert compare(DECISIONS, SPAN, live, again) == []


def test_several_records_of_one_identity_are_compared_each() -> None:
    def versions(*paths: int) -> Records:
        return {("a",): [(decision("a", to_path=path), AT) for path in paths]}

    def fields(live: Records, again: Records) -> list[tuple[Any, Any]]:
        return [each.fields["to_path"] for each in compare(DECISIONS, SPAN, live, again)]

    assert fields(versions(1, 2, 3, 4), versions(9, 8, 7, 4)) == [(1, 9), (2, 8), (3, 7)]
    assert fields(versions(1, 2, 3, 6), versions(9, 8, 7, 5)) == [(1, 9), (2, 8), (3, 7), (6, 5)]
    assert fields(versions(1, 1), versions(1)) == [], "delivery is at least once"
    assert fields(versions(1, 1), versions(2)) == [(1, 2)]
    kinds = [each.kind for each in compare(DECISIONS, SPAN, versions(1, 2), versions(1))]
    assert kinds == ["was published, and is not replayed"]
