"""The read-only HTTP interface: its answers from records, its limits, its description."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from fabrictime.state.evidence import Verdict
from fabrictime.state.fabric_consumer import ConsumerStatus
from fabrictime.state.fabric_state import FabricState
from fabrictime.web.api import Api
from fabrictime.web.live_fabric import LiveFabric
from schemas import codec
from tests.fabrictime.job_records import JobRecords
from tests.records import make, make_part

S = 1_000_000_000


@pytest.fixture
def verdicts() -> list[Verdict]:
    """The evidence; a test replaces it."""
    return [Verdict()]


@pytest.fixture
def client(state: FabricState, verdicts: list[Verdict]) -> TestClient:
    live = LiveFabric(state, ConsumerStatus, time.time_ns, lambda: verdicts[0])
    app = FastAPI(openapi_url="/api/openapi.json")
    app.include_router(Api(live).router())
    return TestClient(app)


def fill(state: FabricState, fabric: Any) -> None:
    for topic, key, record in fabric.fleet():
        state.take(topic, key, record, fabric.now_ns)


def get(client: TestClient, path: str) -> Any:
    answer = client.get(f"/api/v1{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_empty_state_answers_every_list(client: TestClient) -> None:
    for path in ("/links", "/alerts", "/jobs", "/contention", "/actions"):
        assert get(client, path) == []
    health = get(client, "/health")
    assert (health["nics"], health["alerts"], health["is_fresh"]) == (0, {}, True)
    assert health["text"] == "Nothing is measured yet: no NIC has announced itself."


def test_missing_evidence_is_never_a_healthy_fleet(
    client: TestClient, verdicts: list[Verdict], state: FabricState, fabric: Any
) -> None:
    fill(state, fabric)
    verdicts[0] = Verdict(("no fresh probe results for 9 s (probers stopped?)",))
    health = get(client, "/health")
    assert health["is_fresh"] is False
    assert health["text"] == "Health is not known now."
    assert "probe results" in health["missing_evidence"][0]


def test_the_worst_is_first_and_cleared_ones_are_on_request(
    client: TestClient, state: FabricState, fabric: Any
) -> None:
    fill(state, fabric)
    link, other = fabric.up("leaf1", 2), fabric.up("leaf2", 1)
    for name, link_state, rate in ((link, "DOWN", None), (other, "GREY", 0.02)):
        record = fabric.health(name, link_state, loss_rate=rate, candidates=[])
        state.take("fabric.link-health", fabric.cable(name), record, fabric.now_ns)
    alerts = [
        fabric.alert("old", "an old one", state="CLEARED", cleared_ns=fabric.now_ns, severity="CRITICAL"),
        fabric.alert(fabric.cable(other), "link loses 2 %", severity="WARNING", kind="LINK_GREY"),
        fabric.alert(fabric.cable(link), "link is dead", severity="CRITICAL"),
    ]
    for alert in alerts:
        state.take("fabric.alerts", alert["alert_id"], alert, fabric.now_ns)
    assert [one["text"] for one in get(client, "/alerts")] == ["link is dead", "link loses 2 %"]
    assert [one["text"] for one in get(client, "/alerts?everything=true")][-1] == "an old one"
    assert [one["state"] for one in get(client, "/links")] == ["DOWN", "GREY"]
    assert get(client, "/links?limit=1")[0]["text"] == f"{link} is DOWN"
    assert get(client, f"/links?name={other.partition('>')[0]}")[0]["state"] == "GREY"
    health = get(client, "/health")
    problems = "link down at leaf1:swp4 ⇄ spine2:swp1; link loses packets at leaf2:swp3 ⇄ spine1:swp2"
    assert health["text"] == f"2 problems: {problems}."
    assert health["cables"]["DOWN"] == 1


def test_an_alert_has_the_operators_notes(client: TestClient, state: FabricState, fabric: Any) -> None:
    alert = fabric.alert("h1/eth1", "NIC is dead", raised_ns=fabric.now_ns - 10 * S)
    state.take("fabric.alerts", alert["alert_id"], alert, fabric.now_ns)
    note = make(
        "AlertNote",
        subject="h1/eth1",
        acknowledged_ns=fabric.now_ns - S,
        silent_from_ns=fabric.now_ns - S,
        silent_until_ns=fabric.now_ns + 60 * S,
        comments=[make_part("AlertNote", "NoteComment", author="ada", text="cable ordered")],
    )
    state.take("fabric.alert-notes", "h1/eth1", note, fabric.now_ns)
    (one,) = get(client, "/alerts")
    assert (one["is_acknowledged"], one["notes"]) == (True, ["ada: cable ordered"])
    assert one["silent_until_ns"] == fabric.now_ns + 60 * S


def test_a_job_has_its_verdict_and_remedy(client: TestClient, state: FabricState, fabric: Any) -> None:
    jobs = JobRecords(fabric)
    record = jobs.diagnosis(
        1, fabric.now_ns, slow=2, verdict="GREY_LINK", text="a link loses", remedy="drain it"
    )
    state.take_diagnosis(record, codec.encode("Diagnosis", record), fabric.now_ns)
    job = get(client, f"/jobs/{jobs.job}")
    assert (job["verdict"], job["text"], job["remedy"]) == ("GREY_LINK", "a link loses", "drain it")
    assert get(client, "/jobs") == [job]
    assert get(client, "/health")["slow_jobs"] == [jobs.job]
    assert client.get("/api/v1/jobs/other").json() == {
        "detail": "job 'other': no verdict within the last hour"
    }


def test_actions_have_cause_and_outcome(client: TestClient, state: FabricState, fabric: Any) -> None:
    decision = fabric.decision(1, fabric.flow(1, "h1/eth1", "h5/eth1"), "link down")
    state.take("fabric.decisions", "h1", decision, fabric.now_ns)
    state.take("fabric.actions", "h1", fabric.action(decision), fabric.now_ns)
    (entry,) = get(client, "/actions?name=h1")
    assert (entry["outcome"], entry["host"]) == ("APPLIED", "h1")
    assert entry["cause"]
    assert get(client, "/actions?name=h7") == []


def test_a_host_has_its_switches_from_leaf_to_core(
    client: TestClient, state: FabricState, fabric: Any
) -> None:
    fill(state, fabric)
    (place,) = get(client, "/hosts/h1")
    leaf = fabric.leaf_of["h1/eth1"][0]
    assert place["switches"] == [[leaf], [f"spine{number}" for number in range(1, 5)]]
    assert place["peers"][1] == 8
    assert client.get("/api/v1/hosts/h99").status_code == 404


def test_nothing_acts_and_limits_hold(client: TestClient) -> None:
    described = client.get("/api/openapi.json").json()
    assert {method for path in described["paths"].values() for method in path} == {"get"}
    assert all(one["get"]["summary"] and one["get"]["description"] for one in described["paths"].values())
    for limit in ("0", "1001", "x"):
        assert client.get(f"/api/v1/links?limit={limit}").status_code == 422
    assert client.post("/api/v1/alerts").status_code == 405


@pytest.mark.parametrize("path", ["nonsense", "alerts/3", ""])
def test_an_unknown_path_is_answered_in_json(client: TestClient, path: str) -> None:
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 404
    assert "/api/openapi.json" in answer.json()["detail"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_another_method_than_get_is_refused_in_json(client: TestClient, method: str) -> None:
    answer = client.request(method, "/api/v1/jobs/train")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert method in answer.json()["detail"]
