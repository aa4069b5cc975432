"""Fixtures for the tests of the application."""

from __future__ import annotations

import pytest

from tests.fabrictime.fabric_records import FabricRecords


@pytest.fixture(scope="session")
def records() -> type[FabricRecords]:
    """Return the maker of a fabric's records."""
    return FabricRecords
