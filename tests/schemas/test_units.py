"""Units: figures with three digits and the fitting unit."""

from __future__ import annotations

import math

import pytest

from schemas import units


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "—"),
        (math.nan, "—"),
        (0, "0.00 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 µs"),
        (12_345, "12.3 µs"),
        (-12_345_678, "-12.3 ms"),
        (1e9, "1.00 s"),
    ],
)
def test_a_delay_has_three_digits_and_never_shows_a_thousand(ns: float | None, text: str) -> None:
    assert units.delay_text(ns) == text


def test_a_signed_delay_shows_its_sign() -> None:
    assert [units.signed_delay_text(ns) for ns in (5, -5, 0)] == ["+5.00 ns", "-5.00 ns", "0.00 ns"]
    assert units.ms_text(1.5) == "1.50 ms"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (9.94, "9.9 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_an_age_changes_its_unit_at_two(seconds: float, text: str) -> None:
    assert units.seconds_text(seconds) == text


def test_counts_are_exact_below_ten_thousand() -> None:
    assert [units.count_text(n) for n in (0, 9999, 10_000, 999_600, 2e9)] == [
        "0",
        "9,999",
        "10.0k",
        "1.00M",
        "2.00G",
    ]
    assert [units.counted(n, "flow") for n in (1, 2, 12_000)] == ["1 flow", "2 flows", "12.0k flows"]
    assert units.rate_text(1200) == "1,200/s"


def test_a_share_above_zero_never_shows_as_zero() -> None:
    assert [units.percent_text(share) for share in (0, 1e-9, 0.012, 0.5, 1)] == [
        "0%",
        "<0.01%",
        "1.2%",
        "50%",
        "100%",
    ]


def test_sizes_and_rates_use_powers_of_a_thousand() -> None:
    assert [units.bytes_text(size) for size in (512, 1000, 2.5e6, 3e9)] == [
        "512 B",
        "1.00 kB",
        "2.50 MB",
        "3.00 GB",
    ]
    assert [units.bps_text(bps) for bps in (5, 1e9, 4e11, 1e12)] == [
        "5 bit/s",
        "1.00 Gbit/s",
        "400 Gbit/s",
        "1.00 Tbit/s",
    ]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1660.0, 3, "1,660"),
        (4500.4, 3, "4,500"),
        (0.01234, 3, "0.0123"),
        (400.0, 3, "400"),
        (98.76, 3, "98.8"),
        (1_234_567.0, 6, "1,234,567"),
        (0.0, 3, "0"),
        (-1.5, 3, "-1.5"),
        (math.inf, 3, "inf"),
    ],
)
def test_a_number_has_no_exponent(value: float, digits: int, text: str) -> None:
    assert units.number_text(value, digits) == text
