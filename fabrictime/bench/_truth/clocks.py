"""Draws clocks whose readings are known at any time: an offset, a rate that walks, and steps."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
KNOT_NS: Final = 10e6


class Clocks:
    """`nics` clocks over `span_ns`, each of which reads t + `ahead_ns` at t; their rates walk in steps of 10
    ms."""

    def __init__(
        self,
        nics: int,
        span_ns: float,
        rng: np.random.Generator,
        *,
        offset_ns: float = 1e9,
        drift_ppb: float = 5_000.0,
        wander_ppb_per_sqrt_s: float = 1.0,
    ) -> None:
        self.knots = int(span_ns // KNOT_NS) + 3
        walk = rng.normal(0, wander_ppb_per_sqrt_s * np.sqrt(KNOT_NS * 1e-9), (nics, self.knots))
        rate = (rng.uniform(-drift_ppb, drift_ppb, nics)[:, None] + np.cumsum(walk, axis=1)) * 1e-9
        grown = np.cumsum(rate[:, :-1] * KNOT_NS, axis=1)
        self._rate = rate
        self._phase = rng.uniform(-offset_ns, offset_ns, nics)[:, None] + np.pad(grown, ((0, 0), (1, 0)))
        self._steps: list[tuple[int, float, float]] = []

    def step(self, nic: int, at_ns: float, by_ns: float) -> None:
        """Make a clock read `by_ns` more from `at_ns` on."""
        self._steps.append((nic, at_ns, by_ns))

    def ahead_ns(self, nic: Int64s, t_ns: Float64s) -> Float64s:
        """Return each clock's reading minus the true time, ns."""
        knot = np.clip((t_ns / KNOT_NS).astype(np.int64), 0, self.knots - 1)
        ahead: Float64s = self._phase[nic, knot] + self._rate[nic, knot] * (t_ns - knot * KNOT_NS)
        for which, at_ns, by_ns in self._steps:
            ahead = ahead + np.where((nic == which) & (t_ns >= at_ns), by_ns, 0.0)
        return ahead
