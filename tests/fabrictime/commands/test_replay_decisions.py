"""A replay of decisions against the published ones: equal, missing, further, and with other fields."""

import json

from fabrictime.commands.replay_alerts import Span
from fabrictime.commands.replay_decisions import Difference, Replayed, as_json, compare, lines_of
from tests.records import make

S = 1_000_000_000


def decision(seq, **fields):
    return make("Decision", decision_id=f"fabric/9/{seq}", action="REROUTE", text=f"move {seq}", **fields)


def replayed(live, again):
    differences = compare(live, again)
    return Replayed(Span(0, 60 * S), list(again.values()), differences, len(live), 7, 1, 123, 0.5)


def test_the_same_decisions_do_not_differ():
    both = {each["decision_id"]: each for each in map(decision, range(3))}
    assert compare(both, dict(both)) == compare({}, {}) == []
    assert lines_of(replayed(both, both))[-1].endswith("3 decisions were published, 3 replayed: all the same")


def test_a_difference_names_the_decision_and_both_values():
    live = {"a": decision(1, to_path=5), "b": decision(2)}
    again = {"a": decision(1, to_path=6), "c": decision(3)}
    changed, missing, further = compare(live, again)
    assert changed == Difference("a", "differs", {"to_path": (5, 6)})
    assert changed.line() == "a: differs: to_path 5, replayed 6"
    assert (missing.line(), further.line()) == (
        "b: was published, and is not replayed",
        "c: is replayed, and was not published",
    )


def test_json_has_signatures_and_differences_as_text():
    live, again = {"a": decision(1, to_path=5)}, {"a": decision(1, to_path=6, signature=b"\xff")}
    found = json.loads(as_json(replayed(live, again)))
    assert found["decisions"][0]["signature"] == "ff"
    assert found["differences"][0]["fields"]["to_path"] == {"published": "5", "replayed": "6"}
    assert (found["published"], found["cycles"], found["messages"]) == (1, 7, 123)
