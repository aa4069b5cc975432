"""Results and caching of the tabs' history queries."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from fabrictime.web import history_reader as module
from fabrictime.web.history_reader import HistoryReader
from fabrictime.web.tabs.clocks import queries as clock_queries
from fabrictime.web.tabs.clocks.queries import MAX_DRAWN_CLOCKS
from fabrictime.web.tabs.delays import queries
from fabrictime.web.tabs.pipeline import queries as pipeline_queries

S = 1_000_000_000
T = time.time_ns() // S * S - 100 * S


class Counting:
    """Counts the queries that reach the history."""

    def __init__(self, history: Any) -> None:
        self.database = history.database
        self._history = history
        self.queries: list[str] = []

    def columns(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Any:
        self.queries.append(sql)
        return self._history.columns(sql, parameters)


@pytest.fixture
def counted(filled: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "ENDS_KEPT_S", 0.0)
    return Counting(filled.history)


def test_an_empty_history_gives_empty_results(counted: Any) -> None:
    history = HistoryReader(counted)
    fleet = queries.fleet(history)
    assert (fleet.nics, fleet.worst, fleet.delays_age_s, fleet.samples_per_s) == ([], [], None, 0.0)
    assert queries.heat(history, "forward", 10).pairs == []
    assert clock_queries.clocks(history) == []
    assert clock_queries.clock_series(history, 60).points == []
    assert clock_queries.clock_fleet(history, 60).points == []
    assert clock_queries.drawn_clocks(history, (), 60).points == []
    assert clock_queries.mesh(history).size.pairs == 0
    assert pipeline_queries.pipeline(history) is None
    assert queries.series(history, "a/e", "b/e", 60).points == []


def test_tabs_at_one_moment_share_a_reader(counted: Any) -> None:
    live = HistoryReader(counted)
    reader = live.at(T)
    assert live.at(T) is reader
    assert (reader.until_ns, reader.now_ns()) == (T, T)
    for k in range(1, module.MOMENTS_KEPT + 1):
        live.at(T + k)
    assert live.at(T) is not reader


def test_an_unchanged_history_costs_one_metadata_query(filled: Any, counted: Any) -> None:
    filled.delays(T, {("a/e", "b/e"): {0: {}}})
    history = HistoryReader(counted)
    first = queries.heat(history, "forward", 10)
    counted.queries.clear()
    assert queries.heat(history, "forward", 10) is first
    assert len(counted.queries) == 1
    filled.delays(T + S, {("a/e", "b/e"): {0: {}}})
    second = queries.heat(history, "forward", 10)
    assert (second.end_ns, second.pairs[0].count) == (T + 2 * S, 200)
    assert len(counted.queries) == 3


def test_ages_grow_while_the_history_is_unchanged(filled: Any, counted: Any) -> None:
    filled.delays(T, {("a/e", "b/e"): {0: {}}})
    now_ns = T + 3 * S
    history = HistoryReader(counted, lambda: now_ns)
    assert queries.fleet(history).delays_age_s == 2.0
    now_ns = T + 61 * S
    assert queries.fleet(history).delays_age_s == 60.0


def test_many_clocks_are_a_distribution_and_few_are_lines(filled: Any, counted: Any) -> None:
    filled.clocks(T, {f"h{i}/system": {} for i in range(MAX_DRAWN_CLOCKS)})
    few = clock_queries.clock_series(HistoryReader(counted), 60)
    assert (len(few.points), few.spread) == (MAX_DRAWN_CLOCKS, [])
    filled.clocks(T, {"h99/system": {}})
    many = clock_queries.clock_series(HistoryReader(counted), 60)
    assert (many.points, many.spread[0].synced) == ([], MAX_DRAWN_CLOCKS + 1)


def test_the_pipeline_rows_cover_all_parts(filled: Any, counted: Any) -> None:
    filled.delays(T, {("a/e", "b/e"): {0: {}}})
    filled.clocks(T, {"a/system": {}})
    filled.pipeline(T, {"fabric.probes/0": {"lag_messages": 5}})
    filled.nic_windows(T, {"a/e": {"lost": 3}})
    filled.rejects([{"append_ns": T}, {"append_ns": T - 700 * S, "offset": 1}])
    rows = pipeline_queries.pipeline(HistoryReader(counted, lambda: T + 2 * S))
    assert rows is not None
    assert (rows.throughput_now.samples, rows.probers_now.lost, rows.lags[0].lag_messages) == (5_000, 3, 5)
    assert (rows.latency.p99_ms, rows.rejects_recent) == (180, 1)
