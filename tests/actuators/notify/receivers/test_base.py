"""Addresses, tokens and their files: they are used, and never logged."""

import logging

import pytest

from actuators.notify.service import make_receiver
from actuators.notify.settings import NotifySettings
from fabrictime.bench.operate._receiver import HttpReceiver
from tests.actuators.notify.deliveries import delivering, fresh, log_fixture, put, settings_of
from tests.waiting import wait_until

__all__ = ["log_fixture"]


def test_no_secret_of_an_address_is_logged(log, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    with HttpReceiver() as people:
        host = people.url.removeprefix("http://")
        file = tmp_path / "url"
        file.write_text(f"http://user:hunter2@{host}/T000/s3cr3t?key=k3y")
        receivers = {"people": {"type": "webhook", "url_file": str(file)}}
        people.status = 500
        with delivering(settings_of(log, receivers)) as delivery:
            put(log, fresh())
            wait_until(lambda: delivery.counters.retries >= 1)
            people.down()
            wait_until(lambda: delivery.counters.retries >= 4)
            fault = delivery.counters.fault
            people.up()
            people.status = 200
            wait_until(lambda: people.received)
    text = caplog.text + fault
    assert not any(secret in text for secret in ("hunter2", "s3cr3t", "k3y"))
    assert people.received[0].path == "/T000/s3cr3t?key=k3y"
    assert people.authorizations[-1].startswith("Basic ")


@pytest.mark.parametrize(
    "url", ["slack://xoxb-s3cr3t", "http://", "s3cr3t", "http://[s3cr3t", "", "http://u:s3cr3t@h"]
)
@pytest.mark.parametrize("kind", ["webhook", "alertmanager", "apprise"])
def test_an_address_that_cannot_be_used_is_named_without_its_content(url, kind):
    settings = NotifySettings.model_validate({"receivers": {"people": {"type": kind, "url": url}}})
    with pytest.raises(ValueError, match=r"notify\.receivers\.people: ") as refused:
        make_receiver("people", settings)
    assert "s3cr3t" not in str(refused.value)


def test_a_token_file_and_an_address_file_are_used(log, tmp_path):
    with HttpReceiver() as people:
        (tmp_path / "url").write_text(f"{people.url}/hook\n")
        (tmp_path / "token").write_text("t0ken\n")
        receivers = {
            "people": {
                "type": "webhook",
                "url_file": str(tmp_path / "url"),
                "token_file": str(tmp_path / "token"),
            }
        }
        with delivering(settings_of(log, receivers)):
            put(log, fresh())
            wait_until(lambda: people.received)
    assert people.authorizations == ["Bearer t0ken"]


@pytest.mark.parametrize("name", ["my-cluster", "", "1st", "a b", "é"])
def test_a_label_that_alertmanager_refuses_is_an_invalid_setting(name):
    with pytest.raises(ValueError, match="labels"):
        NotifySettings.model_validate({"labels": {name: "east"}})
    assert NotifySettings.model_validate({"labels": {"cluster_1": "east"}}).labels
