"""Classifies a window's measurement of one clock, and applies it to the clock's track.

`classify` compares a measurement with the track's prediction and names the event: a new clock, a step, a
change of rate, a merge with another domain, a falseticker, or none. `apply` then updates or resets the track.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from schemas.records import ClockEvent, ClockSync
from streams.clock.filter import FRESH_RATE_PPB, SYNCED, UNKNOWN_BOUND_NS, UNSYNCED, ClockTrack

STEP_SIGMAS: Final = 6.0
MIN_STEP_NS: Final = 25.0
"""A clock has stepped if it deviates from its prediction by more than `STEP_SIGMAS` standard errors, and by
more than `MIN_STEP_NS`."""
STEP_TOLERANCE: Final = 1.5
"""A deviation may come from a change of rate, not a step, up to this multiple of the step limit. If the rate
has clearly changed, this multiple of the rate change times the elapsed time is added to the limit."""
DOUBT_WIDTHS: Final = 3.0
DOUBT_WINDOWS: Final = 3
"""A clock that is off by less than `DOUBT_WIDTHS` times its timestamp noise counts as stepped only after
`DOUBT_WINDOWS` windows. Until then its bound covers both positions."""
RATE_LIMIT_PPB: Final = 600_000.0
"""A clock whose rate is off by more than this is unusable. NTP slews by 500 ppm, in addition to the
oscillator's own 100. Clocks that differ by 1,000 ppm or more cannot be compared, see `pairs.py`."""
BEND_SHARE: Final = 1 / 24
"""If the rate changes by r over a window of length T, the phase is not a line: the best line through the
window is off by r * T / 24 at its middle."""
UNREST_KEPT: Final = 0.7
"""Share of the doubt after a rate change that remains a window later: the rate may change further."""
MIN_GAIN: Final = 0.02
MIN_SINCE_S: Final = 1e-3


@dataclass(slots=True)
class Measurement:
    """One clock's offset and rate in fabric time, as measured by the pairs of one window."""

    reading_ns: int
    offset_ns: float
    rate_ppb: float
    variance: float
    """Variance of the offset, ns^2."""
    rate_variance: float
    """Variance of the rate, ppb^2."""
    asymmetry_ns: float
    queue_ns: float
    limit_ns: float
    noise_ns: float
    """Timestamp noise of the clock's pairs."""
    pairs: int
    residual_ns: float
    stepped: bool
    """True if most pairs of the clock show a step within the window."""
    contradiction_ns: float
    """Median residual of a falseticker's pairs; 0 for other clocks."""
    jumped: bool
    """True if a NIC of the clock reported a jump."""
    continues: bool
    """True if the clock belongs to the timeline that continues."""
    trusted: bool
    """True if fabric time's own rate is known."""
    domain: str
    middle_ns: int
    window_s: float
    slew_change_ppb: float
    """Change of fabric time's rate in this window."""
    base_ns: int = 0
    """Whole ns to add to `offset_ns`."""

    def ahead_ns(self, track: ClockTrack) -> float:
        """Return the measured offset minus the offset that the track predicts, ns."""
        return (self.base_ns - track.base_ns) + (self.offset_ns - track.offset_ns)


@dataclass(slots=True)
class Change:
    """The event that a measurement shows, such as a step, and instructions for updating the clock's track."""

    state: ClockSync
    event: ClockEvent = ClockEvent.NONE
    event_ns: float = 0.0
    reset: bool = False
    """Whether to restart the track from the measurement alone."""
    deferred: bool = False
    """Whether to ignore the measurement for now, because it may be noise."""
    innovation: tuple[float, float] | None = None
    """The innovation in standard errors, and the share of its variance that comes from the track."""
    bend_variance: float = 0.0
    """Additional variance of the offset, due to a change of rate within the window, ns^2."""
    rate_doubt: float = 0.0
    """Additional variance of the rate, due to a change that may be noise, ppb^2."""


def classify(track: ClockTrack | None, measurement: Measurement) -> Change:
    """Return the event that a measurement shows; add fabric time's own change of rate to the track first."""
    state: ClockSync = SYNCED if measurement.trusted else UNSYNCED
    if track is None:
        return Change(state, ClockEvent.NEW, reset=True)
    if track.provisional and measurement.trusted and not measurement.jumped:
        return Change(state)
    if track.state == UNSYNCED and not measurement.jumped:
        if measurement.stepped:
            return Change(UNSYNCED, ClockEvent.STEP, reset=True)
        return Change(state, ClockEvent.NEW, reset=True)
    if measurement.jumped:
        return Change(UNSYNCED, ClockEvent.STEP, reset=True)
    if not measurement.continues:
        return Change(state, ClockEvent.MERGED, measurement.ahead_ns(track), reset=True)
    track.drift_ppb += measurement.slew_change_ppb
    track.unrest_ppb *= UNREST_KEPT
    return _compare(track, measurement, state)


