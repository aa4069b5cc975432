"""Classification of a window's measurement, and its effect on the track."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemas.records import ClockEvent
from streams.clock.classify import Measurement, apply, classify
from streams.clock.filter import SYNCED, UNSYNCED, ClockTrack

S = 1_000_000_000
MEASURED = Measurement(
    reading_ns=2 * S,
    offset_ns=0.0,
    rate_ppb=0.0,
    variance=4.0,
    rate_variance=4.0,
    asymmetry_ns=1.0,
    queue_ns=0.0,
    limit_ns=1e3,
    noise_ns=0.0,
    pairs=5,
    residual_ns=1.0,
    stepped=False,
    contradiction_ns=0.0,
    jumped=False,
    continues=True,
    trusted=True,
    domain="a",
    middle_ns=2 * S,
    window_s=1.0,
    slew_change_ppb=0.0,
)


def track() -> ClockTrack:
    return ClockTrack(2 * S, 0.0, 0.0, 4.0, 0.0, 4.0, SYNCED, "a", S)


@pytest.mark.parametrize(
    ("fields", "event", "state"),
    [
        ({}, ClockEvent.NONE, SYNCED),
        ({"offset_ns": 10.0}, ClockEvent.NONE, SYNCED),
        ({"offset_ns": 1e6}, ClockEvent.STEP, UNSYNCED),
        ({"offset_ns": 1e6, "queue_ns": 1e6}, ClockEvent.NONE, SYNCED),
        ({"rate_ppb": 1e3}, ClockEvent.RATE_CHANGE, SYNCED),
        ({"jumped": True}, ClockEvent.STEP, UNSYNCED),
        ({"continues": False, "offset_ns": 5.0}, ClockEvent.MERGED, SYNCED),
        ({"contradiction_ns": 300.0}, ClockEvent.FALSETICKER, UNSYNCED),
        ({"trusted": False}, ClockEvent.NONE, UNSYNCED),
    ],
)
def test_the_event_of_a_known_clock(fields: dict[str, float], event: ClockEvent, state: str) -> None:
    seen = replace(MEASURED, **fields)
    known = track()
    applied, innovation = apply(known, seen, classify(known, seen))
    assert (applied.event, applied.state) == (event, state)
    assert (innovation is None) == (event != ClockEvent.NONE)


def test_a_clock_without_a_usable_track_is_new() -> None:
    unknown, _ = apply(None, MEASURED, classify(None, MEASURED))
    known = track()
    known.state = UNSYNCED
    again, _ = apply(known, MEASURED, classify(known, MEASURED))
    assert unknown.event == again.event == ClockEvent.NEW
    assert unknown.state == again.state == SYNCED


def test_a_shift_within_timestamp_noise_is_deferred_for_three_windows() -> None:
    seen = replace(MEASURED, offset_ns=200.0, noise_ns=100.0)
    known = track()
    for window in range(3):
        applied, innovation = apply(known, seen, classify(known, seen))
        assert applied is known
        assert innovation is None
        assert (known.event, known.offset_ns, known.doubts) == (ClockEvent.NONE, 0.0, window + 1)
        assert known.bound_ns > 200
        known.queue_ns = 0.0
    applied, _ = apply(known, seen, classify(known, seen))
    assert (applied.event, applied.offset_ns, applied.doubts) == (ClockEvent.STEP, 200.0, 0)


@pytest.mark.parametrize(
    ("rate_ppb", "state"), [(500_000.0, SYNCED), (-590_000.0, SYNCED), (650_000.0, UNSYNCED)]
)
def test_a_slewed_clock_is_synced_and_a_faster_one_is_a_rate_change(rate_ppb: float, state: str) -> None:
    """NTP slews by 500 ppm; a faster clock shows its rate in every window instead of NEW."""
    seen, known = replace(MEASURED, rate_ppb=rate_ppb), None
    for _ in range(3):
        known, _innovation = apply(known, seen, classify(known, seen))
        assert known.state == state
    assert known is not None
    if state == UNSYNCED:
        assert (known.event, known.event_ns) == (ClockEvent.RATE_CHANGE, rate_ppb)


@pytest.mark.parametrize("base_ns", [0, 1_799_999_999_123_456_789, -(2**61)])
def test_a_base_in_whole_nanoseconds_changes_nothing(base_ns: int) -> None:
    known = track()
    known.base_ns = base_ns + 3
    seen = replace(MEASURED, base_ns=base_ns, offset_ns=3.25)
    applied, innovation = apply(known, seen, classify(known, seen))
    assert innovation is not None
    assert 0 < applied.offset_ns < 0.25
    stepped, _ = apply(known, replace(seen, base_ns=-base_ns, offset_ns=0.125), classify(None, seen))
    assert (stepped.base_ns, stepped.offset_ns) == (-base_ns, 0.125)
