"""Fabric time through references, merging domains and knots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streams.clock.solver import HOLDOVER, SYNCED, UNSYNCED, ShardClocks, SolveParameters

WINDOW_NS = 1_000_000_000


def run(solver: ShardClocks, fleet: Any, windows: range) -> list[list[dict[str, Any]]]:
    return [solver.solve(w, WINDOW_NS, fleet.fits(w), {}) for w in windows]


def span(sim: SimpleNamespace, first: int, last: int) -> range:
    return range(sim.FIRST + first, sim.FIRST + last)


def events(sim: SimpleNamespace, records: list[dict[str, Any]]) -> dict[str, str]:
    return {name: s["event"] for name, s in sim.states(records).items() if s["event"] != "NONE"}


def test_fabric_time_follows_the_clock_that_was_chosen(sim: SimpleNamespace) -> None:
    """h02 is right, like a PTP clock, and all hosts' system clocks are wrong by 1 s: h02's correction is
    0."""
    fleet = sim.random_fleet(6, noise_ns=5.0, system_error_ns=lambda nic, t: 1e9)
    fleet.clocks["h02/e0"] = sim.Clock()
    solver = ShardClocks("fabric", SolveParameters(reference="h02/e0"))
    for records in run(solver, fleet, span(sim, 0, 30))[5:]:
        assert {r["reference"] for r in records} == {"h02/e0"}
        state = sim.states(records)["h02/e0"]
        assert abs(state["offset_ns"]) < 100
        assert max(map(abs, fleet.errors_ns(records).values())) < 50


def test_a_chosen_clock_is_followed_though_the_first_rates_are_poor(sim: SimpleNamespace) -> None:
    """Rates of the first window are wrong by 1 ppm: fabric time still runs at the reference's rate."""
    fleet = sim.random_fleet(8, noise_ns=300.0)
    fleet.clocks["h02/e0"] = sim.Clock()
    solver = ShardClocks("fabric", SolveParameters(reference="h02/e0"))
    found = [sim.states(records)["h02/e0"] for records in run(solver, fleet, span(sim, 0, 120))]
    assert found[0]["state"] == UNSYNCED
    assert found[1]["state"] == SYNCED
    assert max(abs(state["offset_ns"]) for state in found) < 5_000
    assert max(abs(state["offset_ns"]) for state in found[60:]) < 1_000
    assert max(abs(state["drift_ppb"]) for state in found[60:]) < 150


def test_losing_the_chosen_clock_does_not_move_fabric_time(sim: SimpleNamespace) -> None:
    fleet = sim.random_fleet(6, noise_ns=5.0, system_error_ns=lambda nic, t: 1e9)
    fleet.clocks["h02/e0"] = sim.Clock()
    solver = ShardClocks("fabric", SolveParameters(reference="h02/e0"))
    run(solver, fleet, span(sim, 0, 30))
    fleet.silent = {"h02/e0"}
    for records in run(solver, fleet, span(sim, 30, 50)):
        state = sim.states(records)["h02/e0"]
        assert state["state"] == HOLDOVER
        assert abs(state["offset_ns"]) < 1_000


def halves(nic: str) -> list[str]:
    return [f"h{i:02d}/e0" for i in range(8) if (i < 5) == (nic < "h05")]


def test_domains_that_meet_continue_with_the_larger_ones_time(sim: SimpleNamespace) -> None:
    """Five and three clocks separate for a minute; then the three move by the published amount, the five do
    not."""
    fleet = sim.random_fleet(8, noise_ns=5.0)
    solver = ShardClocks("fabric")
    run(solver, fleet, span(sim, 0, 20))
    fleet.peers = halves
    # the smaller part's hosts are all set by 3 us meanwhile: fabric time is slewed there at 100 ppb
    fleet.system_error_ns = lambda nic, t: 3_000.0 if nic >= "h05" else 0.0
    apart = run(solver, fleet, span(sim, 20, 80))
    assert len({r["domain"] for r in apart[-1]}) == 2
    fleet.peers = None
    before = sim.states(apart[-1])
    merged = solver.solve(sim.FIRST + 80, WINDOW_NS, fleet.fits(sim.FIRST + 80), {})
    after = sim.states(merged)
    assert len({r["domain"] for r in merged}) == 1
    assert set(events(sim, merged)) == {"h05/e0", "h06/e0", "h07/e0"}
    for name, state in after.items():
        old = before[name]
        moved = (
            state["offset_ns"] - old["offset_ns"] - old["drift_ppb"] * 1e-9 * (state["at_ns"] - old["at_ns"])
        )
        if name < "h05":
            assert abs(moved) < 100
        else:
            assert state["event"] == "MERGED"
            assert state["event_ns"] == pytest.approx(moved, abs=50)
            assert moved < -1_000
            assert state["knot_at_ns"] == 0
    assert max(map(abs, fleet.errors_ns(merged).values())) < 50


