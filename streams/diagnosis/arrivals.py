"""Arrival of ranks at collectives: the last rank, its lateness, and the cause of that lateness.

All arrays have one element per row, unless they are named `group_`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrivals", "Floats", "Groups", "Ints", "arrivals_of", "group_medians", "groups_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows sorted into groups. `group`: each row's group; `order`: rows by group, then by value."""

    group: Ints
    order: Ints
    starts: Ints
    counts: Ints

    def median(self, values: Floats) -> Floats:
        """Return each group's lower median of a value by which its rows are ordered."""
        middle: Ints = self.order[self.starts + (self.counts - 1) // 2]
        return np.asarray(values[middle], np.float64)

    def last(self) -> Ints:
        """Return each group's row with the greatest value."""
        return np.asarray(self.order[self.starts + self.counts - 1], np.int64)


def groups_of(keys: Ints, values: Floats) -> Groups:
    """Group rows by key, and order each group's rows by a value."""
    order = np.lexsort((values, keys))
    sorted_keys = keys[order]
    is_first = np.ones(len(keys), bool)
    is_first[1:] = sorted_keys[1:] != sorted_keys[:-1]
    starts = np.flatnonzero(is_first)
    group = np.empty(len(keys), np.int64)
    group[order] = np.cumsum(is_first) - 1
    counts = np.diff(np.append(starts, len(keys)))
    return Groups(group, order, starts, counts)


def group_medians(group: Ints, count: int, values: Floats) -> Floats:
    """Return the median of each group's known values; NaN: none is known."""
    known = np.flatnonzero(~np.isnan(values))
    found = np.full(count, np.nan)
    if len(known):
        inner = groups_of(group[known], values[known])
        found[group[known[inner.order[inner.starts]]]] = inner.median(values[known])
    return found


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals at the collectives of an interval, one element per collective."""

    group_last: Ints
    """Row of the last rank."""
    group_late_ns: Floats
    """Its lateness after the median rank."""
    group_clear: Bools
    """Whether it is later than the clocks' bounds allow for."""
    group_launch_share: Floats
    """Share of the lateness that came between its call and its begin."""
    group_own_share: Floats
    """Share of the lateness that it spent outside of operations; NaN: unknown."""


def arrivals_of(
    groups: Groups, begin: Floats, launch: Floats, gap: Floats, tolerance: Floats, *, full: Bools
) -> Arrivals:
    """Return the last rank of each collective and the cause of its lateness.

    `begin`, `launch`, `gap`: ns of each row; `gap` is the time since the rank's previous operation, NaN if
    unknown. `tolerance`: ns, error of each row's times. `full`: groups with enough of their ranks.
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
