"""Services of apprise get title, text and severity."""

import pytest

from actuators.notify.receivers.apprise import Apprise
from actuators.notify.settings import ReceiverSettings
from fabrictime.bench.operate._receiver import HttpReceiver
from tests.actuators.notify.deliveries import delivering, fresh, log_fixture, over, put, settings_of
from tests.waiting import wait_until

__all__ = ["log_fixture"]


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")  # apprise imports it
def test_apprise_sends_to_its_services(log, tmp_path):
    pytest.importorskip("apprise", reason="the extra notify is not installed")
    with HttpReceiver() as people:
        host = people.url.removeprefix("http://")
        file = tmp_path / "urls"
        file.write_text(f"json://{host}/hook\n")
        receivers = {"people": {"type": "apprise", "url_file": str(file)}}
        with delivering(settings_of(log, receivers)):
            record = fresh()
            put(log, record)
            wait_until(lambda: people.received)
            put(log, over(record))
            wait_until(lambda: len(people.received) == 2)
    first, second = (one.content for one in people.received)
    assert (first["type"], second["type"]) == ("warning", "success")
    assert first["title"] == "[RAISED WARNING] Prober in trouble: h1"
    assert "Next step:" in first["message"]


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
def test_each_service_is_a_receiver_of_its_own(tmp_path):
    pytest.importorskip("apprise", reason="the extra notify is not installed")
    file = tmp_path / "urls"
    file.write_text("json://127.0.0.1:9/secret\njson://127.0.0.1:9/other\n")
    with pytest.raises(ValueError, match="expected one address") as caught:
        Apprise(ReceiverSettings(type="apprise", url_file=file))
    assert "secret" not in str(caught.value)
