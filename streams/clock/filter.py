"""One clock from window to window: a two-state filter (offset, rate) whose wander is learned.

In: the clock's measured offset and rate with their errors. Out: its line, what it is worth, and what a window
showed of it. Knows neither the mesh nor fabric time's gauge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = [
    "FRESH_RATE_PPB",
    "HOLDOVER",
    "HOLDOVER_WANDER",
    "LINE_OFFSET_SHARE",
    "LINE_RATE_SHARE",
    "SIGMAS",
    "SYNCED",
    "UNKNOWN_BOUND_NS",
    "UNSYNCED",
    "ClockTrack",
    "Wander",
]

SYNCED: Final = "SYNCED"
HOLDOVER: Final = "HOLDOVER"
UNSYNCED: Final = "UNSYNCED"

SIGMAS: Final = 4.2
"""Standard errors in a bound that holds 99.9 % of the time: 3.3 if errors were normal and their standard
error known; it is estimated, from few pairs a clock."""
LINE_OFFSET_SHARE: Final = 0.01
LINE_RATE_SHARE: Final = 0.06
"""What a window's best line differs from a wandering clock's phase and rate at its middle: variances in units
of wander^2 * length^3 (three times that of an integrated random walk alone, since neighbouring windows'
errors go together) and wander^2 * length."""
HOLDOVER_WANDER: Final = 1.5
"""By how much more a clock is taken to wander while nothing measures it: how much it does is an estimate."""
UNKNOWN_BOUND_NS: Final = 1e9
FRESH_RATE_PPB: Final = 20_000.0
WALK_NS2_PER_S: Final = 0.01
"""ns^2/s by which a clock's phase wanders besides its rate: white frequency noise of a crystal at 1 s."""


USUAL_SQUARE: Final = 0.455
"""Median of the square of a standard normal deviate."""


