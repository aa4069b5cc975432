"""Time axes of charts, and removal of linear trends from series."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from fabrictime.web.history_sql import Span

Values = list[float | None]

GAP_STEPS = 3
"""More steps than this without a value end a stretch: the clock may have restarted in between."""


def rounded(value: float | None, digits: int) -> float | int | None:
    """Return a value rounded to `digits` significant digits, to keep a frame small; None without a finite
    value.
    """
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short


def steps(span: Span, known_ns: Iterable[int]) -> range:
    """Return the numbers of a span's steps. They start at the first step with a point, so that a young
    history fills the chart.
    """
    first, last = -(-span.start_ns // span.step_ns), span.end_ns // span.step_ns
    first = max(first, min((at // span.step_ns for at in known_ns), default=first))
    return range(first, max(last, first + 2))


def time_axis(span: Span, known_ns: Iterable[int]) -> tuple[list[int], dict[int, int]]:
    """Return the times of the axis in ms, and the index on the axis by step number."""
    numbers = steps(span, known_ns)
    return [number * span.step_ns // 1_000_000 for number in numbers], {n: i for i, n in enumerate(numbers)}


def detrend(values: Sequence[float | None]) -> Values:
    """Return the values minus the least-squares line of each run of values without None. None stays None."""
    positions = [i for i, value in enumerate(values) if value is not None]
    cuts = [b for a, b in itertools.pairwise(positions) if b - a > GAP_STEPS]
    stretches = itertools.pairwise([0, *cuts, len(values)])
    return [value for first, last in stretches for value in _detrend_stretch(values[first:last])]


def _detrend_stretch(values: Sequence[float | None]) -> Values:
    y = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    x = np.arange(len(y), dtype=np.float64)
    is_measured = np.isfinite(y)
    if is_measured.sum() >= 3:
        slope, start = np.polyfit(x[is_measured], y[is_measured] - y[is_measured][0], 1)
        y = y - y[is_measured][0] - (slope * x + start)
    elif is_measured.any():
        y = y - y[is_measured].mean()
    return [float(value) if np.isfinite(value) else None for value in y]
