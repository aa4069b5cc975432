"""Queries about the pipeline on tables with known rows."""

from __future__ import annotations

import time
from typing import Any

from fabrictime.web.history_sql import Span
from fabrictime.web.tabs.pipeline import queries

S = 1_000_000_000
T = time.time_ns() // S * S - 100 * S  # older rows are removed by retention


def test_an_empty_history_has_no_rows(filled: Any) -> None:
    history = filled.history
    assert queries.throughput(history, Span(T - S, T)).windows == 0
    assert queries.probers(history, Span(T - S, T)).nics == 0
    assert queries.lags(history, Span(T - 60 * S, T)) == []
    assert queries.offset_latency(history, Span(T - S, T)).windows == 0
    assert queries.recent_rejects(history, 0, 10) == []


def test_throughput_and_lag_by_source(filled: Any) -> None:
    for second in range(4):
        filled.pipeline(
            T + second * S, {"fabric.probes/0": {"late": 1}, "fabric.probes/1": {"lag_messages": 40 + second}}
        )
    throughput = queries.throughput(filled.history, Span(T, T + 4 * S))
    assert (throughput.windows, throughput.span_s, throughput.samples, throughput.late) == (4, 4.0, 40_000, 4)
    assert [
        (r.source, r.lag_messages) for r in queries.lags(filled.history, Span(T - 56 * S, T + 4 * S))
    ] == [
        ("fabric.probes/1", 43),
        ("fabric.probes/0", 0),
    ]


def test_probers_add_up_and_the_worst_loss_has_its_nic(filled: Any) -> None:
    filled.nic_windows(T, {"a/e": {"lost": 5_000, "restarts": 1}, "b/e": {"lost_batches": 2}})
    row = queries.probers(filled.history, Span(T - 9 * S, T + S))
    assert (row.nics, row.samples, row.lost, row.lost_batches, row.restarts) == (2, 10_000, 5_000, 2, 1)
    assert (row.worst_loss_nic, row.worst_loss) == ("a/e", 0.5)


def test_offset_latency_counts_from_the_window_s_end_in_log_time(filled: Any) -> None:
    filled.clocks(T, {"a/system": {"log_offset_ns": 1_000_000, "solved_ns": T + S + 200_000_000}})
    row = queries.offset_latency(filled.history, Span(T - 59 * S, T + S))
    assert (row.windows, row.p50_ms, row.p99_ms) == (1, 201.0, 201.0)


def test_rejects_come_newest_first(filled: Any) -> None:
    filled.rejects(
        {"offset": i, "append_ns": T + i, "detail": f"nic: {i}", "recorded_ns": T} for i in range(5)
    )
    rows = queries.recent_rejects(filled.history, T + 1, 2)
    assert [(r.offset, r.detail, r.reason) for r in rows] == [
        (4, "nic: 4", "MALFORMED"),
        (3, "nic: 3", "MALFORMED"),
    ]
