"""Pairs rotated to a known drift, and the memory of their floors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.clock.pairs import PairMemory, Pairs
from tests.examples import examples

AT_NS = 1_763_700_000_000_000_000


def pair(**changes: Any) -> dict[str, Any]:
    return {
        "prober": "a/e0",
        "peer": "b/e0",
        "at_ns": AT_NS,
        "offset_ns": 1_000_000,
        "drift_ppb": 500.0,
        "sigma_ns": 200.0,
        "drift_sigma_ppb": 300.0,
        "rtt_min_ns": 11_000.0,
        "margin_ns": 10_400.0,
        "noise_ns": 0.0,
        "samples": 1000,
        "accepted": 1000,
        "forward_after_ns": [],
        "forward_delay_ns": [],
        "reverse_after_ns": [],
        "reverse_delay_ns": [],
        **changes,
    }


def of(*records: dict[str, Any]) -> Pairs:
    return Pairs.of(records, {"a/e0": 0, "b/e0": 1, "c/e0": 2})


@settings(max_examples=examples(50))
@given(seed=st.integers(0, 2**32 - 1), true_ppb=st.floats(-300, 300))
def test_a_line_rotated_to_the_true_drift_touches_the_lowest_samples(seed: int, true_ppb: float) -> None:
    """The hulls of both clouds are relative to a line of 500 ppb, and the truth has another drift: the floors
    at that drift are the lowest over all samples."""
    rng = np.random.default_rng(seed)
    after_s = np.sort(rng.uniform(-1, 1, 40))
    forward = 5_000 + rng.exponential(800, 40) - true_ppb * after_s  # by the line of 500 ppb
    reverse = 5_000 + rng.exponential(800, 40) + true_ppb * after_s
    pairs = of(
        pair(
            forward_after_ns=(after_s * 1e9).astype(int).tolist(),
            forward_delay_ns=forward.tolist(),
            reverse_after_ns=(after_s * 1e9).astype(int).tolist(),
            reverse_delay_ns=reverse.tolist(),
        )
    )
    rotated = pairs.rotated(np.array([500.0 - true_ppb]), np.array([1.0]))
    min_forward = (forward + true_ppb * after_s).min()
    min_reverse = (reverse - true_ppb * after_s).min()
    assert rotated.rotated[0]
    assert abs(rotated.margin_ns[0] - (min_forward + min_reverse)) < 1e-3
    assert abs(rotated.rest_ns[0] - (min_forward - min_reverse) / 2) < 1e-3


def test_floors_that_cross_at_the_known_drift_leave_the_margin_as_it_is() -> None:
    """The lowest readings of the two directions are 1 s apart: 20 ppm would make the round trip negative."""
    early = {"forward_after_ns": [-(10**9) // 2], "forward_delay_ns": [5_500.0]}
    late = {"reverse_after_ns": [10**9 // 2], "reverse_delay_ns": [5_500.0]}
    pairs = of(pair(drift_sigma_ppb=1e6, drift_ppb=0.0, margin_ns=11_000.0, **early, **late))
    rotated = pairs.rotated(np.array([-20_000.0]), np.array([10_000.0]))
    assert rotated.margin_ns[0] == 11_000
    assert rotated.crossing_ns[0] == pytest.approx(9_000)
    assert rotated.margin_lever_s[0] == pytest.approx(1.0)


def test_a_drift_beyond_the_hulls_reach_or_less_accurate_rotates_nothing() -> None:
    corners = {
        "forward_after_ns": [0],
        "forward_delay_ns": [5_200.0],
        "reverse_after_ns": [0],
        "reverse_delay_ns": [5_200.0],
    }
    pairs = of(pair(**corners), pair(**corners), pair(**corners))
    rotated = pairs.rotated(np.array([500.0 + 1_801, 520.0, 520.0]), np.array([1.0, 301.0, 1.0]))
    assert rotated.rotated.tolist() == [False, False, True]
    assert rotated.rest_ns.tolist() == [0.0, 0.0, 0.0]
    assert rotated.drift_ppb.tolist() == [2_301.0, 500.0, 520.0]


def test_fits_of_an_earlier_release_and_bad_pairs() -> None:
    """Without margin and hull the lowest round trip is used; implausible drifts are left out."""
    pairs = of(
        pair(margin_ns=0.0), pair(drift_ppb=2e6), pair(accepted=0), pair(peer="a/e0"), pair(peer="nobody")
    )
    assert pairs.names == [("a/e0", "b/e0")]
    assert pairs.margin_ns.tolist() == [11_000.0]
    assert not pairs.rotated(np.zeros(1), np.zeros(1)).rotated.any()
    assert len(of().rotated(np.empty(0), np.empty(0)).rest_ns) == 0


def run_memory(margins: list[float], memory: PairMemory | None = None, middle: bool = False) -> list[float]:
    memory = memory or PairMemory()
    found = []
    for window, margin in enumerate(margins):
        rows = memory.rows([("a/e0", "b/e0")], window)
        yes = np.array([True])
        excess = memory.excess(rows, np.array([margin]), np.array([10.0]), yes, np.array([middle]))
        found.append(float(excess[0]))
    return found


def test_one_absurdly_low_margin_makes_no_floor_but_two_do() -> None:
    """A record with a margin near zero once made queues of all later windows, for ten minutes."""
    usual = [10_400.0] * 4
    assert max(run_memory([*usual, 1.0, *usual])[2:]) < 5
    assert run_memory([*usual, 2_000.0, 2_004.0, 2_002.0, *usual])[-1] == pytest.approx(8_400, abs=10)


def test_one_pairs_noise_is_not_that_of_the_others() -> None:
    """A record with a noise near zero once narrowed all bounds, for good."""
    memory = PairMemory()
    rows = memory.rows([(f"h{number}/e0", "b/e0") for number in range(6)], 0)
    low = np.array([0.005, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert memory.noise(rows, low, 10.0).tolist() == [10.0] * 6
    high = np.array([0.0, 40.0, 0.0, 0.0, 0.0, 0.0])
    assert memory.noise(rows, high, 10.0).tolist() == [10.0, 40.0, 10.0, 10.0, 10.0, 10.0]
    both = np.array([0.0, 0.0, 60.0, 0.0, 0.0, 0.0])
    assert memory.noise(rows, both, 10.0).tolist() == [50.0, 40.0, 60.0, 50.0, 50.0, 50.0]


def test_a_floor_is_known_once_seen_twice_and_queues_are_above_it() -> None:
    found = run_memory([10_900.0, 10_400.0, 10_700.0, 10_405.0, 10_700.0])
    assert np.isinf(found[0])
    assert np.isinf(found[1])
    assert np.isinf(found[2])
    assert found[3] < 5
    assert 290 < found[4] < 300


def test_a_path_that_became_longer_gets_a_new_floor_after_a_while() -> None:
    found = run_memory([10_000.0] * 5 + [12_000.0] * (PairMemory.MAX_ABOVE_WINDOWS + 5))
    assert found[4] == 0
    assert all(1_990 < excess <= 2_000 for excess in found[5 : 4 + PairMemory.MAX_ABOVE_WINDOWS])
    assert found[-1] == 0


def test_modes_and_lowest_readings_have_separate_floors() -> None:
    memory = PairMemory()
    assert run_memory([10_000.0, 10_000.0], memory)[-1] == 0
    assert run_memory([10_040.0, 10_040.0], memory, middle=True)[-1] == 0
    assert run_memory([10_000.0], memory)[-1] == 0
    assert run_memory([10_041.0], memory, middle=True)[-1] <= 1.0
    assert 90 < run_memory([10_100.0], memory)[-1] <= 100.0
    assert 50 < run_memory([10_100.0], memory, middle=True)[-1] <= 60.0


@pytest.mark.parametrize("middle", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_a_queue_far_above_a_floor_is_a_queue_for_minutes(middle: bool, same: bool) -> None:
    """A pair that always had modes has none while a queue persists, and no floor of lowest readings
    either."""
    memory, kind = PairMemory(), middle if same else not middle
    run_memory([10_000.0] * 9, memory, middle=middle)
    found = run_memory([110_000.0] * PairMemory.MAX_FAR_ABOVE_WINDOWS, memory, middle=kind)
    assert found[:-1] == [100_000.0] * (PairMemory.MAX_FAR_ABOVE_WINDOWS - 1)
    assert run_memory([110_000.0] * 2, memory, middle=kind)[-1] == 0, "the path moved, after all"
    assert np.isinf(run_memory([112_000.0], memory, middle=not kind)[0]), "and what it was is forgotten"


def test_pairs_that_are_gone_are_forgotten() -> None:
    memory = PairMemory()
    for window in range(0, 2_000, 100):
        memory.rows([(f"h{window}/e0", "b/e0")], window)
        memory.forget(window)
    assert len(memory.rows([(f"h{window}/e0", "b/e0") for window in range(0, 2_000, 100)], 1_900)) == 20
    memory.forget(1_900 + memory.FORGET + 1)
    assert memory.rows([("x", "y")], 3_000).tolist() == [0]


def test_a_lasting_residual_becomes_a_bias_with_an_error() -> None:
    rng = np.random.default_rng(1)
    memory = PairMemory()
    names = [("a/e0", "b/e0"), ("b/e0", "c/e0")]
    for window in range(60):
        rows = memory.rows(names, window)
        memory.learn_residuals(rows, np.array([300.0, 0.0]) + rng.normal(0, 10, 2), np.array([True, True]))
    bias, sigma, windows = memory.bias(rows)
    assert windows.tolist() == [60, 60]
    assert np.abs(bias - [300, 0]).max() < 5
    assert (sigma < 3).all()
    assert (sigma > 0.5).all()
