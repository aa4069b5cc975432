"""Alert book: raise, update, clear, group and restore alerts."""

from __future__ import annotations

from typing import Any

from schemas import codec
from schemas.messages import key_of
from schemas.topics import ALERTS
from streams.alerts.book import AlertBook, OpenAlert, evidence_ref
from streams.alerts.rules import MAX_EVIDENCE, TOGETHER_NS
from streams.runtime.thresholds import Thresholds

S = 1_000_000_000


def make_book() -> AlertBook:
    return AlertBook("s0", Thresholds())


def alert(subject: str = "a<>b", raised_ns: int = 100 * S, **fields: Any) -> OpenAlert:
    return OpenAlert(
        "LINK_DOWN", subject, "CRITICAL", raised_ns, raised_ns, "text", members={subject}, **fields
    )


def test_an_alert_is_raised_once() -> None:
    book = make_book()
    assert book.raise_alert(alert())
    assert not book.raise_alert(alert())
    [(key, record)] = book.take_published()
    assert (key, record["state"], record["update"]) == ("LINK_DOWN:a<>b:100000000000", "RAISED", 0)
    assert codec.decode(codec.encode("Alert", record), "Alert") == record
    assert book.take_published() == []


def test_an_alert_is_cleared_a_hold_down_after_its_last_member_is_over() -> None:
    book = make_book()
    one = alert()
    book.raise_alert(one)
    one.hold("c<>d")
    book.now_ns = 110 * S
    book.release(one, "a<>b", 105 * S, 5 * S)
    book.clear_due(200 * S)
    assert book.open, "the second member persists"
    book.release(one, "c<>d", 108 * S, 5 * S)
    assert book.next_clear_ns == 115 * S
    book.clear_due(115 * S - 1)
    assert book.open
    book.clear_due(115 * S)
    assert not book.open
    record = book.take_published()[-1][1]
    assert (record["state"], record["cleared_ns"]) == ("CLEARED", 108 * S)
    assert not book.raise_alert(alert()), "a cleared alert is not raised again"


def test_a_member_that_returns_ends_the_hold_down() -> None:
    book = make_book()
    one = alert()
    book.raise_alert(one)
    book.release(one, "a<>b", 105 * S, 5 * S)
    one.hold("a<>b")
    book.clear_due(10**18)
    assert book.find("LINK_DOWN", "a<>b") is one


def test_a_cleared_alert_covers_states_that_began_while_it_was_active() -> None:
    book = make_book()
    one = alert(grouped=["c<>d"])
    book.raise_alert(one)
    one.over_ns = 120 * S
    book.clear(one)
    for subject in ("a<>b", "c<>d"):
        assert book.was_covered(subject, 100 * S - TOGETHER_NS)
        assert book.was_covered(subject, 120 * S - 1)
        assert not book.was_covered(subject, 120 * S)
    assert not book.was_covered("e<>f", 110 * S)


def test_a_grouped_alert_passes_its_content_to_the_cause() -> None:
    book = make_book()
    cause, effect = alert("cause", links=["x"]), alert("effect", links=["x", "y"], grouped=["more"])
    effect.evidence = [evidence_ref("t", "k", 1, "text")]
    book.raise_alert(cause)
    book.raise_alert(effect)
    book.group(cause, effect, 130 * S)
    assert list(book.open.values()) == [cause]
    assert (cause.links, cause.grouped, cause.members) == (
        ["x", "y"],
        ["effect", "more"],
        {"cause", "effect"},
    )
    assert cause.evidence == [evidence_ref("t", "k", 1, "text")]
    states = [(record["subject"], record["state"]) for _, record in book.take_published()]
    assert states[2:] == [("effect", "CLEARED"), ("cause", "RAISED")]


def test_the_evidence_of_an_alert_is_bounded_and_has_no_duplicates() -> None:
    one = alert()
    assert one.add_one_evidence({"n": 0})
    assert not one.add_one_evidence({"n": 0})
    one.add_evidence({"n": number} for number in range(2 * MAX_EVIDENCE))
    assert len(one.evidence) == MAX_EVIDENCE
    assert not one.add_one_evidence({"n": -1})


def test_two_alerts_of_one_subject_have_keys_of_their_own() -> None:
    book = make_book()
    for raised_ns in (100 * S, 200 * S):
        book.raise_alert(alert("h1", raised_ns))
    latest = dict(book.take_published())
    assert sorted(record["raised_ns"] for record in latest.values()) == [100 * S, 200 * S]
    assert all(key == key_of(ALERTS, record) for key, record in latest.items())


def test_a_new_owner_restores_the_newest_record_of_each_alert() -> None:
    book = make_book()
    first, second = alert("first"), alert("second")
    book.raise_alert(first)
    book.raise_alert(second)
    book.update(first, 150 * S)
    second.over_ns = 140 * S
    book.clear(second)
    records = [record for _, record in book.take_published()]
    foreign = {**records[0], "shard": "s9", "alert_id": "other"}
    restored = make_book()
    [active] = restored.recover([*reversed(records), foreign])
    assert (active.subject, active.update, active.updated_ns) == ("first", 1, 150 * S)
    assert restored.open == {active.alert_id: active}
    assert restored.was_cleared(second.alert_id)
