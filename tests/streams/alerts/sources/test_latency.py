"""Alerts from latency SLOs."""

from __future__ import annotations

from schemas import codec
from schemas.topics import ALERTS, DELAYS
from streams.alerts.shard_alerts import ShardAlerts
from tests.streams.alerts.script import RULE, T0, S, ingest, slow


def by_host(nic: str) -> frozenset[str]:
    return frozenset({"*", nic, nic.partition("/")[0]})


def test_a_broken_latency_slo_is_raised_once_with_its_pair_and_cleared():
    alerts = ShardAlerts("fabric", groups=by_host)
    assert alerts.set_latency_rules([RULE]) == []
    assert alerts.wants_delays("h1/eth1")
    assert not alerts.wants_delays("h3/eth1")
    out = []
    for window in range(30):
        out += ingest(alerts, *slow(window, 90.0 if 5 <= window < 15 else 4.0))
    assert [(r["state"], r["update"]) for _, r in out] == [("RAISED", 0), ("CLEARED", 1)]
    raised, cleared = (record for _, record in out)
    for record in (raised, cleared):
        codec.encode(ALERTS.record, record)
    assert raised["kind"] == "LATENCY"
    assert raised["subject"] == "latency:gold"
    assert raised["raised_ns"] == T0 + 5 * S
    assert raised["text"].startswith("gold: p99 above 20.0 µs for 5 s between h1 and h2: h1/eth1 to h2/eth1 ")
    assert raised["nics"] == ["h1/eth1", "h2/eth1"]
    assert [(e["topic"], e["key"]) for e in raised["evidence"]] == [(DELAYS.name, "h1/eth1")]
    assert cleared["cleared_ns"] == T0 + 15 * S


def test_a_new_owner_continues_a_broken_latency_slo_and_raises_nothing_twice():
    first = ShardAlerts("fabric", groups=by_host)
    first.set_latency_rules([RULE])
    out = []
    for window in range(14):
        out += ingest(first, *slow(window, 90.0 if window >= 5 else 4.0))
    assert [r["state"] for _, r in out] == ["RAISED"]
    second = ShardAlerts("fabric", groups=by_host)
    second.recover([record for _, record in out])
    assert second.set_latency_rules([RULE]) == []
    more = []
    for window in range(9, 30):
        more += ingest(second, *slow(window, 90.0 if window < 16 else 4.0))
    assert [(r["alert_id"], r["state"]) for _, r in more] == [(out[0][1]["alert_id"], "CLEARED")]
    third = ShardAlerts("fabric", groups=by_host)
    third.recover([record for _, record in out + more])
    third.set_latency_rules([RULE])
    again = []
    for window in range(9, 30):
        again += ingest(third, *slow(window, 90.0 if window < 16 else 4.0))
    assert again == []


def test_a_removed_rule_clears_its_alert():
    alerts = ShardAlerts("fabric", groups=by_host)
    alerts.set_latency_rules([RULE])
    out = []
    for window in range(12):
        out += ingest(alerts, *slow(window, 90.0))
    assert [r["state"] for _, r in out] == ["RAISED"]
    assert [r["state"] for _, r in alerts.set_latency_rules([])] == ["CLEARED"]
    assert not alerts.wants_delays("h1/eth1")
    # and where its owner died before
    other = ShardAlerts("fabric", groups=by_host)
    other.recover([record for _, record in out])
    [(_, cleared)] = other.set_latency_rules([])
    assert (cleared["alert_id"], cleared["state"]) == (out[0][1]["alert_id"], "CLEARED")
    assert other.open_ids() == []
