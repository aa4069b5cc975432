"""Iterations by the sequence of operations."""

from __future__ import annotations

import numpy as np
import pytest

from streams.diagnosis.job.iterations import Iterations, find_iterations


def found(kinds: list[int], step_ns: float = 10.0, seq: list[int] | None = None) -> Iterations | None:
    numbers = np.array(seq if seq is not None else range(len(kinds)), np.int64)
    begin = numbers * step_ns
    return find_iterations(numbers, np.array(kinds, np.int64), begin, begin + 5.0)


def test_the_shortest_period_of_kinds_is_an_iteration() -> None:
    result = found([1, 1, 2, 3] * 6)
    assert result is not None
    assert (result.period, result.length_ns) == (4, 40.0)


def test_a_sequence_with_gaps_keeps_its_period() -> None:
    kinds = [1, 2, 3] * 10
    kept = [at for at in range(30) if at not in (4, 11, 20)]
    result = found([kinds[at] for at in kept], seq=kept)
    assert result is not None
    assert result.period == 3


def test_a_sample_of_equal_operations_has_iterations_of_one_operation() -> None:
    result = found([1] * 10, seq=list(range(0, 80, 8)))
    assert result is not None
    assert (result.period, result.length_ns) == (1, pytest.approx(10.0))


def test_longer_pauses_separate_iterations_of_equal_operations() -> None:
    begin = np.array([at * 10.0 + (at // 4) * 500 for at in range(24)])
    result = find_iterations(np.arange(24), np.ones(24, np.int64), begin, begin + 9.0)
    assert result is not None
    assert (result.period, result.length_ns) == (4, 540.0)


def test_a_program_that_never_repeats_has_none() -> None:
    assert found(list(range(40))) is None
    assert found([1, 2]) is None
    assert found([]) is None
