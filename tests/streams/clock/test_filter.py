"""The filter of one clock, and the wander that a fleet learns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streams.clock.filter import SYNCED, ClockTrack, Wander, split_ns


def fresh(offset_ns: float = 0.0, drift_ppb: float = 0.0) -> ClockTrack:
    return ClockTrack(0, offset_ns, drift_ppb, 25.0, 0.0, 4.0, SYNCED, "d", 0)


@pytest.mark.parametrize("true_wander", [0.3, 1.0, 10.0])
def test_a_fleet_learns_how_much_its_clocks_wander(true_wander: float) -> None:
    """The wander starts at 10 ppb/sqrt(s) for any truth; in the end errors match the filter's own."""
    rng = np.random.default_rng(5)
    wander = Wander(10.0)
    tracks = [fresh() for _ in range(32)]
    phase, rate, noise = np.zeros(32), np.zeros(32), 2.0
    scaled = []
    for window in range(1, 120):
        step = rng.normal(0, true_wander, 32)
        phase += rate + step / 2
        rate += step
        found = []
        for k, track in enumerate(tracks):
            track.advance(window * 1_000_000_000, wander.ppb_per_sqrt_s)
            seen = phase[k] + rng.normal(0, noise)
            spread = math.sqrt(track.p_offset + noise**2)
            found.append((track, (seen - track.offset_ns) / spread, track.p_offset / spread**2))
            track.measure(seen, noise**2)
        wander.learn(found)
        if window > 60:
            scaled += [(t.offset_ns - phase[k]) / t.sigma_ns for k, t in enumerate(tracks)]
    assert true_wander / 2 < wander.ppb_per_sqrt_s < true_wander * 2
    assert 0.7 < np.std(scaled) < 1.4


def test_limits_are_blended_by_the_gain_and_infinity_is_replaced() -> None:
    track = fresh()
    assert math.isinf(track.limit_ns)
    track.blend_limits(math.inf, 0.0, 5_000.0, 0.5)
    assert track.bound_ns == pytest.approx(4.2 * 5 + 5_000)
    track.blend_limits(10.0, 40.0, 5_000.0, 0.5)
    assert track.bound_ns == pytest.approx(4.2 * math.hypot(5, 10) + 20)
    track.blend_limits(math.inf, 0.0, 5_000.0, 0.5)
    assert math.isfinite(track.bound_ns)


def test_doubt_of_a_rate_becomes_error_in_holdover() -> None:
    calm, uneasy = fresh(), fresh()
    uneasy.unrest_ppb = 100.0
    assert uneasy.drift_sigma_ppb > 99
    for track in (calm, uneasy):
        track.begin_holdover()
        track.advance(10_000_000_000, 1.0)
    assert uneasy.sigma_ns > 900 > 100 > calm.sigma_ns


@pytest.mark.parametrize("base_ns", [0, 1_799_999_999_123_456_789])
def test_whole_nanoseconds_stay_exact(base_ns: int) -> None:
    far = fresh(7.25, 1_000.0)
    far.base_ns = base_ns
    reading_ns = 2_000_000_000
    assert far.fabric_ns(reading_ns) == reading_ns + base_ns + 2_007
    assert far.reading_at(far.fabric_ns(reading_ns)) == reading_ns
    far.rebase()
    assert (far.base_ns, far.offset_ns) == (base_ns + 7, 0.25)
    assert split_ns(base_ns, -2.75) == (base_ns - 3, 0.25)
