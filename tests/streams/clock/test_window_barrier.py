"""Completeness of a window of fits."""

from __future__ import annotations

from typing import Any

from streams.clock.window_barrier import WindowBarrier

GRACE = 500


def fits(source: str, window: int, part: int = 0, parts: int = 1) -> dict[str, Any]:
    return {"source": source, "window": window, "part": part, "parts": parts}


def windows(barrier: WindowBarrier, now: int) -> list[tuple[int, list[str], list[str]]]:
    return [(c.window, [f["source"] for f in c.fits], c.missing) for c in barrier.ready(now)]


def test_a_window_is_ready_once_every_source_has_sent_all_its_parts() -> None:
    barrier = WindowBarrier(["p/0", "p/1"], GRACE)
    barrier.add(fits("p/0", 5, 0, 2), 0, 0, "t0")
    barrier.add(fits("p/1", 5), 1, 1, "t1")
    assert windows(barrier, 2) == []
    barrier.add(fits("p/0", 5, 1, 2), 2, 2, "t2")
    (complete,) = barrier.ready(3)
    assert complete.tokens == ["t0", "t1", "t2"]
    assert complete.missing == []


def test_a_missing_source_is_awaited_and_then_named() -> None:
    barrier = WindowBarrier(["p/0", "p/1"], GRACE)
    barrier.add(fits("p/0", 5), 0, 100, None)
    assert windows(barrier, 599) == []
    assert windows(barrier, 600) == [(5, ["p/0"], ["p/1"])]


def test_a_source_with_later_windows_is_not_awaited() -> None:
    barrier = WindowBarrier(["p/0", "p/1"], GRACE)
    barrier.add(fits("p/0", 5), 0, 0, None)
    barrier.add(fits("p/1", 6), 1, 0, None)
    assert windows(barrier, 1) == [(5, ["p/0"], [])]


def test_windows_come_in_order_and_records_in_the_logs_order() -> None:
    barrier = WindowBarrier(["p/0", "p/1"], GRACE)
    barrier.add(fits("p/1", 7), 9, 0, None)
    barrier.add(fits("p/0", 7), 12, 0, None)
    barrier.add(fits("p/1", 6), 3, 0, None)
    barrier.add(fits("p/0", 6), 1, 0, None)
    assert windows(barrier, 1) == [(6, ["p/0", "p/1"], []), (7, ["p/1", "p/0"], [])]


def test_a_solved_window_accepts_no_further_record() -> None:
    barrier = WindowBarrier(["p/0"], GRACE, last_solved=5)
    assert barrier.add(fits("p/0", 5), 0, 0, None) is False
    assert barrier.too_late == 1
    assert windows(barrier, 10_000) == []


def test_a_record_sent_twice_counts_once() -> None:
    barrier = WindowBarrier(["p/0", "p/1"], GRACE)
    for offset in range(2):
        barrier.add(fits("p/0", 5), offset, 0, offset)
    barrier.add(fits("p/1", 5), 2, 0, 2)
    (complete,) = barrier.ready(1)
    assert len(complete.fits) == 2
    assert complete.tokens == [0, 1, 2]


def test_sources_that_fit_their_own_samples_are_awaited_while_active() -> None:
    barrier = WindowBarrier(["p/0"], GRACE)
    barrier.add(fits("h1/e0", 5), 0, 0, None)
    barrier.add(fits("p/0", 5), 1, 0, None)
    assert windows(barrier, 1) == [(5, ["h1/e0", "p/0"], [])]
    barrier.add(fits("p/0", 6), 2, 10, None)
    assert windows(barrier, 11) == []
    barrier.add(fits("p/0", 11), 3, 20, None)
    assert [w for w, *_ in windows(barrier, 600)] == [6, 11]
