"""The text of notifications: the tense of the state, subject, since, cause, next step, and bounds."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from actuators.notify.actions import ActionSummary
from actuators.notify.notes import NoteIndex
from actuators.notify.plan import Notification
from actuators.notify.receivers.webhook import webhook_json
from actuators.notify.texts import Context, body, title
from schemas.records import AlertKind
from tests.actuators.notify.alerts import T0, S, alert, note
from tests.examples import examples
from tests.records import make_part

CONTEXT = Context(NoteIndex(), ActionSummary(), "https://wiki.invalid/runbooks/", "", {})


def notification(*alerts, is_reminder=False):
    firing = tuple(one for one in alerts if one["state"] == "RAISED")
    resolved = tuple(one for one in alerts if one["state"] == "CLEARED")
    news = () if is_reminder else tuple((one["alert_id"], one["state"]) for one in alerts)
    return Notification(("AGENT", "default"), firing, resolved, news, (), is_reminder)


def test_an_active_alert_is_in_the_present_tense():
    evidence = make_part("Alert", "Evidence", topic="fabric.links", key="default", text="no CPU for 3 s")
    sent = notification(alert("h1", evidence=[evidence]))
    assert title(sent) == "[RAISED WARNING] Prober in trouble: h1"
    text = body(sent, CONTEXT)
    assert "h1: WARNING, active since 2027-01-15 08:00:00 UTC." in text
    assert "Cause: no CPU for 3 s (fabric.links default)" in text
    assert "Runbook: https://wiki.invalid/runbooks/agent.md" in text


def test_a_cleared_alert_is_in_the_past_tense_and_proposes_no_step():
    sent = notification(alert("h1", state="CLEARED", cleared_ns=T0 + 3700 * S))
    assert title(sent) == "[RESOLVED] Prober in trouble: h1"
    text = body(sent, CONTEXT)
    assert "was active from 2027-01-15 08:00:00 UTC to 2027-01-15 09:01:40 UTC, for 1 h 1 min." in text
    assert "Next step" not in text


def test_many_subjects_are_counted_in_the_title_and_bounded_in_the_text():
    sent = notification(*(alert(f"h{k}", severity="CRITICAL" if k == 7 else "INFO") for k in range(60)))
    assert title(sent) == "[RAISED CRITICAL] Prober in trouble: 60 subjects in default"
    assert "And 40 more: h20" in body(sent, CONTEXT)
    assert len(body(sent, CONTEXT)) < 6000


def test_a_reminder_is_called_one():
    assert title(notification(alert("h1"), is_reminder=True)).startswith("[STILL ACTIVE WARNING]")


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
alerts = st.builds(
    lambda kind, subject, state, times, lists, text: alert(
        subject,
        kind=kind,
        state=state,
        raised_ns=times[0],
        cleared_ns=times[1] if state == "CLEARED" else None,
        text=text,
        severity=("INFO", "WARNING", "CRITICAL")[times[0] % 3],
        **{name: lists[k] for k, name in enumerate(("links", "nics", "jobs", "grouped"))},
    ),
    st.sampled_from([str(kind) for kind in AlertKind]),
    names | st.sampled_from(("a>b", "a:1<>b:1", ">", "<>", "a>b>c", "[x]:1>[", ":", "/")),
    st.sampled_from(("RAISED", "CLEARED")),
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)),
    st.tuples(*[st.lists(names | st.sampled_from(("a>b", "a:1<>b:1", ">>")), max_size=30)] * 4),
    st.text(max_size=500),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(alerts, min_size=1, max_size=5))
def test_every_alert_that_the_schema_allows_has_a_text(drawn):
    index = NoteIndex()
    for scope in ("HOST", "RACK", "LINK"):
        index.take(scope, note(scope, scope=scope, pattern="*", silent_from_ns=0, silent_until_ns=2**62))
    context = Context(index, ActionSummary(), "runbooks", "http://page.invalid", {})
    sent = notification(*drawn)
    content = webhook_json(sent, context, "people", T0)
    assert json.dumps(content, allow_nan=False)
    assert len(content["alerts"]) == len(drawn)
    assert title(sent)
    assert body(sent, context)
    for one in drawn:
        index.silence_at(one, T0)
