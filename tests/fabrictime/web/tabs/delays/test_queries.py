"""What each question returns, on tables filled with known rows."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fabrictime.web.history_client import HistoryEmpty, QueryFailed
from fabrictime.web.tabs.delays import queries

S = 1_000_000_000
T = time.time_ns() // S * S - 100 * S  # retention drops what is old


def test_an_empty_history_has_no_pulse_and_no_rows(filled: Any) -> None:
    history = filled.history
    assert set(queries.newest(history).values()) == {queries.Newest(0, None)}
    with pytest.raises(ValueError, match="delays_1s: no window"):
        queries.window_ns(history, "delays_1s", T)
    assert queries.inventory(history) == []
    assert queries.pair_delays(history, "forward", S, T) == []
    assert queries.worst_paths(history, S, T, 5) == []
    assert queries.pair_series(history, "a/e", "b/e", S, T, S) == []
    assert queries.clocks_now(history, T) == []
    assert queries.clock_series(history, ["a/system"], S, T, S) == []
    assert queries.clock_spread(history, S, T, S) == []
    assert queries.clock_fleet(history, S, T, S) == []
    assert queries.clock_wander(history, S, T, S) == []
    assert queries.widest_clocks(history, S, T, 5) == []
    assert queries.clock_events(history, S, T, 5) == []
    assert queries.clock_lanes(history, S, T, S, 5) == []
    assert queries.suspects_now(history, T, 5) == []
    assert queries.mesh_size(history, T) == queries.MeshSize(0, 0)
    assert queries.mesh_pairs(history, T) == []
    assert queries.flow(history, S, T).windows == 0
    assert queries.probers(history, S, T).nics == 0
    assert queries.lags(history, T) == []
    assert queries.offset_latency(history, S, T).windows == 0
    assert queries.recent_rejects(history, 0, 10) == []


def test_each_table_tells_its_newest_window(filled: Any) -> None:
    for second in (0, 3, 1):
        filled.delays(T + second * S, {("a/e", "b/e"): {0: {}}})
    filled.clocks(T + 2 * S, {"a/system": {}})
    assert queries.newest(filled.history) == {
        "delays_1s": queries.Newest(3, T + 3 * S),
        "clocks": queries.Newest(1, T + 2 * S),
        "pipeline": queries.Newest(0, None),
    }
    filled.delays(T + 4 * S, {("a/e", "b/e"): {0: {}}}, window_ns=S // 5)
    assert queries.window_ns(filled.history, "delays_1s", T + 4 * S) == S // 5


def test_the_last_second_is_each_prober_s_own_newest_window(filled: Any) -> None:
    filled.delays(T, {("a/e", "b/e"): {0: {"forward_p50_ns": 1_000.0}}, ("b/e", "a/e"): {0: {}}})
    filled.delays(T + S, {("a/e", "b/e"): {0: {"forward_p50_ns": 4_096.0, "lost": 25}}})
    rows = queries.pair_delays(filled.history, "forward", S, T + 2 * S)
    assert [(r.nic, r.peer, r.last_ns) for r in rows] == [
        ("a/e", "b/e", T + 2 * S),
        ("b/e", "a/e", T + S),
    ]
    newest = rows[0]
    assert (newest.count, newest.lost, newest.loss_max) == (100, 25, 0.2)
    assert newest.min_ns == pytest.approx(4096 * 0.8)
    assert newest.p50_ns == pytest.approx(4096 + 512)  # the middle of bucket 4096..5120
    assert newest.p99_ns == pytest.approx(4096 + 0.99 * 1024)
    assert (newest.bound_ns, newest.rtt_min_ns) == (800.0, 15_000.0)


def test_a_silent_prober_leaves_the_last_second_after_three(filled: Any) -> None:
    filled.delays(T, {("a/e", "b/e"): {0: {}}})
    filled.delays(T + 4 * S, {("b/e", "a/e"): {0: {}}})
    assert [r.nic for r in queries.pair_delays(filled.history, "forward", S, T + 5 * S)] == ["b/e"]


def test_a_span_merges_windows_and_paths_and_counts_a_repeated_row_once(filled: Any) -> None:
    slow = {"reverse_p50_ns": 65_536.0, "count": 1, "lost": 1}
    for again in range(2):  # the same records once more, as after a crash
        again_ns = {"recorded_ns": T + 10 * S + again}
        filled.delays(T, {("a/e", "b/e"): {0: {"reverse_p50_ns": 1_024.0, **again_ns}, 1: slow | again_ns}})
        wide = {"reverse_p50_ns": 1_024.0, "bound_ns": 950.0, **again_ns}
        filled.delays(T + S, {("a/e", "b/e"): {0: wide}})
    (row,) = queries.pair_delays(filled.history, "reverse", 10 * S, T + 2 * S)
    assert (row.count, row.lost, row.bound_ns) == (201, 1, 950.0)
    assert row.loss_max == pytest.approx(1 / 102)
    assert row.p50_ns is not None
    assert 1_024 <= row.p50_ns <= 1_280
    assert row.p99_ns is not None
    assert row.p99_ns <= 1_280


def test_a_pair_without_clocks_has_a_round_trip_and_no_one_way_delay(filled: Any) -> None:
    unsynced = {"forward_p50_ns": None, "reverse_p50_ns": None, "bound_ns": None}
    filled.delays(T, {("a/e", "b/e"): {0: unsynced}})
    (row,) = queries.pair_delays(filled.history, "forward", S, T + S)
    assert (row.min_ns, row.p50_ns, row.p99_ns, row.bound_ns) == (None, None, None, None)
    assert row.rtt_min_ns == 15_000.0
    assert queries.worst_paths(filled.history, S, T + S, 5) == []


def test_a_delay_whose_bound_exceeds_twenty_round_trips_counts_as_unknown(filled: Any) -> None:
    start = {"forward_p50_ns": 1e9, "reverse_p50_ns": -1e9, "bound_ns": 1e9, "lost": 3}
    filled.delays(T, {("a/e", "b/e"): {7: start}})
    filled.delays(T + S, {("a/e", "b/e"): {7: {"forward_p50_ns": 8_192.0}}})
    (row,) = queries.pair_delays(filled.history, "forward", 10 * S, T + 2 * S)
    assert (row.count, row.lost, row.bound_ns) == (200, 3, 800.0)
    assert row.p99_ns is not None
    assert row.p99_ns < 10_240
    assert row.min_ns == pytest.approx(8_192 * 0.8)
    worst = queries.worst_paths(filled.history, 10 * S, T + 2 * S, 5)
    assert max(path.p99_ns for path in worst) == 18_000.0
    first, second = queries.pair_series(filled.history, "a/e", "b/e", 60 * S, T + 2 * S, S)
    assert (first.forward_p50_ns, first.reverse_min_ns, first.bound_ns, first.lost) == (None, None, None, 3)
    assert (second.forward_p50_ns, second.bound_ns) == (8_192.0, 800.0)


def test_the_worst_paths_come_worst_first_each_in_its_worst_window(filled: Any) -> None:
    filled.delays(T, {("a/e", "b/e"): {7: {"forward_p50_ns": 50_000.0}, 8: {}}})
    filled.delays(T + S, {("a/e", "b/e"): {7: {"reverse_p50_ns": 30_000.0}, 8: {}}})
    rows = queries.worst_paths(filled.history, 3 * S, T + 2 * S, 2)
    assert [(r.path, r.way, r.p50_ns, r.p99_ns) for r in rows] == [
        (7, "forward", 50_000.0, 100_000.0),
        (7, "reverse", 30_000.0, 60_000.0),
    ]


def test_a_pair_s_series_shows_the_figures_as_measured_by_path(filled: Any) -> None:
    for second in range(3):
        filled.delays(
            T + second * S,
            {
                ("a/e", "b/e"): {
                    3: {"forward_p50_ns": 5_000.0 + second, "lost": second},
                    9: {"forward_p50_ns": 6_000.0},
                },
                ("b/e", "a/e"): {3: {}},
            },
        )
    rows = queries.pair_series(filled.history, "a/e", "b/e", 60 * S, T + 3 * S, S)
    assert [(r.path, r.at_ns, r.forward_p50_ns, r.lost) for r in rows if r.path == 3] == [
        (3, T, 5_000.0, 0),
        (3, T + S, 5_001.0, 1),
        (3, T + 2 * S, 5_002.0, 2),
    ]
    assert {r.path for r in rows} == {3, 9}
    assert rows[0].forward_p99_ns == 10_000.0
    assert rows[0].rtt_p50_ns == 18_000.0


def test_a_wider_step_keeps_the_worst_p99_and_all_losses(filled: Any) -> None:
    start = T // (10 * S) * 10 * S
    for second, p50 in enumerate((5_000.0, 70_000.0, 6_000.0)):
        filled.delays(start + second * S, {("a/e", "b/e"): {3: {"forward_p50_ns": p50, "lost": 2}}})
    (row,) = queries.pair_series(filled.history, "a/e", "b/e", 60 * S, start + 3 * S, 10 * S)
    assert (row.at_ns, row.lost, row.count) == (start, 6, 300)
    assert (row.forward_min_ns, row.forward_p50_ns, row.forward_p99_ns) == (4_000.0, 6_000.0, 140_000.0)


def test_names_are_data_and_never_sql(filled: Any) -> None:
    name = "a'} OR 1=1 --/e\\"
    filled.delays(T, {("a/e", "b/e"): {0: {}}, (name, "b/e"): {0: {}}})
    assert len(queries.pair_series(filled.history, name, "b/e", 60 * S, T + S, S)) == 1


def test_clocks_now_is_each_clock_s_newest_solution(filled: Any) -> None:
    filled.clocks(T, {"a/system": {"offset_ns": 1.0}, "b/system": {"offset_ns": 5.5, "state": "HOLDOVER"}})
    filled.clocks(T + S, {"a/system": {"offset_ns": -3_000_000.25, "drift_ppb": 12_000.5, "pairs": 4}})
    assert queries.clocks_now(filled.history, T + 2 * S) == [
        queries.ClockRow(
            "a/system", "s0", "s0/0", T + 2 * S, -3_000_000.25, 12_000.5, 400.0, "SYNCED", 4, 12.5
        ),
        queries.ClockRow("b/system", "s0", "s0/0", T + S, 5.5, 0.0, 400.0, "HOLDOVER", 10, 12.5),
    ]


def test_clock_series_keep_the_widest_bound_and_the_worst_state_of_a_step(filled: Any) -> None:
    start = T // (10 * S) * 10 * S
    filled.clocks(start, {"a/system": {"bound_ns": 900.0, "state": "UNSYNCED"}, "b/system": {}})
    filled.clocks(start + S, {"a/system": {"offset_ns": 8.0}})
    points = queries.clock_series(filled.history, ["a/system"], 60 * S, start + 2 * S, 10 * S)
    assert points == [queries.ClockPoint("a/system", start, 8.0, 900.0, "UNSYNCED", 12.5)]


def test_the_spread_of_all_clocks(filled: Any) -> None:
    filled.clocks(
        T, {f"h{i}/system": {"bound_ns": float(i), "state": "SYNCED" if i else "HOLDOVER"} for i in range(11)}
    )
    (row,) = queries.clock_spread(filled.history, 60 * S, T + S, S)
    assert (row.clocks, row.unsynced, row.bound_p50_ns, row.bound_max_ns) == (11, 1, 5.0, 10.0)


def test_flow_and_lag_by_source(filled: Any) -> None:
    for second in range(4):
        filled.pipeline(
            T + second * S, {"fabric.probes/0": {"late": 1}, "fabric.probes/1": {"lag_messages": 40 + second}}
        )
    flow = queries.flow(filled.history, 4 * S, T + 4 * S)
    assert (flow.windows, flow.span_s, flow.samples, flow.late) == (4, 4.0, 40_000, 4)
    assert [(r.source, r.lag_messages) for r in queries.lags(filled.history, T + 4 * S)] == [
        ("fabric.probes/1", 43),
        ("fabric.probes/0", 0),
    ]


def test_probers_add_up_and_name_the_worst_loser(filled: Any) -> None:
    filled.nic_windows(T, {"a/e": {"lost": 5_000, "restarts": 1}, "b/e": {"lost_batches": 2}})
    row = queries.probers(filled.history, 10 * S, T + S)
    assert (row.nics, row.samples, row.lost, row.lost_batches, row.restarts) == (2, 10_000, 5_000, 2, 1)
    assert (row.worst_loss_nic, row.worst_loss) == ("a/e", 0.5)


def test_offset_latency_counts_from_the_window_s_end_in_log_time(filled: Any) -> None:
    filled.clocks(T, {"a/system": {"log_offset_ns": 1_000_000, "solved_ns": T + S + 200_000_000}})
    row = queries.offset_latency(filled.history, 60 * S, T + S)
    assert (row.windows, row.p50_ms, row.p99_ms) == (1, 201.0, 201.0)


def test_the_inventory_leaves_out_what_is_gone(filled: Any) -> None:
    filled.nics({"a/e": {"rack": "r1", "rail": 3}, "b/e": {}}, T)
    filled.nics({"b/e": {"gone": 1}}, T + S)
    assert queries.inventory(filled.history) == [
        queries.NicRow("a/e", "a", "e", "s0", 3, "r1", "a/system", "KERNEL")
    ]


def test_rejects_come_newest_first(filled: Any) -> None:
    filled.rejects(
        {"offset": i, "append_ns": T + i, "detail": f"nic: {i}", "recorded_ns": T} for i in range(5)
    )
    rows = queries.recent_rejects(filled.history, T + 1, 2)
    assert [(r.offset, r.detail, r.reason) for r in rows] == [
        (4, "nic: 4", "MALFORMED"),
        (3, "nic: 3", "MALFORMED"),
    ]


def test_missing_tables_are_told_from_a_wrong_query(filled: Any) -> None:
    filled.client.command("DROP TABLE fabrictime.clocks")
    connect = filled.history._connect
    from fabrictime.web.history_client import ClickHouse

    class Kept:
        """The shared client, but not closed after a failure."""

        def query(self, *args: Any, **kwargs: Any) -> Any:
            return connect().query(*args, **kwargs)

        def close(self) -> None:
            pass

    history = ClickHouse(Kept, "chdb", "fabrictime")
    with pytest.raises(HistoryEmpty, match="no tables yet"):
        queries.newest(history)
    with pytest.raises(QueryFailed, match="history at chdb"):
        history.columns("SELECT nonsense")


def test_the_fleet_s_clocks_are_counted_by_state_and_the_worst_is_named(filled: Any) -> None:
    names = [f"h{i}/ptp0" for i in range(1, 101)]
    clocks: dict[str, dict[str, Any]] = {
        name: {"bound_ns": 10.0 + i, "residual_ns": 5.0 + i / 100} for i, name in enumerate(names)
    }
    clocks["h7/ptp0"] = {"bound_ns": 900.0, "state": "HOLDOVER", "residual_ns": 0.0}
    clocks["h8/ptp0"] = {"bound_ns": 1e9, "state": "UNSYNCED", "residual_ns": 0.0}
    clocks["h9/ptp0"] = {"bound_ns": 20.0, "residual_ns": 77.0}
    filled.clocks(T, clocks)
    filled.clocks(T + S, {"h8/ptp0": {"state": "UNSYNCED", "bound_ns": 1e9}})
    first, second = queries.clock_fleet(filled.history, 10 * S, T + 2 * S, S)
    assert (first.synced, first.holdover, first.unsynced) == (98, 1, 1)
    assert (first.bound_max_ns, first.bound_clock) == (900.0, "h7/ptp0")
    assert first.bound_p50_ns == pytest.approx(59, abs=2)
    assert (first.residual_max_ns, first.residual_clock) == (77.0, "h9/ptp0")
    assert (second.unsynced, second.bound_max_ns, second.residual_p50_ns) == (1, None, None)
    assert queries.widest_clocks(filled.history, 10 * S, T + 2 * S, 2) == ["h7/ptp0", "h100/ptp0"]


def test_wander_is_what_each_clock_s_own_line_does_not_explain(filled: Any) -> None:
    for second in range(20):
        steady = {f"h{i}/ptp0": {"offset_ns": 3e6 * i + 1_700.0 * i * second} for i in range(20)}
        bent = {"h99/ptp0": {"offset_ns": 5e8 + (400.0 if second == 10 else 0.0)}}
        lost = {"h98/ptp0": {"offset_ns": 9e17, "state": "UNSYNCED"}}
        filled.clocks(T + second * S, {**steady, **bent, **lost})
    points = queries.clock_wander(filled.history, 60 * S, T + 20 * S, S)
    assert len(points) == 20
    assert max(abs(p.p50_ns) for p in points) < 0.01
    assert points[10].p99_ns == pytest.approx(380, rel=0.02)
    assert points[3].p99_ns == pytest.approx(0, abs=0.01)


def test_events_and_the_lanes_of_troubled_clocks(filled: Any) -> None:
    for second in range(4):
        clocks: dict[str, dict[str, Any]] = {f"h{i}/ptp0": {} for i in range(9)}
        if second == 1:
            clocks["h3/ptp0"] = {"event": "STEP", "event_ns": 1e6, "state": "HOLDOVER"}
        if second == 2:
            clocks["h5/ptp0"] = {"event": "RATE_CHANGE", "event_ns": -80.0}
        filled.clocks(T + second * S, clocks)
    events = queries.clock_events(filled.history, 10 * S, T + 4 * S, 10)
    assert [(e.at_ns, e.clock, e.event, e.event_ns) for e in events] == [
        (T + 2 * S, "h5/ptp0", "RATE_CHANGE", -80.0),
        (T + S, "h3/ptp0", "STEP", 1e6),
    ]
    lanes = queries.clock_lanes(filled.history, 10 * S, T + 4 * S, S, 2)
    assert [(p.clock, p.state) for p in lanes] == [
        ("h3/ptp0", "SYNCED"),
        ("h3/ptp0", "HOLDOVER"),
        ("h3/ptp0", "SYNCED"),
        ("h3/ptp0", "SYNCED"),
        *[("h5/ptp0", "SYNCED")] * 4,
    ]


def test_suspects_are_those_of_the_newest_window_and_say_since_when(filled: Any) -> None:
    for second in range(3):
        filled.clocks(T + second * S, {"h1/ptp0": {}})
        pairs = {("h1/eth0", "h2/eth0"): {"asymmetry_ns": -400.0 - second, "weight": 0.1}}
        if second < 2:
            pairs["h1/eth0", "h3/eth0"] = {}
        else:
            pairs["h4/eth0", "h3/eth0"] = {"asymmetry_ns": 20.0}
        filled.suspects(T + second * S, pairs)
    worst, fresh = queries.suspects_now(filled.history, T + 3 * S, 10)
    assert (worst.peer, worst.asymmetry_ns, worst.sigma_ns, worst.weight) == ("h2/eth0", -402.0, 4.0, 0.1)
    assert (worst.since_ns, worst.windows, fresh.since_ns) == (T, 3, T + 2 * S)
    filled.clocks(T + 3 * S, {"h1/ptp0": {}})
    assert queries.suspects_now(filled.history, T + 4 * S, 10) == [], "the newest window has none"


def test_the_mesh_is_each_source_s_newest_window(filled: Any) -> None:
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
