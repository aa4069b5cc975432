"""The alert of a slow simulation, and the alerts about clocks that it replaces."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from schemas.records import Alert
from streams.alerts.rules import SLOW_NS
from streams.alerts.shard_alerts import ShardAlerts
from streams.alerts.sources.simulation import FleetPace
from tests.streams.alerts.script import T0, S, Script, book, ingest

UNSYNCED = ["SYNCED"] * 2 + ["UNSYNCED"] * 6
SLOW_S = SLOW_NS // S


def seconds(
    alerts: ShardAlerts, paces: Iterable[float | None], log_offset_s: int = 0, states: list[str] | None = None
) -> list[Alert]:
    """Play a second of each pace with a window of clocks; return the alerts."""
    script, published = Script(), []
    script.now_ns = max(T0, alerts.now_ns + S)
    for pace in paces:
        fleet = None if pace is None else FleetPace(pace, 256)
        published += alerts.ingest_pace(fleet, script.now_ns)
        script.clocks(states or ["SYNCED"] * 8, log_offset_s * S)
        topic, key, record, append_ns = script.inputs.pop()
        published += ingest(alerts, topic, key, record, append_ns)
        script.wait(1)
    published += alerts.evaluate(script.now_ns)
    return [record for _, record in published]


def kinds(records: Iterable[Alert]) -> list[tuple[str, str]]:
    return [(record["kind"], record["state"]) for record in records]


def test_a_slow_simulation_is_one_alert_until_it_recovers() -> None:
    alerts = book()
    assert seconds(alerts, [0.6] * (SLOW_S - 1)) == []
    [raised] = seconds(alerts, [0.6] * 5)
    assert (raised["kind"], raised["severity"], raised["subject"]) == ("SIMULATION", "WARNING", "fabric")
    assert raised["text"] == (
        "the simulation is slow: simulates 0.6 s per second; use fewer NICs (sim:136); "
        "alerts about clocks are suppressed meanwhile"
    )
    assert kinds(seconds(alerts, [1.0] * 60)) == [("SIMULATION", "CLEARED")]


def test_a_short_lag_is_no_alert_and_a_changed_pace_updates_the_text() -> None:
    alerts = book()
    assert seconds(alerts, [0.3] * (SLOW_S - 1) + [1.0] * 60) == []
    assert kinds(seconds(alerts, [0.6] * 2 * SLOW_S)) == [("SIMULATION", "RAISED")]
    [changed] = seconds(alerts, [0.58, 0.4])
    assert "simulates 0.4 s per second" in changed["text"]


@pytest.mark.parametrize("log_offset_s", [0, -65])
def test_a_slow_simulation_raises_no_alarm_about_clocks(log_offset_s: int) -> None:
    records = seconds(book(), [0.6] * 90, log_offset_s, UNSYNCED)
    assert kinds(records) == [("SIMULATION", "RAISED")]


def test_skipped_time_stays_no_alarm_after_recovery_but_lost_clocks_are_one() -> None:
    alerts = book()
    seconds(alerts, [0.6] * 30, -12)
    assert kinds(seconds(alerts, [1.0] * 60, -12)) == [("SIMULATION", "CLEARED")]
    assert ("CLOCKS", "RAISED") in kinds(seconds(alerts, [1.0] * 60, -12, UNSYNCED))


def test_real_nics_have_all_alerts_about_clocks() -> None:
    assert kinds(seconds(book(), [None] * 60, -12)) == [("CLOCKS", "RAISED")]
    assert kinds(seconds(book(), [None] * 60, 0, UNSYNCED)) == [("CLOCKS", "RAISED")]
    alerts = book()
    seconds(alerts, [0.6] * 5, -12)
    assert kinds(seconds(alerts, [None] * 5, -12)) == [("CLOCKS", "RAISED")], "a real NIC joined"


def test_a_new_owner_keeps_the_alert_and_raises_none_twice() -> None:
    first = book()
    records = seconds(first, [0.6] * 30)
    second = book()
    second.recover(records)
    assert kinds(seconds(second, [1.0, 0.6, 0.6])) == [], "announcements of the past, read again"
    later = book()
    later.recover([*records, *seconds(first, [1.0] * 60)])
    assert seconds(later, [0.6] * 15) == []
