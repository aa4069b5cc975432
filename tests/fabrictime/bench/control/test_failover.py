"""Failover as the bench counts it: throughput regained, and flows that were led onto a dead link."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from fabrictime.bench.control import failover
from fabrictime.bench.control.failover import SLOT_S, Steady, crossed, flow_of, over, regained_ms

BYTES = 3_000
BEGAN_SLOT = 400


def flow(slots: list[int]) -> tuple[Steady, float]:
    """Return a flow with bytes by slot, and the moment of a fault at slot `BEGAN_SLOT`."""
    begin_s = time.monotonic()
    result = {"interval_bytes": slots, "begin_monotonic_ns": begin_s * 1e9}
    began_s = time.time() - time.monotonic() + begin_s + (BEGAN_SLOT + 0.5) * SLOT_S
    return Steady("h1", "h5", 1, 40_000, result), began_s


def test_the_time_counts_until_throughput_is_back_for_20_ms() -> None:
    slots = [BYTES] * BEGAN_SLOT + [0] * 10 + [BYTES] * 300
    found = regained_ms(*flow(slots))
    assert found == pytest.approx((10 + failover.OVER_SLOTS) * SLOT_S * 1e3, abs=2 * SLOT_S * 1e3)


def test_a_flow_that_never_fell_was_not_hit_and_one_that_stays_away_is_lost() -> None:
    assert regained_ms(*flow([BYTES] * 800)) is None
    late = [BYTES] * (BEGAN_SLOT + 100) + [0] * 50 + [BYTES] * 100
    assert regained_ms(*flow(late)) is None, "it fell for another reason, half a second later"
    away = regained_ms(*flow([BYTES] * BEGAN_SLOT + [0] * 400))
    assert away is not None
    assert away >= failover.LOST_MS


def test_a_flow_that_sent_nothing_or_ended_before_the_fault_counts_not() -> None:
    assert regained_ms(*flow([0] * 800)) is None
    assert regained_ms(*flow([BYTES] * 100)) is None


def watch(**given: Any) -> Any:
    links = ["h1:e>leaf1:a", "leaf1:b>spine2:a", "spine2:b>leaf2:b", "leaf2:a>h5:e"]
    reported = {"nic": "h1/e", "peer_port": 40_000, "links": links, "source_port": 7}
    return SimpleNamespace(
        flows={"f": reported, "unknown": {**reported, "links": []}, "other": {**reported, "nic": "h9/e"}},
        **given,
    )


def test_links_between_switches_and_their_flows() -> None:
    steady = Steady("h1", "h5", 7, 40_000)
    assert crossed(watch(), [steady]) == ["leaf1:b>spine2:a", "spine2:b>leaf2:b"]
    assert over(watch(), [steady], "leaf1:b>spine2:a") == ["h1:40000"]
    assert over(watch(), [steady], "leaf1:c>spine3:a") == []
    assert flow_of([steady], "h1:40000") is steady


@pytest.mark.parametrize(
    ("at_s", "outcome", "found"),
    [(10.1, "APPLIED", 0), (10.3, "APPLIED", 1), (10.3, "FAILED", 0), (12.0, "APPLIED", 0)],
)
def test_a_move_counts_as_onto_a_dead_link_once_it_could_be_known(
    at_s: float, outcome: str, found: int
) -> None:
    followed = watch(
        actions=[{"decision_id": "d", "outcome": outcome, "flow_id": "f", "at_ns": at_s * 1e9 + 5e6}],
        decisions={"d": {"to_path": 9, "at_ns": at_s * 1e9}},
        route_of=lambda flow, port: ("dead",) if port == 9 else (),
    )
    assert len(failover._onto_dead(followed, [("dead", 10.0, 11.0)])) == found
    assert failover._decision_ms(followed) == ([pytest.approx(5, abs=0.01)] if outcome == "APPLIED" else [])
