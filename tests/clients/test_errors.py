"""Exceptions of the client: one base for all, and messages as they were written."""

import pytest

from fabrictime_client import errors


@pytest.mark.parametrize("name", ["PageMissing", "PageUnusable", "WrongVersion", "Unsynced", "UnknownClock"])
def test_one_except_clause_catches_every_error(name):
    with pytest.raises(errors.ClockError, match=r"^/run/clock: why 'so'$"):
        raise getattr(errors, name)("/run/clock: why 'so'")


def test_an_unknown_clock_is_a_missing_key_too_and_another_version_is_unusable():
    with pytest.raises(KeyError):
        raise errors.UnknownClock("no clock")
    assert issubclass(errors.WrongVersion, errors.PageUnusable)
    assert not issubclass(errors.Unsynced, errors.PageUnusable)
