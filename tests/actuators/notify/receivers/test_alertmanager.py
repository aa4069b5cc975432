"""A real Alertmanager shows, groups, silences and resolves our alerts."""

import time

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
