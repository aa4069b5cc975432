"""Drawn clocks: phase is the integral of the rate, and steps stay."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench._truth.clocks import Clocks, walk


def test_a_clock_drifts_steadily_and_steps_once() -> None:
    clocks = Clocks(np.array([3e8, -1e6]), np.full((2, 101), [[1_000.0], [-400.0]]))
    at = np.linspace(0, 1e9, 101)
    ahead = clocks.ahead_ns(np.zeros(101, np.int64), at)
    assert np.diff(ahead) == pytest.approx(np.full(100, ahead[1] - ahead[0]), abs=1e-3)
    assert abs(ahead[-1] - ahead[0]) <= 1_000.0
    clocks.step(0, 5e8, 1e6)
    stepped = clocks.ahead_ns(np.zeros(101, np.int64), at) - ahead
    assert stepped == pytest.approx(np.where(at >= 5e8, 1e6, 0.0), abs=1e-3)
    other = clocks.ahead_ns(np.ones(101, np.int64), at)
    assert abs(other[-1] - other[0]) <= 1_000.0


def test_rates_walk_without_jumps_of_phase() -> None:
    clocks = Clocks(np.zeros(1), walk(np.array([5_000.0]), 101, 100.0, np.random.default_rng(2)))
    at = np.arange(0.0, 1e9, 1e4)
    assert np.abs(np.diff(clocks.ahead_ns(np.zeros(len(at), np.int64), at))).max() < 0.1
