"""The tables of renames: a renamed topic, field or symbol needs a line in a table and nothing else."""

import pytest

from tests.golden import names, replay

RECORDED = {
    "nic": "h1/eth1",
    "source": "fabric.paths/3",
    "paths": [{"hops": ["a:1>b:1"], "leg": "REQUEST", "contradiction": "none", "free": {"text": "said"}}],
    "text": "said",
}


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.setattr(names, "TOPICS", {"fabric.paths": "fabric.routes"})
    monkeypatch.setattr(
        names,
        "FIELDS",
        {"fabric.paths": {"paths.hops": "links", "text": "summary"}, "*": {"**.free": "more"}},
    )
    monkeypatch.setattr(names, "SYMBOLS", {"fabric.paths": {"paths.leg": {"REQUEST": "FORWARD"}}})


@pytest.mark.usefixtures("tables")
def test_records_get_todays_names():
    assert replay.Names("fabric.paths").topic == "fabric.routes"
    assert replay.Names("fabric.paths").now(RECORDED) == {
        "nic": "h1/eth1",
        "source": "fabric.routes/3",
        "paths": [
            {"links": ["a:1>b:1"], "leg": "FORWARD", "contradiction": "none", "more": {"text": "said"}}
        ],
        "summary": "said",
    }


@pytest.mark.usefixtures("tables")
def test_expected_and_made_outputs_compare_after_a_rename():
    before = replay.Names("fabric.paths").now({**RECORDED, "text": replay.TEXT})
    made = {**replay.Names("fabric.paths").now(RECORDED), "summary": "other words"}
    ((_, have),) = replay.canonical([("fabric.routes", "k", made)])["fabric.routes"]
    assert have["summary"] == before["summary"] == replay.TEXT


def test_without_renames_a_record_stays_as_it_is(monkeypatch):
    for table in ("TOPICS", "FIELDS", "SYMBOLS"):
        monkeypatch.setattr(names, table, {})
    assert replay.Names("fabric.paths").now(RECORDED) is RECORDED


def test_ids_compare_by_which_are_equal():
    def canonical_rows(first, second):
        rows = [("fabric.alerts", "k", {"alert_id": name}) for name in (first, second, first)]
        return replay.canonical(rows)

    assert canonical_rows("a/1", "b/2") == canonical_rows("other-1", "other-2")
    assert canonical_rows("a/1", "b/2") != canonical_rows("a/1", "a/1")


def test_a_field_of_another_type_compares_in_its_recorded_form():
    def decision(subject, seq, window_id):
        reason = {"kind": "DOWN", "subject": subject, "seq": seq, "window_id": window_id}
        return ("fabric.decisions", "k", {"reason": reason})

    made = [
        decision("a", 1, None),
        decision("a", 2, None),
        decision("a", 1, None),
        decision("a", None, "s/a/9"),
    ]
    have = [record["reason"] for _, record in replay.canonical(made)["fabric.decisions"]]
    assert have == [{"kind": "DOWN", "id": name} for name in ("#1", "#2", "#1", "#3")]


def test_recorded_reasons_become_records():
    window = "sim/a:1>b:1/1800000000000000000"
    assert names.reason_of(window) | {"kind": ""} == {
        "kind": "",
        "subject": "a:1>b:1",
        "seq": None,
        "window_id": window,
    }
    assert names.reason_of("a:1<>b:1/3")["subject"] == "a:1<>b:1"
    assert names.reason_of("a:1<>b:1/3")["seq"] == 3
    assert names.reason_of("h1/boot/sock:9")["subject"] == "h1/boot/sock:9"
    for text in (window, "a:1<>b:1/3", "h1/boot/sock:9", ""):
        assert names.recorded_reason(names.reason_of(text))["id"] == text


def test_floats_compare_within_a_tolerance_and_integers_exactly():
    assert not list(replay.differences({"a": [1.0]}, {"a": [1.0 + 1e-12]}))
    assert list(replay.differences({"a": [1.0]}, {"a": [1.0 + 1e-6]})) == [".a[0]: 1.000001, expected 1.0"]
    assert list(replay.differences({"a": 10**18}, {"a": 10**18 + 1}))
    assert list(replay.differences({"a": 1}, {"b": 1}))
