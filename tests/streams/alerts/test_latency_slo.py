"""Latency SLOs: when they are violated, when they are met again, and the effect of clocks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from native.core import bucket_of
from schemas import codec
from streams.alerts.latency_slo import LatencyRules, check_rule, groups_of
from streams.runtime.tables import Member

S = 1_000_000_000
T0 = 1_800_000_000 * S
MEMBERS = {
    f"h{n}/eth{rail}": Member(f"h{n}/eth{rail}", f"h{n}", "fabric", f"h{n}/system", rail, f"rack{n // 10}")
    for n in (30, 31, 70, 71)
    for rail in (0, 1)
}
BETWEEN = {
    "name": "r3-r7",
    "from_group": "rack:rack3",
    "to_group": "rack:rack7",
    "p99_us": 20.0,
    "for_s": 10.0,
}


def groups(nic: str) -> frozenset[str]:
    return groups_of(MEMBERS[nic]) if nic in MEMBERS else frozenset({"*", nic})


def leg(name: str, delays: list[float]) -> dict[str, Any]:
    counts = Counter(bucket_of(each) for each in delays)
    return {
        f"{name}_min_ns": min(delays),
        f"{name}_p50_ns": sorted(delays)[len(delays) // 2],
        f"{name}_p99_ns": max(delays),
        f"{name}_bucket": sorted(counts),
        f"{name}_bucket_count": [counts[bucket] for bucket in sorted(counts)],
    }


def path(
    peer: str,
    forward_us: float = 5,
    reverse_us: float = 5,
    *,
    count: int = 100,
    slow: float = 0.05,
    bound_ns: float | None = 100.0,
) -> dict[str, Any]:
    """A path with a share `slow` of delays as given, the rest 3 us."""
    tail = round(slow * count)
    found: dict[str, Any] = {
        "peer": peer,
        "path": 9320,
        "count": count,
        "lost": 0,
        "no_t3": 0,
        "rtt_min_ns": 6000.0,
        "rtt_p50_ns": 6000.0,
        "rtt_p99_ns": 1e3 * (forward_us + reverse_us),
        "bound_ns": bound_ns,
    }
    for name, us in (("forward", forward_us), ("reverse", reverse_us)):
        if bound_ns is None:
            keys = ("min_ns", "p50_ns", "p99_ns")
            found |= {f"{name}_{key}": None for key in keys} | {
                f"{name}_bucket": [],
                f"{name}_bucket_count": [],
            }
        else:
            found |= leg(name, [3e3] * (count - tail) + [1e3 * us] * tail)
    return found


class Watch:
    def __init__(self, *rules: dict[str, Any]) -> None:
        self.rules = LatencyRules(groups)
        self.rules.set_rules(rules)
        self.window = T0 // S
        self.changes: list[Any] = []

    def second(self, **by_nic: list[dict[str, Any]]) -> list[Any]:
        made = []
        for nic, paths in by_nic.items():
            record = {
                "nic": nic.replace("_", "/"),
                "shard": "fabric",
                "window": self.window,
                "part": 0,
                "parts": 1,
                "window_start_ns": self.window * S,
                "window_end_ns": (self.window + 1) * S,
                "state": "SYNCED",
                "paths": paths,
            }
            record = codec.decode(codec.encode("PathDelays", record), "PathDelays")
            made += self.rules.take(record)
        self.window += 1
        self.changes += made
        return made


def test_an_slo_is_violated_after_its_duration_and_met_after_as_long():
    watch = Watch(BETWEEN)
    for _ in range(5):
        watch.second(h30_eth0=[path("h70/eth0")])
    first = watch.window * S
    for _ in range(12):
        watch.second(h30_eth0=[path("h70/eth0", 84)])
    (raised,) = watch.changes
    assert (raised.name, raised.state, raised.subject) == ("r3-r7", "RAISED", "rack:rack3>rack:rack7")
    assert raised.since_ns == first
    assert raised.at_ns == first + 10 * S
    assert raised.text.startswith("p99 above 20.0 µs for 10 s between rack3 and rack7: h30/eth0 to h70/eth0 ")
    assert raised.p99_ns == pytest.approx(84e3, rel=0.15)
    assert raised.nics == ("h30/eth0", "h70/eth0")
    for _ in range(30):
        watch.second(h30_eth0=[path("h70/eth0", 84)])
    assert len(watch.changes) == 1, "told once"
    for _ in range(5):
        watch.second(h30_eth0=[path("h70/eth0")])
    watch.second(h30_eth0=[path("h70/eth0", 84)])
    for _ in range(9):
        watch.second(h30_eth0=[path("h70/eth0")])
    assert len(watch.changes) == 1, "it was above in between"
    for _ in range(4):
        watch.second(h30_eth0=[path("h70/eth0")])
    assert [each.state for each in watch.changes] == ["RAISED", "CLEARED"]
    assert "below 20.0 µs for 10 s" in watch.changes[1].text


@pytest.mark.parametrize(
    "second",
    [
        lambda n: {"h30_eth0": [path("h70/eth0", 84 if n % 10 else 5)]},
        lambda n: {"h30_eth0": [path("h70/eth0", 84, slow=0.005, count=1000)]},
        lambda n: {"h30_eth0": [path("h70/eth0", 5, 84)]},
        lambda n: {"h30_eth0": [path("h31/eth0", 84, 84)]},
        lambda n: {"h30_eth0": [path("h70/eth0", 24, bound_ns=9_000.0)]},
        lambda n: {"h30_eth0": [path("h70/eth0", 84, 84, bound_ns=None)]},
        lambda n: {"h30_eth0": [path("stranger/e", 84, 84)]},
        lambda n: {"h30_eth0": []},
    ],
    ids=[
        "never long enough",
        "one in two hundred",
        "the other direction",
        "another pair of groups",
        "within what the clocks may be wrong by",
        "clocks UNSYNCED",
        "a NIC that nobody knows",
        "no probes",
    ],
)
def test_no_violation_raises_nothing(second):
    watch = Watch(BETWEEN)
    for n in range(40):
        watch.second(**second(n))
    assert watch.changes == []


def test_reverse_delays_of_the_peers_probes_count_too():
    watch = Watch(BETWEEN)
    for _ in range(14):
        watch.second(h70_eth1=[path("h31/eth1", 5, 60)])
    assert watch.changes[0].pairs == (("h31/eth1", "h70/eth1"),)


def test_one_bad_pair_violates_the_slo_and_few_samples_add_up():
    watch = Watch(BETWEEN)
    good = [path("h71/eth0", count=5000)]
    for _ in range(40):
        watch.second(h30_eth0=[*good, path("h70/eth0", 84, count=4, slow=0.5)], h31_eth0=good)
    (raised,) = watch.changes
    assert raised.pairs == (("h30/eth0", "h70/eth0"),)


def test_without_synced_clocks_half_a_round_trip_counts_for_both_directions():
    everyone = BETWEEN | {"name": "all", "from_group": "*", "to_group": "*"}
    watch = Watch(everyone, BETWEEN)
    for _ in range(14):
        watch.second(h30_eth0=[path("h70/eth0", 84, 5, bound_ns=None)])
    (raised,) = watch.changes
    assert raised.name == "all"
    assert "between all NICs" in raised.text
    assert "clocks are UNSYNCED" in raised.text
    assert raised.p99_ns == pytest.approx(89e3 / 2)
    assert watch.rules.unsure() == ["r3-r7"], "and of this one nothing can be said"


def test_an_unmeasured_violation_is_cleared():
    watch = Watch(BETWEEN)
    for _ in range(14):
        watch.second(h30_eth0=[path("h70/eth0", 84)])
    for _ in range(80):
        watch.second(h30_eth0=[path("h31/eth0")])
    assert [each.state for each in watch.changes] == ["RAISED", "CLEARED"]
    assert "not measured any more" in watch.changes[1].text


def test_rules_change_live_and_a_new_owner_restores_violations():
    watch = Watch(BETWEEN)
    for _ in range(14):
        watch.second(h30_eth0=[path("h70/eth0", 84)])
    assert watch.rules.set_rules([BETWEEN]) == []
    (cleared,) = watch.rules.set_rules([BETWEEN | {"p99_us": 500.0}])
    assert (cleared.state, cleared.name) == ("CLEARED", "r3-r7")
    for _ in range(14):
        watch.second(h30_eth0=[path("h70/eth0", 84)])
    assert len(watch.changes) == 1

    later = Watch()
    later.rules.restore("r3-r7", T0 - 5 * S)
    later.rules.set_rules([BETWEEN])
    for _ in range(14):
        later.second(h30_eth0=[path("h70/eth0", 84)])
    assert later.changes == [], "it was told by the owner before"
    for _ in range(14):
        later.second(h30_eth0=[path("h70/eth0")])
    assert [each.state for each in later.changes] == ["CLEARED"]


def test_a_window_has_records_of_many_nics_and_late_ones_are_ignored():
    watch = Watch(BETWEEN)
    for _ in range(5):
        watch.second(h30_eth0=[path("h70/eth0")], h70_eth0=[path("h30/eth0")])
    record = {
        "nic": "h31/eth0",
        "window": watch.window - 5,
        "window_start_ns": 0,
        "window_end_ns": S,
        "paths": [],
    }
    assert watch.rules.take(record) == []
    assert watch.rules.late == 1


def test_only_delays_under_a_rule_are_wanted():
    assert not Watch().rules.wants("h30/eth0")
    rail = BETWEEN | {"from_group": "rail:1", "to_group": "h71"}
    watch = Watch(rail)
    assert watch.rules.wants("h30/eth1")
    assert watch.rules.wants("h71/eth0")
    assert not watch.rules.wants("h30/eth0")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"p99_us": 0.0}, "p99_us 0.0, expected above 0"),
        ({"p99_us": float("nan")}, "p99_us nan"),
        ({"for_s": -1.0}, "for_s -1.0, expected 1 to 86400"),
        ({"from_group": "row:7"}, "from_group 'row:7'"),
        ({"to_group": "rack:"}, "to_group 'rack:'"),
        ({"to_group": ""}, "to_group ''"),
        ({"name": "a\nb"}, "expected a name"),
    ],
)
def test_an_invalid_rule_is_named_and_ignored(change, reason):
    with pytest.raises(ValueError, match=reason):
        check_rule(BETWEEN | change)
    watch = Watch(BETWEEN | change)
    for _ in range(20):
        watch.second(h30_eth0=[path("h70/eth0", 84)])
    assert watch.changes == []


def test_invalid_buckets_are_ignored():
    watch = Watch(BETWEEN)
    odd = path("h70/eth0") | {"forward_bucket": [256, 7000], "forward_bucket_count": [1000, 1000]}
    for _ in range(20):
        watch.second(h30_eth0=[odd])
    assert watch.changes == []
