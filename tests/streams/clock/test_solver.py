"""The clock solver against clocks with known truth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from streams.clock.solver import HOLDOVER, SYNCED, UNSYNCED, ShardClocks, SolveParameters

WINDOW_NS = 1_000_000_000


def run(
    solver: ShardClocks, fleet: Any, windows: range, clock_of: dict[str, str] | None = None
) -> list[list[dict[str, Any]]]:
    return [solver.solve(w, WINDOW_NS, fleet.fits(w), clock_of or {}) for w in windows]


def span(sim: SimpleNamespace, first: int, last: int) -> range:
    return range(sim.FIRST + first, sim.FIRST + last)


def line_at(state: dict[str, Any], reading_ns: int) -> float:
    return float(state["offset_ns"] + state["drift_ppb"] * 1e-9 * (reading_ns - state["at_ns"]))


def test_user_space_timestamp_error_widens_only_its_clocks_bound(sim: SimpleNamespace) -> None:
    def solved(errors: dict[str, int]) -> dict[str, dict[str, Any]]:
        fleet = sim.random_fleet(8, delay_ns=lambda a, b, w: 5_000.0, noise_ns=100.0)
        solver = ShardClocks("fabric")
        for w in span(sim, 0, 20):
            records = solver.solve(w, WINDOW_NS, fleet.fits(w), {}, stamp_error_ns=errors)
        return {state["clock"]: state for record in records for state in record["clocks"]}

    plain = solved({})
    name = sorted(plain)[3]
    shifted = solved({name: 1_500})
    assert plain[name]["bound_ns"] < 1_500
    assert shifted[name]["bound_ns"] == pytest.approx(plain[name]["bound_ns"] + 1_500)
    assert all(shifted[other] == plain[other] for other in plain if other != name)


def test_offsets_are_within_their_bounds_of_the_truth(sim: SimpleNamespace) -> None:
    """Clocks are 5 ms and 30 ppm apart, and paths of 5 us differ by direction: every bound holds, none is
    absurd."""
    rng = np.random.default_rng(7)
    one_way = {(a, b): 5_000 + float(rng.uniform(-1_500, 1_500)) for a in range(8) for b in range(8)}
    fleet = sim.random_fleet(8, delay_ns=lambda a, b, w: one_way[int(a[1:3]), int(b[1:3])], noise_ns=100.0)
    checked = wrong = 0
    for records in run(ShardClocks("fabric"), fleet, span(sim, 0, 60))[1:]:
        errors = fleet.errors_ns(records)
        for name, state in sim.states(records).items():
            assert state["state"] == SYNCED
            assert state["bound_ns"] < 5_000
            checked += 1
            wrong += abs(errors[name]) > state["bound_ns"]
    assert checked == 59 * 8
    assert wrong == 0


def test_a_clock_3_ms_and_12_ppm_off_is_found(sim: SimpleNamespace) -> None:
    clocks = {f"h{i}/e": sim.Clock() for i in range(4)} | {"h9/e": sim.Clock(3e6, 12_000.0)}
    records = run(ShardClocks("fabric"), sim.Fleet(clocks), span(sim, 0, 20))[-1]
    found = sim.states(records)["h9/e"]
    middle_s = 19.5
    assert found["offset_ns"] == pytest.approx(-(3e6 + 12_000 * middle_s), abs=2_000)
    assert found["drift_ppb"] == pytest.approx(-12_000, abs=200)


def test_nics_of_one_clock_are_one_node_and_unknown_nics_are_their_own(sim: SimpleNamespace) -> None:
    shared = sim.Clock(1e6, 5_000)
    clocks = {"a/e0": shared, "a/e1": shared, "b/e0": sim.Clock(-2e6, 0), "x/e0": sim.Clock(4e6, -9_000)}
    fleet = sim.Fleet(clocks)
    inventory = {"a/e0": "a/system", "a/e1": "a/system", "b/e0": "b/system"}
    records = run(ShardClocks("fabric"), fleet, span(sim, 0, 5), inventory)[-1]
    found = sim.states(records)
    assert set(found) == {"a/system", "b/system", "x/e0"}
    errors = fleet.errors_ns(records, {"a/system": "a/e0", "b/system": "b/e0"})
    assert max(map(abs, errors.values())) < 300


def test_parts_that_are_not_connected_are_domains_of_their_own(sim: SimpleNamespace) -> None:
    fleet = sim.random_fleet(
        6, peers=lambda nic: [n for n in (f"h{i:02d}/e0" for i in range(6)) if (n < "h03") == (nic < "h03")]
    )
    records = run(ShardClocks("fabric"), fleet, span(sim, 0, 4))[-1]
    assert [(r["domain"], r["part"], r["parts"], len(r["clocks"])) for r in records] == [
        ("h00/e0", 0, 2, 3),
        ("h03/e0", 1, 2, 3),
    ]
    assert {s["state"] for s in sim.states(records).values()} == {SYNCED}


@settings(max_examples=12)
@given(added_ns=st.integers(-(10**9), 10**9), which=st.integers(0, 4))
def test_adding_to_one_clock_moves_that_clock_alone(sim: SimpleNamespace, added_ns: int, which: int) -> None:
    def solved(added: int) -> dict[str, dict[str, Any]]:
        fleet = sim.random_fleet(5)
        fleet.clocks[f"h{which:02d}/e0"].offset_ns += added
        return dict(sim.states(run(ShardClocks("fabric"), fleet, span(sim, 0, 4))[-1]))

    before, after = solved(0), solved(added_ns)
    for name, state in before.items():
        moved = line_at(after[name], state["at_ns"] + (added_ns if name == f"h{which:02d}/e0" else 0))
        expected = state["offset_ns"] - (added_ns if name == f"h{which:02d}/e0" else 0)
        assert moved == pytest.approx(expected, abs=20)


def test_fabric_time_starts_at_the_hosts_median_and_is_slewed_never_stepped(sim: SimpleNamespace) -> None:
    """Free-running NIC clocks are off by tens of ppm; after a while the hosts' clocks are all set by 3 us."""
    moved_at = (sim.FIRST + 40) * WINDOW_NS
    fleet = sim.random_fleet(
        8,
        noise_ns=20.0,
        system_error_ns=lambda nic, t: (3_000.0 if t > moved_at else 0.0) + (5e8 if nic == "h07/e0" else 0.0),
    )
    fabric = []
    for records in run(ShardClocks("fabric"), fleet, span(sim, 0, 140))[1:]:
        ahead = []
        for name, state in sim.states(records).items():
            clock, true_ns = fleet.clocks[name], state["at_ns"]
            for _ in range(4):
                true_ns -= clock.reading(true_ns) - state["at_ns"]
            ahead.append(state["at_ns"] - true_ns + state["offset_ns"])
        fabric.append(float(np.median(ahead)))
    assert abs(fabric[0]) < 1_000
    assert np.abs(np.diff(fabric)).max() < 100 + 60  # ns a second: 100 ppb and the noise of a window
    ten_seconds = np.array(fabric[10:]) - np.array(fabric[:-10])
    assert np.abs(ten_seconds).max() <= 1_000 + 20
    assert abs(np.median(fabric[-10:]) - 3_000) < 400


