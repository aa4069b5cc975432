"""Queries of the Clocks tab on tables with known rows."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fabrictime.web.history_sql import Span
from fabrictime.web.tabs.clocks import queries

S = 1_000_000_000
T = time.time_ns() // S * S - 100 * S  # older rows are removed by retention


def span(length_ns: int, end_ns: int, step_ns: int = S) -> Span:
    return Span(end_ns - length_ns, end_ns, step_ns)


def test_an_empty_history_has_no_rows(filled: Any) -> None:
    history = filled.history
    assert queries.newest_clocks(history, span(60 * S, T)) == []
    assert queries.clock_points(history, span(S, T), ["a/system"]) == []
    assert queries.fleet_points(history, span(S, T)) == []
    assert queries.clock_wander(history, span(S, T)) == []
    assert queries.widest_clocks(history, span(S, T), 5) == []
    assert queries.clock_events(history, span(S, T), 5) == []
    assert queries.clock_states(history, span(S, T), 5) == []
    assert queries.newest_suspects(history, span(600 * S, T), 5) == []
    assert queries.mesh_size(history, T) == queries.MeshSize(0, 0)
    assert queries.mesh_pairs(history, T) == []


def test_clocks_now_is_each_clock_s_newest_solution(filled: Any) -> None:
    filled.clocks(T, {"a/system": {"offset_ns": 1}, "b/system": {"offset_ns": 6, "state": "HOLDOVER"}})
    filled.clocks(T + S, {"a/system": {"offset_ns": -3_000_000, "drift_ppb": 12_000.5, "pairs": 4}})
    assert queries.newest_clocks(filled.history, span(60 * S, T + 2 * S)) == [
        queries.ClockRow("a/system", "s0", "s0/0", T + 2 * S, -3_000_000, 12_000.5, 400.0, "SYNCED", 4, 12.5),
        queries.ClockRow("b/system", "s0", "s0/0", T + S, 6.0, 0.0, 400.0, "HOLDOVER", 10, 12.5),
    ]


def test_clock_series_keep_the_widest_bound_and_the_worst_state_of_a_step(filled: Any) -> None:
    start = T // (10 * S) * 10 * S
    filled.clocks(start, {"a/system": {"bound_ns": 900.0, "state": "UNSYNCED"}, "b/system": {}})
    filled.clocks(start + S, {"a/system": {"offset_ns": 8}})
    points = queries.clock_points(filled.history, span(60 * S, start + 2 * S, 10 * S), ["a/system"])
    assert points == [queries.ClockPoint("a/system", start, 8.0, 900.0, "UNSYNCED", 12.5)]


def test_the_spread_of_all_clocks(filled: Any) -> None:
    filled.clocks(
        T, {f"h{i}/system": {"bound_ns": float(i), "state": "SYNCED" if i else "HOLDOVER"} for i in range(11)}
    )
    (row,) = queries.fleet_points(filled.history, span(60 * S, T + S))
    assert (row.synced, row.holdover, row.bound_p50_ns, row.bound_max_ns) == (10, 1, 5.0, 10.0)


def test_clocks_are_counted_by_state_and_the_worst_is_named(filled: Any) -> None:
    names = [f"h{i}/ptp0" for i in range(1, 101)]
    clocks: dict[str, dict[str, Any]] = {
        name: {"bound_ns": 10.0 + i, "residual_ns": 5.0 + i / 100} for i, name in enumerate(names)
    }
    clocks["h7/ptp0"] = {"bound_ns": 900.0, "state": "HOLDOVER", "residual_ns": 0.0}
    clocks["h8/ptp0"] = {"bound_ns": 1e9, "state": "UNSYNCED", "residual_ns": 0.0}
    clocks["h9/ptp0"] = {"bound_ns": 20.0, "residual_ns": 77.0}
    filled.clocks(T, clocks)
    filled.clocks(T + S, {"h8/ptp0": {"state": "UNSYNCED", "bound_ns": 1e9}})
    first, second = queries.fleet_points(filled.history, span(10 * S, T + 2 * S))
    assert (first.synced, first.holdover, first.unsynced) == (98, 1, 1)
    assert (first.bound_max_ns, first.bound_clock) == (900.0, "h7/ptp0")
    assert first.bound_p50_ns == pytest.approx(59, abs=2)
    assert (first.residual_max_ns, first.residual_clock) == (77.0, "h9/ptp0")
    assert (second.unsynced, second.bound_max_ns, second.residual_p50_ns) == (1, None, None)
    assert queries.widest_clocks(filled.history, span(10 * S, T + 2 * S), 2) == ["h7/ptp0", "h100/ptp0"]


def test_wander_is_the_deviation_from_each_clocks_linear_fit(filled: Any) -> None:
    for second in range(20):
        steady = {f"h{i}/ptp0": {"offset_ns": 3_000_000 * i + 1_700 * i * second} for i in range(20)}
        bent = {"h99/ptp0": {"offset_ns": 500_000_000 + (400 if second == 10 else 0)}}
        unsynced = {"h98/ptp0": {"offset_ns": 9 * 10**17, "state": "UNSYNCED"}}
        filled.clocks(T + second * S, {**steady, **bent, **unsynced})
    points = queries.clock_wander(filled.history, span(60 * S, T + 20 * S))
    assert len(points) == 20
    assert max(abs(p.p50_ns) for p in points) < 0.01
    assert points[10].p99_ns == pytest.approx(380, rel=0.02)
    assert points[3].p99_ns == pytest.approx(0, abs=0.01)


def test_wander_is_fitted_to_each_run_of_a_clock(filled: Any) -> None:
    for second in (*range(10), *range(20, 30)):
        drift = 1_700 * second if second < 10 else 9_000_000 - 300 * second
        filled.clocks(T + second * S, {f"h{i}/ptp0": {"offset_ns": 1_000 * i + drift} for i in range(20)})
    points = queries.clock_wander(filled.history, span(60 * S, T + 30 * S))
    assert len(points) == 20
    assert max(max(abs(p.p1_ns), abs(p.p99_ns)) for p in points) < 0.01


def test_events_and_timelines_of_troubled_clocks(filled: Any) -> None:
    for second in range(4):
        clocks: dict[str, dict[str, Any]] = {f"h{i}/ptp0": {} for i in range(9)}
        if second == 1:
            clocks["h3/ptp0"] = {"event": "STEP", "event_ns": 1e6, "state": "HOLDOVER"}
        if second == 2:
            clocks["h5/ptp0"] = {"event": "RATE_CHANGE", "event_ns": -80.0}
        filled.clocks(T + second * S, clocks)
    events = queries.clock_events(filled.history, span(10 * S, T + 4 * S), 10)
    assert [(e.at_ns, e.clock, e.event, e.event_ns) for e in events] == [
        (T + 2 * S, "h5/ptp0", "RATE_CHANGE", -80.0),
        (T + S, "h3/ptp0", "STEP", 1e6),
    ]
    states = queries.clock_states(filled.history, span(10 * S, T + 4 * S), 2)
    assert [(p.clock, p.state) for p in states] == [
        ("h3/ptp0", "SYNCED"),
        ("h3/ptp0", "HOLDOVER"),
        ("h3/ptp0", "SYNCED"),
        ("h3/ptp0", "SYNCED"),
        *[("h5/ptp0", "SYNCED")] * 4,
    ]


def test_suspects_are_those_of_the_newest_window_with_their_start(filled: Any) -> None:
    for second in range(3):
        filled.clocks(T + second * S, {"h1/ptp0": {}})
        pairs = {("h1/eth0", "h2/eth0"): {"asymmetry_ns": -400.0 - second, "weight": 0.1}}
        if second < 2:
            pairs["h1/eth0", "h3/eth0"] = {}
        else:
            pairs["h4/eth0", "h3/eth0"] = {"asymmetry_ns": 20.0}
        filled.suspects(T + second * S, pairs)
    worst, fresh = queries.newest_suspects(filled.history, span(600 * S, T + 3 * S), 10)
    assert (worst.peer, worst.asymmetry_ns, worst.sigma_ns, worst.weight) == ("h2/eth0", -402.0, 4.0, 0.1)
    assert (worst.since_ns, worst.windows, fresh.since_ns) == (T, 3, T + 2 * S)
    filled.clocks(T + 3 * S, {"h1/ptp0": {}})
    assert queries.newest_suspects(filled.history, span(600 * S, T + 4 * S), 10) == [], "not in the newest"


def test_the_mesh_is_each_sources_newest_window(filled: Any) -> None:
    filled.pair_fits(T - 30 * S, [("gone/e", "a/e")], source="fabric.probes/7")
    filled.pair_fits(T, [("a/e", "b/e"), ("a/e", "c/e")])
    filled.pair_fits(T, [("c/e", "a/e")], source="fabric.probes/1", accepted=9)
    filled.pair_fits(T + S, [("a/e", "b/e")], sigma_ns=2.0)
    pairs = queries.mesh_pairs(filled.history, T + 2 * S)
    assert [(p.prober, p.peer, p.sigma_ns, p.accepted) for p in pairs] == [
        ("a/e", "b/e", 2.0, 60),
        ("c/e", "a/e", 3.0, 9),
    ]
    assert queries.mesh_size(filled.history, T + 2 * S) == queries.MeshSize(3, 2)