def _compare(track: ClockTrack, measurement: Measurement, state: ClockSync) -> Change:
    """Compare a measurement with the track's prediction. `state`: the clock's state if it has not stepped."""
    rate_change = measurement.rate_ppb - track.drift_ppb
    rate_spread = math.sqrt(track.p_drift + measurement.rate_variance)
    bend_ppb = max(abs(rate_change) - 2 * rate_spread, 0.0)
    bend_variance = (bend_ppb * measurement.window_s * BEND_SHARE) ** 2
    off_ns = measurement.ahead_ns(track)
    spread_ns = math.sqrt(track.p_offset + (measurement.variance + bend_variance))
    limit_ns = _step_limit_ns(track, measurement, spread_ns)
    doubtful_ns = DOUBT_WIDTHS * measurement.noise_ns
    if limit_ns < abs(off_ns) <= doubtful_ns and track.doubts < DOUBT_WINDOWS:
        return Change(state, deferred=True)
    rate_changed = abs(rate_change) > STEP_SIGMAS * rate_spread
    rate_doubt = 0.0
    if rate_changed and abs(off_ns) <= limit_ns and abs(rate_change) * measurement.window_s <= doubtful_ns:
        rate_changed, rate_doubt = False, rate_change**2
    if abs(off_ns) <= limit_ns and not rate_changed:
        own_share = track.p_offset / (track.p_offset + (measurement.variance + bend_variance))
        innovation = (off_ns / spread_ns, own_share)
        return Change(state, innovation=innovation, bend_variance=bend_variance, rate_doubt=rate_doubt)
    since_s = max((measurement.middle_ns - track.measured_ns) * 1e-9, MIN_SINCE_S)
    explained_ns = limit_ns + STEP_TOLERANCE * abs(rate_change) * since_s
    near = rate_changed or abs(off_ns) <= STEP_TOLERANCE * limit_ns
    if abs(off_ns) <= explained_ns and near:
        event, event_ns = ClockEvent.RATE_CHANGE, rate_change
    else:
        event, event_ns, state = ClockEvent.STEP, -off_ns, UNSYNCED
    return Change(state, event, event_ns, reset=True, bend_variance=bend_variance)


def _step_limit_ns(track: ClockTrack, measurement: Measurement, spread_ns: float) -> float:
    """Return the deviation from the prediction, ns, above which the clock counts as stepped."""
    limit_ns = max(STEP_SIGMAS * spread_ns, 2 * (measurement.queue_ns + track.queue_ns), MIN_STEP_NS)
    if measurement.stepped:  # the measurement's error is the step's size, so the track's own error counts
        known_ns = max(STEP_SIGMAS * track.sigma_ns, 2 * track.queue_ns, MIN_STEP_NS)
        limit_ns = min(limit_ns, known_ns)
    return limit_ns


def apply(
    track: ClockTrack | None, measurement: Measurement, change: Change
) -> tuple[ClockTrack, tuple[float, float] | None]:
    """Apply a change; return the track (a new one after a reset), and the innovation or None.

    The innovation is in standard errors, with the share of its variance that comes from the track. It is
    None unless the clock continued as predicted.
    """
    if track is not None and change.deferred:
        _defer(track, measurement, change)
        return track, None
    variance = measurement.variance + change.bend_variance
    if track is None or change.reset:
        track = _reset(track, measurement, change, variance)
    else:
        track.p_drift += change.rate_doubt / 4
        track.measure_drift(measurement.rate_ppb, measurement.rate_variance + change.rate_doubt)
        gain = track.p_offset / (track.p_offset + variance)
        track.measure(track.offset_ns + measurement.ahead_ns(track), variance)
        track.blend_limits(
            measurement.asymmetry_ns, measurement.queue_ns, measurement.limit_ns, max(gain, MIN_GAIN)
        )
    track.doubts = 0
    track.provisional = track.provisional and not measurement.trusted
    event, event_ns, state, innovation = change.event, change.event_ns, change.state, change.innovation
    if measurement.contradiction_ns:
        event, event_ns, state = ClockEvent.FALSETICKER, measurement.contradiction_ns, UNSYNCED
        innovation = None
        track.p_offset = UNKNOWN_BOUND_NS**2
    if abs(track.drift_ppb) > RATE_LIMIT_PPB:
        event, event_ns, state, innovation = ClockEvent.RATE_CHANGE, track.drift_ppb, UNSYNCED, None
    _set_window(track, measurement, state, event, event_ns)
    return track, innovation


def _defer(track: ClockTrack, measurement: Measurement, change: Change) -> None:
    """Ignore a doubtful measurement, but widen the track's error bound so that it covers the measurement."""
    track.doubts += 1
    track.queue_ns = max(track.queue_ns, abs(measurement.ahead_ns(track)))
    track.innovation = 0.0
    _set_window(track, measurement, change.state, ClockEvent.NONE, 0.0)


def _reset(track: ClockTrack | None, measurement: Measurement, change: Change, variance: float) -> ClockTrack:
    """Return a new track that starts at the measurement; keep the learned wander of a known clock."""
    new_track = ClockTrack(
        measurement.reading_ns,
        measurement.offset_ns,
        measurement.rate_ppb,
        variance,
        0.0,
        min(measurement.rate_variance, FRESH_RATE_PPB**2),
        change.state,
        measurement.domain,
        measurement.middle_ns,
        wander=1.0 if track is None else track.wander,
        base_ns=measurement.base_ns,
    )
    new_track.provisional = not measurement.trusted
    if change.event == ClockEvent.RATE_CHANGE:
        new_track.unrest_ppb = abs(change.event_ns)
    new_track.blend_limits(measurement.asymmetry_ns, measurement.queue_ns, measurement.limit_ns, 1.0)
    return new_track


def _set_window(
    track: ClockTrack, measurement: Measurement, state: ClockSync, event: ClockEvent, event_ns: float
) -> None:
    track.state, track.domain, track.measured_ns = state, measurement.domain, measurement.middle_ns
    track.event, track.event_ns = event, event_ns
    track.pairs, track.residual_ns = measurement.pairs, measurement.residual_ns
