"""Watchdog: stalled partitions, on a clock that slows while the worker is busy."""

from __future__ import annotations

from pathlib import Path

import pytest
from faust.types import TP

from streams.runtime.faust.watchdog import BUSY_WEIGHT, CpuTimeClock, StallWatch

FIRST, SECOND = TP("fabric.probes", 0), TP("fabric.probes", 1)


def test_a_partition_stalls_if_its_log_grows_and_its_position_stays() -> None:
    stalls = StallWatch(stall_s=10)
    ends = {FIRST: 100, SECOND: 100}
    assert stalls.check(0, ends, {FIRST: 5, SECOND: 5}) == []
    assert stalls.check(9.9, ends, {FIRST: 5, SECOND: 5}) == []
    assert stalls.check(10, ends, {FIRST: 5, SECOND: 100}) == [FIRST]


def test_time_counts_little_while_another_partition_works_off_a_backlog() -> None:
    stalls = StallWatch(stall_s=10)
    ends = {FIRST: 100, SECOND: 10_000}
    for now_s in range(100):
        assert stalls.check(now_s, ends, {FIRST: 5, SECOND: now_s}) == []
    stalled = [now_s for now_s in range(100, 120) if stalls.check(now_s, ends, {FIRST: 5, SECOND: 99})]
    assert stalled[0] == pytest.approx(100, abs=1), "a tenth of 100 s, or all of 10 s"


def test_a_partition_at_its_end_never_stalls() -> None:
    stalls = StallWatch(stall_s=10)
    for now_s in (0, 50, 100):
        assert stalls.check(now_s, {FIRST: 5}, {FIRST: 5}) == []
    assert stalls.check(109, {FIRST: 6}, {FIRST: 5}) == []
    assert stalls.check(110, {FIRST: 6}, {FIRST: 5}) == [FIRST]


def test_a_revoked_partition_starts_with_a_new_time() -> None:
    stalls = StallWatch(stall_s=10)
    stalls.check(0, {FIRST: 100}, {FIRST: 5})
    stalls.check(5, {FIRST: 100}, {})
    assert stalls.check(12, {FIRST: 100}, {FIRST: 5}) == []
    assert stalls.check(22, {FIRST: 100}, {FIRST: 5}) == [FIRST]


def test_the_clock_slows_while_threads_run_or_wait_for_a_processor(tmp_path: Path) -> None:
    now_s = 100.0
    statistics = tmp_path / "1" / "schedstat"
    statistics.parent.mkdir()
    statistics.write_text("0 0 0\n")
    clock = CpuTimeClock(tmp_path, lambda: now_s)
    now_s = 103.0
    assert clock.now_s() == pytest.approx(3.0), "an idle process: full speed"
    statistics.write_text("1000000000 1000000000 7\n")
    now_s = 105.0
    assert clock.now_s() == pytest.approx(3.0 + 2 * BUSY_WEIGHT), "busy for both seconds"
    statistics.write_text("9000000000 9000000000 7\n")
    now_s = 106.0
    assert clock.now_s() == pytest.approx(3.0 + 3 * BUSY_WEIGHT), "many threads count once"


def test_the_clock_runs_at_full_speed_without_scheduling_times(tmp_path: Path) -> None:
    now_s = 0.0
    clock = CpuTimeClock(tmp_path / "missing", lambda: now_s)
    now_s = 4.0
    assert clock.now_s() == 4.0
