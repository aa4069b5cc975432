"""Fixtures for the tests of the application."""

from __future__ import annotations

import pytest

from fabrictime.state.fabric_state import FabricState
from tests.fabrictime.fabric_records import FabricRecords
from tests.fabrictime.fill import decode_flows


@pytest.fixture(scope="session")
def records() -> type[FabricRecords]:
    """Return the maker of a fabric's records."""
    return FabricRecords


@pytest.fixture
def fabric(records: type[FabricRecords]) -> FabricRecords:
    """Return records of eight NICs under four leaves and four spines."""
    return records()


@pytest.fixture
def state() -> FabricState:
    """Return an empty state."""
    return FabricState(decode_flows)
