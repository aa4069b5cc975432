"""Decides when a window of fits is complete: all sources have published fits, or the grace period is over.

Windows are returned in order, each with its records in the log's order. Tokens identify the messages that the
caller acknowledges once the window is published.

Log time may step back (see `schemas/log_time.py`). All windows with samples are then far behind the last
solved one, and windows continue at the new time. If only some sources are behind, the leaders of their
partitions have clocks that are behind, and their windows are renumbered to match the others'. Fits of
messages that a solved window has already used do not show a step: they were published again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from schemas.log_time import step_windows
from schemas.records import ClockFits

REDUCED_KEPT_WINDOWS: Final = 5
"""Number of windows after its last record for which a source that fits its own samples is waited for."""
BEHIND_NS: Final = 500_000_000
"""Time for which a source must be far behind before its log time counts as stepped back."""
ACTIVE_NS: Final = 2_000_000_000
"""Time for which a source with samples counts as active after its last window."""
MAX_RATE: Final = 2.0
"""A source whose windows advance faster than this multiple of real time is catching up on old messages."""


@dataclass(slots=True)
class CompleteWindow:
    """A window that can be solved, with its fits; `missing`: sources whose fits did not arrive in time."""

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


@dataclass(slots=True)
class _Behind:
    """The first window of a source that is far behind the last solved window, and its arrival time, ns."""

    window: int
    since_ns: int


class WindowBarrier:
    """Collects one shard's fits until all `sources`, which publish fits for every window, have done so.

    `read`: for each source the first offset of its newest solved window.
    """

    def __init__(
        self,
        sources: Iterable[str],
        grace_ns: int,
        last_solved: int = -1,
        read: Mapping[str, int] | None = None,
    ) -> None:
        self.sources = set(sources)
        self.grace_ns = grace_ns
        self.last_solved = last_solved
        self.too_late = 0
        self.steps = 0
        """Number of times that log time stepped back."""
        self._waiting: dict[int, _Waiting] = {}
        self._latest: dict[str, int] = {}
        self._renumbered: dict[str, int] = {}
        """Number of windows to add to those of each source whose log time is behind that of the others."""
        self._behind: dict[str, _Behind] = {}
        self._in_time_ns: dict[str, int] = {}
        """Time at which each source's last window with samples arrived in time, ns."""
        self._read = dict(read or {})
        """First offset of each source's last window that arrived in time."""
        self._dropped: list[Any] = []
        """Tokens of windows that a step back made useless; the next complete window includes them."""

    @property
    def renumbered(self) -> dict[str, int]:
        """By source, the number of windows by which its log time is behind that of the other sources."""
        return dict(self._renumbered)

    def add(self, fits: ClockFits, offset: int, seen_ns: int, token: Any) -> bool:
        """Add one source's fits; ignore them and return False if their window is already solved."""
        source = fits["source"]
        self._follow_step(fits, seen_ns)
        fits = _moved(fits, self._renumbered.get(source, 0))
        window = fits["window"]
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
        """Remove and return the windows that can be solved, oldest first. `now_ns`: present log time, ns."""
        done = []
        for window in sorted(self._waiting):
            waiting = self._waiting[window]
            missing = self._missing(window, waiting)
            if missing and now_ns - waiting.first_seen_ns < self.grace_ns:
                break
            del self._waiting[window]
            self.last_solved = window
            parts = sorted(waiting.parts.values(), key=lambda part: part[0])
            tokens, self._dropped = [*self._dropped, *waiting.tokens], []
            done.append(CompleteWindow(window, [fits for _, fits in parts], tokens, sorted(missing)))
        return done

    def due_ns(self) -> int | None:
        """Return the time, ns, at which `ready` next returns a window; None if no window waits."""
        if not self._waiting:
            return None
        window = min(self._waiting)
        waiting = self._waiting[window]
        return waiting.first_seen_ns + (self.grace_ns if self._missing(window, waiting) else 0)

    def first_token(self) -> Any:
        """Return the smallest token of the messages in waiting windows; None if no window waits."""
        return min((min(waiting.tokens) for waiting in self._waiting.values()), default=None)

    def _missing(self, window: int, waiting: _Waiting) -> set[str]:
        recent = {
            source for source, latest in self._latest.items() if latest >= window - REDUCED_KEPT_WINDOWS
        }
        passed = {source for source, latest in self._latest.items() if latest > window}
        return (self.sources | recent) - waiting.complete - passed

    def _follow_step(self, fits: ClockFits, seen_ns: int) -> None:
        """Detect that a source's log time has stepped back, and follow the step. Lateness is no step.

        Only windows with samples count, because the window numbers of a silent source are estimates.
        """
        source, window, first = fits["source"], fits["window"], fits["first_offset"]
        if not fits["nics"] or self._is_again(fits):
            return
        far = step_windows(fits["window_end_ns"] - fits["window_start_ns"])
        shift = self._renumbered.get(source, 0)
        if shift and abs(window + shift - self._latest.get(source, window + shift)) > far:
            del self._renumbered[source]
            shift = 0
        if window + shift >= self.last_solved - far:
            self._behind.pop(source, None)
            self._in_time_ns[source], self._read[source] = seen_ns, first
            return
        behind = self._behind.setdefault(source, _Behind(window, seen_ns))
        behind_ns = seen_ns - behind.since_ns
        span_ns = (window - behind.window) * (fits["window_end_ns"] - fits["window_start_ns"])
        if behind_ns < BEHIND_NS:
            return
        if not 0 < span_ns <= MAX_RATE * behind_ns:  # stepped again, or catching up on old messages
            self._behind[source] = _Behind(window, seen_ns)
            return
        del self._behind[source]
        # Renumbered sources have stepped back as well: they do not show that the others' log time is right.
        if any(
            seen_ns - at_ns < ACTIVE_NS
            for other, at_ns in self._in_time_ns.items()
            if other != source and other not in self._renumbered
        ):
            self._renumbered[source] = self.last_solved + 1 - window
        else:
            self._step_back(source, window)
        self._in_time_ns[source], self._read[source] = seen_ns, first

    def _is_again(self, fits: ClockFits) -> bool:
        """Return whether a solved window has already used the messages of these fits."""
        was_read = 0 <= fits["first_offset"] <= self._read.get(fits["source"], -1)
        return was_read and fits["window"] <= self.last_solved

    def _step_back(self, source: str, window: int) -> None:
        """Set the next window to `window`, which is earlier, after log time stepped back."""
        self.steps += 1
        self.last_solved = window - 1
        for later in [number for number in self._waiting if number > window]:
            self._dropped += self._waiting.pop(later).tokens
        self._latest = {source: window}
        self._renumbered.clear()
        self._behind.clear()
        self._in_time_ns.clear()


def _moved(fits: ClockFits, windows: int) -> ClockFits:
    """Return the fits with their window number and log times moved later by `windows` windows."""
    if not windows:
        return fits
    moved_ns = windows * (fits["window_end_ns"] - fits["window_start_ns"])
    moved: ClockFits = {
        **fits,
        "window": fits["window"] + windows,
        "window_start_ns": fits["window_start_ns"] + moved_ns,
        "window_end_ns": fits["window_end_ns"] + moved_ns,
        "nics": [{**nic, "append_ns": nic["append_ns"] + moved_ns} for nic in fits["nics"]],
    }
    return moved
