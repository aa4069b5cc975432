"""Clock models: converts a published model to the raw clock, and slews from one model to the next.

`RawClockModel` gives fabric time on CLOCK_MONOTONIC_RAW; `SlewedModel` is for readers. This module reads no
clock.

Reason for the raw clock: CLOCK_REALTIME steps, and NTP changes its rate at any moment, by up to 500 ppm. A
model based on it is wrong until the writer notices. CLOCK_MONOTONIC has the same rate. CLOCK_MONOTONIC_RAW is
the oscillator, and no software adjusts it, so a model based on it stays valid between two windows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

SIGMAS: Final = 3.3
"""Number of standard errors in a bound that holds 99.9 % of the time (normal errors)."""

HISTORY_NS: Final = 15_000_000_000
NEAR_NS: Final = 1_500_000_000
"""Distance, ns, within which cross-timestamps determine the relation at a moment."""
MAX_RESIDUAL_NS: Final = 1_000.0
MAX_RATE_CHANGE_PPM: Final = 10.0
MAX_FIRST_RATE_PPM: Final = 1_000.0
"""Residuals above these mean a step or a rate change. The last holds while a segment's rate is unknown."""
MIN_RMS_NS: Final = 2.0
MAX_EXTRAPOLATION_NS: Final = 400_000_000
"""Time after the last cross-timestamp up to which a relation is extrapolated, ns."""
WANDER_AT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class CrossTimestamp:
    """A clock read `clock_ns` while the raw clock read `raw_ns`, with an error of at most `half_ns`."""

    raw_ns: int
    clock_ns: int
    half_ns: float


@dataclass(frozen=True, slots=True)
class Relation:
    """A clock relative to the raw clock at a time: clock = clock_ns + (1 + rate_ppb * 1e-9)(raw - raw_ns)."""

    raw_ns: int
    clock_ns: int
    rate_ppb: float
    error_ns: float
    rate_sigma_ppb: float


