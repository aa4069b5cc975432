"""Mesh: falsetickers, asymmetric paths and the bounds that follow from loops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streams.clock.mesh import guess_theta
from streams.clock.pairs import Pairs
from streams.clock.solver import SYNCED, UNSYNCED, ShardClocks
from tests.records import make_part

WINDOW_NS = 1_000_000_000


def run(
    solver: ShardClocks, fleet: Any, windows: range, clock_of: dict[str, str] | None = None
) -> list[list[dict[str, Any]]]:
    return [solver.solve(w, WINDOW_NS, fleet.fits(w), clock_of or {}) for w in windows]


def span(sim: SimpleNamespace, first: int, last: int) -> range:
    return range(sim.FIRST + first, sim.FIRST + last)


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
                pair["offset_ns"] += round(lies[pair["peer"]])
            elif pair["peer"] == "h04/e0":
                pair["offset_ns"] += round(lies[pair["prober"]] / 2)
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


def line_at(state: dict[str, Any], reading_ns: int) -> float:
    return float(state["offset_ns"] + state["drift_ppb"] * 1e-9 * (reading_ns - state["at_ns"]))


@pytest.mark.parametrize("loops", [1, 2])
def test_few_loops_do_not_make_asymmetric_paths_appear_symmetric(sim: SimpleNamespace, loops: int) -> None:
    """A star with one or two additional pairs of leaves: the other paths show no contradiction, which does
    not make them symmetric."""
    rng = np.random.default_rng(11)
    names = [f"h{i:02d}/e0" for i in range(8)]
    one_way = {(a, b): 5_000 + float(rng.normal(0, 400)) for a in range(8) for b in range(8)}
    peers = dict.fromkeys(names[1:], names[:1]) | {names[0]: []}
    for leaf in range(loops):
        peers[names[7 - leaf]] = [names[0], names[1]]
    fleet = sim.random_fleet(
        8,
        peers=lambda nic: peers[nic],
        noise_ns=2.0,
        delay_ns=lambda a, b, w: one_way[int(a[1:3]), int(b[1:3])],
    )
    for records in run(ShardClocks("fabric"), fleet, span(sim, 0, 15))[1:]:
        errors, states = fleet.errors_ns(records), sim.states(records)
        for a in names:
            for b in names:
                apart = abs(errors[a] - errors[b])
                assert apart <= states[a]["bound_ns"] + states[b]["bound_ns"], (a, b)


def test_readings_that_are_misaligned_by_ms_do_not_bias_the_offsets(sim: SimpleNamespace) -> None:
    """30 ppm times 20 ms would be 600 ns."""
    fleet = sim.random_fleet(
        6, noise_ns=1.0, append_delay_ns=lambda nic: 20_000_000 if nic < "h03" else 1_000_000
    )
    for records in run(ShardClocks("fabric"), fleet, span(sim, 0, 8)):
        assert max(map(abs, fleet.errors_ns(records).values())) < 20


def test_an_unflagged_jump_is_detected_by_the_mesh(sim: SimpleNamespace) -> None:
    """Setting a kernel clock sets the system clock too: there is no step between the two."""
    fleet, solver = sim.random_fleet(6), ShardClocks("fabric")
    before = run(solver, fleet, span(sim, 0, 6))[-1]
    fleet.clocks["h00/e0"].offset_ns += 40_000
    at = sim.FIRST + 6
    jumped, after = run(solver, fleet, range(at, at + 2))
    assert sim.states(jumped)["h00/e0"]["state"] == UNSYNCED
    assert sim.states(after)["h00/e0"]["state"] == SYNCED
    for name, old in sim.states(before).items():
        if name != "h00/e0":
            new = sim.states(after)[name]
            assert line_at(old, new["at_ns"]) == pytest.approx(new["offset_ns"], abs=400)


def test_guessed_thetas_leave_small_differences_even_without_readings() -> None:
    """Clocks a, b and c count from zero, Unix time and -2**61; c reports nothing."""
    clocks = np.array([0, 1_799_999_999_123_456_789, -(2**61)])
    rows = [
        make_part("ClockFits", "PairFit", prober=a, peer=b, accepted=1, offset_ns=int(clocks[j] - clocks[i]))
        for a, b, i, j in (("a", "b", 0, 1), ("b", "c", 1, 2))
    ]
    pairs = Pairs.of(rows, {"a": 0, "b": 1, "c": 2})
    readings = np.array([clocks[0] + 3_000_000, clocks[1], 0])
    for known in ([True, True, False], [False, False, False]):
        theta = guess_theta(pairs, readings, np.array(known))
        beyond = pairs.offset_ns - (theta[pairs.prober] - theta[pairs.peer])
        assert np.abs(beyond).max() <= 3_000_000
