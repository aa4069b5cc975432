"""A fault that does not fit the recorded network is refused instead of planted in vain."""

from __future__ import annotations

import pytest

from fabrictime.testbed.audit.recorded_network import require


def test_a_fault_that_cannot_be_planted_is_an_error() -> None:
    require(True, "a route")
    with pytest.raises(ValueError, match="expected a route"):
        require(False, "a route")
