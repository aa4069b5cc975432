"""Decides when a window of fits is complete: all sources have published theirs, or the grace period is over.

Windows are returned in order, each with its records in the log's order. Tokens identify the messages that the
caller acknowledges once the window is published.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from schemas.records import ClockFits

__all__ = ["CompleteWindow", "WindowBarrier"]

REDUCED_KEPT_WINDOWS = 5
"""Windows for which a source that fits its own samples is awaited after its last record."""


@dataclass(slots=True)
class CompleteWindow:
    """A window with all fits; `missing` names the sources that were too late."""

    window: int
    fits: list[ClockFits]
    tokens: list[Any]
    missing: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Waiting:
    first_seen_ns: int
    parts: dict[tuple[str, int], tuple[int, ClockFits]] = field(default_factory=dict)
    tokens: list[Any] = field(default_factory=list)
    complete: set[str] = field(default_factory=set)


class WindowBarrier:
    """Collects one shard's fits. `sources` publish fits for every window."""

    def __init__(self, sources: Iterable[str], grace_ns: int, last_solved: int = -1) -> None:
        self.sources = set(sources)
        self.grace_ns = grace_ns
        self.last_solved = last_solved
        self.too_late = 0
        self._waiting: dict[int, _Waiting] = {}
        self._latest: dict[str, int] = {}

    def add(self, fits: ClockFits, offset: int, seen_ns: int, token: Any) -> bool:
        """Add one record. Returns False, and ignores the record, if its window was solved."""
        window, source = fits["window"], fits["source"]
        self._latest[source] = max(window, self._latest.get(source, -1))
        if window <= self.last_solved:
            self.too_late += 1
            return False
        waiting = self._waiting.setdefault(window, _Waiting(seen_ns))
        waiting.parts[source, fits["part"]] = (offset, fits)
        waiting.tokens.append(token)
        if all((source, part) in waiting.parts for part in range(fits["parts"])):
            waiting.complete.add(source)
        return True

    def ready(self, now_ns: int) -> list[CompleteWindow]:
        """Return the windows that can be solved, oldest first. `now_ns` is on the clock of `seen_ns` in
        `add`."""
        done = []
        for window in sorted(self._waiting):
            waiting = self._waiting[window]
            missing = self._missing(window, waiting)
            if missing and now_ns - waiting.first_seen_ns < self.grace_ns:
                break
            del self._waiting[window]
            self.last_solved = window
            parts = sorted(waiting.parts.values(), key=lambda part: part[0])
            done.append(CompleteWindow(window, [fits for _, fits in parts], waiting.tokens, sorted(missing)))
        return done

    def _missing(self, window: int, waiting: _Waiting) -> set[str]:
        recent = {
            source for source, latest in self._latest.items() if latest >= window - REDUCED_KEPT_WINDOWS
        }
        passed = {source for source, latest in self._latest.items() if latest > window}
        return (self.sources | recent) - waiting.complete - passed
