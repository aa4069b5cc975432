"""A prober's counters: gaps, restarts, duplicates and clock jumps are distinguished."""

from __future__ import annotations

from streams.delays.counters import JumpLimit, NicCounters, NicState

LIMIT = JumpLimit(floor_ns=100_000, rate_ppm=1000)
STEP = 100_000_000


def run_of(
    counters: NicCounters, batches: list[int], run: int = 1, ahead_ns: dict[int, int] | None = None
) -> list[bool]:
    ahead = ahead_ns or {}
    return [
        counters.take(run, batch, batch * STEP + ahead.get(batch, 0), batch * STEP, 0, batch * STEP)
        for batch in batches
    ]


def test_a_gap_of_the_counter_is_lost_batches() -> None:
    counters = NicCounters("a/b", None)
    run_of(counters, [3, 4, 7, 8])
    assert (counters.batches, counters.lost_batches, counters.restarts) == (4, 2, 0)


def test_a_gap_between_two_windows_counts_in_the_second() -> None:
    counters = NicCounters("a/b", NicState(1, 9, 0, 0))
    run_of(counters, [12])
    assert counters.lost_batches == 2


def test_a_late_batch_is_counted_and_a_duplicate_is_not() -> None:
    counters = NicCounters("a/b", None)
    assert run_of(counters, [1, 3, 2, 3, 2, 4]) == [True, True, True, False, False, True]
    assert (counters.batches, counters.lost_batches) == (4, 0)


def test_a_change_of_run_is_a_restart_and_no_gap() -> None:
    counters = NicCounters("a/b", None)
    run_of(counters, [5, 6])
    counters.take(2, 0, 7 * STEP, 7 * STEP, 0, 7 * STEP)
    assert (counters.restarts, counters.lost_batches, counters.batches) == (1, 0, 3)
    assert counters.state is not None
    assert counters.state.run == 2


def test_a_clock_jump_is_measured_and_drift_is_none() -> None:
    counters = NicCounters("a/b", NicState(1, 0, 0, 0))
    drifting = {batch: batch * 50_000 for batch in range(1, 11)}  # 500 ppm
    run_of(counters, list(range(1, 11)), ahead_ns=drifting)
    assert counters.clock_jump_ns(LIMIT) == 0
    counters = NicCounters("a/b", NicState(1, 0, 0, 0))
    run_of(counters, list(range(1, 11)), ahead_ns=dict.fromkeys(range(6, 11), 5000000))
    assert counters.clock_jump_ns(LIMIT) == 5_000_000


def test_a_backward_jump_has_its_sign_and_one_odd_reading_is_no_jump() -> None:
    counters = NicCounters("a/b", None)
    run_of(counters, list(range(10)), ahead_ns=dict.fromkeys(range(4, 10), -2000000))
    assert counters.clock_jump_ns(LIMIT) == -2_000_000
    counters = NicCounters("a/b", None)
    run_of(counters, list(range(10)), ahead_ns={4: 3_000_000})
    assert counters.clock_jump_ns(LIMIT) == 0


def test_a_jump_between_two_windows_is_measured_in_the_second() -> None:
    counters = NicCounters("a/b", NicState(1, 0, 0, 0))
    run_of(counters, [1, 2], ahead_ns={1: 7_000_000, 2: 7_000_000})
    assert counters.clock_jump_ns(LIMIT) == 7_000_000


def test_windows_do_not_share_a_state() -> None:
    first = NicCounters("a/b", None)
    run_of(first, [1])
    second = NicCounters("a/b", first.state)
    run_of(second, [2])
    assert first.state is not None
    assert first.state.clock_ns == STEP
