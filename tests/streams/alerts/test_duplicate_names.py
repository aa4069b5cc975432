"""Two agents of one name are one CRITICAL alert, and restarts are none."""

from __future__ import annotations

from schemas.records import Nic
from streams.alerts.duplicate_names import CALM_NS
from streams.alerts.shard_alerts import ShardAlerts
from streams.runtime.units import NS_PER_S
from tests.records import make
from tests.streams.alerts.script import T0, Script, lines, play

OLD, NEW = 17, 99


def nic(run: int, address: str, device: str = "eth0") -> Nic:
    return make(Nic, nic=f"node1/{device}", device=device, shard="fabric", run=run, addresses=[address])


def announced(runs: list[int], alerts: ShardAlerts | None = None, device: str = "eth0") -> list[dict]:
    """Announce a NIC once a second by the given runs, and wait."""
    alerts = alerts or ShardAlerts("fabric")
    address = {OLD: "10.0.0.1", NEW: "10.0.0.5"}
    published = []
    for second, run in enumerate(runs):
        at_ns = T0 + second * NS_PER_S
        published += alerts.ingest_nic(f"node1/{device}", nic(run, address[run], device), at_ns)
        published += alerts.evaluate(at_ns + NS_PER_S // 2)
    published += alerts.evaluate(T0 + len(runs) * NS_PER_S + 2 * CALM_NS)
    return [record for _, record in published]


def test_two_agents_are_one_critical_alert_with_both_addresses_until_one_ends() -> None:
    records = announced([OLD, NEW] * 5 + [NEW] * 5)
    assert lines(records) == [
        ("DUPLICATE_NAME", "node1", "RAISED"),
        ("DUPLICATE_NAME", "node1", "CLEARED"),
    ]
    raised, cleared = records
    assert raised["severity"] == "CRITICAL"
    assert raised["nics"] == ["node1/eth0"]
    assert raised["text"].startswith("node1/eth0 is announced by two agents at 10.0.0.1 and 10.0.0.5 since ")
    assert cleared["cleared_ns"] - raised["raised_ns"] >= CALM_NS


def test_restarts_however_often_are_no_second_agent() -> None:
    alerts = ShardAlerts("fabric")
    for second in range(30):
        at_ns = T0 + second * NS_PER_S
        assert alerts.ingest_nic("node1/eth0", nic(second, "10.0.0.1"), at_ns) == []
    assert alerts.evaluate(T0 + 200 * NS_PER_S) == []


def test_a_message_of_the_old_process_that_is_late_is_no_second_agent() -> None:
    assert announced([OLD, OLD, NEW, OLD, NEW, NEW, NEW][:5]) != []
    assert announced([OLD, OLD, NEW, OLD, OLD]) == []


def test_a_restored_alert_ends_when_one_agent_has_ended() -> None:
    alerts = ShardAlerts("fabric")
    first = announced([OLD, NEW] * 3)[0]
    alerts.recover([first])
    published = alerts.evaluate(T0 + 10 * CALM_NS)
    assert lines([record for _, record in published]) == [("DUPLICATE_NAME", "node1", "CLEARED")]


def test_the_clock_of_a_name_that_two_agents_use_raises_no_second_alert() -> None:
    script = Script()
    for _ in range(30):
        script.clocks(["SYNCED"] * 3 + ["UNSYNCED"]).wait(1)
    assert {r["kind"] for r in play(script.inputs)} == {"CLOCKS"}
    alerts = ShardAlerts("fabric")
    records = []
    for second, (_, _, record, at_ns) in enumerate(script.inputs):
        run = (OLD, NEW)[second % 2]
        h4 = make(Nic, nic="h4/eth0", shard="fabric", run=run, addresses=["10.0.0.4"])
        records += alerts.ingest_nic("h4/eth0", h4, at_ns - 1)
        records += alerts.ingest_clocks(record, at_ns)
    assert {r["kind"] for _, r in records} == {"DUPLICATE_NAME"}
