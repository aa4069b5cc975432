"""Flows that meet, and delays of the probes across their link, as the collision bench finds them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.control import collision
from fabrictime.bench.control.collision import _between, _meeting, _p99_us, _shared
from fabrictime.bench.control.watch import Watch

NICS = [{"host": f"h{number}", "leaf": f"leaf{1 + number // 4}"} for number in range(8)]


class Control:
    """A fabric whose routes follow the source port."""

    def __init__(self, spines: int) -> None:
        self.spines = spines

    def tcp_route(self, source: str, destination: str, sport: int, dport: int) -> list[str]:
        return [f"{source}>leaf", f"leaf>spine{sport % self.spines if self.spines else sport}", "spine>leaf"]


@pytest.mark.parametrize("seed", range(5))
def test_two_flows_from_one_leaf_to_the_other_meet_on_one_link(seed: int) -> None:
    link, specs = _meeting(Control(4), NICS, random.Random(seed))  # type: ignore[arg-type]
    assert [f"leaf>spine{spec['sport'] % 4}" for spec in specs] == [link, link]
    hosts = [spec[end] for spec in specs for end in ("source", "destination")]
    leaf = {nic["host"]: nic["leaf"] for nic in NICS}
    assert len(set(hosts)) == 4
    assert {leaf[spec["source"]] for spec in specs}.isdisjoint(leaf[spec["destination"]] for spec in specs)


def test_without_a_port_that_meets_the_bench_cannot_run() -> None:
    with pytest.raises(CannotRun, match="no port of 64 leads over leaf>spine"):
        _meeting(Control(0), NICS, random.Random(1))  # type: ignore[arg-type]


def test_flows_share_a_link_until_both_are_reported_apart() -> None:
    def shared(*links: list[str]) -> bool:
        watch: Any = Watch.__new__(Watch)
        watch.flows = {str(number): {"job": "j", "links": each} for number, each in enumerate(links)}
        return _shared(watch, "j")

    for unknown in ((), (["a"],), (["a"], [])):
        assert shared(*unknown)
    assert shared(["a", "b"], ["b"])
    assert not shared(["a"], ["b"])


def test_the_percentile_is_that_of_the_span_and_none_without_a_probe() -> None:
    delays = [(second, 1e3 * second) for second in range(100)]
    assert _p99_us(delays, (10, 20)) == pytest.approx(20, abs=0.2)
    with pytest.raises(CannotRun, match="no probe crossed"):
        _p99_us(delays, (200, 300))


def test_delays_are_those_of_requests_at_the_hosts_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [
        {"leg": "REQUEST", "path": 7, "links": ["a>b", "b>c"]},
        {"leg": "ANSWER", "path": 7, "links": ["c>b"]},
    ]
    samples = [{"peer": "q", "path": 7, "sent": [1_000_000_000, 500_000_000], "forward": [10, 20]}]
    records = {
        collision.PATHS.name: [{"nic": "p", "peer": "q", "paths": paths}],
        collision.PROBES.name: [
            {"nic": "p", "system_ns": 9_000_000_000, "clock_ns": 2_000_000_000, "samples": samples}
        ],
    }
    monkeypatch.setattr(collision, "_records", lambda bootstrap, topic: records[topic.name])
    assert collision._delays("", {"a>b", "c>b"}) == {"a>b": [(8.0, 10), (8.5, 20)]}


def test_the_leaf_and_the_kind_of_the_far_end() -> None:
    assert _between("leaf1:swp3>spine12:swp1") == ("leaf1", "spine")
