"""Loops over rows and cells of `PathQueueing`: against plain sums, and with columns that do not fit."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from native.core.queue_calibration import learn_pairs, limit_depths, sum_routes
from native.core.queue_cells import CellStore, find_routes, lay_out, own_delays

HOPS = np.array([[0, 2], [1, 2], [0, 3], [1, 3]])
"""Columns of four routes; 3 stands for none."""
COLUMNS = 3


def cells_of(seed: int, count: int, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    route = rng.integers(0, len(HOPS), count).astype(np.int32)
    return route, rng.integers(0, slots, count), rng.normal(0, 5, count)


def test_sums_over_the_columns_of_routes() -> None:
    route, slot, _ = cells_of(1, 40, 5)
    table = np.random.default_rng(2).random((5, COLUMNS))
    expected = [sum(table[t, c] for c in HOPS[r] if c < COLUMNS) for r, t in zip(route, slot, strict=True)]
    assert sum_routes(HOPS, route, slot, table).tolist() == pytest.approx(expected)


def test_pairs_of_cells_in_one_slot_of_one_column() -> None:
    route, slot, error = cells_of(3, 60, 4)
    var = np.array([1.0, 2.0, 3.0, 0.0])
    pairs, product, variance = learn_pairs(HOPS, route, slot, error, var)
    products = [
        (c, 2 * error[a] * error[b])
        for a, b in combinations(range(60), 2)
        if slot[a] == slot[b]
        for c in set(HOPS[route[a]]) & set(HOPS[route[b]])
        if c < COLUMNS
    ]
    assert pairs == 2 * len(products)
    assert product == pytest.approx(sum(each for _, each in products))
    assert variance == pytest.approx(sum(2 * var[c] for c, _ in products))


def test_cells_are_laid_out_by_slot_and_time() -> None:
    route, slot, at = cells_of(4, 500, 8)
    at = np.clip(np.abs(at) / 20, 0, 1)
    start, (routes, when, *_), back = lay_out(slot + 100, route, at, at, at, at, 100, 8, 2, 16)
    order = [n for n in np.argsort((slot + at) / 2, kind="stable") if not back[n]]
    assert start[-1] == len(order) == len(routes)
    for number in range(4):
        one = [n for n in order if slot[n] // 2 == number]
        assert routes[start[number] : start[number + 1]].tolist() == route[one].tolist()
        expected = (slot[one] + at[one]) / 2 - number
        assert when[start[number] : start[number + 1]].tolist() == pytest.approx(expected)


def test_columns_that_do_not_fit_are_refused() -> None:
    one, none = np.ones(1), np.zeros(0)
    route, slot = np.zeros(1, np.int32), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="one length"):
        CellStore(4).add(slot, route, none, one, one, one, one)
    with pytest.raises(ValueError, match="bucket_slots 0"):
        CellStore(0)
    with pytest.raises(ValueError, match="slot 0, expected 4 to 7"):
        lay_out(slot, route, one, one, one, one, 4, 4, 1, 16)
    with pytest.raises(ValueError, match="route 0, expected 0 to -1"):
        own_delays(route, one, one, np.zeros(0, np.int64), np.zeros(0, np.int64), 3, 5.0)
    with pytest.raises(ValueError, match="NICs 0, 0"):
        find_routes(slot[:0], route[:0], slot[:0], slot, slot, slot, slot, slot[:0])
    with pytest.raises(ValueError, match="slot 3"):
        limit_depths(HOPS, slot + 3, route, one, np.zeros((2, 4)), np.zeros(3), np.ones(3), 2)


def test_rows_with_wrong_numbers_of_cells_are_refused() -> None:
    store, route = CellStore(4), np.zeros(2, np.int32)
    noise, mean = np.ones(2, np.float32), np.ones(3, np.float32)
    slot, none = np.zeros(3, np.int64), np.zeros(0, np.int64)
    for cells in ([2, 2], [-1, 4]):
        with pytest.raises(ValueError, match="expected 3 together"):
            store.add_rows(0, 1e6, 1.0, route, np.array(cells), noise, slot, slot, mean, none, none)
