"""Queries of the Delays tab on tables with known rows."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fabrictime.web import history_reader
from fabrictime.web.history_client import HistoryEmpty, QueryFailed
from fabrictime.web.history_reader import HistoryReader
from fabrictime.web.history_sql import Span
from fabrictime.web.tabs.delays import queries

S = 1_000_000_000
T = time.time_ns() // S * S - 100 * S  # older rows are removed by retention


def span(length_ns: int, end_ns: int, step_ns: int = S) -> Span:
    return Span(end_ns - length_ns, end_ns, step_ns)


def test_an_empty_history_has_no_table_ends_and_no_rows(filled: Any) -> None:
    history = filled.history
    assert {end[1:] for end in history_reader.table_starts(history)} == {(0, None)}
    with pytest.raises(ValueError, match="delays_1s: no window"):
        history_reader.window_ns(history, "delays_1s", T)
    assert queries.inventory(HistoryReader(history)) == []
    assert queries.pair_delays(history, span(S, T), "forward") == []
    assert queries.worst_paths(history, span(S, T), 5) == []
    assert queries.pair_series(history, span(S, T, S), "a/e", "b/e") == []


def test_each_table_has_its_newest_window(filled: Any) -> None:
    for second in (0, 3, 1):
        filled.delays(T + second * S, {("a/e", "b/e"): {0: {}}})
    filled.clocks(T + 2 * S, {"a/system": {}})
    assert set(history_reader.table_starts(filled.history)) == {
        ("delays_1s", 3, T + 3 * S),
        ("clocks", 1, T + 2 * S),
        ("pipeline", 0, None),
    }
    filled.delays(T + 4 * S, {("a/e", "b/e"): {0: {}}}, window_ns=S // 5)
    assert history_reader.window_ns(filled.history, "delays_1s", T + 4 * S) == S // 5


def test_the_last_second_is_each_probers_newest_window(filled: Any) -> None:
    filled.delays(T, {("a/e", "b/e"): {0: {"forward_p50_ns": 1_000.0}}, ("b/e", "a/e"): {0: {}}})
    filled.delays(T + S, {("a/e", "b/e"): {0: {"forward_p50_ns": 4_096.0, "lost": 25}}})
    rows = queries.pair_delays(filled.history, span(S, T + 2 * S), "forward")
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
    assert [r.nic for r in queries.pair_delays(filled.history, span(S, T + 5 * S), "forward")] == ["b/e"]


def test_a_span_merges_windows_and_paths_and_counts_a_repeated_row_once(filled: Any) -> None:
    slow = {"reverse_p50_ns": 65_536.0, "count": 1, "lost": 1}
    for attempt in range(2):  # the same records twice, as after a crash
        recorded = {"recorded_ns": T + 10 * S + attempt}
        filled.delays(T, {("a/e", "b/e"): {0: {"reverse_p50_ns": 1_024.0, **recorded}, 1: slow | recorded}})
        wide = {"reverse_p50_ns": 1_024.0, "bound_ns": 950.0, **recorded}
        filled.delays(T + S, {("a/e", "b/e"): {0: wide}})
    (row,) = queries.pair_delays(filled.history, span(10 * S, T + 2 * S), "reverse")
    assert (row.count, row.lost, row.bound_ns) == (201, 1, 950.0)
    assert row.loss_max == pytest.approx(1 / 102)
    assert row.p50_ns is not None
    assert 1_024 <= row.p50_ns <= 1_280
    assert row.p99_ns is not None
    assert row.p99_ns <= 1_280


def test_a_pair_without_clocks_has_only_a_round_trip(filled: Any) -> None:
    unsynced = {"forward_p50_ns": None, "reverse_p50_ns": None, "bound_ns": None}
    filled.delays(T, {("a/e", "b/e"): {0: unsynced}})
    (row,) = queries.pair_delays(filled.history, span(S, T + S), "forward")
    assert (row.min_ns, row.p50_ns, row.p99_ns, row.bound_ns) == (None, None, None, None)
    assert row.rtt_min_ns == 15_000.0
    assert queries.worst_paths(filled.history, span(S, T + S), 5) == []


def test_a_delay_with_a_bound_above_twenty_round_trips_is_unknown(filled: Any) -> None:
    start = {"forward_p50_ns": 1e9, "reverse_p50_ns": -1e9, "bound_ns": 1e9, "lost": 3}
    filled.delays(T, {("a/e", "b/e"): {7: start}})
    filled.delays(T + S, {("a/e", "b/e"): {7: {"forward_p50_ns": 8_192.0}}})
    (row,) = queries.pair_delays(filled.history, span(10 * S, T + 2 * S), "forward")
    assert (row.count, row.lost, row.bound_ns) == (200, 3, 800.0)
    assert row.p99_ns is not None
    assert row.p99_ns < 10_240
    assert row.min_ns == pytest.approx(8_192 * 0.8)
    worst = queries.worst_paths(filled.history, span(10 * S, T + 2 * S), 5)
    assert max(path.p99_ns for path in worst) == 18_000.0
    first, second = queries.pair_series(filled.history, span(60 * S, T + 2 * S, S), "a/e", "b/e")
    assert (first.forward_p50_ns, first.reverse_min_ns, first.bound_ns, first.lost) == (None, None, None, 3)
    assert (second.forward_p50_ns, second.bound_ns) == (8_192.0, 800.0)


def test_the_worst_paths_come_worst_first_each_in_its_worst_window(filled: Any) -> None:
    filled.delays(T, {("a/e", "b/e"): {7: {"forward_p50_ns": 50_000.0}, 8: {}}})
    filled.delays(T + S, {("a/e", "b/e"): {7: {"reverse_p50_ns": 30_000.0}, 8: {}}})
    rows = queries.worst_paths(filled.history, span(3 * S, T + 2 * S), 2)
    assert [(r.path, r.direction, r.p50_ns, r.p99_ns) for r in rows] == [
        (7, "forward", 50_000.0, 100_000.0),
        (7, "reverse", 30_000.0, 60_000.0),
    ]


def test_a_pairs_series_has_the_measured_figures_by_path(filled: Any) -> None:
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
    rows = queries.pair_series(filled.history, span(60 * S, T + 3 * S, S), "a/e", "b/e")
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
    (row,) = queries.pair_series(filled.history, span(60 * S, start + 3 * S, 10 * S), "a/e", "b/e")
    assert (row.at_ns, row.lost, row.count) == (start, 6, 300)
    assert (row.forward_min_ns, row.forward_p50_ns, row.forward_p99_ns) == (4_000.0, 6_000.0, 140_000.0)


def test_names_are_data_and_never_sql(filled: Any) -> None:
    name = "a'} OR 1=1 --/e\\"
    filled.delays(T, {("a/e", "b/e"): {0: {}}, (name, "b/e"): {0: {}}})
    assert len(queries.pair_series(filled.history, span(60 * S, T + S, S), name, "b/e")) == 1


def test_the_inventory_excludes_removed_nics(filled: Any) -> None:
    filled.nics({"a/e": {"rack": "r1", "rail": 3}, "b/e": {}}, T)
    filled.nics({"b/e": {"gone": 1}}, T + S)
    assert queries.inventory(HistoryReader(filled.history)) == [
        queries.NicRow("a/e", "a", "e", "s0", 3, "r1", "a/system", "KERNEL")
    ]


def test_missing_tables_differ_from_a_wrong_query(filled: Any) -> None:
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
        history_reader.table_starts(history)
    with pytest.raises(QueryFailed, match="history at chdb"):
        history.columns("SELECT nonsense")
