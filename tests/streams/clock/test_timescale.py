"""Fabric time through references, merging domains, falsetickers, asymmetric paths and knots."""

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


def test_a_falseticker_is_named_and_moves_no_other_clock(sim: SimpleNamespace) -> None:
    fleet = sim.random_fleet(12, noise_ns=5.0)
    solver = ShardClocks("fabric")
    run(solver, fleet, span(sim, 0, 20))
    rng = np.random.default_rng(3)
    lies = {f"h{i:02d}/e0": float(rng.normal(0, 20_000)) for i in range(12)}
    for window in span(sim, 20, 40):
        fits = fleet.fits(window)
        for pair in fits[0]["pairs"]:
            if pair["prober"] == "h04/e0":
                pair["offset_ns"] += lies[pair["peer"]]
            elif pair["peer"] == "h04/e0":
                pair["offset_ns"] += lies[pair["prober"]] / 2
        records = solver.solve(window, WINDOW_NS, fits, {})
        found = sim.states(records)
        assert found["h04/e0"]["event"] == "FALSETICKER"
        assert found["h04/e0"]["state"] == UNSYNCED
        errors = fleet.errors_ns(records)
        for name, state in found.items():
            if name != "h04/e0":
                assert state["state"] == SYNCED
                assert abs(errors[name]) <= min(state["bound_ns"], 60)


def test_an_asymmetric_path_is_named_with_its_size(sim: SimpleNamespace) -> None:
    """h01 to h03 takes 8 us, the reverse path 5: their pair is off by 1.5 us, their clocks are not."""
    slow = {("h01/e0", "h03/e0"): 8_000.0}
    fleet = sim.random_fleet(8, noise_ns=5.0, delay_ns=lambda a, b, w: slow.get((a, b), 5_000.0))
    solver = ShardClocks("fabric")
    for records in run(solver, fleet, span(sim, 0, 40)):
        last = records
    suspects = {(s["prober"], s["peer"]): s for r in last for s in r["suspects"]}
    assert set(suspects) == {("h01/e0", "h03/e0"), ("h03/e0", "h01/e0")}
    for (prober, _), suspect in suspects.items():
        sign = 1 if prober == "h01/e0" else -1
        assert suspect["asymmetry_ns"] == pytest.approx(sign * 1_500, abs=30)
        assert suspect["weight"] < 0.01
    errors = fleet.errors_ns(last)
    for name, state in sim.states(last).items():
        assert abs(errors[name]) <= state["bound_ns"] < 150


def test_bounds_follow_the_asymmetry_that_loops_show(sim: SimpleNamespace) -> None:
    """Equal fleets with different paths: 200 ns rms of asymmetry widen the bounds, and the bounds hold."""
    bounds = {}
    for spread in (0.0, 200.0):
        rng = np.random.default_rng(8)
        extra = {(a, b): float(rng.normal(0, 2 * spread)) for a in range(10) for b in range(10)}
        fleet = sim.random_fleet(
            10, noise_ns=5.0, delay_ns=lambda a, b, w, extra=extra: 9_000 + extra[int(a[1:3]), int(b[1:3])]
        )
        records = run(ShardClocks("fabric"), fleet, span(sim, 0, 40))[-1]
        errors = fleet.errors_ns(records)
        assert all(abs(errors[name]) <= s["bound_ns"] for name, s in sim.states(records).items())
        bounds[spread] = float(np.median([s["bound_ns"] for s in sim.states(records).values()]))
    assert bounds[0.0] < 60
    assert 200 < bounds[200.0] < 2_000


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
