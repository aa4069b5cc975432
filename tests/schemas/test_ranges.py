"""Ranges of numbers: they are distinct, and an unknown name is refused with the known."""

import json
from pathlib import Path

import pytest

from schemas import codec
from schemas.ranges import RANGES, range_of

FOLDER = Path(codec.__file__).parent


def test_no_two_ranges_are_equal_and_none_is_empty():
    assert len(set(RANGES.values())) == len(RANGES)
    assert all(minimum < maximum for minimum, maximum in RANGES.values())


def test_an_unknown_range_names_the_known():
    with pytest.raises(KeyError, match=r"range 'colour': expected one of .*'share'"):
        range_of("colour")


def test_every_range_has_a_field_with_its_limits():
    texts = {name: (FOLDER / f"{name}.avsc").read_text() for name in codec.record_names()}
    for name, (minimum, maximum) in RANGES.items():
        holders = [record for record, text in texts.items() if f'"range": "{name}"' in text]
        assert holders, name
        schema = json.dumps(codec.raw_schema(holders[0]))
        assert f'"min": {minimum}, "max": {maximum}' in schema
