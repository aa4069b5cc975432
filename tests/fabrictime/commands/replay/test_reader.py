"""Times of an interval, as people write them."""

from __future__ import annotations

import pytest

from fabrictime.commands.replay.reader import parse_time
from schemas.input_error import InputError

S = 1_000_000_000


def test_a_time_is_parsed_as_people_write_it() -> None:
    assert parse_time("10m", 1000.0) == 400 * S
    assert parse_time("now", 1000.0) == 1000 * S
    assert parse_time("1700000000.5", 0.0) == 1_700_000_000 * S + S // 2
    assert parse_time("2026-03-01T12:00:00", 0.0) == 1_772_366_400 * S
    assert parse_time("2026-03-01T12:00:00+01:00", 0.0) == (1_772_366_400 - 3600) * S


def test_a_wrong_time_is_refused() -> None:
    with pytest.raises(InputError, match=r"time 'soon': expected 2026-"):
        parse_time("soon", 0.0)
