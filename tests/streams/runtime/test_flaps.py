"""FLAPPING: more flaps than `flaps_max`, or a burst of 5 within 10 s."""

from __future__ import annotations

import pytest

from streams.runtime.flaps import is_flapping

S = 1_000_000_000


@pytest.mark.parametrize(
    ("flaps_s", "expected"),
    [
        ([], False),
        ([0, 1, 2, 3], False),
        ([0, 1, 2, 3, 4], True),
        ([0, 3, 5, 8, 10], True),
        ([0, 3, 5, 8, 11], False),
        ([0, 100, 101, 102, 103, 104, 900], True),
        ([100 * k for k in range(8)], False),
        ([100 * k for k in range(9)], True),
    ],
)
def test_a_burst_or_more_than_eight_flaps_within_the_hour_are_too_many(
    flaps_s: list[int], expected: bool
) -> None:
    assert is_flapping([at_s * S for at_s in flaps_s], 8) is expected
