"""Services of apprise get title, text and severity."""

import pytest

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
