"""Thresholds: defaults, overrides and limits."""

from __future__ import annotations

import math

import pytest

from streams.runtime.thresholds import THRESHOLDS, Thresholds, check_value


def record(**values: float) -> dict[str, object]:
    return {"thresholds": [{"name": name, "value": value} for name, value in values.items()]}


def test_every_default_lies_within_its_own_limits() -> None:
    for name, each in THRESHOLDS.items():
        assert check_value(name, each.default) == each.default


def test_a_later_record_overrides_an_earlier_one() -> None:
    values, refused = Thresholds.of([record(dead_losses=10, link_dead_ms=20), record(dead_losses=12)])
    assert (values["dead_losses"], values["link_dead_ms"]) == (12, 20)
    assert values["up_delay_ms"] == THRESHOLDS["up_delay_ms"].default
    assert refused == []


def test_an_invalid_value_changes_nothing_and_is_named() -> None:
    values, refused = Thresholds.of([record(dead_losses=1, no_such=5, link_dead_ms=math.nan, flaps_max=9)])
    assert values["dead_losses"] == THRESHOLDS["dead_losses"].default
    assert values["flaps_max"] == 9
    assert [line.split(":")[0] for line in refused] == [
        "threshold dead_losses",
        "threshold 'no_such'",
        "threshold link_dead_ms",
    ]


def test_a_constructor_refuses_a_value_out_of_range() -> None:
    with pytest.raises(ValueError, match="threshold dead_losses: 2, expected 3 to 1000"):
        Thresholds({"dead_losses": 2})


def test_times_are_converted_by_the_unit_of_their_name() -> None:
    values = Thresholds({"link_dead_ms": 10, "grey_window_s": 2, "contention_delay_us": 50})
    assert values.ns("link_dead_ms") == 10_000_000
    assert values.ns("grey_window_s") == 2_000_000_000
    assert values.ns("contention_delay_us") == 50_000
