"""Tracks one clock over windows: a two-state filter (offset, rate) that learns its wander.

The mesh and the gauge of fabric time are not needed here.
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
"""Standard errors in a bound that holds 99.9 % of the time: 3.3 for normal errors with a known standard
error. Ours is estimated from few pairs per clock."""
LINE_OFFSET_SHARE: Final = 0.01
LINE_RATE_SHARE: Final = 0.06
"""Difference of a window's best line from a wandering clock's phase and rate at its middle: variances in
units of wander^2 * length^3 and wander^2 * length. The first is three times that of an integrated random
walk, because errors of neighbouring windows are correlated."""
HOLDOVER_WANDER: Final = 1.5
"""Factor on the wander of an unmeasured clock, because the wander is an estimate."""
UNKNOWN_BOUND_NS: Final = 1e9
FRESH_RATE_PPB: Final = 20_000.0
WALK_NS2_PER_S: Final = 0.01
"""ns^2/s by which a clock's phase wanders in addition to its rate: white frequency noise of a crystal at 1
s."""


USUAL_SQUARE: Final = 0.455
"""Median of the square of a standard normal deviate."""


@dataclass(slots=True)
class ClockTrack:
    """One clock: fabric time at its reading c is c + base_ns + offset_ns + drift_ppb * 1e-9 * (c - at_ns).

    `base_ns` holds the whole nanoseconds, so that `offset_ns` is small: a double holds the offset of a clock
    that counts from power-on to 256 ns only.
    """

    at_ns: int
    offset_ns: float
    drift_ppb: float
    p_offset: float
    """ns^2"""
    p_cross: float
    """ns * ppb"""
    p_drift: float
    """ppb^2"""
    state: ClockSync
    domain: str
    measured_ns: int
    """Fabric time of the last window that measured it."""
    asymmetry_ns: float = math.inf
    """Standard error by lasting asymmetries of paths, which averaging over windows does not reduce."""
    queue_ns: float = 0.0
    """Largest possible effect of queues in one direction."""
    limit_ns: float = math.inf
    """Largest possible effect of any paths and queues on the offset."""
    stamp_error_ns: float = 0.0
    """Common error of its timestamps relative to the wire; no loop shows it."""
    unrest_ppb: float = 0.0
    """Additional doubt of its rate after a recent change."""
    wander: float = 1.0
    """Its wander relative to the fleet's typical clock."""
    innovation: float = 0.0
    """The last window's innovation, in standard errors."""
    provisional: bool = False
    """Measured before fabric time's own rate was known."""
    doubts: int = 0
    """Consecutive windows with an offset that timestamp noise may explain."""
    pairs: int = 0
    residual_ns: float = 0.0
    event: ClockEvent = ClockEvent.NONE
    event_ns: float = 0.0
    knot_at_ns: int = 0
    knot_offset_ns: float = 0.0
    """Relative to `base_ns`."""
    knot_bound_ns: float = 0.0
    base_ns: int = 0

    def offset_at(self, reading_ns: int) -> float:
        """Return the difference to add to `reading_ns` and `base_ns` for fabric time."""
        return self.offset_ns + self.drift_ppb * 1e-9 * (reading_ns - self.at_ns)

    def fabric_ns(self, reading_ns: int) -> int:
        """Return fabric time at a reading."""
        return reading_ns + self.base_ns + round(self.offset_at(reading_ns))

    def reading_at(self, fabric_ns: int) -> int:
        """Return the clock's reading at a fabric time; exact to 1e-9 of the distance."""
        guess = fabric_ns - self.base_ns - round(self.offset_ns)
        return fabric_ns - self.base_ns - round(self.offset_at(guess))

    def rebase(self) -> None:
        """Move the whole nanoseconds of `offset_ns` to `base_ns`."""
        whole_ns = round(self.offset_ns)
        self.base_ns += whole_ns
        self.offset_ns -= whole_ns

    def advance(self, reading_ns: int, wander: float) -> None:
        """Advance the line and its uncertainty to `reading_ns`; wander in ppb per square root of a second.

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
        """Update with a measured offset and its variance."""
        total = self.p_offset + variance
        gain, gain_drift = self.p_offset / total, self.p_cross / total
        innovation = offset_ns - self.offset_ns
        self.offset_ns += gain * innovation
        self.drift_ppb += gain_drift * innovation
        self.p_drift -= gain_drift * self.p_cross
        self.p_cross -= gain * self.p_cross
        self.p_offset -= gain * self.p_offset

    def measure_drift(self, drift_ppb: float, variance: float) -> None:
        """Update with a measured rate and its variance."""
        total = self.p_drift + variance
        gain, gain_offset = self.p_drift / total, self.p_cross / total
        innovation = drift_ppb - self.drift_ppb
        self.drift_ppb += gain * innovation
        self.offset_ns += gain_offset * innovation
        self.p_offset -= gain_offset * self.p_cross
        self.p_cross -= gain * self.p_cross
        self.p_drift -= gain * self.p_drift

    def begin_holdover(self) -> None:
        """Continue without measurements: the doubt of the rate becomes part of its error."""
        self.p_drift += self.unrest_ppb**2
        self.unrest_ppb = 0.0

    def blend_limits(self, asymmetry_ns: float, queue_ns: float, limit_ns: float, gain: float) -> None:
        """Blend the window's limits of hidden errors in, with the gain of the offset."""
        self.asymmetry_ns = _towards(self.asymmetry_ns, asymmetry_ns, gain)
        self.queue_ns = _towards(self.queue_ns, queue_ns, gain)
        self.limit_ns = _towards(self.limit_ns, limit_ns, gain)

    @property
    def sigma_ns(self) -> float:
        """Standard error of the offset by timestamps and wander alone."""
        return math.sqrt(max(self.p_offset, 0.0))

    @property
    def bound_ns(self) -> float:
        """The bound that |error| does not exceed 99.9 % of the time.

        Timestamp noise and asymmetries are independent; queues may all be in one direction. Where loops show
        no asymmetry, the limit is the only bound.
        """
        if self.state == UNSYNCED and self.p_offset >= UNKNOWN_BOUND_NS**2:
            return UNKNOWN_BOUND_NS
        noise = SIGMAS * self.sigma_ns
        typical_ns = math.hypot(noise, SIGMAS * self.asymmetry_ns) + self.queue_ns + self.stamp_error_ns
        return min(UNKNOWN_BOUND_NS, typical_ns, noise + self.limit_ns)

    @property
    def drift_sigma_ppb(self) -> float:
        """Standard error of the rate."""
        return min(math.sqrt(max(self.p_drift, 0.0) + self.unrest_ppb**2), 1e6)


