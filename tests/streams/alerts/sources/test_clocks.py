"""Alerts from clock offsets."""

from __future__ import annotations

from tests.streams.alerts.script import (
    S,
    Script,
    lines,
    play,
)


def test_clocks_are_one_alert_where_many_are_lost_for_long_and_no_dead_hosts() -> None:
    script = Script()
    for _ in range(30):
        script.clocks(["SYNCED"] * 7 + ["UNSYNCED"]).wait(1)
    for _ in range(5):
        script.clocks(["SYNCED"] * 8).wait(1)
    records = play(script.inputs)
    assert lines(records) == [("CLOCKS", "fabric", "RAISED"), ("CLOCKS", "fabric", "CLEARED")]
    assert records[0]["grouped"] == ["h8/system"]
    script = Script().health("h8", "DOWN", kind="HOST")
    for _ in range(30):
        script.clocks(["SYNCED"] * 7 + ["UNSYNCED"]).wait(1)
    assert {r["kind"] for r in play(script.inputs)} == {"HOST_DOWN"}


def test_log_time_that_differs_from_the_hosts_clocks_is_an_alert_until_it_is_right() -> None:
    script = Script()
    for log_offset_ns in [0] * 5 + [-120 * S] * 5 + [0] * 40:
        script.clocks(["SYNCED"] * 8, log_offset_ns).wait(1)
    records = play(script.inputs)
    assert lines(records) == [("CLOCKS", "log", "RAISED"), ("CLOCKS", "log", "CLEARED")]
    assert records[0]["text"].startswith("log time is 120.0 s ahead of the hosts' system clocks")
