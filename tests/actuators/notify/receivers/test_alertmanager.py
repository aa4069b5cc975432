"""A real Alertmanager shows, groups, silences and resolves our alerts."""

import time
import uuid
from dataclasses import replace

import pytest

from actuators.notify.actions import ActionSummary
from actuators.notify.notes import NoteIndex
from actuators.notify.plan import Notification
from actuators.notify.receivers.alertmanager import Alertmanager, _Mirrored
from actuators.notify.receivers.base import DeliveryError, JsonClient
from actuators.notify.settings import ReceiverSettings
from actuators.notify.texts import Context
from fabrictime.bench.operate._receiver import HttpReceiver
from tests.actuators.notify.alerts import S, note
from tests.actuators.notify.deliveries import delivering, fresh, log_fixture, over, put, rows, settings_of
from tests.actuators.notify.real_alertmanager import running_alertmanager
from tests.waiting import wait_until

__all__ = ["log_fixture"]


def test_a_real_alertmanager_shows_groups_silences_and_resolves_our_alerts(log, tmp_path):
    with (
        HttpReceiver() as people,
        running_alertmanager(tmp_path / "am", f"{people.url}/am") as alertmanager,
    ):
        settings = settings_of(log, {"am": {"type": "alertmanager", "url": alertmanager.url}})
        records = [fresh(f"h{k}") for k in range(8)]
        link = fresh("l1:p1<>s1:p1", kind="LINK_DOWN", severity="CRITICAL")
        with delivering(settings, "am"):
            for record in (*records, link):
                put(log, record)
            wait_until(lambda: len(alertmanager.alerts()) == 9)
            shown = {one["labels"]["subject"]: one for one in alertmanager.alerts()}
            labels = shown["l1:p1<>s1:p1"]["labels"]
            assert labels == {
                "alertname": "FabricLinkDown",
                "severity": "critical",
                "shard": "default",
                "subject": "l1:p1<>s1:p1",
            }
            assert shown["l1:p1<>s1:p1"]["annotations"]["runbook_url"].endswith("link-down.md")
            listed = alertmanager.amtool("alert", "query", "alertname=FabricLinkDown", "-o", "simple")
            assert "FabricLinkDown" in listed

            wait_until(lambda: len({row["labels"]["subject"] for row in rows(people)}) == 9)
            together = max(len(one.content["alerts"]) for one in people.received)
            assert together == 8, "hosts without processor time are one notification"

            silent = note("h0", silent_from_ns=time.time_ns() - S, silent_until_ns=time.time_ns() + 3600 * S)
            log.put("fabric.alert-notes", "h0", silent)
            wait_until(lambda: [s for s in alertmanager.get("silences") if s["status"]["state"] == "active"])
            suppressed = alertmanager.get("alerts?active=false&silenced=true")
            assert [one["labels"]["subject"] for one in suppressed] == ["h0"]
            log.put("fabric.alert-notes", "h0", {**silent, "silent_until_ns": time.time_ns()})
            wait_until(lambda: all(s["status"]["state"] == "expired" for s in alertmanager.get("silences")))

            put(log, over(link))
            wait_until(lambda: len(alertmanager.alerts()) == 8)
            resolved = wait_until(lambda: [row for row in rows(people) if row["status"] == "resolved"])
            assert {row["labels"]["subject"] for row in resolved} == {"l1:p1<>s1:p1"}
        fingerprints = {one["fingerprint"] for one in alertmanager.alerts()}
        with delivering(settings, "am") as delivery:
            wait_until(lambda: delivery.counters.accepted >= 2)
            assert {one["fingerprint"] for one in alertmanager.alerts()} == fingerprints


def test_alertmanager_resolves_alerts_that_are_not_transmitted_any_more(log, tmp_path):
    with HttpReceiver() as people, running_alertmanager(tmp_path / "am", people.url) as alertmanager:
        settings = settings_of(log, {"am": {"type": "alertmanager", "url": alertmanager.url}}, resend_s=0.5)
        put(log, fresh())
        with delivering(settings, "am"):
            wait_until(lambda: alertmanager.alerts())
        wait_until(lambda: not alertmanager.alerts())


def test_an_alert_that_is_raised_again_stays_active_in_alertmanager(log, tmp_path):
    with HttpReceiver() as people, running_alertmanager(tmp_path / "am", people.url) as alertmanager:
        settings = settings_of(log, {"am": {"type": "alertmanager", "url": alertmanager.url}}, resend_s=0.5)
        first = fresh()
        again = {**fresh(), "alert_id": "again", "raised_ns": time.time_ns()}
        with delivering(settings, "am") as delivery:
            for record in (first, over(first), again):
                put(log, record)
            wait_until(lambda: delivery.counters.accepted >= 5)
            assert [one["status"]["state"] for one in alertmanager.alerts()] == ["active"]


def test_silences_that_alertmanager_has_lost_are_created_again(tmp_path):
    notes = NoteIndex()
    context = Context(notes, ActionSummary(), "docs/runbooks", "", {})
    record = fresh()
    until_ns = time.time_ns() + 600 * S
    transmission = Notification(None, (record,), (), (), is_reminder=True)

    def silence_until(at_ns):
        silence = note(record["subject"], silent_from_ns=time.time_ns() - S, silent_until_ns=at_ns)
        notes.take(record["subject"], silence)

    with (
        running_alertmanager(tmp_path / "am", "http://127.0.0.1:9/") as old,
        running_alertmanager(tmp_path / "empty", "http://127.0.0.1:9/") as empty,
    ):
        receiver = Alertmanager(ReceiverSettings(type="alertmanager", url=old.url), 60 * S)
        silence_until(until_ns)
        receiver.send(transmission, context, time.time_ns())
        receiver.close()
        receiver._client = JsonClient(ReceiverSettings(type="alertmanager", url=empty.url))
        receiver.send(transmission, context, time.time_ns())
        assert [one["status"]["state"] for one in empty.get("silences")] == ["active"]
        receiver._silences = {key: _Mirrored(str(uuid.uuid4()), 1) for key in receiver._silences}
        news = replace(transmission, is_reminder=False)
        with pytest.raises(DeliveryError):
            receiver.send(news, context, time.time_ns())
        receiver.send(news, context, time.time_ns())
        receiver.close()
