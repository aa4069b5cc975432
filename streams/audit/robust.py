"""Finds outliers robustly: median, median absolute deviation (MAD) and modified z-score. Pure.

The modified z-score is 0.6745 (x - median) / MAD, after Iglewicz and Hoaglin, "How to Detect and Handle
Outliers" (1993). Their threshold of 3.5 labels one of 2,000 values of normal noise. A fleet states 100,000
values, and the MAD of few values is itself uncertain, so the threshold here grows with fewer values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_VALUES: Final = 8
"""Number of values below which their MAD says nothing about noise."""
Z_THRESHOLD: Final = 8.0
"""Modified z-score from which on one of many values is an outlier. It gives less than one false outlier in a
million sets of 64 normal values."""
FEW_VALUES: Final = 20.0
"""Constant c of the factor 1 + (c / n)^2 for the threshold of n values. By simulation, the share of false
outliers is then the same for 8 to 64 values."""
SIGMAS_OF_MAD: Final = 0.6745
"""Quantile of the normal distribution at 75%: MAD of normal noise in standard deviations."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and MAD of `count` values."""

    median: float
    mad: float
    count: int

    @classmethod
    def of(cls, values: ArrayLike) -> Spread:
        """Return the spread of finite values, of which there must be at least one."""
        x = np.asarray(values, np.float64)
        median = float(np.median(x))
        return cls(median, float(np.median(np.abs(x - median))), len(x))

    def tolerance(self, relative: float, absolute: float = 0.0) -> float:
        """Return the largest deviation from the median that is not an outlier, in the values' unit.

        `relative`: its minimum as a share of the median; `absolute`: its minimum in the values' unit.
        """
        noise = threshold(self.count) * self.mad / SIGMAS_OF_MAD
        return max(noise, relative * abs(self.median), absolute)


def threshold(count: int) -> float:
    """Return the modified z-score above which one of `count` values is an outlier."""
    return Z_THRESHOLD * (1 + (FEW_VALUES / max(count, 1)) ** 2)


def odd_ones(
    values: NDArray[np.float64], relative: float, absolute: float = 0.0, error: ArrayLike = 0.0
) -> tuple[Spread, NDArray[np.bool_]]:
    """Return the spread of the values, and a mask of the outliers.

    There must be at least one value. `error`: uncertainty by which an outlier must exceed the tolerance.
    """
    spread = Spread.of(values)
    excess = np.abs(values - spread.median) - np.asarray(error, np.float64)
    return spread, excess > spread.tolerance(relative, absolute) * (1 + 1e-12)
