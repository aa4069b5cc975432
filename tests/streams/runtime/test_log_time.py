"""Log time: the estimate of the log's clock, and append time without its steps."""

import pytest

from streams.runtime.log_time import LogClock, LogTime, SteadyTime

MS = 1_000_000
S = 1_000_000_000
START = 1_700_000_000 * S
PLACE = ("fabric.links", 0)


def read(steady, seconds, wrong_s):
    """Return the steady times, s since the start, of a message each 0.1 s."""
    found = []
    for step in range(seconds.start * 10, seconds.stop * 10):
        now_ns = step * S // 10
        found.append((steady.of(START + now_ns + wrong_s * S, now_ns) - START) / S)
    return found


@pytest.mark.parametrize("jump_s", [-30, -8 * 3600, 30, 120, 8 * 3600])
def test_time_goes_on_through_a_jump_and_the_return(jump_s):
    steady = SteadyTime()
    times = read(steady, range(10), 0) + read(steady, range(10, 30), jump_s) + read(steady, range(30, 60), 0)
    assert times == [step / 10 for step in range(600)]
    assert steady.correction_ns == 0


def test_messages_that_arrive_late_keep_their_append_times():
    steady = SteadyTime()
    read(steady, range(10), 0)
    assert [steady.of(START + (10 + n) * S, 30 * S + n) for n in range(20)] == [
        START + (10 + n) * S for n in range(20)
    ]


def test_a_silence_of_the_partition_stays_a_silence():
    steady = SteadyTime()
    read(steady, range(10), 0)
    assert steady.of(START + 300 * S, 300 * S) == START + 300 * S


def test_the_offset_of_fabric_time_ignores_windows_of_the_time_before_a_step():
    steady = SteadyTime()
    read(steady, range(10), 0)
    assert steady.offset_ns(5, 10 * S) == 5
    read(steady, range(10, 12), 120)
    assert steady.offset_ns(5, 12 * S) == 5, "no window since the step"
    assert steady.offset_ns(5 - 120 * S, 13 * S) == 5
    assert steady.offset_ns(5 + 50 * S, 14 * S) == 5
    assert steady.offset_ns(5 + 50 * S, 24 * S) == 5 + 170 * S, "it persists"


@pytest.mark.parametrize("jump_s", [120, 8 * 3600, -30])
def test_fabric_time_is_right_through_a_jump_and_the_return_though_its_offset_follows_later(jump_s):
    clock, fabric = LogClock(START, 0), LogTime(START, 0)
    errors_s = []
    for step in range(900):
        now_ns = step * S // 10
        wrong_s = jump_s if 20 * S <= now_ns < 50 * S else 0
        offset_s = -jump_s if 23 * S <= now_ns < 53 * S else 0
        clock.observe(START + now_ns + wrong_s * S, now_ns, PLACE, step)
        found_ns = fabric.fabric_ns(clock.now_ns(now_ns), offset_s * S, now_ns)
        errors_s.append((found_ns - START - now_ns) / S)
    assert max(errors_s) < 0.01
    assert min(errors_s) > -0.01


def test_the_log_clock_is_the_greatest_append_time_plus_elapsed_time() -> None:
    clock = LogClock(1_000, 0)
    assert clock.now_ns(50) == 1_050
    clock.observe(5_000, 100, PLACE, 0)
    clock.observe(5_010, 200, PLACE, 1)  # arrived 90 ns later than the best: no information
    assert clock.now_ns(300) == 5_200


@pytest.mark.parametrize("jump_s", [-30, 120, 300, 8 * 3600])
def test_the_log_clock_follows_a_jump_and_the_return_within_a_second(jump_s: int) -> None:
    clock, start = LogClock(0, 0), 10**15
    for step in range(400):
        now_ns = step * 100 * MS
        wrong_ns = jump_s * S if 100 <= step < 200 else 0
        clock.observe(start + now_ns + wrong_ns, now_ns, PLACE, step)
        if step not in range(100, 111) and step not in range(200, 211):
            assert clock.now_ns(now_ns) == start + now_ns + wrong_ns


def test_a_delay_of_messages_does_not_set_the_log_clock_back() -> None:
    clock = LogClock(0, 0)
    for step in range(20):
        clock.observe(step * 100 * MS, step * 100 * MS, PLACE, step)
    for late in range(20):  # read within 0.5 s, after a stall of 2 s
        clock.observe((20 + late) * 100 * MS, 4000 * MS + late * 25 * MS, PLACE, 20 + late)
        assert clock.now_ns(4000 * MS + late * 25 * MS) == 4000 * MS + late * 25 * MS


@pytest.mark.parametrize("late_s", [1.2, 3.0, 12.0])
@pytest.mark.parametrize("lasts_s", [2, 20, 200])
def test_a_reader_that_is_late_for_long_does_not_take_it_for_a_step(late_s: float, lasts_s: int) -> None:
    """Two partitions of ten messages/s; a second reader reads one of them again from its begin meanwhile."""
    clock, times, next_offset = LogClock(START, 0), LogTime(START, 0), 0
    until = 10 * round(20 + late_s + lasts_s)
    for step in range(until + 400):
        now_ns, is_late = step * S // 10, 200 <= step < until
        for offset in range(next_offset, step + 1 - (round(10 * late_s) if is_late else 0)):
            for partition in range(2):
                clock.observe(START + offset * S // 10, now_ns, ("fabric.links", partition), offset)
            next_offset = offset + 1
        if is_late:
            clock.observe(START + (step - 200) * S // 10, now_ns, ("fabric.links", 1), step - 200)
        steady_ns = times.now_ns(clock.now_ns(now_ns), now_ns)
        if lasts_s <= 20 or not is_late:
            assert clock.now_ns(now_ns) == START + now_ns
        if lasts_s <= 20 or step >= until + 10 * late_s:
            assert steady_ns == START + now_ns


def test_a_step_is_followed_though_its_reader_is_late() -> None:
    clock = LogClock(START, 0)
    for step in range(300):
        now_ns = step * S // 10
        wrong_ns, late_ns = -30 * S if step >= 200 else 0, 2 * S if step >= 200 else 0
        clock.observe(START + now_ns - late_ns + wrong_ns, now_ns, PLACE, step)
        if step >= 211:
            assert clock.now_ns(now_ns) == START + now_ns - 32 * S
