"""The numbered scenarios of the clock bench, with a small fleet: errors, bounds and recovery within limits.

Limits are physical, not measured: the issue's figures for 64 NICs with 20 pairs each, times 1.6 for the 8
pairs of this fleet, times two for one seed and a short run; where the issue has none, from what the scenario
leaves to see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fabrictime.bench.clock.scenarios import SCENARIOS, Dark, Falseticker, Restart, Scenario, Step
from fabrictime.bench.clock.score import STATES, Fabrictime, score
from streams.clock.solver import SYNCED


@dataclass(frozen=True)
class Limits:
    """`p99_ns`: of pairs of SYNCED clocks, after the third window; the liar left out."""

    p99_ns: float
    sync_windows: int = 3
    windows: int = 30
    covered: float = 0.99


LIMITS = {
    "load40_symmetric": Limits(10),
    "load40_asymmetry10": Limits(40),
    "load80_500pps_asymmetry10": Limits(80),
    "load80_4000pps_asymmetry10": Limits(40, windows=12),
    "idle": Limits(10),
    # some of its links have a load of 0.95: one probe in ten thousand is clean
    "uneven_loads": Limits(150),
    "load_rises": Limits(80),
    # the minimum of 1,000 sums of two exponentials of 1 us is 45 ns above their floor in the mean
    "kernel_stamps": Limits(100),
    # a reading is off by 26 ns rms
    "coarse_stamps": Limits(30),
    # 10 ppb / sqrt(s) is 3 ns rms off a straight line within a window, 6 at its ends
    "wander10": Limits(30),
    # a rate that moves by 30 ppb a second bends by 15 ns from a window's middle to its ends
    "temperature_step": Limits(40),
    "clock_step": Limits(10),
    "small_step": Limits(20),
    "restart": Limits(10),
    "loss": Limits(15),
    "liar": Limits(20),
    "asymmetric_paths": Limits(60),
    "churn": Limits(20),
    "partition": Limits(20),
    # 1.3 clean probes a pair, direction and window: queues of 0.6 us stay in
    "few_samples": Limits(150, sync_windows=6),
    "one_direction": Limits(20),
    "four_paths": Limits(60),
    "single_probes": Limits(10),
    "bad_stamps": Limits(15),
    "fast_drift": Limits(15),
    "holdover": Limits(10, windows=60),
    # of one clock in twelve: carried on by its rate, and drawn a little towards half the queue
    "incast": Limits(250),
    "power_on": Limits(10),
}


def test_every_scenario_has_limits_and_a_number_of_its_own():
    assert set(LIMITS) == set(SCENARIOS)
    assert [scenario.number for scenario in SCENARIOS.values()] == list(range(1, len(SCENARIOS) + 1))


def test_clocks_from_power_on_are_as_accurate_as_clocks_near_unix_time():
    """An offset of 1.8e18 ns costs no nanosecond: whole ns are integers throughout."""
    found = {}
    for power_on in (False, True):
        events: list[str] = []

        def collect(_given, ours, _lines, events=events):
            clocks = [clock for record in ours.records for clock in record["clocks"]]
            events += [clock["event"] for clock in clocks if clock["event"] not in ("NONE", "NEW")]

        scenario = replace(SCENARIOS["load40_symmetric"].smaller(32, 10, 10), power_on=power_on)
        found[power_on] = score(scenario, [Fabrictime()], watch=collect)[Fabrictime.name]
        assert not events
    near, far = found[False], found[True]
    assert far.p99_ns() <= 1.1 * near.p99_ns() < 3
    covered, stated = far.covered()
    assert stated == 9 * 32
    assert covered >= 0.999 * stated
    assert (far.state[1:] == STATES[SYNCED]).all()


def test_bounds_of_few_samples_hold_and_are_positive():
    """7 samples of a pair and second: the drift is known to 20 ppm, and floors at it would be negative."""
    minimum: list[float] = []
    scenario = replace(
        SCENARIOS["load40_symmetric"].smaller(48, 5, 25),
        paths=3,
        rate_pps=20.0,
        window_s=1.0,
        drift_ppb=20_000,
        spacing_ns=0,
    )
    found = score(
        scenario,
        [Fabrictime()],
        seed=2,
        watch=lambda _given, ours, _lines: minimum.extend(
            clock["bound_ns"] for record in ours.records for clock in record["clocks"]
        ),
    )[Fabrictime.name]
    assert min(minimum) > 0
    covered, stated = found.covered()
    assert covered >= 0.999 * stated


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    limits = LIMITS[name]
    scenario = SCENARIOS[name].smaller(12, 4, limits.windows)
    found = score(scenario, [Fabrictime()])[Fabrictime.name]
    liars = [scenario.member(event.nic) for event in scenario.events if isinstance(event, Falseticker)]
    honest = found.state == STATES[SYNCED]
    honest[:, liars] = False
    errors = found.errors_among(honest, slice(3, None))
    assert np.percentile(errors, 99, method="inverted_cdf") <= limits.p99_ns
    covered_count, stated = found.covered()
    assert covered_count >= limits.covered * stated
    assert (found.windows_to_sync(1e9) or 99) <= limits.sync_windows
    assert (found.state[3:] == STATES[SYNCED]).sum() >= 0.9 * found.alive[3:].sum() - len(liars) * len(
        found.state
    )
    for event in scenario.events:
        if isinstance(event, Step | Restart):
            first = int(event.at_s // scenario.window_s)
            took = found.windows_to_recover(scenario.member(event.nic), first, limits.p99_ns)
            assert took is not None
            assert took <= 3
        elif isinstance(event, Dark) and not event.is_silent:
            nics = scenario.members(event.nics)
            off = np.abs(found.against_fleet_ns(nics, live=True)[-1, -1])
            # 60 s of wander are 270 ns rms, the rate's own error comes to it
            assert off.max() < 1_500


@pytest.mark.parametrize("step_ns", [1e3, 1e5])
def test_a_clock_that_steps_in_every_window_is_never_wrong_and_confident(step_ns: float) -> None:
    steps = tuple(Step(8.3 + 2.1 * k, 24, step_ns) for k in range(8))
    scenario = Scenario(900, "steps", "", nics=12, peers=5, windows=14, rate_pps=300, events=steps)
    found = score(scenario, [Fabrictime()])["fabrictime"]
    covered_count, stated = found.covered()
    assert covered_count == stated > 140