def test_a_flagged_jump_moves_no_other_clock_and_is_over_in_two_windows(sim: SimpleNamespace) -> None:
    fleet, solver = sim.random_fleet(6), ShardClocks("fabric")
    run(solver, fleet, span(sim, 0, 6))
    at = sim.FIRST + 6
    fleet.jumps[("h02/e0", at)] = 5_000_000
    fleet.clocks["h02/e0"].offset_ns += 5e6
    (jumped, next_one) = run(solver, fleet, range(at, at + 2))
    assert sim.states(jumped)["h02/e0"]["state"] == UNSYNCED
    for records in (jumped, next_one):
        others = [s for n, s in sim.states(records).items() if n != "h02/e0"]
        assert {s["state"] for s in others} == {SYNCED}
    found = sim.states(next_one)["h02/e0"]
    assert found["state"] == SYNCED
    assert abs(fleet.errors_ns(next_one)["h02/e0"]) <= found["bound_ns"]


def test_a_silent_clock_is_in_holdover_with_a_growing_bound_then_unsynced(sim: SimpleNamespace) -> None:
    fleet = sim.random_fleet(5)
    solver = ShardClocks("fabric", SolveParameters(holdover_s=10.0, forget_s=20.0))
    run(solver, fleet, span(sim, 0, 10))
    fleet.silent = {"h04/e0"}
    found = [sim.states(r).get("h04/e0") for r in run(solver, fleet, span(sim, 10, 40))]
    in_holdover = [s for s in found if s is not None and s["state"] == HOLDOVER]
    assert 9 <= len(in_holdover) <= 11
    bounds = [s["bound_ns"] for s in in_holdover]
    assert bounds == sorted(bounds)
    assert bounds[-1] > bounds[0]
    assert found[15]["state"] == UNSYNCED
    assert found[-1] is None
    records = run(solver, fleet, span(sim, 40, 41))[-1]
    assert {r["domain"] for r in records} == {"h00/e0"}


