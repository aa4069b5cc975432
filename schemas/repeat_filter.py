"""Limits repeated log lines, so that one lasting fault does not flood a log file."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

REPEAT_S: Final = 10.0
"""A line is logged at most once in this time, s."""
MAX_LINES: Final = 100
"""Lines remembered; beyond it all are forgotten."""


class RepeatFilter:
    """Decides whether a log line is written or suppressed as a repetition."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lines: dict[str, tuple[float, int]] = {}
        """Maps line to the time at which it was last due, and how often it was not due since."""

    def due(self, line: str) -> str | None:
        """Return the line to log, with its number of suppressed repetitions; None if it is suppressed."""
        now_s = self._now_s()
        due_s, suppressed = self._lines.get(line, (float("-inf"), 0))
        if now_s - due_s <= REPEAT_S:
            self._lines[line] = (due_s, suppressed + 1)
            return None
        if len(self._lines) > MAX_LINES:
            self._lines.clear()
        self._lines[line] = (now_s, 0)
        return f"{line} ({suppressed} more since the last such line)" if suppressed else line