@dataclass(slots=True)
class ClockTrack:
    """One clock: fabric time at its reading c is c + offset_ns + drift_ppb * 1e-9 * (c - at_ns)."""

    at_ns: int
    offset_ns: float
    drift_ppb: float
    p_offset: float
    """ns^2"""
    p_cross: float
    """ns * ppb"""
    p_drift: float
    """ppb^2"""
    state: str
    domain: str
    measured_ns: int
    """Fabric time of the last window that measured it."""
    asymmetry_ns: float = math.inf
    """Standard error by lasting asymmetries of paths, which no number of windows averages out."""
    queue_ns: float = 0.0
    """What queues that stood in one direction can have added, the most."""
    limit_ns: float = math.inf
    """The most that paths and queues can have added to the offset, whatever they do."""
    stamp_error_ns: float = 0.0
    """By how much its stamps may be off the wire, all the same way: no loop shows that."""
    unrest_ppb: float = 0.0
    """What its rate may be off by besides: it changed lately."""
    wander: float = 1.0
    """Its own wander over that of the fleet's usual clock."""
    innovation: float = 0.0
    """Of the last window, in its standard errors."""
    provisional: bool = False
    """Measured, but fabric time's own rate was not known yet."""
    doubts: int = 0
    """Windows in a row in which it was off by what its stamps may do."""
    pairs: int = 0
    residual_ns: float = 0.0
    event: str = "NONE"
    event_ns: float = 0.0
    knot_at_ns: int = 0
    knot_offset_ns: float = 0.0
    knot_bound_ns: float = 0.0

    def fabric_ns(self, reading_ns: int) -> float:
        """Return what to add to `reading_ns` for fabric time."""
        return self.offset_ns + self.drift_ppb * 1e-9 * (reading_ns - self.at_ns)

    def reading_at(self, fabric_ns: int) -> int:
        """Return the clock's reading at a fabric time; exact to 1e-9 of the distance carried."""
        guess = fabric_ns - round(self.offset_ns)
        return fabric_ns - round(self.fabric_ns(guess))

    def advance(self, reading_ns: int, wander: float) -> None:
        """Carry line and uncertainty to `reading_ns`; wander in ppb per square root of a second.

        Integrated random walks (Zucca and Tavella 2005): a rate that wanders by q per square root of a second
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
        """Take an offset with its variance."""
        total = self.p_offset + variance
        gain, gain_drift = self.p_offset / total, self.p_cross / total
        innovation = offset_ns - self.offset_ns
        self.offset_ns += gain * innovation
        self.drift_ppb += gain_drift * innovation
        self.p_drift -= gain_drift * self.p_cross
        self.p_cross -= gain * self.p_cross
        self.p_offset -= gain * self.p_offset

    def measure_drift(self, drift_ppb: float, variance: float) -> None:
        """Take a rate with its variance."""
        total = self.p_drift + variance
        gain, gain_offset = self.p_drift / total, self.p_cross / total
        innovation = drift_ppb - self.drift_ppb
        self.drift_ppb += gain * innovation
        self.offset_ns += gain_offset * innovation
        self.p_offset -= gain_offset * self.p_cross
        self.p_cross -= gain * self.p_cross
        self.p_drift -= gain * self.p_drift

    def begin_holdover(self) -> None:
        """Begin to carry the clock on without measurements: doubt of its rate becomes part of its error."""
        self.p_drift += self.unrest_ppb**2
        self.unrest_ppb = 0.0

    def blend_limits(self, asymmetry_ns: float, queue_ns: float, limit_ns: float, gain: float) -> None:
        """Take what may hide in the window's offset; it enters by the gain that the offset enters by."""
        self.asymmetry_ns = _towards(self.asymmetry_ns, asymmetry_ns, gain)
        self.queue_ns = _towards(self.queue_ns, queue_ns, gain)
        self.limit_ns = _towards(self.limit_ns, limit_ns, gain)

    @property
    def sigma_ns(self) -> float:
        """Standard error of the offset by stamps and wander alone."""
        return math.sqrt(max(self.p_offset, 0.0))

    @property
    def bound_ns(self) -> float:
        """What |error| stays below 99.9 % of the time.

        Stamps' noise and asymmetries are independent; queues may all stand on one side. Where loops tell
        nothing of asymmetry, the limit is all there is.
        """
        if self.state == UNSYNCED and self.p_offset >= UNKNOWN_BOUND_NS**2:
            return UNKNOWN_BOUND_NS
        noise = SIGMAS * self.sigma_ns
        usual = math.hypot(noise, SIGMAS * self.asymmetry_ns) + self.queue_ns + self.stamp_error_ns
        return min(UNKNOWN_BOUND_NS, usual, noise + self.limit_ns)

    @property
    def drift_sigma_ppb(self) -> float:
        """Standard error of the rate."""
        return min(math.sqrt(max(self.p_drift, 0.0) + self.unrest_ppb**2), 1e6)


def _towards(old: float, new: float, gain: float) -> float:
    if math.isinf(new):  # not known now: what was known stands
        return old
    return new if math.isinf(old) else old + gain * (new - old)


class Wander:
    """How much the fleet's clocks wander, learned from the filters' innovations.

    A filter whose process noise is right has white innovations: v(k) v(k - 1) is 0 in the mean (Mehra 1970).
    Too little process noise: they go on in one direction. Too much: they are smaller than they are said to
    be, where what they are said to be is process noise for the most part. The fleet's level follows the mean
    over clocks quickly, each clock's own factor slowly.
    """

    MIN_PPB: Final = 0.05
    MAX_PPB: Final = 1000.0
    QUICK: Final = 0.5
    SLOW: Final = 0.05
    CLIP: Final = 2.0

    def __init__(self, ppb_per_sqrt_s: float) -> None:
        self.ppb_per_sqrt_s = ppb_per_sqrt_s

    def learn(self, innovations: list[tuple[ClockTrack, float, float]]) -> None:
        """Take each measured clock with its innovation in standard errors and the share of the filter's own
        variance in those; the clock holds the innovation before."""
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
