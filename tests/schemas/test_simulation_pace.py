"""Pace of simulated fleets: whose it is, how far their time is behind, and what to do about it."""

from __future__ import annotations

import pytest

from schemas.simulation_pace import SimulatedTime, advice, slow_text
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
    assert fleet(0.6).is_slow("sim")
    assert not fleet(0.96).is_slow("sim")


def test_one_real_nic_makes_the_shard_real() -> None:
    time = fleet(0.6, None)
    assert time.pace("sim") is None
    assert not time.is_slow("sim")
    assert (time.lag_ns(1000 * S), time.lost_ns(S), time.text, time.slow_text) == (0, 0, "", "")
    time.take("h1/eth1", None, 102 * S)
    assert time.pace("sim") == 0.6
    assert fleet(0.6).pace("fabric") is None


def test_a_nic_that_stopped_counts_no_longer() -> None:
    time = fleet(0.6)
    time.take("h0/eth1", make("Nic", nic="h0/eth1", shard="sim", probe_port=0, simulation_pace=0.6), 0)
    assert (time.pace("sim"), time.nics("sim")) == (None, 0)


def test_simulated_time_falls_behind_by_its_pace() -> None:
    time = fleet(0.75, lag_s=3)
    assert time.lag_ns(103 * S) == 3 * S
    assert time.lag_ns(107 * S) == 4 * S
    assert time.lost_ns(4 * S) == S
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
    assert fleet(1.0).text == "simulates 1 s per second"
    assert fleet(1.0).slow_text == advice(0.95, 64) == ""
    assert slow_text(0.6, 256) == (
        "the simulation is slow: simulates 0.6 s per second; use fewer NICs (sim:136)"
    )
    assert fleet(0.6).slow_text.startswith("the simulation is slow: simulates 0.6 s per second; use fewer")
