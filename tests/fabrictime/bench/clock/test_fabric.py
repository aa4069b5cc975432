"""Clock errors on the fabric, from records against given clocks."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.bench.clock.fabric import errors_of
from native.core.probe import TestClock

S = 1_000_000_000
CLOCKS = {"a": TestClock(offset_ns=1_000), "b": TestClock(offset_ns=-500), "c": TestClock()}


def record(window: int, rows: dict[str, tuple[float, str]], domain: str = "d") -> dict[str, Any]:
    """One window's offsets: clock to (error in ns, state), with a bound of 10 ns."""
    at_ns = window * S
    return {
        "window": window,
        "window_start_ns": at_ns,
        "log_offset_ns": 0,
        "domain": domain,
        "clocks": [
            {
                "clock": name,
                "at_ns": at_ns,
                "offset_ns": at_ns - CLOCKS[name].reading(at_ns),
                "offset_fraction_ns": error,
                "state": state,
                "bound_ns": 10.0,
            }
            for name, (error, state) in rows.items()
        ],
    }


def test_a_common_shift_is_no_error_and_one_clock_is_off_against_all() -> None:
    found = errors_of(
        [record(5, {"a": (700, "SYNCED"), "b": (700, "SYNCED"), "c": (715, "SYNCED")})], CLOCKS, 0, 9 * S
    )
    assert sorted(found["pairs"].tolist()) == pytest.approx([0, 15, 15], abs=0.5)
    assert sorted(found["covered"].tolist()) == [0, 1, 1]
    assert found["synced"].tolist() == [1, 1, 1]


def test_windows_outside_domains_and_states_do_not_count() -> None:
    records = [
        record(1, {"a": (0, "SYNCED"), "b": (9, "SYNCED")}),
        record(5, {"a": (0, "SYNCED"), "b": (0, "HOLDOVER")}),
        record(5, {"c": (99, "SYNCED")}, domain="other"),
    ]
    found = errors_of(records, CLOCKS, 4 * S, 9 * S)
    assert found["pairs"].size == 0
    assert found["synced"].tolist() == [1, 0, 1]
    assert errors_of([], CLOCKS, 0, S)["bounds"].size == 0
