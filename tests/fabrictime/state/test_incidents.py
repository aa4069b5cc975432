"""Problems of one cause are one incident; the worst incident comes first, acknowledged ones last."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.state.fabric_state import FabricState
from fabrictime.state.health import jobs_of
from fabrictime.state.incidents import (
    KINDS,
    MIN_SWITCH_LINKS,
    Incident,
    Problem,
    group,
    incidents,
)
from schemas.records import AlertKind, Severity
from tests.fabrictime.fill import fill, fill_health
from tests.fabrictime.job_records import JobRecords
from tests.records import make

S = 1_000_000_000


def problem(kind: str, subject: str, **fields: Any) -> Problem:
    values = {"severity": Severity.WARNING, "text": subject, "since_ns": S, **fields}
    return Problem(AlertKind(kind), subject=subject, **values)


def summary(found: list[Incident]) -> list[tuple[str, str, int]]:
    return [(incident.title, incident.where, len(incident.problems)) for incident in found]


def test_a_slow_job_belongs_to_the_link_that_its_verdict_blames(state: FabricState, fabric: Any) -> None:
    link = fabric.up("leaf1", 1)
    fill(state, *fabric.fleet(peers=1))
    alert = fabric.alert(fabric.cable(link), "dead", links=[link])
    record = JobRecords(fabric).diagnosis(1, fabric.now_ns, slow=0, subject=link, links=[link])
    fill(state, ("fabric.alerts", alert["alert_id"], alert), ("fabric.diagnoses", "llama", record))
    (incident,) = incidents(state, fabric.now_ns)
    assert (incident.title, incident.where) == ("Link down", "leaf1:swp3 ⇄ spine1:swp1")
    assert incident.jobs == ("llama",)
    assert incident.severity == "CRITICAL"


@pytest.mark.parametrize("verdict", ["HEALTHY", "UNKNOWN"])
def test_a_job_that_recovers_stays_with_the_link_that_slowed_it(
    state: FabricState, fabric: Any, verdict: str
) -> None:
    link = fabric.up("leaf1", 1)
    fill_health(state, fabric, link, "GREY")
    alert = fabric.alert(
        "llama", "slow", kind="JOB_SLOW", jobs=["llama"], links=[link, fabric.up("leaf2", 1)]
    )
    record = JobRecords(fabric).diagnosis(1, fabric.now_ns, verdict=verdict, links=[])
    fill(state, ("fabric.alerts", alert["alert_id"], alert), ("fabric.diagnoses", "llama", record))
    (incident,) = incidents(state, fabric.now_ns)
    assert (incident.title, incident.jobs) == ("Link loses packets", ("llama",))
    assert [one.verdict for one in incident.problems] == ["", ""]
    assert jobs_of(state, alert["alert_id"], fabric.now_ns) == ("llama",)
    assert jobs_of(state, "another", fabric.now_ns) == ()


@pytest.mark.parametrize(
    ("verdict", "title"),
    [("straggler", "Job has a straggler"), ("", "Job has a straggler"), ("slow flow", "Job is slow")],
)
def test_only_a_straggler_is_named_so(verdict: str, title: str) -> None:
    assert Incident((problem("JOB_STRAGGLER", "llama", verdict=verdict),)).title == title


def test_the_next_step_names_the_job() -> None:
    assert Incident((problem("JOB_SLOW", "llama"),)).next_step == "Run fabrictime explain llama."


@pytest.mark.parametrize(("age_ns", "listed"), [(S, 0), (2 * S, 1)])
def test_a_queue_of_a_moment_is_no_problem(state: FabricState, fabric: Any, age_ns: int, listed: int) -> None:
    fill(state, *fabric.fleet(peers=1))
    window = fabric.contention(fabric.up("leaf1", 1), opened_ns=fabric.now_ns - age_ns)
    fill(state, ("fabric.contention", window["link"], window))
    assert len(incidents(state, fabric.now_ns)) == listed


def test_a_job_that_another_host_slows_is_an_incident_of_its_own(state: FabricState, fabric: Any) -> None:
    link = fabric.up("leaf1", 1)
    alert = fabric.alert(fabric.cable(link), "dead", links=[link], jobs=["llama"])
    fields = {"verdict": "STRAGGLER", "subject": "h3", "links": [], "blames_network": False}
    record = JobRecords(fabric).diagnosis(1, fabric.now_ns, slow=0, **fields)
    fill(state, ("fabric.alerts", alert["alert_id"], alert), ("fabric.diagnoses", "llama", record))
    assert summary(incidents(state, fabric.now_ns)) == [
        ("Link down", "leaf1:swp3 ⇄ spine1:swp1", 1),
        ("Job has a straggler", "job llama", 1),
    ]


def test_an_incident_begins_with_its_cause_and_not_with_a_verdict_about_the_time_before() -> None:
    listed = [
        problem("JOB_SLOW", "train", links=("a:1>b:1",), since_ns=2 * S),
        problem("LINK_DOWN", "a:1<>b:1", since_ns=5 * S),
    ]
    (incident,) = group(listed, set())
    assert (incident.since_ns, len(incident.problems)) == (5 * S, 2)


def test_links_that_probes_cannot_distinguish_are_one_incident(state: FabricState, fabric: Any) -> None:
    link, other = fabric.up("leaf1", 1), fabric.up("leaf2", 1)
    fill_health(state, fabric, link, "GREY", candidates=[fabric.cable(other)])
    fill_health(state, fabric, other, "GREY", candidates=[fabric.cable(link)])
    (incident,) = incidents(state, fabric.now_ns)
    assert incident.where == "leaf1:swp3 ⇄ spine1:swp1, leaf2:swp3 ⇄ spine1:swp2"


@pytest.mark.parametrize(
    ("candidates", "where"),
    [
        ((), "shard sim"),
        (("leaf2",), "leaf2"),
        (("leaf2", "leaf5", "a:1>b:2", "h1", "h2"), "one of leaf2, leaf5, a:1 → b:2 and 2 more"),
    ],
)
def test_loss_without_a_located_cause_names_where_it_may_be(candidates: tuple[str, ...], where: str) -> None:
    assert Incident((problem("UNEXPLAINED_LOSS", "losses@sim", candidates=candidates),)).where == where


def test_links_of_a_dead_host_belong_to_the_host() -> None:
    listed = [
        problem("LINK_DOWN", "h1:eth1<>leaf1:swp1"),
        problem("HOST_DOWN", "h1"),
        problem("NIC_DOWN", "h1/eth1", nics=("h1/eth1",)),
        problem("LINK_DOWN", "h10:eth1<>leaf1:swp3"),
    ]
    assert summary(group(listed, {"h1", "h10"})) == [
        ("Host down", "h1", 3),
        ("Link down", "h10:eth1 ⇄ leaf1:swp3", 1),
    ]


def test_probers_without_processor_time_are_one_incident() -> None:
    listed = [problem("AGENT", f"h{k}", nics=(f"h{k}/eth1",)) for k in range(1, 9)]
    assert summary(group(listed, set())) == [("Prober in trouble", "h1, h2, h3 and 5 more", 8)]


def test_three_links_of_a_switch_are_one_incident_and_two_are_not() -> None:
    listed = [problem("LINK_DOWN", f"leaf{k}:swp9<>spine1:swp{k}") for k in range(MIN_SWITCH_LINKS)]
    assert summary(group(listed, set())) == [("Link down", "3 links of spine1", 3)]
    assert len(group(listed[:-1], set())) == 2


def test_links_of_one_host_are_no_switch() -> None:
    listed = [problem("LINK_DOWN", f"h1:eth{k}<>leaf{k}:swp1") for k in range(4)]
    assert len(group(listed, {"h1"})) == 4


def test_a_queue_on_a_lossy_link_has_the_same_cause() -> None:
    listed = [
        problem("CONTENTION", "leaf1:swp3>spine1:swp1", jobs=("train",)),
        problem("LINK_GREY", "leaf1:swp3<>spine1:swp1"),
    ]
    assert summary(group(listed, set())) == [("Link loses packets", "leaf1:swp3 ⇄ spine1:swp1", 2)]


def test_a_queue_is_no_cause_of_losses(state: FabricState, fabric: Any) -> None:
    """Losses without a located cause may be at the link of the queue; they stay a problem of their own."""
    listed = [
        problem("CONTENTION", "leaf1:swp3>spine1:swp1"),
        problem("UNEXPLAINED_LOSS", "losses@sim", candidates=("leaf1:swp3<>spine1:swp1",)),
    ]
    assert summary(group(listed, set())) == [
        ("Loss without a located cause", "leaf1:swp3 ⇄ spine1:swp1", 1),
        ("Queue persists", "leaf1:swp3 → spine1:swp1", 1),
    ]


def test_an_acknowledged_problem_comes_last(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet(peers=1))
    first, second = fabric.up("leaf1", 1), fabric.up("leaf2", 2)
    for link, severity in ((first, "CRITICAL"), (second, "WARNING")):
        alert = fabric.alert(fabric.cable(link), "dead", severity=severity, raised_ns=S)
        fill(state, ("fabric.alerts", alert["alert_id"], alert))
    note = make("AlertNote", subject=fabric.cable(first), scope="SUBJECT", acknowledged_ns=2 * S, owner="ann")
    fill(state, ("fabric.alert-notes", note["subject"], note))
    ordered = incidents(state, 3 * S)
    assert [(one.severity, one.is_quiet, one.note) for one in ordered] == [
        ("WARNING", False, ""),
        ("CRITICAL", True, "acknowledged, owner ann"),
    ]


def test_a_link_that_is_down_without_an_alert_is_an_incident_once(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet(peers=1))
    link = fabric.up("leaf1", 1)
    fill_health(state, fabric, link, "DOWN")
    assert summary(incidents(state, S)) == [("Link down", "leaf1:swp3 ⇄ spine1:swp1", 1)]
    alert = fabric.alert(fabric.cable(link), "dead", links=[link])
    fill(state, ("fabric.alerts", alert["alert_id"], alert))
    assert len(incidents(state, S)[0].problems) == 1


def test_a_job_that_hung_and_goes_on_has_a_title_in_the_past_and_comes_last(
    state: FabricState, fabric: Any
) -> None:
    link = fabric.up("leaf1", 1)
    hang = fabric.alert("llama", "llama hangs", kind="JOB_HANG", jobs=["llama"], severity="CRITICAL")
    grey = fabric.alert(fabric.cable(link), "loses", kind="LINK_GREY", links=[link], severity="WARNING")
    record = JobRecords(fabric).diagnosis(1, fabric.now_ns)
    alerts = [("fabric.alerts", alert["alert_id"], alert) for alert in (hang, grey)]
    fill(state, *alerts, ("fabric.diagnoses", "llama", record))
    listed = incidents(state, fabric.now_ns)
    assert [(one.title, one.severity) for one in listed] == [
        ("Link loses packets", "WARNING"),
        ("Job hung", "CRITICAL"),
    ]


@pytest.mark.parametrize(
    ("kinds", "verdict", "now", "severity"),
    [
        (["JOB_SLOW"], "PROGRAM_MISMATCH", ["JOB_HANG", "JOB_SLOW"], "CRITICAL"),
        (["JOB_HANG"], "SLOW_FLOW", ["JOB_SLOW", "JOB_HANG"], "WARNING"),
        (["JOB_HANG", "JOB_SLOW"], "SLOW_FLOW", ["JOB_SLOW", "JOB_HANG"], "WARNING"),
    ],
)
def test_a_job_in_another_trouble_than_its_alerts_has_that_of_now_first(
    state: FabricState, fabric: Any, kinds: list[str], verdict: str, now: list[str], severity: str
) -> None:
    """An alert about what the job has recovered from must not hide that it hangs now."""
    for kind in kinds:
        fields = {"kind": kind, "severity": "CRITICAL" if kind == "JOB_HANG" else "WARNING"}
        alert = fabric.alert("llama", kind, jobs=["llama"], **fields)
        fill(state, ("fabric.alerts", alert["alert_id"], alert))
    fields = {"verdict": verdict, "blames_network": verdict == "SLOW_FLOW"}
    record = JobRecords(fabric).diagnosis(1, fabric.now_ns, slow=0, **fields)
    fill(state, ("fabric.diagnoses", "llama", record))
    (incident,) = incidents(state, fabric.now_ns)
    assert [problem.kind for problem in incident.problems] == now
    assert (incident.severity, incident.has_recovered) == (severity, False)


def test_a_queue_is_not_hidden_by_the_alert_about_one_that_is_gone(state: FabricState, fabric: Any) -> None:
    """Both directions of a cable belong to its alert."""
    link = fabric.up("leaf1", 1)
    back = ">".join(reversed(link.split(">")))
    alert = fabric.alert(link, "30 kB queued", kind="CONTENTION", links=[link])
    gone = fabric.contention(link, state="CLOSED")
    opened = fabric.contention(link, state="OPENED") | {"link": back, "window_id": "back"}
    opened["opened_ns"] = fabric.now_ns - 10 * S
    windows = [("fabric.contention", window["window_id"], window) for window in (gone, opened)]
    fill(state, ("fabric.alerts", alert["alert_id"], alert), *windows)
    (incident,) = incidents(state, fabric.now_ns)
    assert {one.subject: one.has_recovered for one in incident.problems} == {link: True, back: False}


PROBLEMS = st.builds(
    problem,
    st.sampled_from([*KINDS, AlertKind.AGENT, AlertKind.CLOCKS]),
    st.sampled_from(
        ["h1", "h1/eth1", "h2", "job", "h1:eth1<>leaf1:swp1", "leaf1:swp3<>spine1:swp1", "<>", ">"]
    ),
    severity=st.sampled_from(list(Severity)),
    is_quiet=st.booleans(),
    has_recovered=st.booleans(),
    nics=st.sampled_from([(), ("h1/eth1",), ("h1/eth1", "h2/eth1")]),
)


@given(st.lists(PROBLEMS, max_size=30))
def test_grouping_loses_no_problem_and_keeps_the_order(listed: list[Problem]) -> None:
    groups = group(listed, {"h1", "h2"})
    regrouped = sorted(str(one) for incident in groups for one in incident.problems)
    assert regrouped == sorted(str(one) for one in listed)
    quiet = [incident.is_quiet for incident in groups]
    assert quiet == sorted(quiet)
    assert all(incident.where and incident.title and incident.next_step for incident in groups)


def test_the_work_grows_with_the_number_of_problems_alone() -> None:
    cables = [f"leaf{k}:swp{k}<>spine{k}:swp1" for k in range(5_000)]
    listed = [problem("LINK_DOWN", cable) for cable in cables] + [problem("CONTENTION", c) for c in cables]
    groups = group(listed, set())
    assert {len(incident.problems) for incident in groups} == {2}
