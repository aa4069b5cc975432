"""Differences between published and replayed diagnoses, and rules given on the command line.

The replay of a real log is in tests/streams/diagnosis/test_stage.py.
"""

import json

import pytest

from fabrictime.commands.replay_alerts import Span
from fabrictime.commands.replay_diagnosis import Replayed, as_json, compare, lines_of, rules_of
from tests.fabrictime.commands.job_diagnoses import S, contended, healthy

FIRST = 1_900_000_000
SPAN = Span(FIRST * S, (FIRST + 100) * S)


def by_number(*records):
    return {(each["job"], each["number"]): each for each in records}


def test_differences_are_named_by_job_second_and_field():
    same = healthy("A", FIRST, FIRST * S)
    was, now = healthy("A", FIRST + 5, FIRST * S), contended("A", FIRST + 5, FIRST * S)
    late = healthy("A", FIRST + 98, FIRST * S)
    live = by_number(same, was, healthy("B", FIRST, FIRST * S))
    again = by_number(same, now, late, healthy("C", FIRST, FIRST * S))
    found = compare(SPAN, live, again)
    lines = [each.line() for each in found]
    assert [line.split(":")[0] for line in lines] == [f"A {FIRST + 5}", f"B {FIRST}", f"C {FIRST}"]
    assert "verdict 'HEALTHY', replayed 'CONTENTION'" in lines[0]
    assert "; time_splits; flows" in lines[0], "long fields are named without their values"
    assert lines[1].endswith("was published, and is not replayed")
    assert lines[2].endswith("is replayed, and was not published")


def test_a_replay_prints_changes_of_verdicts_and_its_total():
    records = [
        healthy("A", FIRST, FIRST * S),
        healthy("A", FIRST + 5, FIRST * S),
        contended("A", FIRST + 6, FIRST * S),
    ]
    found = Replayed(SPAN, records, [], 3, 1234, 0.5)
    lines = lines_of(found)
    assert [line.partition(":")[0] for line in lines[:-1]] == [f"A {FIRST}", f"A {FIRST + 6}"]
    assert lines[-1] == (
        "100 s of the log, 1,234 messages in 0.5 s: 3 diagnoses were published, 3 replayed: all the same"
    )
    assert json.loads(as_json(found))["diagnoses"] == records


def test_rules_are_given_by_name():
    assert rules_of(["slow_ratio=1.3", "min_arrivals=5"]).slow_ratio == 1.3
    assert rules_of(["min_arrivals=5"]).min_arrivals == 5


@pytest.mark.parametrize("text", ["slowness=2", "slow_ratio", "slow_ratio=fast", "min_arrivals=1.5"])
def test_a_wrong_rule_is_refused(text):
    with pytest.raises(ValueError, match=f"--rule {text}: "):
        rules_of([text])
