"""Waits for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], deadline_s: float = 60.0, every_s: float = 0.02, name: str = ""
) -> T:
    """Return the first true value of a condition; fail with its last value after `deadline_s`."""
    end_s = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end_s, (
            f"not within {deadline_s} s: {name or condition.__doc__ or condition}; last {value!r}"
        )
        time.sleep(every_s)
    return value
