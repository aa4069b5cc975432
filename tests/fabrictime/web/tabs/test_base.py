"""The banner of tabs that show history names the part that is late."""

from fabrictime.web.tabs.base import stale_text


def test_only_the_history_is_late():
    text = stale_text(30.0, 0.4, 5.0)
    assert text.startswith("Delays and clocks are 30 s old; links and alerts are current")
    assert "probers" not in text


def test_the_log_has_no_new_record_either():
    text = stale_text(30.0, 29.0, 5.0)
    assert text.startswith("The newest record in the log is 29 s old: probers, log or workers")


def test_without_a_log_every_part_may_be_late():
    assert "probers, log, workers or history are late or have stopped" in stale_text(30.0, None, 5.0)
