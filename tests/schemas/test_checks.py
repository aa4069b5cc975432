"""Checks compiled from a schema: limits, formats, and arrays that leave bad elements out."""

from __future__ import annotations

import pytest

from schemas.checks import NO_LIMITS, BadRecord, check_of

PAIR = {
    "type": "record",
    "name": "Pair",
    "fields": [
        {"name": "nic", "type": "string", "format": "nic"},
        {"name": "delay_ns", "type": ["null", "double"], "min": 0, "max": 10},
    ],
}


def record_of(leave_out):
    field = {
        "name": "pairs",
        "type": {"type": "array", "items": PAIR},
        "leave_out": leave_out,
        "max_items": 3,
    }
    return {"type": "record", "name": "R", "fields": [field]}


def pair(nic="h1/eth0", delay_ns=5.0):
    return {"nic": nic, "delay_ns": delay_ns}


@pytest.mark.parametrize(
    "bad", [pair("h1"), pair(delay_ns=-1.0), pair(delay_ns=11.0), pair(delay_ns=float("nan"))]
)
def test_a_bad_element_costs_the_record_or_is_left_out(bad):
    with pytest.raises(BadRecord, match=r"R\.pairs\.(nic|delay_ns)"):
        check_of(record_of(False), NO_LIMITS)([{"pairs": [pair(), bad]}], "R")
    record = {"pairs": [pair(), bad, pair(delay_ns=None)]}
    check_of(record_of(True), NO_LIMITS)([record], "R")
    assert record == {"pairs": [pair(), pair(delay_ns=None)]}


def test_long_arrays_are_refused_in_any_case():
    with pytest.raises(BadRecord, match="4 elements, expected at most 3"):
        check_of(record_of(True), NO_LIMITS)([{"pairs": [pair()] * 4}], "R")
