"""A delivery in a thread, from an embedded log to a receiver of HTTP."""

import threading
import time
from contextlib import contextmanager

import pytest

from actuators.notify.delivery import Delivery
from actuators.notify.service import make_receiver
from actuators.notify.settings import NotifySettings
from tests.actuators.notify.alerts import alert
from tests.embedded_log import EmbeddedLog
from tests.waiting import wait_until


@pytest.fixture(name="log")
def log_fixture(tmp_path):
    with EmbeddedLog(tmp_path / "log", partitions=2) as log:
        yield log


def settings_of(log, receivers, **more):
    plain = {"group_wait_s": 0, "group_interval_s": 0, "retry_max_s": 0.2, "resend_s": 1}
    return NotifySettings.model_validate(
        {"kafka": {"bootstrap": log.bootstrap}, "receivers": receivers, **plain, **more}
    )


@contextmanager
def delivering(settings, name="people"):
    """Run the delivery to one receiver in a thread."""
    delivery = Delivery(name, settings, make_receiver(name, settings))
    stop = threading.Event()
    thread = threading.Thread(target=delivery.run, args=(stop.is_set,))
    thread.start()
    try:
        wait_until(lambda: delivery.is_ready or delivery.counters.fault)
        yield delivery
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def put(log, record):
    log.put("fabric.alerts", record["alert_id"], record)


def fresh(subject="h1", **fields):
    return alert(subject, raised_ns=time.time_ns(), **fields)


def over(record):
    return {**record, "state": "CLEARED", "update": record["update"] + 1, "cleared_ns": time.time_ns()}


def rows(receiver):
    return [row for one in list(receiver.received) for row in one.content["alerts"]]


def states(receiver):
    return [(row["annotations"]["alert_id"], row["status"]) for row in rows(receiver)]


def webhook(receiver, **more):
    return {"people": {"type": "webhook", "url": f"{receiver.url}/hook", **more}}
