"""What the shared views return, and how seldom they ask history."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from fabrictime.web import history_queries as module
from fabrictime.web.history_queries import HistoryQueries

S = 1_000_000_000
T = time.time_ns() // S * S - 100 * S


class Counting:
    """Counts the queries that reach history."""

    def __init__(self, history: Any) -> None:
        self.database = history.database
        self._history = history
        self.asked: list[str] = []

    def columns(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Any:
        self.asked.append(sql)
        return self._history.columns(sql, parameters)


@pytest.fixture
def asked(filled: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "PULSE_KEPT_S", 0.0)
    return Counting(filled.history)


def test_an_empty_history_gives_empty_views(asked: Any) -> None:
    questions = HistoryQueries(asked)
    fleet = questions.fleet()
    assert (fleet.nics, fleet.worst, fleet.delays_age_s, fleet.samples_per_s) == ([], [], None, 0.0)
    assert questions.heat("forward", 10).pairs == []
    assert questions.clocks() == []
    assert questions.clock_lines(60).points == []
    assert questions.pipeline() is None
    assert questions.series("a/e", "b/e", 60).points == []


def test_nothing_new_in_history_costs_one_question_of_metadata(filled: Any, asked: Any) -> None:
    filled.delays(T, {("a/e", "b/e"): {0: {}}})
    questions = HistoryQueries(asked)
    first = questions.heat("forward", 10)
    asked.asked.clear()
    assert questions.heat("forward", 10) is first
    assert len(asked.asked) == 1
    filled.delays(T + S, {("a/e", "b/e"): {0: {}}})
    second = questions.heat("forward", 10)
    assert (second.end_ns, second.pairs[0].count) == (T + 2 * S, 200)
    assert len(asked.asked) == 3


def test_ages_go_on_while_history_stands_still(filled: Any, asked: Any) -> None:
    filled.delays(T, {("a/e", "b/e"): {0: {}}})
    now_ns = T + 3 * S
    questions = HistoryQueries(asked, lambda: now_ns)
    assert questions.fleet().delays_age_s == 2.0
    now_ns = T + 61 * S
    assert questions.fleet().delays_age_s == 60.0


def test_many_clocks_come_as_a_distribution_and_few_as_lines(filled: Any, asked: Any) -> None:
    filled.clocks(T, {f"h{i}/system": {} for i in range(module.CLOCK_LINES)})
    few = HistoryQueries(asked).clock_lines(60)
    assert (len(few.points), few.spread) == (module.CLOCK_LINES, [])
    filled.clocks(T, {"h99/system": {}})
    many = HistoryQueries(asked).clock_lines(60)
    assert (many.points, many.spread[0].clocks) == ([], module.CLOCK_LINES + 1)


def test_the_pipeline_is_judged_on_all_its_parts(filled: Any, asked: Any) -> None:
    filled.delays(T, {("a/e", "b/e"): {0: {}}})
    filled.clocks(T, {"a/system": {}})
    filled.pipeline(T, {"fabric.probes/0": {"lag_messages": 5}})
    filled.nic_windows(T, {"a/e": {"lost": 3}})
    filled.rejects([{"append_ns": T}, {"append_ns": T - 700 * S, "offset": 1}])
    rows = HistoryQueries(asked, lambda: T + 2 * S).pipeline()
    assert rows is not None
    assert (rows.flow_now.samples, rows.probers_now.lost, rows.lags[0].lag_messages) == (5_000, 3, 5)
    assert (rows.latency.p99_ms, rows.delays_age_s, rows.clocks_age_s, rows.rejects_recent) == (180, 1, 1, 1)
