"""Rows of the tab Now: each object leads to its tab, and late evidence shows no good figure."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state.evidence import Verdict
from fabrictime.state.fabric_state import FabricState
from fabrictime.state.health import Overview, overview
from fabrictime.state.incidents import Incident, Problem
from fabrictime.state.labels import arrow
from fabrictime.web.tabs.clocks.queries import ClockRow
from fabrictime.web.tabs.now import frames
from fabrictime.web.tabs.now.queries import HistoryFigures
from schemas.records import AlertKind, Severity
from tests.fabrictime.fill import fill, fill_health
from tests.fabrictime.job_records import JobRecords

S = 1_000_000_000


def view_of(state: FabricState, fabric: Any) -> Overview:
    return overview(state, Verdict(), fabric.now_ns)


def incident(kind: str, subject: str, **fields: Any) -> Incident:
    problem = Problem(AlertKind(kind), Severity.WARNING, subject, "text", S, alert_id="id", **fields)
    return Incident((problem,))


@pytest.mark.parametrize(
    ("kind", "subject", "address"),
    [
        ("LINK_DOWN", "a:1<>b:2", "/fabric?link=a%3A1%3Eb%3A2"),
        ("CONTENTION", "a:1>b:2", "/fabric?link=a%3A1%3Eb%3A2"),
        ("NIC_DOWN", "h1/eth1", "/fabric?node=h1"),
        ("HOST_DOWN", "h1", "/fabric?node=h1"),
        ("JOB_HANG", "train", "/jobs?job=train"),
        ("AGENT", "h1", "/alerts?alert=id"),
    ],
)
def test_an_incident_leads_to_its_object(kind: str, subject: str, address: str) -> None:
    assert frames.incident_address(incident(kind, subject)) == address


def test_links_of_a_switch_lead_to_the_switch() -> None:
    problems = tuple(incident("LINK_DOWN", f"leaf{k}:1<>spine1:{k}").cause for k in range(3))
    assert frames.incident_address(Incident(problems, "spine1")) == "/fabric?node=spine1"


def test_a_row_names_effects_jobs_and_the_runbook(state: FabricState, fabric: Any) -> None:
    link = fabric.up("leaf1", 1)
    alert = fabric.alert(fabric.cable(link), "dead", links=[link], raised_ns=fabric.now_ns - 90 * S)
    record = JobRecords(fabric).diagnosis(1, fabric.now_ns, slow=0, subject=link, links=[link])
    fill(state, ("fabric.alerts", alert["alert_id"], alert), ("fabric.diagnoses", "llama", record))
    (row,) = frames.incident_rows(view_of(state, fabric), fabric.now_ns, "https://ops/runbooks")
    assert row["title"] == "Link down: leaf1:swp3 ⇄ spine1:swp1"
    assert (row["effects"], row["age"], row["jobs"]) == (
        "same cause: job llama, slow flow",
        "90 s",
        ("llama",),
    )
    assert frames.step_cell(row)[1][3] == "https://ops/runbooks/link-down.md"  # type: ignore[misc]
    (row,) = frames.incident_rows(view_of(state, fabric), fabric.now_ns, "docs/runbooks")
    assert frames.step_cell(row)[1] == ("ft-detail", "runbook link-down", "docs/runbooks/link-down.md")


def test_a_row_names_the_cables_that_may_be_at_fault_instead(state: FabricState, fabric: Any) -> None:
    link, other = fabric.up("leaf1", 1), fabric.cable(fabric.up("leaf2", 1))
    fill_health(state, fabric, link, "DOWN", candidates=[other])
    alert = fabric.alert(fabric.cable(link), "dead", links=[link])
    for records in ((), (("fabric.alerts", alert["alert_id"], alert),)):
        fill(state, *records)
        (row,) = frames.incident_rows(view_of(state, fabric), fabric.now_ns, "docs")
        assert frames.problem_cell(row)[2][1].startswith("May be leaf2:swp3 ⇄ spine1:swp2 instead: ")


def test_the_worst_link_is_none_of_a_dead_host(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet())
    fill_health(state, fabric, fabric.up("leaf1", 1), "GREY")
    link = next(link for link in fabric.links() if link.startswith("h1:"))
    host = fabric.health(link, "DOWN") | {"subject": "h1", "kind": "HOST", "links": []}
    cable = fabric.health(link, "DOWN")
    fill(state, *(("fabric.link-health", record["subject"], record) for record in (host, cable)))
    assert frames.worst_rows(view_of(state, fabric), None, is_fresh=True)[0]["value"].startswith("leaf1:swp3")


def test_more_jobs_than_fit_are_counted() -> None:
    cell = frames.jobs_cell({"jobs": tuple(f"job{k}" for k in range(9))})
    assert [part[1] for part in cell] == ["job0", "job1", "job2", "and 6 more"]
    assert [part[1] for part in frames.jobs_cell({"jobs": ()})] == ["none"]


def test_without_fresh_evidence_nothing_is_good(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet())
    for link in fabric.links()[::2]:
        fill_health(state, fabric, link, "UP")
    fill(state, ("fabric.queues", "fabric", fabric.queues({fabric.up("leaf1", 1): {}})))
    view = view_of(state, fabric)
    rows = frames.worst_rows(view, None, is_fresh=True)
    assert [row["value"] for row in rows] == ["none", "—", "none"]
    rows = frames.worst_rows(view, None, is_fresh=False)
    assert [(row["value"], row["note"]) for row in rows[::2]] == [("—", "not known now")] * 2


@pytest.mark.parametrize(
    ("state_name", "note"),
    [("SYNCED", "SYNCED, bound 1.50 µs; 7 of 8 are SYNCED"), ("UNSYNCED", "UNSYNCED; 7 of 8 are SYNCED")],
)
def test_the_worst_clock_has_state_and_bound(
    state: FabricState, fabric: Any, state_name: str, note: str
) -> None:
    clock = ClockRow("h1/system", "fabric", "d", 0, 0.0, 0.0, 1500.0, state_name, 9, 0.0)
    row = frames.worst_rows(view_of(state, fabric), None, is_fresh=True)[1]
    assert row["note"] == "the history has not answered yet"
    row = frames.worst_rows(view_of(state, fabric), HistoryFigures(None, None, 0, 0), is_fresh=True)[1]
    assert row["note"] == "no clock is measured yet"
    row = frames.worst_rows(view_of(state, fabric), HistoryFigures(0.5, clock, 8, 7), is_fresh=True)[1]
    assert (row["value"], row["note"], row["address"]) == ("h1/system", note, "/clocks?clock=h1%2Fsystem")


def test_a_slow_job_is_compared_with_its_baseline(fabric: Any) -> None:
    fields = {"iteration_ns": 960_000_000, "expected_iteration_ns": 640_000_000}
    record = JobRecords(fabric).diagnosis(1, fabric.now_ns, slow=0, **fields)
    (row,) = frames.job_rows([record], fabric.now_ns)
    assert (row["verdict"], row["iteration"]) == ("slow flow", "1.5 times its baseline")


def test_a_cleared_alert_has_both_times(fabric: Any) -> None:
    alert = fabric.alert("h1", "gone", kind="HOST_DOWN", raised_ns=S, state="CLEARED", cleared_ns=61 * S)
    (row,) = frames.cleared_rows([alert], 71 * S)
    assert (row["title"], row["where"], row["ago"]) == ("Host was down", "h1", "10 s ago")
    assert row["span"] == "1970-01-01 00:00:01 to 1970-01-01 00:01:01"


def test_a_cleared_loss_names_its_places_as_the_active_one_did(state: FabricState, fabric: Any) -> None:
    """`shard sim` would send the operator to the whole shard."""
    link = fabric.up("leaf1", 1)
    cable = fabric.cable(link)
    fill(state, *fabric.fleet())
    health = fabric.health(link, "GREY", kind="PATHS", candidates=[cable, "h1/eth1"])
    fill(state, ("fabric.link-health", "losses@fabric", {**health, "subject": "losses@fabric", "links": []}))
    loss = fabric.alert("losses@fabric", "losses", kind="UNEXPLAINED_LOSS", links=[cable], nics=["h1/eth1"])
    fill(state, ("fabric.alerts", loss["alert_id"], loss))
    (row,) = frames.incident_rows(view_of(state, fabric), fabric.now_ns, "")
    cleared = {**loss, "state": "CLEARED", "cleared_ns": fabric.now_ns}
    (line,) = frames.cleared_rows([cleared], fabric.now_ns)
    assert line["where"] == f"one of {arrow(cable)}, h1/eth1"
    assert row["title"].endswith(f": {line['where']}")
    unknown = {**cleared, "links": [], "nics": []}
    assert frames.cleared_rows([unknown], fabric.now_ns)[0]["where"] == "shard fabric"


def test_a_text_that_does_not_fit_ends_with_dots() -> None:
    assert frames.shortened("short") == "short"
    text = frames.shortened("rank 40 on h20, " * 20)
    assert len(text) <= frames.TEXT_SHOWN
    assert text.endswith((" on h20 …", " on …", " 40 …"))
    assert frames.shortened("x" * 2 * frames.TEXT_SHOWN).startswith("xxx")
