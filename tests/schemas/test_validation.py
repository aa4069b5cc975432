"""Validation: decoded records that no correct writer would send."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.codec import BadRecord
from schemas.validation import EPOCH_AHEAD_MS, MAX_NS, check_epoch, validate_offsets
from tests.records import make, make_part

WINDOW_NS = 1_000_000_000
APPEND_NS = 100 * WINDOW_NS


def offsets(window: int = 99, **fields: Any) -> Any:
    start_ns = window * WINDOW_NS
    given = {
        "window": window,
        "part": 0,
        "parts": 1,
        "window_start_ns": start_ns,
        "window_end_ns": start_ns + WINDOW_NS,
        **fields,
    }
    return make("ClockOffsets", **given)


def clock(**fields: Any) -> Any:
    return make_part("ClockOffsets", "ClockState", **fields)


def test_a_plausible_record_is_returned_unchanged() -> None:
    record = offsets(clocks=[clock(clock="h1/ptp0")])
    assert validate_offsets(record, APPEND_NS, WINDOW_NS) == (record, 0)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"window": 161}, "window"),
        ({"part": 1}, "part"),
        ({"log_offset_ns": MAX_NS + 1}, "log_offset_ns"),
        ({"window_start_ns": 5}, "window_start_ns"),
        ({"window_end_ns": 5}, "window_end_ns"),
    ],
)
def test_an_impossible_window_is_refused(fields: dict[str, int], field: str) -> None:
    with pytest.raises(BadRecord, match=rf"ClockOffsets\.{field}: "):
        validate_offsets(offsets(**fields), APPEND_NS, WINDOW_NS)


def test_one_window_ahead_of_the_log_is_accepted() -> None:
    validate_offsets(offsets(window=101), APPEND_NS, WINDOW_NS)


def test_impossible_clocks_are_left_out_and_counted() -> None:
    good = clock(clock="good")
    bad = [clock(drift_ppb=2e9), clock(bound_ns=-1.0), clock(bound_ns=float("nan")), clock(at_ns=MAX_NS + 1)]
    found, left_out = validate_offsets(offsets(clocks=[good, *bad]), APPEND_NS, WINDOW_NS)
    assert found["clocks"] == [good]
    assert left_out == 4


def test_an_epoch_far_ahead_of_the_log_is_refused() -> None:
    append_ms = 1_700_000_000_000
    check_epoch({"epoch": append_ms + EPOCH_AHEAD_MS}, append_ms)
    with pytest.raises(BadRecord, match="epoch"):
        check_epoch({"epoch": append_ms + EPOCH_AHEAD_MS + 1}, append_ms)
    check_epoch({"epoch": 2**60}, 0)  # without an append time every epoch passes
