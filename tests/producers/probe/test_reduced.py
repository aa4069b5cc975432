"""The prober's own reduction: the same figures from the same samples, by the clocks it was told."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from native.core import ProbeColumns
from producers.probe.publishers import ReducedPublisher
from producers.probe.reduced import ClockView, Reducer
from schemas import codec

WINDOW_NS = 1_000_000_000
S = 1_000_000_000


def batch(
    number: int, at_ns: int, count: int = 40, offset_ns: int = 3_000_000, **change: Any
) -> ProbeColumns:
    """`count` samples as coded pairs to one peer over one path: 5 us each way, evenly in 100 ms."""
    sent = at_ns + np.arange(count, dtype=np.int64) // 2 * 5_000_000 + np.arange(count) % 2 * 20_000
    columns = ProbeColumns(
        nic="a/e",
        run=5,
        batch=number,
        clock_ns=at_ns + 100_000_000,
        system_ns=at_ns + 100_000_000,
        peers=["b/e"],
        path=np.array([9320], np.int32),
        spacing_ns=np.array([20_000], np.int32),
        lost=np.array([1], np.int32),
        no_t3=np.array([0], np.int32),
        start=np.array([0, count], np.int64),
        sent=sent,
        forward=np.full(count, 5000 + offset_ns, np.int64),
        turnaround=np.full(count, 10_000, np.int64),
        reverse=np.full(count, 5000 - offset_ns, np.int64),
    )
    for name, value in change.items():
        setattr(columns, name, value)
    return columns


def offsets(window: int, state: str = "SYNCED", log_offset_ns: int = 77) -> dict[str, Any]:
    clocks = [
        {
            "clock": name,
            "at_ns": 0,
            "offset_ns": offset,
            "offset_fraction_ns": 0.0,
            "drift_ppb": 0.0,
            "bound_ns": 20.0,
            "state": state,
        }
        for name, offset in (("a/system", 0), ("b/e", -3_000_000))
    ]
    return {
        "shard": "fabric",
        "window": window,
        "part": 0,
        "parts": 1,
        "window_start_ns": window * WINDOW_NS + log_offset_ns,
        "window_end_ns": (window + 1) * WINDOW_NS + log_offset_ns,
        "log_offset_ns": log_offset_ns,
        "clocks": clocks,
    }


CLOCKS = {"b/e": "b/e"}


def test_a_window_is_closed_by_the_next_ones_batch_and_fits_the_schemas() -> None:
    reducer = Reducer("a/e", "fabric", "a/system", WINDOW_NS, ClockView())
    for number in range(10):
        assert reducer.add(batch(number, 100 * S + number * S // 10), 100 * S + number * S // 10, CLOCKS) == (
            [],
            [],
        )
    fits, delays = reducer.add(batch(10, 101 * S), 101 * S, CLOCKS)
    assert [codec.decode(codec.encode("ClockFits", record), "ClockFits") for record in fits] == fits
    assert [codec.decode(codec.encode("PathDelays", record), "PathDelays") for record in delays] == delays
    (fit,) = fits
    assert (fit["window"], fit["source"], fit["samples"]) == (100, "a/e", 400)
    assert (fit["nics"][0]["batches"], fit["nics"][0]["lost"], fit["nics"][0]["last_batch"]) == (10, 10, 9)
    assert fit["pairs"][0]["offset_ns"] == pytest.approx(3_000_000, abs=1)
    (path,) = delays[0]["paths"]
    assert (path["peer"], path["path"], path["count"], path["lost"]) == ("b/e", 9320, 400, 10)
    assert path["rtt_min_ns"] == 10_000
    assert path["forward_p50_ns"] is None
    assert delays[0]["state"] == "UNSYNCED"


def test_one_direction_delays_need_known_clocks() -> None:
    view = ClockView()
    view.update(offsets(99))
    reducer = Reducer("a/e", "fabric", "a/system", WINDOW_NS, view)
    reducer.add(batch(0, 100 * S), 100 * S, CLOCKS)
    _, (delays,) = reducer.close(CLOCKS)
    (path,) = delays["paths"]
    assert path["forward_p50_ns"] == pytest.approx(5000, abs=1)
    assert path["reverse_p50_ns"] == pytest.approx(5000, abs=1)
    assert path["bound_ns"] == pytest.approx(40, abs=1)
    assert delays["state"] == "SYNCED"
    assert delays["window_start_ns"] == 100 * S + 77
    assert reducer.close(CLOCKS) == ([], [])


@pytest.mark.parametrize(
    ("state", "windows_ago", "expected"),
    [
        ("SYNCED", 1, "SYNCED"),
        ("HOLDOVER", 1, "HOLDOVER"),
        ("SYNCED", 20, "HOLDOVER"),
        ("SYNCED", 90, "UNSYNCED"),
        ("UNSYNCED", 1, "UNSYNCED"),
    ],
)
def test_how_far_a_clock_is_trusted(state: str, windows_ago: int, expected: str) -> None:
    view = ClockView()
    view.update(offsets(100 - windows_ago, state))
    assert view.state("b/e", 101 * S) == expected
    assert view.state("unknown", 101 * S) == "UNSYNCED"


def test_older_offsets_do_not_replace_newer_ones() -> None:
    view = ClockView()
    view.update(offsets(100))
    view.update(offsets(98, "UNSYNCED"))
    assert view.state("b/e", 101 * S) == "SYNCED"


def test_offsets_follow_log_time_that_steps_back() -> None:
    view = ClockView()
    view.update(offsets(220))
    for window in (100, 101, 102):
        view.update(offsets(window, log_offset_ns=0), (window + 1) * S)
    assert view.log_offset_ns == 0
    assert view.state("b/e", 103 * S) == "SYNCED"
    view.update(offsets(103, "UNSYNCED"), 104 * S)
    assert view.state("b/e", 104 * S) == "UNSYNCED"


def test_forged_offsets_change_nothing() -> None:
    view = ClockView()
    view.update(offsets(100), 101 * S)
    for forged in (offsets(10**9), offsets(100, log_offset_ns=2**62 + 1), offsets(101) | {"part": 1}):
        with pytest.raises(codec.BadRecord):
            view.update(forged, 101 * S)
    view.update(offsets(3, log_offset_ns=10**15), 101 * S)
    assert view.log_offset_ns == 77
    assert view.state("b/e", 101 * S) == "SYNCED"


def test_a_clock_jump_is_seen_and_drift_is_not() -> None:
    reducer = Reducer("a/e", "fabric", "a/e", WINDOW_NS, ClockView())
    for number in range(5):
        at = 100 * S + number * S // 10
        jump = 5_000_000 if number >= 3 else 0
        reducer.add(batch(number, at, clock_ns=at + number * 20_000 + jump, system_ns=at), at, CLOCKS)
    fits, _ = reducer.close(CLOCKS)
    assert fits[0]["nics"][0]["clock_jump_ns"] == pytest.approx(5_000_000, abs=30_000)
    reducer.add(batch(5, 101 * S, clock_ns=101 * S + 5_100_000, system_ns=101 * S), 101 * S, CLOCKS)
    assert reducer.close(CLOCKS)[0][0]["nics"][0]["clock_jump_ns"] == 0


def test_an_empty_window_is_published_too() -> None:
    reducer = Reducer("a/e", "fabric", "a/e", WINDOW_NS, ClockView())
    empty = ProbeColumns(nic="a/e", run=1, batch=0, clock_ns=100 * S, system_ns=100 * S)
    reducer.add(empty, 100 * S, CLOCKS)
    fits, delays = reducer.close(CLOCKS)
    assert fits[0]["pairs"] == []
    assert fits[0]["nics"][0]["samples"] == 0
    assert delays == []


def test_nothing_is_cut_into_windows_before_the_logs_clock_is_known() -> None:
    taken: list[int] = []
    publisher = ReducedPublisher.__new__(ReducedPublisher)
    publisher._offsets = SimpleNamespace(poll=lambda: None)  # type: ignore[assignment]
    publisher._transport = SimpleNamespace(engine=SimpleNamespace(drain=lambda: "batch"))  # type: ignore[assignment]
    publisher._clocks = dict  # type: ignore[method-assign]
    publisher._publish = lambda *records: None  # type: ignore[method-assign]

    def add(batch: object, log_ns: int, clocks: object) -> tuple[list[object], list[object]]:
        taken.append(log_ns)
        return [], []

    publisher._reducer = SimpleNamespace(add=add)  # type: ignore[assignment]
    publisher._log_offset_ns = None
    publisher.flush()
    assert taken == []
    a_day_ns = 86_400 * S
    publisher.append_time_callback()(time.time_ns() - a_day_ns)
    publisher.flush()
    assert abs(taken[0] - (time.time_ns() - a_day_ns)) < S
