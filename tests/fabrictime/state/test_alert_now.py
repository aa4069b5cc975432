"""An active alert says how its subject is now, in another text than that of another alert about it."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state.alert_now import has_recovered, is_slow, text_now
from fabrictime.state.fabric_state import FabricState
from schemas.records import Verdict
from tests.fabrictime.fill import fill, fill_health
from tests.fabrictime.job_records import JobRecords, head_of

S = 1_000_000_000
IN_TIME = {"iteration_ns": 641_000_000, "expected_iteration_ns": 640_000_000}


@pytest.mark.parametrize(
    ("fields", "state_now", "shown"),
    [
        ({}, "GREY", "loses 10.7%"),
        ({"grouped": ["leaf1:swp4<>spine2:swp1"]}, "GREY", "loses 47.4%"),
        ({"kind": "LINK_DOWN"}, "GREY", "loses 47.4%"),
        ({}, "UP", "now UP; before: loses 47.4%"),
        ({"kind": "MISWIRED"}, "UP", "loses 47.4%"),
        ({"kind": "LINK_FLAPPING"}, "DOWN", "loses 10.7%"),
        ({"kind": "LINK_FLAPPING"}, "GREY", "loses 47.4%"),
    ],
)
def test_the_loss_in_the_text_is_the_newest(
    state: FabricState, fabric: Any, fields: dict[str, Any], state_now: str, shown: str
) -> None:
    """An alert's text is from when it was raised; the tab Now shows the health record's figure beside it."""
    link = fabric.up("leaf1", 1)
    fill(state, *fabric.fleet(peers=1))
    alert = fabric.alert(fabric.cable(link), "loses 47.4%", links=[link], **{"kind": "LINK_GREY", **fields})
    fill_health(state, fabric, link, state_now, text="loses 10.7%")
    assert text_now(state, alert) == shown
    assert has_recovered(state, alert) == ("now UP" in shown)


@pytest.mark.parametrize(
    ("other_state", "shown"), [("DOWN", "2 links are down"), ("UP", "now UP; before: 2 links are down")]
)
def test_an_alert_about_several_links_is_over_once_all_are_up(
    state: FabricState, fabric: Any, other_state: str, shown: str
) -> None:
    first, other = fabric.up("leaf1", 1), fabric.up("leaf2", 1)
    fill(state, *fabric.fleet(peers=1))
    alert = fabric.alert(
        fabric.cable(first),
        "2 links are down",
        kind="LINK_DOWN",
        grouped=[fabric.cable(other), "leaf9:swp1<>spine1:swp9"],
    )
    fill_health(state, fabric, first, "UP")
    fill_health(state, fabric, other, other_state)
    assert (text_now(state, alert), has_recovered(state, alert)) == (shown, other_state == "UP")


@pytest.mark.parametrize(
    ("kind", "verdict", "fields", "text", "is_over"),
    [
        ("JOB_SLOW", "HEALTHY", {}, "its newest verdict is healthy; before: job llama is slow", True),
        ("JOB_SLOW", "UNKNOWN", {}, "job llama is slow", False),
        (
            "JOB_SLOW",
            "UNKNOWN",
            IN_TIME,
            "its iterations take the expected time again; before: job llama is slow",
            True,
        ),
        ("JOB_SLOW", "SLOW_FLOW", {}, "job llama: SLOW_FLOW: h1 to h2 is slow", False),
        ("JOB_SLOW", "DEAD_RANK", {}, "its newest verdict is dead rank; before: job llama is slow", True),
        ("JOB_HANG", "DEAD_RANK", {}, "job llama: DEAD_RANK: h1 to h2 is slow", False),
        ("JOB_HANG", "STRAGGLER", {}, "its newest verdict is straggler; before: job llama is slow", True),
        ("JOB_STRAGGLER", "STRAGGLER", {}, "job llama: STRAGGLER: h1 to h2 is slow", False),
        (
            "JOB_SLOW",
            "SLOW_FLOW",
            IN_TIME,
            "its iterations take the expected time again; before: job llama is slow",
            True,
        ),
        ("JOB_HANG", "HANG", IN_TIME, "job llama: HANG: h1 to h2 is slow", False),
    ],
)
def test_an_alert_about_a_job_states_its_newest_verdict(
    state: FabricState,
    fabric: Any,
    kind: str,
    verdict: str,
    fields: dict[str, int],
    text: str,
    is_over: bool,
) -> None:
    alert = fabric.alert("llama", "job llama is slow", kind=kind, jobs=["llama"])
    record = JobRecords(fabric).diagnosis(
        1, fabric.now_ns, slow=0, **{"verdict": verdict, "text": "h1 to h2 is slow", **fields}
    )
    fill(state, ("fabric.diagnoses", "llama", record))
    assert (text_now(state, alert), has_recovered(state, alert)) == (text, is_over)


@pytest.mark.parametrize("is_candidate", [False, True])
def test_a_queue_that_is_gone_persists_no_more(state: FabricState, fabric: Any, is_candidate: bool) -> None:
    """The tab Contention has no active window then."""
    link, other = fabric.up("leaf1", 1), fabric.up("leaf2", 1)
    alert = fabric.alert(link, "30 kB queued", kind="CONTENTION", links=[link])
    assert (text_now(state, alert), has_recovered(state, alert)) == ("30 kB queued", False)
    places = {"link": other, "candidates": [link]} if is_candidate else {"link": link}
    for name, text in (("OPENED", "30 kB queued"), ("CLOSED", "no queue persists now; before: 30 kB queued")):
        window = fabric.contention(link, state=name) | places
        fill(state, ("fabric.contention", window["link"], window))
        assert (text_now(state, alert), has_recovered(state, alert)) == (text, name == "CLOSED")


def test_a_job_faster_than_expected_is_not_slow(fabric: Any) -> None:
    jobs = JobRecords(fabric)
    fields = {"verdict": "GREY_LINK", "expected_iteration_ns": 19_900_000}
    assert is_slow(head_of(jobs.diagnosis(1, S, slow=0, iteration_ns=25_000_000, **fields)))
    assert not is_slow(head_of(jobs.diagnosis(1, S, slow=0, iteration_ns=18_700_000, **fields)))
    hang = {**fields, "verdict": "HANG", "iteration_ns": 18_700_000}
    assert is_slow(head_of(jobs.diagnosis(1, S, slow=0, **hang)))
    assert not is_slow(head_of(jobs.diagnosis(1, S, verdict=Verdict.UNKNOWN.value)))
