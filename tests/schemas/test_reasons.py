"""The typed reason of an action."""

from __future__ import annotations

from schemas import codec
from schemas.ids import link_id, window_id
from schemas.reasons import NO_REASON, Reason
from tests.records import make, reason_record


def test_a_reason_survives_a_decision():
    for reason in (
        Reason("a:1<>b:2", 7),
        Reason.of_window(window_id("s", link_id("a", "1", "b", "2"), 9)),
        NO_REASON,
    ):
        decision = make("Decision", reason=reason.record("DOWN"))
        decoded = codec.decode(codec.encode("Decision", decision), "Decision")
        assert Reason.from_record(decoded["reason"]) == reason


def test_the_text_names_the_record():
    assert str(Reason("a:1<>b:2", 7)) == "a:1<>b:2/7"
    assert str(Reason("h1/b/sock:1")) == "h1/b/sock:1"
    window = Reason.of_window("s/a:1>b:2/9")
    assert (str(window), window.subject) == ("s/a:1>b:2/9", "a:1>b:2")
    assert Reason.of_window("w") == Reason("", None, "w")


def test_records_for_tests_agree():
    assert reason_record("s/a:1>b:2/9") == Reason.of_window("s/a:1>b:2/9").record("COLLISION")
    assert reason_record("a:1<>b:2/7") == Reason("a:1<>b:2", 7).record("DOWN")
    assert reason_record("h1/b/sock:1") == Reason("h1/b/sock:1").record("DELAY")
