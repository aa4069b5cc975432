"""Labels and times of an alert: stable identity, and times that Alertmanager accepts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from actuators.notify.actions import ActionSummary
from actuators.notify.notes import NoteIndex
from actuators.notify.receivers.alert_json import alert_json, labels_of, time_json, times_of
from actuators.notify.texts import Context
from tests.actuators.notify.alerts import T0, S, alert
from tests.examples import examples

CONTEXT = Context(NoteIndex(), ActionSummary(), "runbooks", "", {"cluster": "east", "alertname": "mine"})


def test_all_records_of_an_alert_have_the_same_labels():
    records = (alert(), alert(update=3, text="more", nics=["h1/eth0"]), alert(state="CLEARED"))
    assert len({tuple(sorted(labels_of(one, CONTEXT).items())) for one in records}) == 1
    assert labels_of(records[0], CONTEXT)["cluster"] == "east"
    assert labels_of(records[0], CONTEXT)["alertname"] == "FabricAgent", "ours cannot be replaced"


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**62), st.integers(0, 2**62), st.booleans())
def test_an_alert_starts_before_it_ends_and_a_cleared_one_has_ended(raised_ns, cleared_ns, is_over):
    state = "CLEARED" if is_over else "RAISED"
    one = alert(state=state, raised_ns=raised_ns, cleared_ns=cleared_ns if is_over else None)
    start_ns, end_ns = times_of(one, T0, 60 * S)
    assert start_ns < end_ns
    assert (end_ns <= T0) == is_over


def test_times_keep_their_nanoseconds():
    assert time_json(T0 + 5) == "2027-01-15T08:00:00.000000005Z"
    row = alert_json(alert(), CONTEXT, T0 + 10 * S, 60 * S)
    assert (row["startsAt"], row["endsAt"]) == (time_json(T0), time_json(T0 + 70 * S))
