"""Clock models: fits, slews and growing bounds, against exact values."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.clock.timescale import (
    CrossTimestamp,
    CrossTimestamps,
    RawClockModel,
    SlewedModel,
    on_raw_clock,
    slew,
    wander_growth,
)

S = 1_000_000_000
START = 4_000 * S
AHEAD = 1_760_000_000 * S


def cross_timestamps(rate_ppb, n=30, noise_ns=0.0, seed=1, step=None):
    draw = random.Random(seed)
    made = CrossTimestamps()
    for i in range(n):
        raw = START + i * 200_000_000
        clock = raw + AHEAD + round(rate_ppb * 1e-9 * (raw - START) + draw.uniform(-noise_ns, noise_ns))
        if step is not None and i >= step[0]:
            clock += step[1]
        made.add(CrossTimestamp(raw, clock, 30.0))
    return made


@given(st.floats(-400_000, 400_000), st.floats(0, 30), st.integers(0, 99), st.floats(0.3, 5.7))
def test_relation_is_right_within_its_error(rate_ppb, noise_ns, seed, at_s):
    made = cross_timestamps(rate_ppb, noise_ns=noise_ns, seed=seed)
    raw = START + round(at_s * S)
    clock = raw + AHEAD + round(rate_ppb * 1e-9 * (raw - START))
    found = made.at_clock(clock)
    assert found is not None
    assert found.clock_ns == clock
    assert abs(found.raw_ns - raw) <= found.error_ns
    assert abs(found.rate_ppb - rate_ppb) <= 5 * found.rate_sigma_ppb + noise_ns / 1.5 + 2


def test_relation_is_not_extrapolated_far():
    made = cross_timestamps(10_000.0)
    first, last = START + AHEAD, made.last.clock_ns
    assert made.at_clock(first - 300_000_000) is None
    assert made.at_clock(last + 100_000_000) is not None
    assert made.at_clock(last + S) is None
    assert CrossTimestamps().newest() is None
    assert cross_timestamps(0.0, n=2).newest() is None


@pytest.mark.parametrize("step_ns", [-10 * S, -50_000, 50_000, 10_000_000])
def test_a_step_begins_a_new_segment(step_ns):
    made = cross_timestamps(5_000.0, n=40, step=(20, step_ns))
    before = START + 10 * 200_000_000 + AHEAD
    assert made.at_clock(before) is None or step_ns < 0
    newest = made.newest()
    assert abs(newest.rate_ppb - 5_000.0) < 10


def test_small_rate_changes_are_no_step():
    """The ordinary rate changes of NTP."""
    made = CrossTimestamps()
    raw, clock = START, AHEAD
    for i in range(50):
        assert not made.add(CrossTimestamp(raw, clock, 30.0))
        raw += 200_000_000
        clock += 200_000_000 + round(0.2 * 500.0 * (i % 3))


def test_a_cross_timestamp_that_is_not_newer_is_dropped():
    made = cross_timestamps(0.0)
    assert not made.add(CrossTimestamp(START, 0, 1.0))
    assert made.last.raw_ns > START


@given(st.floats(0.01, 1e4), st.floats(0, 3600))
def test_wander_bound_is_above_a_random_walk(wander, t):
    growth, quadratic = wander_growth(wander)
    exact = 3.3 * wander * t**1.5 / math.sqrt(3)
    assert growth * t + quadratic * t * t >= exact * (1 - 1e-9)
    if 1 < t < 100:
        assert growth * t + quadratic * t * t <= 2 * exact


lines = st.builds(
    RawClockModel,
    st.just(START),
    st.integers(AHEAD - 100_000, AHEAD + 100_000),
    st.floats(-50_000, 50_000),
    st.floats(0, 1e4),
    st.floats(0, 100),
    st.floats(0, 10),
)


@given(lines, lines, st.integers(0, 5 * S), st.floats(0.05, 10), st.floats(0.1, 500), st.floats(1, 1e6))
def test_slew_begins_at_the_last_model_and_ends_on_the_new_one(one, other, later, slew_s, ppm, step_ns):
    last, _ = slew(None, one, START, slew_s, ppm, step_ns)
    at = START + later
    slewed, stepped = slew(last, other, at, slew_s, ppm, step_ns)
    before, after = last.fabric_ns(at), slewed.fabric_ns(at)
    gap = (after[0] - before[0]) + (after[1] - before[1])
    if stepped:
        assert abs(stepped) > step_ns
        assert gap == pytest.approx(stepped, abs=2)
        return
    assert abs(gap) <= 1
    assert abs(slewed.slew_ppb) <= ppm * 1000 * 1.001
    end = max(at, slewed.slew_end_raw_ns)
    for moment in (end, end + S):
        there, own = slewed.fabric_ns(moment), other.fabric_ns(moment)
        assert abs((there[0] - own[0]) + (there[1] - own[1])) <= 2
    for share in (0.0, 0.3, 0.7, 1.0):
        moment = at + round(share * (end - at))
        there, own = slewed.fabric_ns(moment), other.fabric_ns(moment)
        left = (there[0] - own[0]) + (there[1] - own[1])
        assert left == pytest.approx(slewed.remaining_ns(moment), abs=2)
        assert slewed.bound_at(moment) >= other.bound_at(moment) + abs(left) - 3


@given(lines, st.integers(0, 100 * S), st.integers(0, 100 * S))
def test_a_rebased_model_is_the_same(model, later, after):
    moved = model.rebased_to(START + later)
    moment = START + later + after
    one, other = model.fabric_ns(moment), moved.fabric_ns(moment)
    assert abs((one[0] - other[0]) + (one[1] - other[1])) <= 1
    assert moved.bound_at(moment) == pytest.approx(model.bound_at(moment), rel=1e-9, abs=1e-6)


def test_the_model_on_the_raw_clock_is_the_product_of_both():
    made = cross_timestamps(200_000.0)
    clock_ns = made.last.clock_ns - S
    relation = made.at_clock(clock_ns)
    model = on_raw_clock(relation, clock_ns, -5_000_000, -150_000.0, 40.0, 3.0, 0.0)
    for away in (-2 * S, 0, 5 * S):
        raw = relation.raw_ns + away
        clock = clock_ns + away * (1 + 200_000e-9)
        exact = clock - 5e6 - 150_000e-9 * (clock - clock_ns)
        whole, rest = model.fabric_ns(raw)
        assert abs((whole - int(exact)) + rest) < 300  # doubles of 2^60 ns above
    assert model.bound_ns >= 40 + 30
    assert model.growth_ppb >= 3.3 * 3.0


def test_a_slewed_model_without_slew_is_its_model():
    model = RawClockModel(START, AHEAD, 5.0, 10.0, 1.0, 0.0)
    slewed = SlewedModel(model)
    assert slewed.remaining_ns(START + S) == 0
    assert slewed.fabric_ns(START + S) == model.fabric_ns(START + S)
    assert slewed.bound_at(START + S) == model.bound_at(START + S)
