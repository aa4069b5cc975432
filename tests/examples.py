"""How many examples a test draws: few in `make test`, all in `make test-all`."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

QUICK_EXAMPLES = 25
IS_FULL = os.environ.get("FABRICTIME_TESTS") == "all"


def examples(full: int) -> int:
    """Return the number of examples of a test that draws `full` in `make test-all`."""
    return full if IS_FULL else min(full, QUICK_EXAMPLES)


def draws(values: Sequence[T], quick: int = 1) -> Sequence[T]:
    """Return the values of a parameter that only draws again: in `make test` the first `quick` of them."""
    return values if IS_FULL else values[:quick]
