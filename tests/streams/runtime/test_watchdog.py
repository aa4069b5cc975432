"""The watchdog: a stalled worker is detected, a busy or waiting one is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from faust.types import TP

from streams.runtime.watchdog import CpuTimeClock, StallWatch

A, B = TP("t", 0), TP("t", 1)


def test_a_constant_position_while_the_log_grows_is_a_stall() -> None:
    watch = StallWatch(8.0)
    for second in range(8):
        assert watch.check(second, {A: 10 + second}, {A: 10}) == []
    assert watch.check(8.5, {A: 20}, {A: 10}) == [A]


def test_an_idle_moving_or_revoked_partition_is_no_stall() -> None:
    watch = StallWatch(8.0)
    for second in range(30):
        assert watch.check(second, {A: 10, B: 1000}, {A: 10, B: second}) == []
    assert watch.check(31, {A: 11}, {}) == []
    assert watch.check(60, {A: 11}, {A: 10}) == []


def test_a_worker_that_waits_for_a_processor_or_computes_has_not_stalled(tmp_path: Path) -> None:
    now_s = 100.0

    def threads(*told_s: tuple[float, float]) -> None:
        for number, (ran_s, waited_s) in enumerate(told_s):
            (tmp_path / str(number)).mkdir(exist_ok=True)
            (tmp_path / str(number) / "schedstat").write_text(f"{ran_s * 1e9:.0f} {waited_s * 1e9:.0f} 7\n")

    threads((1, 0), (1, 0))
    clock = CpuTimeClock(tmp_path, lambda: now_s)
    now_s += 12
    threads((1, 0), (1, 0))
    assert clock.now_s() == pytest.approx(12), "it slept"
    now_s += 12
    threads((1, 0), (7, 6))
    assert clock.now_s() == pytest.approx(14), "another thread computed, with half a processor"
    now_s += 12
    threads((9, 30), (17, 36))
    assert clock.now_s() == pytest.approx(16), "two did"
    now_s += 12
    assert CpuTimeClock(tmp_path / "nothing", lambda: now_s).now_s() == 0
    assert clock.now_s() == pytest.approx(28)
