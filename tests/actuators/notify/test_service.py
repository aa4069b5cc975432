"""The notifier as a process: it starts, stops, and refuses settings that it cannot use."""

import json
import signal
import subprocess
import sys

from actuators.notify.service import main
from actuators.notify.settings import NotifySettings
from fabrictime.bench._pipeline import Service
from fabrictime.bench.operate._receiver import HttpReceiver
from tests.actuators.notify.deliveries import fresh, log_fixture, put, webhook
from tests.waiting import wait_until

__all__ = ["log_fixture"]


def test_settings_without_a_receiver_are_refused(caplog):
    assert main(NotifySettings()) == 2
    assert "expected a receiver" in caplog.text


def test_the_process_delivers_and_ends_by_sigterm(log, tmp_path):
    with HttpReceiver() as people:
        settings = {
            "kafka": {"bootstrap": log.bootstrap},
            "receivers": webhook(people),
            "group_wait_s": 0,
        }
        notifier = Service("actuators.notify", settings, tmp_path)
        try:
            notifier.wait_ready()
            put(log, fresh())
            wait_until(lambda: people.received)
        finally:
            notifier.process.send_signal(signal.SIGTERM)
            assert notifier.stop() == 0


def test_a_receiver_that_cannot_be_made_ends_the_process_with_code_2():
    settings = {"receivers": {"people": {"type": "webhook", "url": "ftp://s3cr3t"}}}
    done = subprocess.run(
        [sys.executable, "-m", "actuators.notify", json.dumps(settings)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "notify.receivers.people: url: expected http:// or https://" in done.stderr
    assert "s3cr3t" not in done.stderr


def test_a_receiver_that_is_down_delays_no_other(log, tmp_path):
    with HttpReceiver() as people:
        down = {"type": "webhook", "url": "http://127.0.0.1:9/"}
        settings = {
            "kafka": {"bootstrap": log.bootstrap},
            "receivers": {**webhook(people), "down": down},
            "group_wait_s": 0,
            "group_interval_s": 0,
        }
        put(log, fresh("h1"))
        notifier = Service("actuators.notify", settings, tmp_path)
        try:
            notifier.wait_ready()
            wait_until(lambda: people.received)
            put(log, fresh("h2"))
            wait_until(lambda: len(people.received) == 2)
            wait_until(lambda: "receiver down: Connection refused" in notifier.tail())
        finally:
            assert notifier.stop() == 0