def split_ns(base_ns: int, offset_ns: float) -> tuple[int, float]:
    """Return the sum in whole ns and a fraction of at most half a ns."""
    whole_ns = round(offset_ns)
    return base_ns + whole_ns, offset_ns - whole_ns


def _towards(old: float, new: float, gain: float) -> float:
    if math.isinf(new):  # unknown now: keep the old value
        return old
    return new if math.isinf(old) else old + gain * (new - old)


class Wander:
    """The wander of the fleet's clocks, learned from the filters' innovations.

    A filter with the right process noise has white innovations: v(k) v(k - 1) is 0 in the mean (Mehra 1970).
    With too little process noise, consecutive innovations have the same sign. With too much, they are smaller
    than predicted, where the prediction consists mostly of process noise. The fleet's level follows the mean
    over clocks quickly, and each clock's own factor slowly.
    """

    MIN_PPB: Final = 0.05
    MAX_PPB: Final = 1000.0
    QUICK: Final = 0.5
    SLOW: Final = 0.05
    CLIP: Final = 2.0

    def __init__(self, ppb_per_sqrt_s: float) -> None:
        self.ppb_per_sqrt_s = ppb_per_sqrt_s

    def learn(self, innovations: list[tuple[ClockTrack, float, float]]) -> None:
        """Learn from each measured clock's innovation (standard errors) and the filter's share of its
        variance.

        The track holds the previous innovation.
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