class CrossTimestamps:
    """A clock's cross-timestamps of the last seconds. A step or a rate change begins a new segment."""

    def __init__(self) -> None:
        self._segment: deque[CrossTimestamp] = deque()

    @property
    def last(self) -> CrossTimestamp | None:
        """The newest cross-timestamp; None if there is none."""
        return self._segment[-1] if self._segment else None

    def add(self, cross_timestamp: CrossTimestamp) -> bool:
        """Add a newer cross-timestamp. Return True if the clock stepped or changed its rate."""
        last = self.last
        changed = False
        if last is not None:
            passed_ns = cross_timestamp.raw_ns - last.raw_ns
            if passed_ns <= 0:
                return False
            rate = self._rate_ppb()
            expected_ns = passed_ns * (1 + (rate or 0.0) * 1e-9)
            residual_ns = abs(cross_timestamp.clock_ns - last.clock_ns - expected_ns)
            ppm = MAX_FIRST_RATE_PPM if rate is None else MAX_RATE_CHANGE_PPM
            changed = (
                residual_ns
                > MAX_RESIDUAL_NS + last.half_ns + cross_timestamp.half_ns + ppm * 1e-6 * passed_ns
            )
            if changed:
                self._segment.clear()
        self._segment.append(cross_timestamp)
        while cross_timestamp.raw_ns - self._segment[0].raw_ns > HISTORY_NS:
            self._segment.popleft()
        return changed

    def _rate_ppb(self) -> float | None:
        recent = list(self._segment)[-8:]
        if len(recent) < 2:
            return None
        raw_ns = recent[-1].raw_ns - recent[0].raw_ns
        return (recent[-1].clock_ns - recent[0].clock_ns - raw_ns) / raw_ns * 1e9

    def at_clock(self, clock_ns: int) -> Relation | None:
        """Return the relation to the raw clock when the clock reads `clock_ns`; None outside this segment."""
        fit = self._fit([c.clock_ns - clock_ns for c in self._segment])
        if fit is None:
            return None
        rate = 1 + fit.rate_ppb * 1e-9
        ahead_ns = round((clock_ns - fit.clock_ns) / rate)
        return replace(fit, raw_ns=fit.raw_ns + ahead_ns, clock_ns=clock_ns)

    def newest(self) -> Relation | None:
        """Return the relation at the newest cross-timestamp; None if there are too few cross-timestamps."""
        last = self.last
        return None if last is None else self.at_clock(last.clock_ns)

    def _fit(self, distance_ns: Sequence[int]) -> Relation | None:
        """Fit a line through the cross-timestamps within NEAR_NS; None if there are too few.

        `distance_ns`: distance of each cross-timestamp from the moment of the fit.
        """
        if len(distance_ns) < 3 or distance_ns[0] > 0 or distance_ns[-1] < -MAX_EXTRAPOLATION_NS:
            return None
        near = [c for c, away in zip(self._segment, distance_ns, strict=True) if abs(away) <= NEAR_NS]
        if len(near) < 3:
            return None
        # Least squares about the middle cross-timestamp: the sums stay small, so doubles hold a ns.
        middle = near[len(near) // 2]
        x = [(c.raw_ns - middle.raw_ns) * 1e-9 for c in near]
        y = [float((c.clock_ns - middle.clock_ns) - (c.raw_ns - middle.raw_ns)) for c in near]
        n = len(near)
        mean_x, mean_y = sum(x) / n, sum(y) / n
        spread = sum((v - mean_x) ** 2 for v in x)
        rate_ppb = sum((v - mean_x) * (w - mean_y) for v, w in zip(x, y, strict=True)) / spread
        at_middle_ns = mean_y - rate_ppb * mean_x
        rest = [w - at_middle_ns - rate_ppb * v for v, w in zip(x, y, strict=True)]
        rms_ns = max(MIN_RMS_NS, math.sqrt(sum(r * r for r in rest) / max(1, n - 2)))
        half_ns = min(c.half_ns for c in near)  # the fit goes through the shortest brackets as well
        return Relation(
            middle.raw_ns,
            middle.clock_ns + round(at_middle_ns),
            rate_ppb,
            half_ns + SIGMAS * rms_ns * math.sqrt(2 / n) + 1,
            rms_ns / math.sqrt(spread),
        )


def wander_growth(wander_ppb_per_sqrt_s: float) -> tuple[float, float]:
    """Return a = growth_ppb and b = wander_ppb_per_s such that a t + b t^2 bounds a random walk of the rate.

    A rate that walks w per square root of a second moves the time by a normal deviate of w t^1.5 / sqrt(3).
    By the inequality of means, t^1.5 <= t (T + t) / (2 sqrt(T)) for any T, with equality at t = T.
    """
    k = SIGMAS * wander_ppb_per_sqrt_s / math.sqrt(3)
    return k * math.sqrt(WANDER_AT_S) / 2, k / (2 * math.sqrt(WANDER_AT_S))


@dataclass(frozen=True, slots=True)
class RawClockModel:
    """Fabric time f = fabric_at_ns + (1 + rate_ppb * 1e-9)(raw - raw_at_ns), with a bound that grows.

    bound(t) = bound_ns + growth_ppb t + wander_ppb_per_s t^2, with t in s since raw_at_ns.
    """

    raw_at_ns: int
    fabric_at_ns: int
    rate_ppb: float
    bound_ns: float
    growth_ppb: float
    wander_ppb_per_s: float

    def fabric_ns(self, raw_ns: int) -> tuple[int, float]:
        """Return fabric time at a raw clock reading as whole ns, and a remainder to add, ns."""
        ahead_ns = raw_ns - self.raw_at_ns
        return self.fabric_at_ns + ahead_ns, self.rate_ppb * 1e-9 * ahead_ns

    def bound_at(self, raw_ns: int) -> float:
        """Return the error bound at a raw clock reading, ns."""
        t = abs(raw_ns - self.raw_at_ns) * 1e-9
        return self.bound_ns + self.growth_ppb * t + self.wander_ppb_per_s * t * t

    def rebased_to(self, raw_ns: int) -> RawClockModel:
        """Return the same model and bound, expressed relative to a later raw clock reading."""
        t = (raw_ns - self.raw_at_ns) * 1e-9
        time_ns, rest = self.fabric_ns(raw_ns)
        return replace(
            self,
            raw_at_ns=raw_ns,
            fabric_at_ns=time_ns + round(rest),
            bound_ns=self.bound_at(raw_ns),
            growth_ppb=self.growth_ppb + 2 * self.wander_ppb_per_s * t,
        )


def on_raw_clock(
    relation: Relation,
    at_ns: int,
    offset_ns: int,
    drift_ppb: float,
    bound_ns: float,
    drift_sigma_ppb: float,
    wander_ppb_per_sqrt_s: float,
) -> RawClockModel:
    """Return a clock's published model, converted to the raw clock. `relation`: that of the clock at `at_ns`.

    The bound covers the fraction of `offset_ns` below 1 ns.

    With clock = c0 + (1 + s)(raw - r0) and fabric = clock + offset + drift (clock - c0), the rate of fabric
    time relative to raw is (1 + s)(1 + drift).
    """
    growth_ppb, wander_ppb_per_s = wander_growth(wander_ppb_per_sqrt_s)
    rate_ppb = relation.rate_ppb + drift_ppb + relation.rate_ppb * drift_ppb * 1e-9
    sigma_ppb = math.hypot(drift_sigma_ppb, relation.rate_sigma_ppb)
    return RawClockModel(
        relation.raw_ns,
        at_ns + offset_ns,
        rate_ppb,
        bound_ns + relation.error_ns + 1,
        growth_ppb + SIGMAS * sigma_ppb,
        wander_ppb_per_s,
    )


@dataclass(frozen=True, slots=True)
class SlewedModel:
    """The model for readers: it begins at the previous model's time, and is slewed to `model`.

    Until slew_end_raw_ns its rate is rate_ppb + slew_ppb. `model`'s bound excludes the remaining slew.
    """

    model: RawClockModel
    slew_ppb: float = 0.0
    slew_end_raw_ns: int = 0

    def remaining_ns(self, raw_ns: int) -> float:
        """Return the remaining slew at a raw clock reading, ns."""
        return -self.slew_ppb * 1e-9 * max(0, self.slew_end_raw_ns - max(raw_ns, self.model.raw_at_ns))

    def fabric_ns(self, raw_ns: int) -> tuple[int, float]:
        """Return fabric time at a raw clock reading as whole ns, and a remainder to add, ns."""
        time_ns, rest = self.model.fabric_ns(raw_ns)
        until = min(raw_ns, max(self.slew_end_raw_ns, self.model.raw_at_ns))
        return time_ns, rest + self.slew_ppb * 1e-9 * (until - self.model.raw_at_ns)

    def bound_at(self, raw_ns: int) -> float:
        """Return the error bound at a raw clock reading, including the remaining slew, ns."""
        return self.model.bound_at(raw_ns) + abs(self.remaining_ns(raw_ns))


def slew(
    last: SlewedModel | None,
    model: RawClockModel,
    raw_ns: int,
    slew_s: float,
    slew_max_ppm: float,
    step_ns: float,
) -> tuple[SlewedModel, float]:
    """Return the model that follows `last` from `raw_ns` on towards `model`, and the step, ns.

    The new model begins at the time of `last` at `raw_ns`, so time never runs backwards for a reader. The
    difference is slewed in `slew_s`, or more slowly if that would exceed `slew_max_ppm`. A difference above
    `step_ns` is a step instead.
    """
    here = model.rebased_to(raw_ns)
    if last is None:
        return SlewedModel(here), 0.0
    time_ns, rest = last.fabric_ns(raw_ns)
    begin_ns = time_ns + round(rest)
    own_whole, own_rest = model.fabric_ns(raw_ns)
    ahead_ns = (begin_ns - own_whole) - own_rest
    if abs(ahead_ns) > step_ns:
        return SlewedModel(here), -ahead_ns
    if not ahead_ns:
        return SlewedModel(replace(here, fabric_at_ns=begin_ns)), 0.0
    slew_ppb = min(abs(ahead_ns) / slew_s, slew_max_ppm * 1000)
    slew_ns = max(1, round(abs(ahead_ns) / slew_ppb * 1e9))
    slew_ppb = ahead_ns / slew_ns * 1e9
    return SlewedModel(replace(here, fabric_at_ns=begin_ns), -slew_ppb, raw_ns + slew_ns), 0.0
