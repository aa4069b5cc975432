"""The list of published checks, and the checks that cover each."""

from __future__ import annotations

import pytest

from fabrictime.audit.rows import COMPUTED, ROWS, covered
from producers.audit.checks import CHECKS


def test_the_list_has_108_rows_with_different_names() -> None:
    assert list(ROWS) == list(range(1, 109))
    assert len(set(ROWS.values())) == 108


def test_every_check_names_rows_of_the_list() -> None:
    found = covered([*((each.check_id, each.rows) for each in CHECKS.values()), *COMPUTED.items()])
    assert "fabric.connectivity" in found[39]
    assert "backend.port-state" in found[2]
    with pytest.raises(KeyError):
        covered([("x", (109,))])
