"""The last rank of each collective."""

from __future__ import annotations

import numpy as np
import pytest

from streams.diagnosis.job.arrivals import arrivals_of, group_medians, groups_of, order_by

NONE = np.full(4, np.nan)
ZERO = np.zeros(4)


def of(
    begin: list[float], launch: list[float], gap: list[float], tolerance: float
) -> tuple[int, float, bool, float, float]:
    arrival = np.array(begin) + np.array(launch)
    groups = groups_of(np.zeros(len(begin), np.int64), arrival)
    found = arrivals_of(
        groups,
        np.array(begin),
        np.array(launch),
        np.array(gap),
        np.full(len(begin), tolerance),
        full=np.array([True]),
    )
    return (
        int(found.group_last[0]),
        float(found.group_late_ns[0]),
        bool(found.group_clear[0]),
        float(found.group_launch_share[0]),
        float(found.group_own_share[0]),
    )


def test_the_last_rank_and_its_lateness_after_the_median() -> None:
    last, late, clear, launch, own = of([0.0, 10.0, 20.0, 500.0], [0.0] * 4, [5.0, 5.0, 5.0, 495.0], 1.0)
    assert (last, late, clear, launch) == (3, 490.0, True, 0.0)
    assert own == pytest.approx(1.0)


def test_a_lateness_within_both_bounds_is_not_clear() -> None:
    assert of([0.0, 0.0, 0.0, 90.0], [0.0] * 4, [0.0] * 4, 50.0)[2] is False
    assert of([0.0, 0.0, 0.0, 110.0], [0.0] * 4, [0.0] * 4, 50.0)[2] is True


def test_a_late_begin_after_the_call_is_a_late_launch() -> None:
    _, _, _, launch, own = of([0.0] * 4, [1.0, 1.0, 1.0, 101.0], [5.0] * 4, 1.0)
    assert (launch, own) == (1.0, 0.0)


def test_the_cause_is_unknown_without_an_earlier_operation() -> None:
    assert np.isnan(of([0.0, 0.0, 0.0, 100.0], [0.0] * 4, [np.nan] * 4, 1.0)[4])


def test_medians_of_groups_leave_unknown_values_out() -> None:
    group = np.array([0, 0, 0, 1, 2])
    found = group_medians(group, 3, np.array([1.0, np.nan, 3.0, 7.0, np.nan]))
    assert found[:2].tolist() == [1.0, 7.0]
    assert np.isnan(found[2])


@pytest.mark.parametrize("seed", range(4))
def test_groups_and_medians_are_those_of_a_full_sort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.choice(rng.integers(-(2**60), 2**60, 40), 2_000)
    values = rng.integers(0, 50, 2_000).astype(np.float64)  # with many equal values

    found = groups_of(keys, values)

    assert found.order.tolist() == np.lexsort((values, keys)).tolist()
    assert found.group.tolist() == np.unique(keys, return_inverse=True)[1].tolist()
    values[rng.random(2_000) < 0.3] = np.nan
    medians = group_medians(found.group, len(found.starts), values)
    for group, median in enumerate(medians):
        known = np.sort(values[(found.group == group) & ~np.isnan(values)])
        assert median == known[(len(known) - 1) // 2]


def test_rows_are_ordered_by_more_places_than_16_bits() -> None:
    places = np.array([70_000, 3, 70_000, 0, 3])
    values = np.array([2.0, 1.0, 1.0, 9.0, 0.0])

    assert order_by(places, values).tolist() == [3, 4, 1, 2, 0]
