"""Gauge: robust means, and the controller that slews fabric time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from streams.clock.gauge import Slew, median, middle_of, robust_mean


@dataclass
class Parameters:
    slew_max_ppb: float = 100.0
    slew_time_s: float = 60.0


def follow(rate_ppb: float, error_ns: float, windows: int) -> tuple[list[float], list[float]]:
    """Follow a reference with a rate and an initial error; return the errors and the total corrections."""
    slew, correction, errors, corrections = Slew(), 0.0, [], []
    for _ in range(windows):
        correction += slew.step(error_ns, 1.0, Parameters())
        errors.append(error_ns)
        corrections.append(correction)
        error_ns += rate_ppb - correction
    return errors, corrections


def test_fabric_time_converges_to_its_reference_without_a_step() -> None:
    errors, corrections = follow(0.0, 50_000.0, 2000)
    assert max(abs(each) for each in corrections) < 2 * Parameters().slew_max_ppb
    assert abs(errors[-1]) < 1


def test_the_rate_of_the_reference_is_learned() -> None:
    errors, corrections = follow(500.0, 0.0, 2000)
    assert corrections[-1] == pytest.approx(500.0, abs=1)
    assert abs(errors[-1]) < 10


def test_without_a_reference_the_learned_rate_stays() -> None:
    slew, parameters = Slew(), Parameters()
    total = sum(slew.step(500.0 * second, 1.0, parameters) for second in range(10))
    total += slew.step(None, 1.0, parameters)
    assert total == pytest.approx(slew.rate_ppb)
    assert slew.proportional_ppb == 0
    assert slew.step(None, 1.0, parameters) == 0


def test_one_stepped_clock_changes_no_robust_mean() -> None:
    values = np.array([10.0, 11.0, 9.0, 10.5, 1e9])
    assert robust_mean(values, np.ones(5)) == pytest.approx(10.125)
    assert robust_mean(np.array([4.0]), np.array([2.0])) == 4.0


def test_a_robust_mean_weighs_precise_clocks_more() -> None:
    assert robust_mean(np.array([0.0, 1.0]), np.array([3.0, 1.0])) == pytest.approx(0.25)


def test_two_values_have_a_mean_and_three_a_median() -> None:
    assert median([1.0, 2.0]) == 1.5
    assert median([1.0, 2.0, 100.0]) == 2.0


def test_the_middle_of_integers_is_exact() -> None:
    assert middle_of([2**60 + 1, -5, 2**60 + 3]) == 2**60 + 1
    assert middle_of([7]) == 7
