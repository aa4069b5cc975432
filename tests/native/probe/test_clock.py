"""The test clock: what it reads is a function of its parameters alone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from native.core.probe import TestClock

EPOCH = 1_700_000_000_000_000_000
S = 1_000_000_000


def test_offset_and_drift_are_exact() -> None:
    clock = TestClock(offset_ns=3_000_000, drift_ppb=12_000, epoch_ns=EPOCH)
    for seconds in (-100, 0, 1, 100, 86_400):
        assert clock.offset_at(EPOCH + seconds * S) == 3_000_000 + seconds * 12_000
        assert clock.reading(EPOCH + seconds * S) == EPOCH + seconds * S + 3_000_000 + seconds * 12_000


def test_wander_is_the_same_in_any_order_of_asking() -> None:
    make = lambda: TestClock(wander_ppb_per_sqrt_s=50, epoch_ns=EPOCH, seed=9)  # noqa: E731
    moments = [EPOCH + k * 137_000_003 for k in range(6000)]
    forwards = [make().offset_at(moments[0])]
    clock = make()
    forwards = [clock.offset_at(moment) for moment in moments]
    other = make()
    backwards = [other.offset_at(moment) for moment in reversed(moments)][::-1]
    assert forwards == backwards
    assert (
        forwards
        == [pickle.loads(pickle.dumps(clock)).offset_at(moment) for moment in moments[:1]] + forwards[1:]
    )
    assert forwards != [
        TestClock(wander_ppb_per_sqrt_s=50, epoch_ns=EPOCH, seed=10).offset_at(m) for m in moments
    ]


def test_wander_is_smooth_and_as_strong_as_set() -> None:
    rates = []
    for seed in range(200):
        clock = TestClock(wander_ppb_per_sqrt_s=50, epoch_ns=EPOCH, seed=seed)
        rates.append(clock.offset_at(EPOCH + 101 * S) - clock.offset_at(EPOCH + 100 * S))
    # the rate after 100 s has a standard deviation of 50 * sqrt(100) = 500 ppb, that is ns per second
    assert 400 < np.std(rates) < 600
    clock = TestClock(wander_ppb_per_sqrt_s=50, epoch_ns=EPOCH, seed=1)
    readings = [clock.offset_at(EPOCH + k * 10_000_000) for k in range(3000)]
    assert np.abs(np.diff(readings)).max() < 50  # no jump at a second's edge


def test_a_step_comes_at_its_time() -> None:
    clock = TestClock(step_ns=5_000_000, step_at_ns=EPOCH + 10 * S)
    assert clock.offset_at(EPOCH + 10 * S - 1) == 0
    assert clock.offset_at(EPOCH + 10 * S) == 5_000_000


def test_wander_needs_an_epoch() -> None:
    with pytest.raises(ValueError, match="epoch_ns 0 with wander"):
        TestClock(wander_ppb_per_sqrt_s=1)
