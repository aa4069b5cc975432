"""Tracks one clock over windows with a two-state filter (offset, rate), and learns the clocks' wander.

This module does not depend on the mesh or on the gauge of fabric time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from schemas.records import ClockEvent, ClockSync

SYNCED: Final = ClockSync.SYNCED
HOLDOVER: Final = ClockSync.HOLDOVER
UNSYNCED: Final = ClockSync.UNSYNCED

SIGMAS: Final = 4.2
"""Standard errors in a bound that holds 99.9 % of the time. For normal errors with a known standard error it
would be 3.3, but here the standard error is estimated from few pairs per clock."""
LINE_OFFSET_SHARE: Final = 0.01
LINE_RATE_SHARE: Final = 0.06
"""A wandering clock's phase and rate at the middle of a window differ from the window's best line. These are
the variances of both differences, in units of wander^2 * length^3 and wander^2 * length. The first is three
times that of an integrated random walk, because errors of neighbouring windows are correlated."""
HOLDOVER_WANDER: Final = 1.5
"""Factor on the wander of a clock in holdover, because the wander is only an estimate."""
UNKNOWN_BOUND_NS: Final = 1e9
FRESH_RATE_PPB: Final = 20_000.0
WALK_NS2_PER_S: Final = 0.01
"""White frequency noise of a crystal at 1 s, beside the wander of its rate: phase variance, ns^2/s."""


USUAL_SQUARE: Final = 0.455
"""Median of the square of a standard normal deviate."""


@dataclass(slots=True)
class ClockTrack:
    """Offset and rate of one clock. At its reading c, in ns, fabric time is
    c + base_ns + offset_ns + drift_ppb * 1e-9 * (c - at_ns).

    `base_ns` holds the whole nanoseconds, so that `offset_ns` is small. The offset of a clock that counts
    from power-on is so large that a double resolves it only to 256 ns.
    """

    at_ns: int
    offset_ns: float
    drift_ppb: float
    p_offset: float
    """Variance of the offset, ns^2."""
    p_cross: float
    """Covariance of offset and rate, ns * ppb."""
    p_drift: float
    """Variance of the rate, ppb^2."""
    state: ClockSync
    domain: str
    measured_ns: int
    """Fabric time of the middle of the last window that measured the clock, ns."""
    asymmetry_ns: float = math.inf
    """Standard error due to lasting asymmetries of paths, which averaging over windows does not reduce."""
    queue_ns: float = 0.0
    """Largest possible effect of queues in one direction."""
    limit_ns: float = math.inf
    """Largest possible effect of any paths and queues on the offset."""
    stamp_error_ns: float = 0.0
    """Common error of the clock's timestamps relative to the wire, which no loop of pairs shows."""
    unrest_ppb: float = 0.0
    """Additional error of the rate after a recent change of rate."""
    wander: float = 1.0
    """The clock's wander as a multiple of that of the fleet's typical clock."""
    innovation: float = 0.0
    """The last window's innovation, in standard errors."""
    provisional: bool = False
    """True if measured before fabric time's own rate was known."""
    doubts: int = 0
    """Number of consecutive windows whose measurement was ignored as possible noise."""
    pairs: int = 0
    residual_ns: float = 0.0
    event: ClockEvent = ClockEvent.NONE
    event_ns: float = 0.0
    knot_at_ns: int = 0
    knot_offset_ns: float = 0.0
    """Offset at the knot, minus `base_ns`."""
    knot_bound_ns: float = 0.0
    base_ns: int = 0

    def offset_at(self, reading_ns: int) -> float:
        """Return fabric time minus `reading_ns` minus `base_ns`, ns, when the clock shows `reading_ns`."""
        return self.offset_ns + self.drift_ppb * 1e-9 * (reading_ns - self.at_ns)

    def fabric_ns(self, reading_ns: int) -> int:
        """Return the fabric time, ns, at which the clock shows `reading_ns`."""
        return reading_ns + self.base_ns + round(self.offset_at(reading_ns))

    def reading_at(self, fabric_ns: int) -> int:
        """Return the clock's reading at a fabric time, ns, exact to 1e-9 of the time since `at_ns`."""
        guess = fabric_ns - self.base_ns - round(self.offset_ns)
        return fabric_ns - self.base_ns - round(self.offset_at(guess))

    def rebase(self) -> None:
        """Move the whole nanoseconds of `offset_ns` to `base_ns`, so that `offset_ns` stays small."""
        whole_ns = round(self.offset_ns)
        self.base_ns += whole_ns
        self.offset_ns -= whole_ns

    def advance(self, reading_ns: int, wander: float) -> None:
        """Extrapolate the line and its variances to `reading_ns`; `wander` in ppb per square root of 1 s.

        Integrated random walk (Zucca and Tavella 2005): a rate that wanders by q per square root of a second
        moves the phase by q^2 t^3 / 3.
        """
        dt = (reading_ns - self.at_ns) * 1e-9
        ahead = abs(dt)
        q = (wander * self.wander) ** 2
        self.offset_ns += self.drift_ppb * dt
        self.at_ns = reading_ns
        self.p_offset += (
            2 * dt * self.p_cross + dt * dt * self.p_drift + WALK_NS2_PER_S * ahead + q * ahead**3 / 3
        )
        self.p_cross += dt * self.p_drift + q * dt * ahead / 2
        self.p_drift += q * ahead

    def measure(self, offset_ns: float, variance: float) -> None:
        """Update offset and rate with a measured offset, ns, and its variance, ns^2."""
        total = self.p_offset + variance
        gain, gain_drift = self.p_offset / total, self.p_cross / total
        innovation = offset_ns - self.offset_ns
        self.offset_ns += gain * innovation
        self.drift_ppb += gain_drift * innovation
        self.p_drift -= gain_drift * self.p_cross
        self.p_cross -= gain * self.p_cross
        self.p_offset -= gain * self.p_offset

    def measure_drift(self, drift_ppb: float, variance: float) -> None:
        """Update offset and rate with a measured rate, ppb, and its variance, ppb^2."""
        total = self.p_drift + variance
        gain, gain_offset = self.p_drift / total, self.p_cross / total
        innovation = drift_ppb - self.drift_ppb
        self.drift_ppb += gain * innovation
        self.offset_ns += gain_offset * innovation
        self.p_offset -= gain_offset * self.p_cross
        self.p_cross -= gain * self.p_cross
        self.p_drift -= gain * self.p_drift

    def begin_holdover(self) -> None:
        """Prepare to extrapolate without measurements: add `unrest_ppb` to the error of the rate."""
        self.p_drift += self.unrest_ppb**2
        self.unrest_ppb = 0.0

    def blend_limits(self, asymmetry_ns: float, queue_ns: float, limit_ns: float, gain: float) -> None:
        """Move the error limits of asymmetry and queues towards the window's, by the offset's filter gain."""
        self.asymmetry_ns = _towards(self.asymmetry_ns, asymmetry_ns, gain)
        self.queue_ns = _towards(self.queue_ns, queue_ns, gain)
        self.limit_ns = _towards(self.limit_ns, limit_ns, gain)

    @property
    def sigma_ns(self) -> float:
        """Standard error of the offset, ns, from timestamp noise and wander only."""
        return math.sqrt(max(self.p_offset, 0.0))

    @property
    def bound_ns(self) -> float:
        """Limit of the absolute offset error, ns, that holds 99.9 % of the time.

        Timestamp noise and asymmetries are independent, but queues may all be in one direction. If there are
        no loops to show asymmetries, `limit_ns` is the only bound.
        """
        if self.state == UNSYNCED and self.p_offset >= UNKNOWN_BOUND_NS**2:
            return UNKNOWN_BOUND_NS
        noise = SIGMAS * self.sigma_ns
        typical_ns = math.hypot(noise, SIGMAS * self.asymmetry_ns) + self.queue_ns + self.stamp_error_ns
        return min(UNKNOWN_BOUND_NS, typical_ns, noise + self.limit_ns)

    @property
    def drift_sigma_ppb(self) -> float:
        """Standard error of the clock's rate against fabric time, ppb."""
        return min(math.sqrt(max(self.p_drift, 0.0) + self.unrest_ppb**2), 1e6)


