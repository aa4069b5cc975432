"""Trouble of probers is one alert of their host, and storms name the NIC."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import codec
from schemas.topics import ALERTS, LINK_HEALTH, LINKS
from streams.alerts.prober_health import SILENT_SHARD_S
from streams.alerts.shard_alerts import ShardAlerts
from streams.runtime.thresholds import Thresholds
from tests.streams.alerts.script import Script

S = 1_000_000_000
MS = 1_000_000
T0 = 1_760_000_000 * S
SOON = Thresholds({"alert_agent_s": 10})
PACE = {f"h{i}/eth1": (4_000_000, 3) for i in range(1, 7)}
"""Each announces 1,000 requests/s."""


class Fleet:
    """Six probers that report each second."""

    def __init__(self, alerts: ShardAlerts | None = None, pace: Any = PACE.get) -> None:
        self.alerts = alerts or ShardAlerts("fabric", SOON, probe_slots=pace)
        self.second = 0
        self.out: list[dict[str, Any]] = []

    def run(self, seconds: int, **how: dict[str, Any]) -> Fleet:
        """Advance the time; `how`: host to the special fields of its events."""
        for _ in range(seconds):
            for i in range(1, 7):
                one = how.get(f"h{i}", {})
                if one.get("silent"):
                    continue
                record = event(f"h{i}/eth1", self.second, **one)
                at_ns = T0 + self.second * S + i * 10 * MS
                self.out += [r for _, r in self.alerts.ingest_event(record, at_ns)]
            self.second += 1
        for record in self.out:
            codec.encode(ALERTS.record, record)
        return self

    def lines(self) -> list[tuple[str, str, str]]:
        return [(r["kind"], r["subject"], r["state"]) for r in self.out]


def event(
    nic: str,
    number: int,
    *,
    hosts: tuple[str, ...] = (),
    late_ms: float = 0,
    trouble: tuple[str, ...] = (),
    pps: int = 1000,
    s: int = 1,
) -> dict[str, Any]:
    peer = "h9/eth1"
    record = {
        "nic": nic, "shard": "fabric", "run": 1, "event": number, "kind": "PROBE", "clock_ns": number * S,
        "system_ns": T0 + number * S, "interval_ns": s * S, "trouble": list(trouble),
        "late_ns": round(late_ms * MS), "carrier": None, "speed_bps": None, "counters": [], "verbs": None,
        "hosts": [{"peer": h, "requests": 2, "answers": 2, "answered_age_ns": MS} for h in hosts],
        "paths": [{
            "peer": peer, "path": 9320, "lost": 2, "answered": s * pps - 1, "late": 1, "loss_streak": 0,
            "first_lost_age_ns": -1, "last_lost_age_ns": -1, "answered_age_ns": 0, "arrived_age_ns": 0,
            "timeout_ns": 1,
        }],
    }  # fmt: skip
    codec.encode(LINKS.record, record)
    return record


def test_a_prober_short_of_cpu_is_one_alert_of_its_host() -> None:
    bad = {"late_ms": 130, "trouble": ("STARVED",)}
    fleet = Fleet().run(20).run(30, h3=bad).run(30)
    assert fleet.lines() == [("AGENT", "h3", "RAISED"), ("AGENT", "h3", "CLEARED")]
    raised, cleared = fleet.out
    assert raised["text"] == (
        "h3: its own prober is in trouble since 08:53:40.000, no link: up to 130 ms late"
    )
    assert (raised["raised_ns"], raised["severity"], raised["nics"]) == (T0 + 20 * S, "WARNING", ["h3/eth1"])
    assert raised["links"] == []
    [proof] = raised["evidence"]
    assert (proof["topic"], proof["key"], proof["text"]) == (LINKS.name, "fabric", "h3/eth1: STARVED, 130 ms")
    assert (proof["at_ns"] - T0) % S == 30 * MS
    assert T0 + 50 * S < cleared["cleared_ns"] < T0 + 62 * S
    assert fleet.run(5, h3=bad).run(3).run(12, h3=bad).lines()[2:] == [("AGENT", "h3", "RAISED")]


def test_a_prober_that_stops_while_its_host_answers_is_an_alert_of_the_agent() -> None:
    stop = {"h3": {"silent": True}, "h1": {"hosts": ("h3/eth1",)}, "h2": {"hosts": ("h3/eth1",)}}
    fleet = Fleet().run(20).run(4, **stop).run(1, h3={"late_ms": 4000, "trouble": ("STARVED",)}).run(30)
    assert fleet.lines() == [("AGENT", "h3", "RAISED"), ("AGENT", "h3", "CLEARED")]
    raised = fleet.out[0]
    assert raised["text"] == "the prober of h3/eth1 does not answer since 08:53:39.000, the host does"
    assert raised["updated_ns"] <= T0 + 23 * S, "within the four seconds"
    assert raised["nics"] == ["h3/eth1"]


@pytest.mark.parametrize("late_s", [0, 3, 8, 30])
def test_a_late_reader_raises_no_other_alerts(late_s: int) -> None:
    """All hosts are probed by peers, as on a starved machine; h3 is short of processor time for a while."""
    probed = {f"h{i}": {"hosts": (f"h{i % 6 + 1}/eth1",)} for i in range(1, 7)}
    cpu_starved = probed | {"h3": probed["h3"] | {"late_ms": 130}}
    fleet = Fleet().run(20, **probed).run(4, **cpu_starved)
    fleet.out += [r for _, r in fleet.alerts.evaluate(T0 + (fleet.second + late_s) * S)]
    fleet.run(4, **cpu_starved).run(30, **probed)
    expected = [("AGENT", "h3", "RAISED"), ("AGENT", "h3", "CLEARED")]
    assert fleet.lines() == (expected if late_s <= SILENT_SHARD_S else [])


def test_trouble_that_outlasts_the_death_of_its_host_is_reported_again() -> None:
    bad = {"late_ms": 130, "trouble": ("STARVED",)}
    fleet = Fleet().run(20).run(20, h3=bad)
    script = Script()
    script.now_ns = T0 + 40 * S
    for topic, key, record, append_ns in script.health("h3", "DOWN", kind="HOST").inputs:
        assert topic == LINK_HEALTH.name
        fleet.out += [r for _, r in fleet.alerts.ingest_health(key, record, append_ns)]
    fleet.run(5, h3=bad)
    script.now_ns = T0 + 45 * S
    _, key, record, append_ns = script.health("h3", "UP", kind="HOST").inputs[-1]
    fleet.out += [r for _, r in fleet.alerts.ingest_health(key, record, append_ns)]
    fleet.run(60, h3=bad)
    assert fleet.lines() == [
        ("AGENT", "h3", "RAISED"),
        ("HOST_DOWN", "h3", "RAISED"),
        ("AGENT", "h3", "CLEARED"),
        ("HOST_DOWN", "h3", "CLEARED"),
        ("AGENT", "h3", "RAISED"),
    ]


def test_a_host_that_answers_nothing_is_no_trouble_of_its_agent() -> None:
    assert Fleet().run(20).run(20, h3={"silent": True}).lines() == []


@pytest.mark.parametrize(
    ("how", "severity"),
    [
        ({"trouble": ("LOCAL_QUEUE",)}, "INFO"),
        ({"trouble": ("RX_OVERFLOW", "LOCAL_QUEUE")}, "WARNING"),
        ({"trouble": ("LOCAL_DROP",)}, "WARNING"),
        ({"trouble": ("STARVED",), "late_ms": 20}, None),
        ({"trouble": ("CAPPED",)}, None),
    ],
)
def test_trouble_and_its_severity(how: dict[str, Any], severity: str | None) -> None:
    fleet = Fleet().run(30, h2=how)
    assert [r["severity"] for r in fleet.out] == ([] if severity is None else [severity])


def test_an_agent_that_hardly_runs_and_reports_rarely_is_in_trouble() -> None:
    fleet = Fleet()
    for _ in range(8):
        fleet.run(3, h4={"silent": True}).run(1, h4={"late_ms": 3000, "trouble": ("STARVED",), "s": 4})
    assert fleet.lines() == [("AGENT", "h4", "RAISED")]
    assert fleet.run(15, h4={"silent": True}).lines()[1:] == [("AGENT", "h4", "CLEARED")]


def test_a_moment_of_trouble_is_no_alert() -> None:
    assert Fleet().run(20).run(3, h1={"late_ms": 900, "trouble": ("STARVED",)}).run(20).out == []


def test_a_storm_alert_names_the_nic_and_the_excess() -> None:
    fleet = Fleet().run(5).run(20, h5={"pps": 40_000}).run(20)
    assert fleet.lines() == [("PROBE_STORM", "h5", "RAISED"), ("PROBE_STORM", "h5", "CLEARED")]
    assert fleet.out[0]["text"] == (
        "h5/eth1 sends 40,000 probes/s since 08:53:25.000, 40 times the 1,000 that it announces:"
        " check probes.rate_pps of h5"
    )
    assert fleet.out[0]["evidence"][0]["text"] == "h5/eth1: 40,000 requests/s"
    assert fleet.out[1]["cleared_ns"] - fleet.out[0]["raised_ns"] == 25 * S


def test_an_agent_that_announces_a_wrong_rate_is_compared_with_its_shard() -> None:
    wrong = PACE | {"h5/eth1": (100_000, 3)}
    fleet = Fleet(pace=wrong.get).run(20, h5={"pps": 40_000})
    assert [r["text"].partition(" times ")[2].partition(":")[0] for r in fleet.out] == [
        "the 1,000 that is usual in its shard"
    ]
    assert Fleet(pace={}.get).run(20, h5={"pps": 40_000}).lines() == [("PROBE_STORM", "h5", "RAISED")]


def test_rates_below_the_limits_are_no_storm() -> None:
    assert Fleet().run(30, h5={"pps": 4000}).out == []  # not five times as much
    assert Fleet().run(4, h5={"pps": 40_000}).run(10).out == []  # not for long enough
    everyone = {f"h{i}": {"pps": 40_000} for i in range(1, 7)}
    fast = dict.fromkeys(PACE, (100000, 3))
    assert Fleet(pace=fast.get).run(20, **everyone).out == []  # all as fast as they say
    few = ShardAlerts("fabric", Thresholds({"alert_storm_min_pps": 50_000}), probe_slots=PACE.get)
    assert Fleet(few).run(20, h5={"pps": 40_000}).out == []


def test_storm_and_trouble_of_a_host_leave_its_health_alone() -> None:
    from tests.streams.alerts.script import Script, lines, play

    fleet = Fleet().run(30, h3={"late_ms": 200, "trouble": ("STARVED",), "pps": 40_000}).run(40)
    assert sorted(fleet.lines()) == [
        ("AGENT", "h3", "CLEARED"), ("AGENT", "h3", "RAISED"),
        ("PROBE_STORM", "h3", "CLEARED"), ("PROBE_STORM", "h3", "RAISED"),
    ]  # fmt: skip
    script = Script().wait(15).health("h3", "DOWN", kind="HOST").wait(5)
    again = ShardAlerts("fabric", SOON)
    again.recover(fleet.out)
    assert lines(play(script.inputs, again, rest_s=5)) == [("HOST_DOWN", "h3", "RAISED")]


def test_a_new_owner_raises_nothing_twice_and_clears_it() -> None:
    bad = {"late_ms": 130, "trouble": ("STARVED",), "pps": 40_000}
    whole = Fleet().run(5).run(40, h3=bad).run(30)
    for cut in range(6, 70, 4):
        first = Fleet().run(5).run(max(0, min(cut - 5, 40)), h3=bad).run(max(0, cut - 45))
        heard_from = max(0, cut - 12)
        second = Fleet(ShardAlerts("fabric", SOON, probe_slots=PACE.get))
        second.alerts.recover(first.out, T0 + heard_from * S)
        second.second = heard_from
        second.run(max(0, 5 - heard_from)).run(45 - max(5, min(heard_from, 45)), h3=bad)
        second.run(75 - max(45, heard_from))
        published = {(r["alert_id"], r["update"]): r for r in (*first.out, *second.out)}
        assert sorted(published) == sorted((r["alert_id"], r["update"]) for r in whole.out), cut


@pytest.mark.parametrize("cut", range(14, 30))
def test_a_new_owner_counts_seconds_before_the_newest_alert(cut: int) -> None:
    """The window of one host reaches back beyond the second in which another host's alert was raised."""

    def run(fleet: Fleet, begin: int, end: int) -> list[tuple[str, str, str, int]]:
        fleet.second = begin
        for second in range(begin, end):
            hosts = {"h1": range(10), "h2": range(5, 15)}
            fleet.run(1, **{host: {"late_ms": 200} for host, bad in hosts.items() if second in bad})
        return [(r["alert_id"], r["state"], r["subject"], r["updated_ns"]) for r in fleet.out]

    all_records = run(Fleet(), 0, 40)
    first, second = Fleet(), Fleet()
    former = run(first, 0, cut)
    second.alerts.recover(first.out, T0)
    assert sorted({*former, *run(second, 0, 40)}) == sorted(all_records)
    assert [line[1] for line in sorted(all_records)] == ["CLEARED", "RAISED"] * 2
