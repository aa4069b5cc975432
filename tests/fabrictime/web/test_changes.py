"""Notes and pauses from the page: roles, and the user's name in the records of a real log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from fabrictime.commands.alert.notes import AlertNotes
from fabrictime.commands.config.live_config import LiveRecords
from fabrictime.web.changes import Changes
from fabrictime.web.login import LoginGuard
from fabrictime.web.settings import LoginSettings
from fabrictime.web.users import Users
from schemas.kafka.publisher import Publisher
from schemas.kafka.settings import KafkaSettings
from schemas.topics import ALERTS
from tests.records import make

ROLES = ("look", "configure", "act")


@pytest.fixture
def clients(tmp_path: Path, log_address: str) -> dict[str, TestClient]:
    """A client for each role."""
    path = tmp_path / "users"
    path.touch(mode=0o600)
    path.write_text("".join(f"{role}er {role} {role}-0123456789abcdef0123\n" for role in ROLES))
    app = FastAPI()
    app.include_router(Changes(KafkaSettings(bootstrap=log_address)).router())
    guard = LoginGuard(app, Users(LoginSettings(users_file=path)), "x", secure=False)
    return {
        role: TestClient(guard, headers={"Authorization": f"Bearer {role}-0123456789abcdef0123"})
        for role in ROLES
    }


def put_alert(log_address: str) -> None:
    alert: dict[str, Any] = make(
        "Alert", alert_id="a1", subject="h1/eth1", state="RAISED", raised_ns=time.time_ns()
    )
    publisher = Publisher(log_address)
    publisher.publish(ALERTS, alert["alert_id"], alert)
    publisher.flush(20)


def test_a_note_names_its_author(clients: dict[str, TestClient], log_address: str) -> None:
    put_alert(log_address)
    body = {"subject": "h1", "comment": "cable ordered", "acknowledge": True, "silence_s": 60}
    assert clients["look"].post("/api/v1/notes", json=body).status_code == 403
    answer = clients["configure"].post("/api/v1/notes", json=body)
    assert answer.status_code == 200, answer.text
    [note] = AlertNotes(log_address).index.notes.values()
    assert note["author"].startswith("configureer@")
    assert [comment["author"] for comment in note["comments"]] == [note["author"]]
    assert note["acknowledged_ns"]
    assert note["silent_until_ns"] - note["silent_from_ns"] == 60_000_000_000
    missing = clients["configure"].post("/api/v1/notes", json={"subject": "h9"})
    assert (missing.status_code, missing.json()["detail"][:10]) == (409, "alert 'h9'")
    assert clients["configure"].post("/api/v1/notes", json={**body, "author": "x"}).status_code == 422


def test_a_pause_needs_the_role_act_and_names_its_user(
    clients: dict[str, TestClient], log_address: str
) -> None:
    for role in ("look", "configure"):
        for path in ("pause", "resume"):
            assert clients[role].post(f"/api/v1/{path}", json={}).status_code == 403
    assert LiveRecords(log_address).records == {}
    answer = clients["act"].post("/api/v1/pause", json={"revert": True})
    assert answer.status_code == 200, answer.text
    [record] = LiveRecords(log_address).records.values()
    assert record["by"].startswith("acter@")
    assert record["mode"] == "OBSERVE"
    assert record["revert_before_ns"]
    assert clients["act"].post("/api/v1/resume", json={}).status_code == 200
