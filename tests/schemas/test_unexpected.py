"""Unexpected errors: the refusal states class and place; a refusal stays as it is."""

from __future__ import annotations

import pytest

from schemas.checks import BadRecord
from schemas.unexpected import DATA_ERRORS, refusal


def test_class_and_place_are_stated():
    try:
        int("x")
    except DATA_ERRORS as error:
        found = refusal(error)
    assert found.reason == "OTHER"
    assert str(found).startswith("ValueError at tests/schemas/test_unexpected.py:")
    assert isinstance(found.__cause__, ValueError)


def test_a_refusal_keeps_its_reason():
    bad = BadRecord("WRONG_KEY", "key x, expected y")
    assert refusal(bad) is bad


def test_a_text_that_is_no_utf_8_has_a_reason_that_rejects_know():
    with pytest.raises(UnicodeDecodeError) as raised:
        b"\xff".decode()
    assert refusal(raised.value).reason == "OTHER"


def test_errors_of_the_log_are_no_data_errors():
    assert not isinstance(ConnectionError(), DATA_ERRORS)
    assert not isinstance(TimeoutError(), DATA_ERRORS)