def split_ns(base_ns: int, offset_ns: float) -> tuple[int, float]:
    """Split `base_ns` + `offset_ns` into whole ns and a remainder of at most half a ns."""
    whole_ns = round(offset_ns)
    return base_ns + whole_ns, offset_ns - whole_ns


def _towards(old: float, new: float, gain: float) -> float:
    if math.isinf(new):  # unknown now: keep the old value
        return old
    return new if math.isinf(old) else old + gain * (new - old)


class Wander:
    """The wander of the fleet's clocks, learned from the filters' innovations.

    A filter with the right process noise has white innovations: v(k) v(k - 1) is 0 in the mean (Mehra 1970).
    With too little process noise, consecutive innovations have the same sign. With too much process noise,
    innovations are smaller than predicted if the predicted variance is mostly process noise. The fleet's
    level follows the mean over clocks quickly. Each clock's own factor follows its innovations slowly.
    """

    MIN_PPB: Final = 0.05
    MAX_PPB: Final = 1000.0
    QUICK: Final = 0.5
    SLOW: Final = 0.05
    CLIP: Final = 2.0

    def __init__(self, ppb_per_sqrt_s: float) -> None:
        self.ppb_per_sqrt_s = ppb_per_sqrt_s

    def learn(self, innovations: list[tuple[ClockTrack, float, float]]) -> None:
        """Update the wander of the fleet and of each clock; store each innovation in its clock's track.

        Each element is a track, its new innovation in standard errors, and the share of the innovation's
        variance that comes from the track. The track still holds the previous innovation.
        """
        changes = []
        for track, innovation, share in innovations:
            if track.innovation:
                change = min(max(innovation * track.innovation, -self.CLIP), self.CLIP)
                small = share * 0.5 * math.log(max(innovation * innovation / USUAL_SQUARE, 0.05))
                changes.append((change, small))
                own = self.SLOW * (change + min(small, 0.0) - 0.2 * math.log(track.wander))
                track.wander = min(max(track.wander * math.exp(own), 1.0), 100.0)
            track.innovation = innovation
        if changes:
            mean = sum(change for change, _ in changes) / len(changes)
            small = sorted(small for _, small in changes)[len(changes) // 2]
            weight = min(1.0, len(changes) / 16)
            level = self.ppb_per_sqrt_s * math.exp(self.QUICK * weight * (mean + min(small, 0.0)))
            self.ppb_per_sqrt_s = min(max(level, self.MIN_PPB), self.MAX_PPB)
