"""Pace of simulated fleets: whose it is, how far their time is behind, and what to do about it."""

from __future__ import annotations

import pytest

from schemas.simulation_pace import MAX_LAG_NS, SimulatedTime, advice, slow_text
from tests.records import make

S = 1_000_000_000


def fleet(*paces: float | None, shard: str = "sim", announced_s: int = 100, lag_s: int = 0) -> SimulatedTime:
    """Return the time of NICs with these paces, each announced a second after the last one."""
    time = SimulatedTime()
    for number, pace in enumerate(paces):
        at_ns = (announced_s + number) * S
        nic = f"h{number}/eth1"
        record = make("Nic", nic=nic, shard=shard, probe_port=4791, announced_ns=at_ns, simulation_pace=pace)
        time.take(nic, record, at_ns + lag_s * S)
    return time


def test_the_newest_announcement_gives_the_pace() -> None:
    assert fleet(1.0, 0.6).pace("sim") == 0.6
    assert fleet(0.6, 1.0).pace("sim") == 1.0


def test_one_real_nic_makes_the_shard_real() -> None:
    time = fleet(0.6, None)
    assert time.pace("sim") is None
    assert (time.lag_ns(1000 * S), time.lost_ns("sim", S), time.text, time.slow_text) == (0, 0, "", "")
    time.take("h1/eth1", None, 102 * S)
    assert time.pace("sim") == 0.6
    assert fleet(0.6).pace("fabric") is None


def test_a_standing_simulation_beside_real_nics_changes_nothing() -> None:
    time = fleet(None)
    time.take("x/eth1", make("Nic", nic="x/eth1", shard="other", probe_port=4791, simulation_pace=0.0), 0)
    assert (time.lost_ns("sim", S), time.lost_ns("other", S), time.lost_ns("unknown", S)) == (0, S, 0)
    assert not time.is_simulated
    assert (time.lag_ns(1000 * S), time.text, time.slow_text) == (0, "", "")
    time.take("h0/eth1", None, 0)
    assert time.is_simulated
    assert time.slow_text


@pytest.mark.parametrize("announced_ns", [0, 2**62])
def test_an_announcement_with_an_impossible_time_shows_no_lag(announced_ns: int) -> None:
    time, now_ns = SimulatedTime(), 1_800_000_000 * S
    fields = {"nic": "h0/eth1", "shard": "sim", "probe_port": 4791}
    wrong = make("Nic", **fields, announced_ns=announced_ns, simulation_pace=0.0)
    time.take("h0/eth1", wrong, now_ns)
    assert (time.lag_ns(now_ns), time.pace("sim")) == (0, 0.0)
    time.take("h0/eth1", make("Nic", **fields, announced_ns=now_ns - 3 * S, simulation_pace=0.5), now_ns)
    assert (time.lag_ns(now_ns), time.pace("sim")) == (3 * S, 0.5), "the next one counts"
    assert time.lag_ns(2 * now_ns) == MAX_LAG_NS


def test_a_nic_that_stopped_counts_no_longer() -> None:
    time = fleet(0.6)
    time.take("h0/eth1", make("Nic", nic="h0/eth1", shard="sim", probe_port=0, simulation_pace=0.6), 0)
    assert (time.pace("sim"), time.nics("sim")) == (None, 0)


def test_simulated_time_falls_behind_by_its_pace() -> None:
    time = fleet(0.75, lag_s=3)
    assert time.lag_ns(103 * S) == 3 * S
    assert time.lag_ns(107 * S) == 4 * S
    assert time.lost_ns("sim", 4 * S) == S
    assert fleet(1.0).lag_ns(900 * S) == 0
    assert time.stretched_ns("sim", 3 * S) == 4 * S
    assert time.stretched_ns("fabric", 3 * S) == 3 * S
    assert fleet(0.0).stretched_ns("sim", S) == 50 * S, "a simulation that waits does not wait for ever"


@pytest.mark.parametrize(
    ("pace", "nics", "size"),
    [(0.6, 256, "sim:136"), (0.6, 64, "sim:32"), (0.5, 8, "sim:3"), (0.0, 8, "sim:2")],
)
def test_the_advised_fleet_has_headroom(pace: float, nics: int, size: str) -> None:
    assert advice(pace, nics) == f"use fewer NICs ({size})"


def test_texts_for_people() -> None:
    assert fleet(1.0).text == "simulated in real time"
    assert fleet(1.0).slow_text == advice(0.95, 64) == ""
    assert slow_text(0.6, 256) == (
        "the simulation is slow: simulates 0.6 s per second; use fewer NICs (sim:136)"
    )
    assert fleet(0.6).slow_text.startswith("the simulation is slow: simulates 0.6 s per second; use fewer")
