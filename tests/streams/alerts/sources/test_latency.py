"""Alerts from latency SLOs."""

from __future__ import annotations

from native.core import bucket_of
from schemas import codec
from schemas.topics import ALERTS, DELAYS
from streams.alerts.shard_alerts import ShardAlerts
from tests.streams.alerts.script import (
    MS,
    T0,
    Input,
    S,
    ingest,
)

RULE = {"name": "gold", "from_group": "h1", "to_group": "h2", "p99_us": 20.0, "for_s": 5.0}


def slow(window: int, us: float) -> Input:
    """Return one second of h1's measured delays: all probes to h2 took this long."""
    start_ns = T0 + window * S
    legs = {
        f"{leg}_{key}": value
        for leg, each in (("forward", 1e3 * us), ("reverse", 3e3))
        for key, value in (
            ("min_ns", each), ("p50_ns", each), ("p99_ns", each), ("bucket", [bucket_of(each)]),
            ("bucket_count", [100]),
        )
    }  # fmt: skip
    path = {
        "peer": "h2/eth1", "path": 9320, "count": 100, "lost": 0, "no_t3": 0, "rtt_min_ns": 6e3,
        "rtt_p50_ns": 6e3, "rtt_p99_ns": 6e3, "bound_ns": 50.0, **legs,
    }  # fmt: skip
    record = {
        "nic": "h1/eth1", "shard": "fabric", "window": window, "part": 0, "parts": 1,
        "window_start_ns": start_ns, "window_end_ns": start_ns + S, "state": "SYNCED", "paths": [path],
    }  # fmt: skip
    codec.encode(DELAYS.record, record)
    return (DELAYS.name, "h1/eth1", record, start_ns + S + 100 * MS)


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
    assert raised["text"].startswith("gold: p99 above 20 us for 5 s between h1 and h2: h1/eth1 to h2/eth1 ")
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
