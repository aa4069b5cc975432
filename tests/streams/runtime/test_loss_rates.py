"""Loss rates: the fewest elements that explain the losses of paths."""

from __future__ import annotations

import numpy as np
import pytest

from streams.runtime.loss_rates import find_lossy, wilson

PREFER_ALL = np.ones(16, np.bool_)


def test_the_wilson_interval_contains_the_share_and_shrinks_with_the_number_of_requests() -> None:
    widths = []
    for requests in (10, 100, 10_000):
        low, high = wilson(requests * 0.1, requests)
        assert 0 <= low < 0.1 < high <= 1
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert wilson(0, 0) == (0.0, 1.0), "without requests the share is unknown"
    assert wilson(0, 100)[0] == 0
    assert wilson(100, 100)[1] == pytest.approx(1)


def test_the_element_that_lossy_paths_share_is_found_with_its_rate() -> None:
    rows = np.array([[1, 5], [2, 5], [1, 6], [2, 6]], np.int32)
    requests = np.full(4, 1000.0)
    [found] = find_lossy(rows, np.array([48, 52, 0, 0]), requests, PREFER_ALL)
    assert found.element == 5
    assert found.rate == pytest.approx(0.05, rel=0.02)
    assert found.low < 0.05 < found.high
    assert (found.aliased, found.paths, found.requests) == ((), 2, 2000.0)


def test_two_lossy_elements_are_separated() -> None:
    rows = np.array([[a, b] for a in (1, 2, 3) for b in (5, 6, 7)], np.int32)
    share = {1: 0.1, 5: 0.02}
    requests = np.full(len(rows), 2000.0)
    lost = np.array([round(2000 * sum(share.get(int(e), 0.0) for e in row)) for row in rows])
    found = {each.element: each.rate for each in find_lossy(rows, lost, requests, PREFER_ALL)}
    assert found.keys() == {1, 5}
    assert found[1] == pytest.approx(0.1, rel=0.1)
    assert found[5] == pytest.approx(0.02, rel=0.3)


def test_elements_on_the_same_paths_are_aliased_and_the_preferred_one_is_named() -> None:
    rows = np.array([[1, 3], [1, 3], [2, 4]], np.int32)
    prefer = np.zeros(16, np.bool_)
    prefer[3] = True
    [found] = find_lossy(rows, np.array([50, 50, 0]), np.full(3, 1000.0), prefer)
    assert (found.element, found.aliased) == (3, (1,))


def test_paths_without_requests_and_without_losses_name_no_element() -> None:
    rows = np.array([[1, 3], [2, 3]], np.int32)
    assert find_lossy(rows, np.array([0, 0]), np.full(2, 1000.0), PREFER_ALL) == []
    assert find_lossy(rows, np.array([9, 9]), np.zeros(2), PREFER_ALL) == []


GAPS = np.array([True, True, True, False, False, False])


def test_losses_of_routes_with_gaps_are_not_those_of_a_link_that_complete_routes_cross_without_loss() -> None:
    rows = np.array([[1, 3], [1, 4], [1, 5], [1, 3], [1, 4], [1, 5]], np.int32)
    lost, requests = np.array([40, 40, 40, 0, 0, 0]), np.full(6, 500.0)
    assert [each.element for each in find_lossy(rows, lost, requests, PREFER_ALL)] == [1]
    assert find_lossy(rows, lost, requests, PREFER_ALL, GAPS) == []


def test_losses_of_routes_with_gaps_count_where_complete_routes_lose_too_or_none_is_complete() -> None:
    rows = np.array([[1, 3], [1, 4], [1, 5], [1, 3], [1, 4], [2, 5]], np.int32)
    requests = np.full(6, 500.0)
    [found] = find_lossy(rows, np.array([40, 40, 40, 40, 40, 0]), requests, PREFER_ALL, GAPS)
    assert (found.element, found.rate) == (1, pytest.approx(0.08, rel=0.05))
    alone = np.array([[1, 3], [1, 4], [1, 5], [2, 3], [2, 4], [2, 5]], np.int32)
    [found] = find_lossy(alone, np.array([40, 40, 40, 0, 0, 0]), requests, PREFER_ALL, GAPS)
    assert found.element == 1, "no complete route crosses it"


def test_a_lossy_link_is_found_beside_unexplained_losses_of_routes_with_gaps() -> None:
    rows = np.array([[1, 3], [1, 4], [1, 5], [1, 3], [1, 4], [2, 5], [2, 6]], np.int32)
    lost, requests = np.array([40, 40, 40, 0, 0, 0, 60]), np.full(7, 500.0)
    gaps = np.append(GAPS, False)
    [found] = find_lossy(rows, lost, requests, PREFER_ALL, gaps)
    assert found.element == 6
