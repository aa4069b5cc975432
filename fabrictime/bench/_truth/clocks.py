"""Clocks whose readings are known at any time: an offset, a rate that walks, and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
KNOT_NS: Final = 10_000_000
"""Time for which a rate is constant."""


def walk(rate_ppb: Float64s, knots: int, wander_ppb_per_sqrt_s: float, rng: np.random.Generator) -> Float64s:
    """Draw the rates of clocks, ppb, [clocks, knots]: random walks that begin at `rate_ppb`."""
    steps = rng.normal(0, wander_ppb_per_sqrt_s * np.sqrt(KNOT_NS * 1e-9), (len(rate_ppb), knots))
    steps[:, 0] = 0
    rates: Float64s = rate_ppb[:, None] + np.cumsum(steps, axis=1)
    return rates


class Clocks:
    """Clocks that each read its `epoch_ns` + t + `ahead_ns` at the time t since the start.

    `begin_ns` [clocks] is `ahead_ns` at the start; it grows by the integral of `ppb`, [clocks, knots].
    """

    def __init__(
        self, begin_ns: Float64s, ppb: Float64s, names: Sequence[str] = (), epoch_ns: Sequence[int] = ()
    ) -> None:
        self.ppb, self.names, self.epoch_ns = ppb, list(names), list(epoch_ns)
        self.index = {name: number for number, name in enumerate(self.names)}
        """The number of each clock, by name."""
        grown = np.cumsum(ppb[:, :-1] * (KNOT_NS * 1e-9), axis=1)
        phase = begin_ns[:, None] + np.pad(grown, ((0, 0), (1, 0)))
        self._at_start = phase - ppb * (np.arange(ppb.shape[1]) * (KNOT_NS * 1e-9))
        """Value at t = 0 of the straight line of each knot, [clocks, knots]."""
        self._steps: list[tuple[int, float, float]] = []

    def step(self, nic: int, at_ns: float, by_ns: float) -> None:
        """Make a clock read `by_ns` more from the time `at_ns` on."""
        self._steps.append((nic, at_ns, by_ns))

    def ahead_ns(self, nic: int | Int64s, t_ns: Float64s) -> Float64s:
        """Return the readings minus the true times `t_ns`, ns, of one clock or of one clock for each time."""
        knot = np.minimum((t_ns * (1 / KNOT_NS)).astype(np.int32), self.ppb.shape[1] - 1)
        # phase + rate * (t - knot * KNOT_NS), with the knot's terms combined
        ahead: Float64s = self._at_start[nic, knot] + self.ppb[nic, knot] * 1e-9 * t_ns
        for which, at_ns, by_ns in self._steps:
            if np.any(nic == which):
                ahead = ahead + np.where((nic == which) & (t_ns >= at_ns), by_ns, 0.0)
        return ahead
