"""Measures arrivals of ranks at collectives: the last rank, its lateness, and the cause of that lateness.

Arrays have one element per row; arrays named `group_` have one element per group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


_MAX_RADIX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows sorted into groups. `group`: group of each row; `order`: row numbers by group, then value."""

    group: Ints
    order: Ints
    starts: Ints
    counts: Ints

    def median(self, values: Floats) -> Floats:
        """Return the lower median of each group. `values`: the values by which the rows are ordered."""
        middle: Ints = self.order[self.starts + (self.counts - 1) // 2]
        return np.asarray(values[middle], np.float64)

    def last(self) -> Ints:
        """Return, for each group, the number of the row with the greatest value."""
        return np.asarray(self.order[self.starts + self.counts - 1], np.int64)


def distinct(keys: Ints) -> tuple[Ints, Ints]:
    """Return the sorted distinct keys, and for each element the index of its key among the distinct keys.

    The result is the one of `np.unique` with `return_inverse`. A plain sort and a search among few keys take
    a third of its time.
    """
    ordered = np.sort(keys)
    is_first = np.ones(len(keys), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    unique_keys = ordered[is_first]
    return unique_keys, np.asarray(np.searchsorted(unique_keys, keys), np.int64)


def order_by(places: Ints, values: Floats | Ints) -> Ints:
    """Return row numbers sorted by place, then by value, then by row. `places`: small integers from 0.

    Values that are nearly sorted are merged by sorted runs; places below 2 ** 16 use a radix sort.
    """
    by_value = np.argsort(values, kind="stable")
    column = places[by_value]
    if len(column) and column.max() <= _MAX_RADIX:
        column = column.astype(np.uint16)
    return np.asarray(by_value[np.argsort(column, kind="stable")], np.int64)


def groups_of(keys: Ints, values: Floats) -> Groups:
    """Group rows by key; within each group, order them by value."""
    unique_keys, group = distinct(keys)
    counts = np.bincount(group, minlength=len(unique_keys))
    starts = np.cumsum(counts) - counts
    return Groups(group, order_by(group, values), starts, counts)


def group_medians(group: Ints, count: int, values: Floats) -> Floats:
    """Return the median of each group's known values; NaN for a group without known values."""
    has_value = ~np.isnan(values)
    medians = np.full(count, np.nan)
    if has_value.any():
        group, values = group[has_value], values[has_value]
        if values.min() == values.max():  # as where no rank waits to be launched
            medians[group] = values[0]
            return medians
        by_value = np.argsort(values)  # equal values may take any order
        column = group[by_value]
        by_group = np.argsort(column.astype(np.uint16) if count <= _MAX_RADIX else column, kind="stable")
        counts = np.bincount(group, minlength=count)
        middle = np.cumsum(counts) - counts + (counts - 1) // 2
        has = counts > 0
        medians[has] = values[by_value[by_group[middle[has]]]]
    return medians


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals of ranks at the collectives of an interval; arrays have one element per collective."""

    group_last: Ints
    """Row of the last rank."""
    group_late_ns: Floats
    """Lateness of the last rank after the median rank, ns."""
    group_clear: Bools
    """Whether the last rank is later than the error bounds of the clocks can explain."""
    group_launch_share: Floats
    """Share of the lateness between the last rank's call and the begin of its operation."""
    group_own_share: Floats
    """Share of the lateness that the last rank spent outside of operations; NaN if unknown."""


def arrivals_of(
    groups: Groups, begin: Floats, launch: Floats, gap: Floats, tolerance: Floats, *, full: Bools
) -> Arrivals:
    """Return the last rank of each collective and the cause of its lateness.

    `begin`, `launch`, `gap`: ns of each row; `gap` is the time since the rank's previous operation, NaN if
    unknown. `tolerance`: error of each row's times, ns. `full`: whether enough ranks of each group are
    seen.
    """
    count = len(groups.starts)
    arrival = begin + launch
    last = groups.last()
    late = arrival[last] - groups.median(arrival)
    median_tolerance = group_medians(groups.group, count, tolerance)
    clear = full & (groups.counts > 1) & (late > tolerance[last] + median_tolerance)
    positive = np.maximum(late, 1.0)
    launch_excess = launch[last] - group_medians(groups.group, count, launch)
    gap_excess = gap[last] - group_medians(groups.group, count, gap)
    return Arrivals(
        last,
        late,
        clear,
        np.clip(launch_excess / positive, 0.0, 1.0),
        np.clip(gap_excess / positive, 0.0, 1.0),
    )
