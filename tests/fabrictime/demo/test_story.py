"""The story of one fault: which records make which lines, and the outcome."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.demo.iterations import Change
from fabrictime.demo.script import STEPS, Fault, Step
from fabrictime.demo.story import Chapter, Event, Line, Place
from schemas.ids import cable_id
from schemas.records import ActionReport, Alert, ContentionWindow, Decision, LinkHealth
from schemas.topics import ACTIONS, ALERTS, CONTENTION, DECISIONS, LINK_HEALTH
from tests.records import make

LINK = "leaf1:swp3>spine1:swp1"
CABLE = cable_id(LINK)
OTHER = "leaf2:swp3<>spine1:swp2"
S = 1_000_000_000
BEGIN_NS = 1_700_000_000 * S
FLOWS = {"h1/b/sock:1": "job-a", "h1/b/sock:2": "job-a", "h2/b/sock:3": "job-b"}


def step_of(fault: Fault) -> Step:
    return next(step for step in STEPS if step.fault is fault)


def chapter_of(fault: Fault, *, acting: bool = True, sick: tuple[str, ...] = ()) -> Chapter:
    place = Place(LINK, "leaf1 > spine1", "leaf1 > spine1 is broken")
    found = Chapter(
        step_of(fault),
        place,
        lambda link: link.replace("leaf1:swp3<>spine1:swp1", "the cable"),
        FLOWS.get,
        lambda flow, port: flow in FLOWS and port != 9,
        acting=acting,
        sick=frozenset(sick),
    )
    assert [line.text for line in found.inject(BEGIN_NS)] == ["leaf1 > spine1 is broken"]
    return found


def at(seconds: float) -> int:
    return BEGIN_NS + round(seconds * S)


def health(seconds: float, state: str, subject: str = CABLE, **more: Any) -> Event:
    return Event(LINK_HEALTH.name, make(LinkHealth, subject=subject, state=state, **more), at(seconds))


def window(seconds: float, kind: str, state: str = "OPENED", link: str = LINK, **more: Any) -> Event:
    fields = {"opened_ns": at(seconds - 0.2), "updated_ns": at(seconds), **more}
    record = make(ContentionWindow, link=link, kind=kind, state=state, **fields)
    return Event(CONTENTION.name, record, at(seconds))


def decision(
    seconds: float, number: int, flow: str, kind: str, action: str = "REROUTE", subject: str = CABLE
) -> Event:
    window_id = f"fabric/{LINK}/1" if kind in ("COLLISION", "INCAST") else None
    reason = {"kind": kind, "subject": subject, "seq": None if window_id else 1, "window_id": window_id}
    record = make(Decision, decision_id=f"fabric/1/{number}", flow_id=flow, action=action, reason=reason)
    return Event(DECISIONS.name, record, at(seconds))


def action(
    seconds: float, number: int, flow: str, outcome: str = "APPLIED", action: str = "REROUTE", **more: Any
) -> Event:
    ident = f"fabric/1/{number}"
    record = make(ActionReport, decision_id=ident, flow_id=flow, outcome=outcome, action=action, **more)
    return Event(ACTIONS.name, record, at(seconds))


def story(chapter: Chapter, *events: Event) -> list[Line]:
    return [line for event in events for line in chapter.take(event)]


def test_a_grey_link_is_detected_named_raised_and_left_by_the_flows() -> None:
    chapter = chapter_of(Fault.GREY)
    lines = story(
        chapter,
        health(1.5, "GREY", loss_rate=0.21, loss_rate_low=0.18, loss_rate_high=0.24),
        Event(
            ALERTS.name,
            make(Alert, subject=CABLE, kind="LINK_GREY", state="RAISED", severity="CRITICAL"),
            at(1.6),
        ),
        decision(1.7, 1, "h1/b/sock:1", "GREY"),
        action(1.8, 1, "h1/b/sock:1"),
        decision(1.8, 2, "h2/b/sock:3", "GREY"),
        action(1.9, 2, "h2/b/sock:3"),
    )
    assert [(line.at_s, line.label) for line in lines] == [
        (pytest.approx(1.5), "detected"),
        (pytest.approx(1.6), "alert"),
        (pytest.approx(1.8), "action"),
    ]
    assert lines[0].text == "the cable is GREY: loses 21% of its packets (18% to 24%)"
    assert lines[2].text == "a flow of job-a is the first to take another path, 300 ms after the detection"
    (healed,) = chapter.heal(at(6))
    assert healed.text == "the link works again; 2 flows moved (job-a 1, job-b 1)"
    chapter.end({})
    outcome = chapter.outcome
    assert (outcome.named, outcome.verdict, outcome.moved, outcome.repaired) == ("yes", "GREY", 2, 0)
    assert outcome.detected_ms == pytest.approx(1500)
    assert outcome.action_ms == pytest.approx(1800)
    assert outcome.right_ms == pytest.approx(1500)
    assert outcome.detection_to_first_move_ms == pytest.approx(300)


def test_a_record_from_before_the_injection_is_no_detection() -> None:
    chapter = chapter_of(Fault.GREY)
    assert story(chapter, health(-1, "GREY"), window(-1, "COLLISION")) == []
    assert not chapter.is_detected


def test_a_fault_that_nothing_detects_is_reported_as_missed() -> None:
    chapter = chapter_of(Fault.BLACKHOLE)
    missed, healed = chapter.heal(at(8))
    assert (missed.label, missed.text) == ("missed", "not detected within 8.0 s")
    assert healed.text == "the link works again; no action was taken"
    assert chapter.outcome.named == "no"


@pytest.mark.parametrize(
    ("events", "named"),
    [
        ([health(0.1, "DOWN")], "yes"),
        ([health(0.1, "DOWN", candidates=[OTHER])], "1 of 2"),
        ([health(0.1, "DOWN", subject=OTHER, candidates=[CABLE])], "1 of 2"),
        ([health(0.1, "GREY")], "link only"),
        ([health(0.1, "GREY"), health(0.2, "DOWN")], "yes"),
        ([health(0.1, "DOWN", candidates=[OTHER]), health(0.2, "DOWN")], "yes"),
        ([health(0.1, "DOWN"), health(0.3, "GREY")], "yes"),
        ([health(0.1, "DOWN", subject=OTHER)], "no"),
    ],
)
def test_the_name_is_right_if_link_and_kind_are(events: list[Event], named: str) -> None:
    chapter = chapter_of(Fault.BLACKHOLE)
    story(chapter, *events)
    assert chapter.outcome.named == named


def test_another_link_that_is_called_unhealthy_is_reported_once_unless_it_was_so_before() -> None:
    chapter = chapter_of(Fault.BLACKHOLE, sick=("h9",))
    story(chapter, health(0.1, "DOWN", subject=OTHER), health(9.0, "DOWN", subject=OTHER))
    story(chapter, health(0.2, "DOWN", subject="h9"), health(0.3, "UP", subject="h8"))
    assert chapter.outcome.also_named == [OTHER]
    compared, line = chapter.end({})
    assert line.text == f"called unhealthy meanwhile: {OTHER}"
    assert compared.label == "not right"


def test_a_local_repair_is_an_action_before_any_decision() -> None:
    chapter = chapter_of(Fault.BLACKHOLE)
    (line,) = story(chapter, action(0.1, 0, "h1/b/sock:1", "LOCAL_REPAIR"))
    assert "local repair" in line.text
    story(chapter, decision(0.2, 1, "h1/b/sock:1", "DOWN"), action(0.3, 1, "h1/b/sock:1"))
    story(chapter, action(0.4, 0, "h2/b/sock:3", "LOCAL_REPAIR", from_path=9))
    _, line = chapter.end({})
    assert line.text == "hosts moved 1 flow that did not cross this link"
    assert (chapter.outcome.moved, chapter.outcome.repaired) == (1, 1), "one flow, moved twice"
    assert chapter.outcome.strays == 1


def test_an_action_that_is_read_before_its_decision_counts() -> None:
    chapter = chapter_of(Fault.BLACKHOLE)
    assert story(chapter, action(0.2, 1, "h1/b/sock:1")) == []
    (line,) = story(chapter, decision(0.1, 1, "h1/b/sock:1", "DOWN"))
    assert (line.label, line.at_s) == ("action", pytest.approx(0.2))


def test_actions_for_another_reason_or_without_effect_do_not_count() -> None:
    chapter = chapter_of(Fault.BLACKHOLE)
    story(
        chapter,
        health(0.1, "DOWN"),
        decision(0.2, 1, "h1/b/sock:1", "DOWN", subject=OTHER),
        action(0.3, 1, "h1/b/sock:1"),
        decision(0.2, 2, "h1/b/sock:2", "HEALED", action="RESTORE"),
        action(0.3, 2, "h1/b/sock:2", action="RESTORE"),
        decision(0.2, 3, "h2/b/sock:3", "DOWN"),
        action(0.3, 3, "h2/b/sock:3", "NO_FLOW"),
    )
    chapter.end({})
    assert (chapter.outcome.moved, chapter.outcome.planned_flows) == (0, 1)


def test_flapping_is_detected_by_its_name_and_the_first_drop_before() -> None:
    chapter = chapter_of(Fault.FLAPPING)
    lines = story(
        chapter,
        health(0.1, "DOWN"),
        health(0.6, "UP"),
        health(1.1, "DOWN"),
        health(1.6, "UP"),
        health(2.1, "DOWN"),
        health(2.6, "FLAPPING", flaps_hour=9),
    )
    assert [line.label for line in lines] == ["detected", "detected"]
    assert lines[1].text == "the cable is FLAPPING: down 9 times within the hour"
    outcome = chapter.outcome
    assert outcome.first_drop_ms == pytest.approx(100)
    assert outcome.detected_ms == pytest.approx(2600)
    assert (outcome.drops, outcome.drops_within_hour, outcome.named) == (3, 9, "yes")


def test_the_alert_of_a_flapping_link_is_its_detection_if_it_comes_first() -> None:
    chapter = chapter_of(Fault.FLAPPING)
    record = make(Alert, subject=CABLE, kind="LINK_FLAPPING", state="RAISED", severity="WARNING")
    lines = story(chapter, health(0.1, "DOWN"), Event(ALERTS.name, record, at(2.0)), health(2.2, "FLAPPING"))
    assert [line.label for line in lines] == ["detected", "detected", "alert"]
    assert (chapter.outcome.named, chapter.outcome.detected_ms) == ("yes", pytest.approx(2000))
    assert chapter.heal(at(3), " since +1.9 s")[0].text.startswith("the link works again since +1.9 s; ")


def test_a_collision_is_a_queue_at_the_link_and_its_cause_may_come_later() -> None:
    chapter = chapter_of(Fault.COLLISION)
    lines = story(
        chapter,
        window(0.3, "UNKNOWN"),
        window(0.6, "COLLISION", "UPDATED"),
        decision(0.7, 1, "h1/b/sock:1", "COLLISION", subject=""),
        action(0.8, 1, "h1/b/sock:1"),
        window(2.0, "UNKNOWN", "CLOSED"),
    )
    assert [line.label for line in lines] == ["detected", "cause", "action"]
    assert (chapter.outcome.named, chapter.outcome.verdict) == ("yes", "COLLISION")
    (ended,) = chapter.heal(at(8))
    assert ended == Line(pytest.approx(8), "ended", "the extra load is gone; 1 flow moved (job-a 1)")


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (window(0.3, "COLLISION"), "yes"),
        (window(0.3, "INCAST"), "link only"),
        (window(0.3, "COLLISION", candidates=["a:1>b:1"]), "1 of 2"),
        (window(0.3, "COLLISION", link="a:1>b:1", candidates=[LINK]), "1 of 2"),
        (window(0.3, "COLLISION", link="a:1>b:1"), "no"),
        (window(0.3, "COLLISION", opened_ns=at(-2)), "no"),
    ],
)
def test_a_queue_is_named_right_by_link_and_cause(event: Event, named: str) -> None:
    chapter = chapter_of(Fault.COLLISION)
    story(chapter, event)
    assert chapter.outcome.named == named


def test_an_incast_is_answered_by_pacing() -> None:
    chapter = chapter_of(Fault.INCAST)
    lines = story(
        chapter,
        window(0.3, "INCAST"),
        decision(0.4, 1, "h1/b/sock:1", "INCAST", "PACE"),
        action(0.5, 1, "h1/b/sock:1", action="PACE", rate_bps=6_000_000),
        action(0.6, 2, "h1/b/sock:2", action="PACE", rate_bps=6_000_000),
        decision(0.6, 2, "h1/b/sock:2", "INCAST", "PACE"),
    )
    assert lines[1].text == "the first sender is slowed down to 6.00 Mbit/s, 200 ms after the detection"
    assert chapter.heal(at(9))[0].text == "the extra load is gone; 2 flows slowed down"


def test_while_observing_the_story_names_the_wanted_actions() -> None:
    chapter = chapter_of(Fault.GREY, acting=False)
    lines = story(
        chapter,
        health(1.0, "GREY"),
        decision(1.1, 1, "h1/b/sock:1", "GREY"),
        action(1.2, 1, "h1/b/sock:1", "OBSERVED"),
        decision(1.3, 2, "h1/b/sock:2", "GREY"),
    )
    assert [line.label for line in lines] == ["detected", "wanted"]
    assert chapter.heal(at(6))[0].text == "the link works again; 2 flows would have been moved or slowed down"


def test_the_end_has_a_line_for_each_job_and_the_job_that_suffered_more() -> None:
    chapter = chapter_of(Fault.GREY)
    chapter.heal(at(6))
    jobs = {"job-a": Change(12.0, 14.0, 250.0, 12.5), "job-b": Change(12.0, 12.0, 600.0, None)}
    lines = chapter.end(jobs)
    assert [line.label for line in lines] == ["job-a", "job-b", "not right"]
    assert lines[0].text == (
        "iterations: 12.0 ms before; during the fault 14.0 ms in the median, 250 ms at worst; "
        "12.5 ms after it"
    )
    assert lines[1].text.endswith("; none after it")
    assert chapter.outcome.worst_job == "job-b"
    stalled, _ = chapter.end({"job-a": Change(12.0, None, 9_000.0, None, unfinished=True)})
    assert "more than 9.00 s at worst" in stalled.text


def test_the_verdict_is_compared_with_the_planted_fault() -> None:
    chapter = chapter_of(Fault.COLLISION)
    story(chapter, window(0.3, "INCAST"), window(0.9, "COLLISION", "UPDATED"))
    (compared,) = chapter.end({})
    assert compared == Line(
        None,
        "right",
        "planted: COLLISION at leaf1 > spine1; named after 900 ms, no flow was moved or slowed down",
    )
    assert (chapter.outcome.detected_ms, chapter.outcome.right_ms) == (pytest.approx(300), pytest.approx(900))
    assert chapter.outcome.is_in_time
    late = chapter_of(Fault.COLLISION)
    story(late, window(0.3, "INCAST"), window(3.5, "COLLISION", "UPDATED"))
    assert late.outcome.is_right
    assert not late.outcome.is_in_time, "the right verdict came too late"


def test_a_local_repair_before_the_detection_takes_no_time() -> None:
    chapter = chapter_of(Fault.BLACKHOLE)
    story(chapter, action(0.05, 0, "h1/b/sock:1", "LOCAL_REPAIR"), health(0.1, "DOWN"))
    assert chapter.outcome.detection_to_first_move_ms == 0
