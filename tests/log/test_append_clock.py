"""The clock of the embedded log follows the system clock slowly, and steps only over what persists."""

import itertools

import pytest

from fabrictime.log.append_clock import STEPOUT_MS, AppendClock

START_MS = 1_700_000_000_000


class Machine:
    """A monotonic clock and a system clock that can be wrong."""

    def __init__(self):
        self.elapsed_ms = 0
        self.wrong_ms = 0.0
        self.clock = AppendClock(
            lambda: round((START_MS + self.elapsed_ms + self.wrong_ms) * 1e6),
            lambda: self.elapsed_ms * 1_000_000,
        )

    def run(self, seconds, every_ms=100):
        """Read the clock for some seconds; return the times."""
        times = []
        for _ in range(round(seconds * 1000 / every_ms)):
            self.elapsed_ms += every_ms
            times.append(self.clock())
        return times

    def error_ms(self):
        return self.clock() - START_MS - self.elapsed_ms


@pytest.mark.parametrize("jump_s", [120, 300, 8 * 3600, -30, -8 * 3600])
def test_a_system_clock_that_is_wrong_for_20_s_does_not_reach_the_log(jump_s, caplog):
    machine = Machine()
    machine.run(5)
    machine.wrong_ms = jump_s * 1000
    times = machine.run(20)
    machine.wrong_ms = 0
    times += machine.run(20)
    assert {b - a for a, b in itertools.pairwise(times)} == {100}
    assert machine.error_ms() == 0
    assert "the system clock stepped by" in caplog.text


@pytest.mark.parametrize("jump_s", [120, -8 * 3600])
def test_a_correction_that_persists_is_followed_by_one_step(jump_s, caplog):
    machine = Machine()
    machine.wrong_ms = jump_s * 1000
    machine.run(STEPOUT_MS / 1000 - 1)
    assert machine.error_ms() == 0
    machine.run(2)
    assert machine.error_ms() == jump_s * 1000
    machine.run(100)
    assert machine.error_ms() == jump_s * 1000
    assert caplog.text.count("append time stepped by") == 1


def test_small_differences_are_slewed_at_500_ppm_and_time_never_runs_back():
    machine = Machine()
    machine.wrong_ms = -100
    times = machine.run(100)
    assert min(b - a for a, b in itertools.pairwise(times)) >= 99
    assert machine.error_ms() == pytest.approx(-50, abs=1)
    machine.run(150)
    assert machine.error_ms() == -100


def test_a_clock_that_jumps_about_is_not_followed():
    machine = Machine()
    for wrong_s in (10, 20, 30, 40, 50):
        machine.wrong_ms = wrong_s * 1000
        machine.run(40)
    assert machine.error_ms() == 0