def test_knots_correct_past_timestamps_within_their_bounds(sim: SimpleNamespace) -> None:
    fleet = sim.random_fleet(6, noise_ns=20.0)
    knots: dict[str, list[tuple[int, float, float]]] = {}
    for records in run(ShardClocks("fabric"), fleet, span(sim, 0, 40)):
        for name, state in sim.states(records).items():
            if state["knot_at_ns"]:
                knots.setdefault(name, []).append(
                    (state["knot_at_ns"], state["knot_offset_ns"], state["knot_bound_ns"])
                )
    for past in range(8, 36):
        when = (sim.FIRST + past) * WINDOW_NS + 300_000_000
        corrected, bounds = [], []
        for name, found in knots.items():
            reading = fleet.clocks[name].reading(when)
            at = np.array([k[0] - reading for k in found], float)
            corrected.append(reading - when + float(np.interp(0.0, at, [k[1] for k in found])))
            bounds.append(float(np.interp(0.0, at, [k[2] for k in found])))
        off = np.array(corrected) - np.median(corrected)
        assert (np.abs(off) <= np.array(bounds)).all()


def test_a_new_owner_learns_the_floors_from_earlier_fits(sim: SimpleNamespace) -> None:
    """A queue persists in one direction during a change of owner; known floors reveal it."""
    fleet = sim.random_fleet(6, noise_ns=5.0)
    solver = ShardClocks("fabric")
    published = run(solver, fleet, span(sim, 0, 30))
    fits = [fleet.fits(w) for w in span(sim, 22, 30)]
    heir = ShardClocks("fabric")
    heir.recover([r for records in published[-2:] for r in records])
    for window, each in zip(span(sim, 22, 30), fits, strict=True):
        heir.learn_floors(window, WINDOW_NS, each, {})
    fleet.delay_ns = lambda a, b, w: 15_000.0 if a == "h03/e0" else 5_000.0
    for records in run(heir, fleet, span(sim, 30, 40)):
        errors = fleet.errors_ns(records)
        found = sim.states(records)
        assert all(abs(errors[name]) <= s["bound_ns"] for name, s in found.items())
        assert all(s["bound_ns"] < 500 for name, s in found.items() if name != "h03/e0")


def test_fabric_time_is_stepped_if_it_stays_far_from_its_reference(sim: SimpleNamespace) -> None:
    """The hosts started with a clock an hour behind, and it is set. Slewing would take centuries.

    A wrong clock of a minute moves nothing.
    """
    hour_ns = 3_600 * WINDOW_NS
    start_ns = sim.FIRST * WINDOW_NS

    wrong = {*range(20), *range(60, 120)}

    def system_error_ns(nic: str, true_ns: int) -> float:
        return -hour_ns if (true_ns - start_ns) // WINDOW_NS in wrong else 0.0

    fleet = sim.random_fleet(3, noise_ns=5.0, system_error_ns=system_error_ns)
    solver = ShardClocks("fabric")
    behind, events = [], {}
    for number, window in enumerate(span(sim, 0, 440)):
        records = solver.solve(window, WINDOW_NS, fleet.fits(window), {})
        state = sim.states(records)["h00/e0"]
        clock = fleet.clocks["h00/e0"]
        true_ns = state["at_ns"] - round(clock.offset_ns + clock.drift_ppb * 1e-9 * number * WINDOW_NS)
        behind.append((true_ns - state["at_ns"] - state["offset_ns"]) / hour_ns)
        events[number] = {each["event"] for each in sim.states(records).values()}
    assert behind[400] == pytest.approx(1, abs=1e-4)
    assert behind[430] == pytest.approx(0, abs=1e-4)
    [stepped] = (number for number in range(20, 440) if events[number] != {"NONE"})
    assert stepped == pytest.approx(419, abs=2)
    assert behind[stepped - 1] > 0.5 > behind[stepped]
