"""The summary of the actions that were taken about an alert."""

from actuators.notify.actions import ActionSummary
from tests.actuators.notify.alerts import T0, S, alert
from tests.records import make, make_part

CABLE = "leaf1:p1<>spine1:p1"


def decision(number, subject):
    reason = make_part("Decision", "Reason", kind="DOWN", subject=subject)
    return make("Decision", shard="default", epoch=1, seq=number, reason=reason)


def report(number, outcome="APPLIED", **fields):
    plain = {"decision_id": f"default/1/{number}", "action": "REROUTE", "at_ns": T0 + S}
    return make("ActionReport", outcome=outcome, **{**plain, **fields})


def test_applied_actions_of_the_subject_are_counted_once():
    summary = ActionSummary()
    for number in range(3):
        summary.take_decision(decision(number, CABLE))
    for one in (report(0), report(0), report(1), report(2, "FAILED"), report(9)):
        summary.take_report(one)
    assert summary.text(alert(CABLE)) == "2 flows moved to another path"
    assert summary.text(alert("l9", links=["spine1:p1>leaf1:p1"])) == "2 flows moved to another path"
    assert summary.text(alert("h1")) == "nothing"


def test_actions_of_an_earlier_alert_do_not_count_and_drains_count_by_host():
    summary = ActionSummary()
    summary.take_decision(decision(0, CABLE))
    summary.take_report(report(0, at_ns=T0 - 3600 * S))
    summary.take_report(report(1, decision_id="drain h1", host="h1", action="DRAIN"))
    assert summary.text(alert(CABLE)) == "nothing"
    assert summary.text(alert("h1/eth0", nics=["h1/eth0"])) == "1 node drained"
