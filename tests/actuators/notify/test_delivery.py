"""Deliveries from a real log through outages, restarts and refusals; notes apply."""

from actuators.notify.delivery import FINAL_ATTEMPTS
from actuators.notify.receivers import webhook as webhook_module
from actuators.notify.service import status_text
from fabrictime.bench.operate._receiver import HttpReceiver
from tests.actuators.notify.alerts import note
from tests.actuators.notify.deliveries import (
    delivering,
    fresh,
    log_fixture,
    over,
    put,
    rows,
    settings_of,
    states,
    webhook,
)
from tests.records import make
from tests.waiting import wait_until

__all__ = ["log_fixture"]


def test_an_outage_of_the_receiver_delays_and_loses_nothing(log):
    records = [fresh(f"h{k}", shard=f"s{k}") for k in range(5)]
    with HttpReceiver() as people:
        people.status = 503
        with delivering(settings_of(log, webhook(people))) as delivery:
            for record in records:
                put(log, record)
            wait_until(lambda: delivery.counters.retries >= 3)
            assert "answered 503" in delivery.counters.fault
            assert delivery.counters.waiting == 5
            assert "5 waiting" in status_text(delivery)
            people.status = 200
            wait_until(lambda: len(people.received) == 5)
            wait_until(lambda: not delivery.counters.fault)
    assert sorted(states(people)) == sorted((one["alert_id"], "firing") for one in records)


def test_a_restarted_notifier_neither_repeats_nor_forgets(log):
    first, second = fresh("h1", shard="a"), fresh("h2", shard="b")
    with HttpReceiver() as people:
        settings = settings_of(log, webhook(people))
        with delivering(settings):
            put(log, first)
            wait_until(lambda: people.received)
        put(log, second)
        put(log, over(first))
        with delivering(settings):
            wait_until(lambda: len(people.received) == 3)
    assert sorted(states(people)) == sorted(
        [(first["alert_id"], "firing"), (second["alert_id"], "firing"), (first["alert_id"], "resolved")]
    )


def test_the_first_start_sends_active_alerts_and_not_the_history(log):
    old, active = fresh("h1", shard="a"), fresh("h2", shard="b")
    for record in (old, over(old), active):
        put(log, record)
    with HttpReceiver() as people, delivering(settings_of(log, webhook(people))):
        wait_until(lambda: people.received)
        later = fresh("h3", shard="c")
        put(log, later)
        wait_until(lambda: len(people.received) == 2)
    assert states(people) == [(active["alert_id"], "firing"), (later["alert_id"], "firing")]


def test_content_that_the_receiver_refuses_is_given_up_and_counted(log, caplog):
    with HttpReceiver() as people:
        people.status = 422
        with delivering(settings_of(log, webhook(people), retry_max_s=0.05)) as delivery:
            put(log, fresh("h1", shard="a"))
            wait_until(lambda: delivery.counters.refused == 1)
            people.status = 200
            put(log, fresh("h2", shard="b"))
            wait_until(lambda: people.received)
    assert people.refused == FINAL_ATTEMPTS
    assert "given up" in caplog.text


def test_wrong_credentials_are_an_outage_and_not_the_end_of_the_alert(log):
    with HttpReceiver() as people:
        people.status = 401
        with delivering(settings_of(log, webhook(people), retry_max_s=0.05)) as delivery:
            put(log, fresh())
            wait_until(lambda: delivery.counters.retries > FINAL_ATTEMPTS)
            people.status = 200
            wait_until(lambda: people.received)
            assert delivery.counters.refused == 0


def test_a_log_that_is_down_is_a_fault_and_deliveries_go_on(log):
    with HttpReceiver() as people, delivering(settings_of(log, webhook(people))) as delivery:
        log.down()
        log.up()
        record = fresh()
        put(log, record)
        wait_until(lambda: people.received)
        wait_until(lambda: not delivery.counters.fault)


def test_notes_silence_acknowledge_and_name_the_owner(log):
    with HttpReceiver() as people, delivering(settings_of(log, webhook(people))):
        window = note("host:h1*", scope="HOST", pattern="h1*", silent_from_ns=1, silent_until_ns=2**61)
        nic = make("Nic", nic="h1/eth0", rack="r1")
        log.put("fabric.inventory", "h1/eth0", nic)
        log.put("fabric.alert-notes", "host:h1*", window)
        log.put("fabric.alert-notes", "h2", note("h2", owner="fabric team"))
        put(log, fresh("h1", shard="a"))
        put(log, fresh("h2", shard="b"))
        wait_until(lambda: people.received)
        put(log, fresh("h3", shard="c"))
        wait_until(lambda: len(people.received) == 2)
    assert [row["labels"]["subject"] for row in rows(people)] == ["h2", "h3"]
    assert rows(people)[0]["annotations"]["owner"] == "fabric team"


def test_an_alert_that_cannot_be_shown_stops_no_other(log, monkeypatch, caplog):
    original = webhook_module.webhook_json

    def broken(notification, *arguments):
        if notification.firing[0]["subject"] == "h1":
            raise KeyError("unforeseen")
        return original(notification, *arguments)

    monkeypatch.setattr(webhook_module, "webhook_json", broken)
    with (
        HttpReceiver() as people,
        delivering(settings_of(log, webhook(people), retry_max_s=0.05)) as delivery,
    ):
        put(log, fresh("h1", shard="a"))
        wait_until(lambda: delivery.counters.refused == 1)
        put(log, fresh("h2", shard="b"))
        wait_until(lambda: people.received)
    assert [row["labels"]["subject"] for row in rows(people)] == ["h2"]
    assert "failed: KeyError" in caplog.text