def test_holdover_stays_within_its_bound(sim: SimpleNamespace) -> None:
    fleet, solver = sim.random_fleet(5), ShardClocks("fabric")
    run(solver, fleet, span(sim, 0, 20))
    fleet.silent = {"h04/e0"}
    for records in run(solver, fleet, span(sim, 20, 50)):
        state = sim.states(records)["h04/e0"]
        assert state["state"] == HOLDOVER
        assert abs(fleet.errors_ns(records)["h04/e0"]) <= state["bound_ns"]


def test_a_new_owner_continues_without_a_step(sim: SimpleNamespace) -> None:
    fleet, solver = sim.random_fleet(6), ShardClocks("fabric")
    published = run(solver, fleet, span(sim, 0, 30))
    torn = [r | {"parts": 2} for r in solver.solve(sim.FIRST + 30, WINDOW_NS, fleet.fits(sim.FIRST + 30), {})]
    heir = ShardClocks("fabric")
    heir.recover([*published[-2], *published[-1], *torn])  # the last window's second part is missing
    assert heir.last_window == sim.FIRST + 29
    records = run(heir, fleet, span(sim, 30, 33))
    before = sim.states(published[-1])
    for after in map(sim.states, records):
        assert {s["state"] for s in after.values()} == {SYNCED}
        for name, state in after.items():
            assert line_at(before[name], state["at_ns"]) == pytest.approx(state["offset_ns"], abs=700)
        before = after


def test_a_persistent_queue_in_one_direction_is_covered_by_the_bound(sim: SimpleNamespace) -> None:
    """From window 20 on, packets of h03 wait 300 us: its offset must not be trusted to 150 us."""
    fleet = sim.random_fleet(
        6, delay_ns=lambda a, b, w: 305_000.0 if a == "h03/e0" and w >= sim.FIRST + 20 else 5_000.0
    )
    for records in run(ShardClocks("fabric"), fleet, span(sim, 0, 40))[1:]:
        errors = fleet.errors_ns(records)
        for name, state in sim.states(records).items():
            if state["state"] != UNSYNCED:
                assert abs(errors[name]) <= state["bound_ns"]
                if name != "h03/e0":
                    assert state["bound_ns"] < 10_000


def test_the_log_offset_follows_only_steps_above_50_ms(sim: SimpleNamespace) -> None:
    solver = ShardClocks("fabric")
    fleet = sim.random_fleet(4, log_ahead_ns=0)
    assert {r[0]["log_offset_ns"] for r in run(solver, fleet, span(sim, 0, 5))} == {0}
    fleet.log_ahead_ns = -120_000_000
    offsets = [r[0]["log_offset_ns"] for r in run(solver, fleet, span(sim, 5, 10))]
    assert offsets == [117_000_000] * 5
    records = run(solver, fleet, span(sim, 10, 11))[0]
    assert records[0]["window_start_ns"] == (sim.FIRST + 10) * WINDOW_NS + 117_000_000


