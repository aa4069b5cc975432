"""Computes the gauge: the value, ns, that turns a connected part's relative clocks into fabric time.

The mesh gives only the differences between clocks. `Slew` steers fabric time towards its reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from schemas.records import NicWindow
from streams.clock.mesh import Mesh
from streams.clock.pairs import Float64s

FlushesByHost = Mapping[str, Sequence[tuple[int, NicWindow]]]
"""For each host the (node, last flush) of its NICs."""

RATE_LEARN: Final = 0.05
"""Smallest gain with which the reference's rate follows a new estimate; the first windows have more."""
MAX_REFERENCE_RATE_PPB: Final = 10_000.0
RATE_WINDOWS: Final = 3
"""The reference's rate is the median over this many windows, so that one window cannot change it alone."""
CLIP_SPREADS: Final = 5
CLIP_ERRORS: Final = 3.0


class SlewParameters(Protocol):
    """Limits of the rate at which fabric time is steered towards its reference."""

    @property
    def slew_max_ppb(self) -> float:
        """Limit, ppb, of the part of the slew that is proportional to the error."""

    @property
    def slew_time_s(self) -> float:
        """Time constant, s, of the part of the slew that is proportional to the error."""


@dataclass(slots=True)
class Slew:
    """A controller that steers fabric time: a limited proportional part, and an integral part.

    The integral part learns the reference's rate.
    """

    proportional_ppb: float = 0.0
    rate_ppb: float = 0.0
    previous_ns: float | None = None
    """Reference minus fabric time in the previous window, ns."""
    recent_ppb: list[float] = field(default_factory=list)
    """Estimates of the reference's rate in the last windows, relative to `rate_ppb`."""
    windows: int = 0

    def step(self, error_ns: float | None, seconds: float, parameters: SlewParameters) -> float:
        """Return the change of fabric time's rate (ppb) for the next window.

        `error_ns`: reference minus fabric time, or None if there is no reference now.
        """
        before_ppb = self.proportional_ppb + self.rate_ppb
        if error_ns is None:
            self.proportional_ppb, self.previous_ns, self.recent_ppb = 0.0, None, []
            return self.proportional_ppb + self.rate_ppb - before_ppb
        if self.previous_ns is not None:
            self._learn_rate((error_ns - self.previous_ns) / seconds)
        self.previous_ns = error_ns
        limit_ppb = parameters.slew_max_ppb
        self.proportional_ppb = min(max(error_ns / parameters.slew_time_s, -limit_ppb), limit_ppb)
        return self.proportional_ppb + self.rate_ppb - before_ppb

    def _learn_rate(self, error_rate_ppb: float) -> None:
        """Learn the reference's rate, which is the error's rate plus the correction now in force."""
        self.recent_ppb = [*self.recent_ppb[1 - RATE_WINDOWS :], error_rate_ppb + self.proportional_ppb]
        self.windows += 1
        if len(self.recent_ppb) == RATE_WINDOWS:
            self.rate_ppb += max(RATE_LEARN, 1 / self.windows) * sorted(self.recent_ppb)[RATE_WINDOWS // 2]
            self.rate_ppb = min(max(self.rate_ppb, -MAX_REFERENCE_RATE_PPB), MAX_REFERENCE_RATE_PPB)


def gauge_base_ns(mesh: Mesh, hosts: FlushesByHost, members: Sequence[int]) -> int:
    """Return a guess of a new part's gauge, ns, from the hosts' system clocks, else from the NIC clocks."""
    guesses = [
        nic["system_ns"] - nic["clock_ns"] - int(mesh.theta_ns[node])
        for flushes in hosts.values()
        for node, nic in flushes
    ]
    return middle_of(guesses or [-int(mesh.theta_ns[node]) for node in members])


def middle_of(values: Iterable[int]) -> int:
    """Return the upper median of integers, exact even if they are too large for a double."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def hosts_gauge_ns(mesh: Mesh, hosts: FlushesByHost, gauge_rate: float, base_ns: int) -> float:
    """Return the gauge minus `base_ns`, ns, that makes fabric time the median of the hosts' system clocks."""
    medians = []
    for flushes in hosts.values():
        ahead = []
        for node, nic in flushes:
            since_ns = nic["clock_ns"] - int(mesh.reading_ns[node])
            rate = math.expm1((mesh.rate_log_ppb[node] + gauge_rate) * 1e-9)
            ahead_ns = nic["system_ns"] - nic["clock_ns"] - int(mesh.theta_ns[node]) - base_ns
            ahead.append(ahead_ns - mesh.theta_rest_ns[node] - rate * since_ns)
        medians.append(median(ahead))
    return float(np.median(medians)) if medians else 0.0


def median(values: list[float]) -> float:
    """Return the median of three or more values, the mean of one or two."""
    return float(np.median(values)) if len(values) > 2 else sum(values) / len(values)


def robust_mean(values: Float64s, weight: Float64s) -> float:
    """Return the weighted mean of the values near the weighted median; ignore outliers."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weight[order])
    middle = values[order[int(np.searchsorted(total, total[-1] / 2))]]
    away = np.abs(values - middle)
    spread = 1.4826 * float(np.sort(away)[(len(away) - 1) // 2])
    near = away <= max(CLIP_SPREADS * spread, CLIP_ERRORS / float(np.sqrt(weight.max())))
    return float(np.average(values[near], weights=weight[near]))
