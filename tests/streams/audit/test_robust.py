"""Robust outliers: median, MAD, floors, and the rate of false outliers for normal noise."""

from __future__ import annotations

import numpy as np
import pytest

from streams.audit.robust import Spread, odd_ones, threshold


def test_one_far_value_is_odd_and_noise_is_not() -> None:
    values = np.array([*[100.0, 101, 99, 100.5, 99.5, 100, 102, 98] * 4, 70])
    spread, odd = odd_ones(values, 0.05)
    assert (spread.median, odd.tolist().index(True), int(odd.sum())) == (100.0, 32, 1)


def test_a_mad_of_zero_accuses_nobody_within_the_floor() -> None:
    values = np.array([100.0] * 9 + [104.0])
    assert not odd_ones(values, 0.05)[1].any()
    assert odd_ones(values, 0.03)[1].any()
    assert not odd_ones(values, 0.0, 5.0)[1].any()


def test_an_outlier_must_exceed_its_own_uncertainty() -> None:
    values = np.array([10.0] * 9 + [20.0])
    assert odd_ones(values, 0.1, error=8.0)[1].any()
    assert not odd_ones(values, 0.1, error=9.5)[1].any()


@pytest.mark.parametrize("count", [8, 16, 64, 500])
def test_normal_noise_has_next_to_no_outlier(count: int) -> None:
    rng = np.random.default_rng(count)
    false = sum(odd_ones(rng.normal(0, 1, count), 0.0)[1].any() for _ in range(4000))
    assert false <= 1


def test_the_threshold_grows_with_fewer_values() -> None:
    assert threshold(1000) == pytest.approx(8, rel=0.01)
    assert threshold(8) > threshold(16) > threshold(64) > threshold(1000)
    assert Spread.of([1.0, 2.0, 9.0]) == Spread(2.0, 1.0, 3)