def test_records_are_valid_and_name_their_sources(sim: SimpleNamespace) -> None:
    solver, fleet = ShardClocks("fabric"), sim.random_fleet(3)
    empty = {
        **fleet.fits(sim.FIRST, "fabric.probes/1")[0],
        "nics": [],
        "pairs": [],
        "first_offset": -1,
        "next_offset": -1,
    }
    records = solver.solve(sim.FIRST, WINDOW_NS, [*fleet.fits(sim.FIRST), empty], {}, solved_ns=5)
    for record in records:
        assert codec.decode(codec.encode("ClockOffsets", record), "ClockOffsets") == record
    assert [r["source"] for r in records[0]["source_ranges"]] == ["fabric.probes/0", "fabric.probes/1"]
    nothing = ShardClocks("fabric").solve(sim.FIRST, WINDOW_NS, [], {})
    assert [(r["domain"], r["clocks"], r["parts"]) for r in nothing] == [("fabric", [], 1)]


def test_a_lone_nic_is_unsynced(sim: SimpleNamespace) -> None:
    records = run(ShardClocks("fabric"), sim.random_fleet(1), span(sim, 0, 3))[-1]
    (state,) = sim.states(records).values()
    assert (state["state"], state["bound_ns"]) == (UNSYNCED, 1e9)


@pytest.mark.parametrize("poison", ["drift", "none accepted"])
def test_implausible_pairs_are_left_out(sim: SimpleNamespace, poison: str) -> None:
    fleet, solver = sim.random_fleet(5), ShardClocks("fabric")
    run(solver, fleet, span(sim, 0, 5))
    fits = fleet.fits(sim.FIRST + 5)
    for pair in fits[0]["pairs"]:
        if pair["prober"] == "h01/e0":
            pair["offset_ns"] += 1e7
            pair.update({"drift_ppb": 5e6} if poison == "drift" else {"accepted": 0})
    records = solver.solve(sim.FIRST + 5, WINDOW_NS, fits, {})
    assert max(map(abs, fleet.errors_ns(records).values())) < 300


@pytest.mark.parametrize("reference", ["ensemble", "h01/e0"])
def test_clocks_on_tai_from_power_on_and_near_unix_time_are_synced(
    sim: SimpleNamespace, reference: str
) -> None:
    """Also if fabric time follows a clock that counts from power-on."""
    fleet = sim.random_fleet(8, noise_ns=5.0)
    away_ns = {"h00/e0": 37_000_000_000, "h01/e0": 5_000_000_000 - sim.FIRST * WINDOW_NS, "h02/e0": -(2**61)}
    for name, clock in fleet.clocks.items():
        clock.offset_ns = round(clock.offset_ns) + away_ns.get(name, 0)
    solver = ShardClocks("fabric", SolveParameters(reference=reference))
    for records in run(solver, fleet, span(sim, 0, 12))[3:]:
        errors = fleet.errors_ns(records)
        for name, state in sim.states(records).items():
            assert (state["state"], state["event"]) == (SYNCED, "NONE")
            assert abs(errors[name]) <= state["bound_ns"] < 100
    tai = sim.states(records)["h00/e0"]
    expected_ns = -away_ns["h00/e0"] if reference == "ensemble" else away_ns["h01/e0"] - away_ns["h00/e0"]
    assert abs(tai["offset_ns"] - expected_ns) < 20_000_000


def test_a_recovered_solver_keeps_far_offsets_exactly(sim: SimpleNamespace) -> None:
    fleet = sim.random_fleet(6, noise_ns=5.0)
    for clock in fleet.clocks.values():
        clock.offset_ns = round(clock.offset_ns) - sim.FIRST * WINDOW_NS
    before = run(ShardClocks("fabric"), fleet, span(sim, 0, 8))[-1]
    solver = ShardClocks("fabric")
    solver.recover(before)
    (after,) = run(solver, fleet, span(sim, 8, 9))
    for name, state in sim.states(after).items():
        old = sim.states(before)[name]
        ahead_ns = old["drift_ppb"] * 1e-9 * (state["at_ns"] - old["at_ns"])
        moved_ns = (
            state["offset_ns"] - old["offset_ns"] + state["offset_fraction_ns"] - old["offset_fraction_ns"]
        )
        assert (state["state"], state["event"]) == (SYNCED, "NONE")
        assert moved_ns == pytest.approx(ahead_ns, abs=30)
