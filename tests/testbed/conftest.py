"""Namespaces for the tests of the testbed: each test body runs in a child process that enters its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.testbed.child import run_inside
from fabrictime.testbed.userns import namespaces_allowed


@pytest.fixture(scope="session")
def denied() -> str | None:
    return namespaces_allowed()


@pytest.fixture
def inside(denied: str | None) -> Callable[..., Any]:
    """A function that runs a test body inside namespaces and returns what it returns."""
    if denied is not None:
        pytest.skip(denied)
    return run_inside
