"""The slice bench's spans of the monotonic clock."""

from __future__ import annotations

import time

from fabrictime.bench.control import slices


def test_a_span_is_measured_by_the_monotonic_clock() -> None:
    begin_s, end_s = slices._span(0.01)
    assert begin_s + 0.01 <= end_s <= time.monotonic()
