"""Webhooks get the format of Alertmanager, with text for people."""

from fabrictime.bench.operate._receiver import HttpReceiver
from tests.actuators.notify.deliveries import delivering, fresh, log_fixture, over, put, settings_of, webhook
from tests.waiting import wait_until

__all__ = ["log_fixture"]


def test_a_webhook_gets_alertmanagers_format_with_text_for_people(log):
    with HttpReceiver() as people:
        record = fresh(text="h1: its own prober is in trouble", grouped=["h9"], jobs=["train"])
        with delivering(settings_of(log, webhook(people), page_url="http://page.invalid")):
            put(log, record)
            [request] = wait_until(lambda: people.received)
            put(log, over(record))
            wait_until(lambda: len(people.received) == 2)
        content = request.content
        assert (content["version"], content["status"], content["receiver"]) == ("4", "firing", "people")
        assert content["groupLabels"] == {"alertname": "FabricAgent", "shard": "default"}
        message = content["commonAnnotations"]["message"]
        for part in ("h1: WARNING, active since", "Done: nothing", "Next step:", "Runbook:", "h9", "train"):
            assert part in message
        resolved = people.received[1].content
        assert (resolved["status"], resolved["alerts"][0]["status"]) == ("resolved", "resolved")
        assert "was active from" in resolved["commonAnnotations"]["message"]
        assert "Next step" not in resolved["commonAnnotations"]["message"]
        assert resolved["commonAnnotations"]["title"].startswith("[RESOLVED]")
        assert resolved["alerts"][0]["fingerprint"] == content["alerts"][0]["fingerprint"]
