"""Records at a fixed time, and an empty state of actions."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state.action_state import ActionState
from schemas import codec
from schemas.topics import FLOWS

NOW = 1_760_000_000 * 1_000_000_000


@pytest.fixture
def made(records: Any) -> Any:
    """Return a maker of records at a fixed time."""
    found = records()
    found.now_ns = NOW
    return found


@pytest.fixture
def actions() -> ActionState:
    return ActionState(lambda value: codec.decode(value, FLOWS.record))
