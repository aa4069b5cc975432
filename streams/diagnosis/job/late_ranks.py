"""Finds long pauses of single ranks over a minute: a window of seconds contains at most one of them.

Garbage collection, checkpoints of one rank and data loaders stop a rank for seconds, then the job is as fast
as before. Each pause counts once, by its operation, although the evaluated intervals overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from streams.runtime.units import NS_PER_MS, NS_PER_S

LONG_NS: Final = 60 * NS_PER_S
"""Length of the long window: two pauses that are half a minute apart lie in it."""
MIN_LATE_NS: Final = 100 * NS_PER_MS
"""Lateness below which an arrival is no pause; the short window covers shorter ones."""
MIN_PAUSES: Final = 2
"""Number of pauses that show a habit; a single one may be a checkpoint."""
MIN_MEMORY_NS: Final = 7 * NS_PER_S
GAP_TIMES: Final = 1.5
"""Multiple of a long time between two pauses, one of four, after which a rank counts as cured."""
MAX_PAUSES: Final = 4_096


class Pause(NamedTuple):
    """A rank's late arrival at a collective, after time that the rank spent outside of operations."""

    communicator: int
    seq: int
    host: str
    rank: int
    at_ns: int
    late_ns: int


@dataclass(frozen=True, slots=True)
class Pausing:
    """Host whose ranks pause repeatedly; `lost`: share of the job's time; `part`: share of all pauses."""

    host: str
    ranks: tuple[int, ...]
    lost: float
    part: float
    count: int
    greatest_ns: int
    span_ns: int


class LateRanks:
    """Pauses of a job's ranks in the last minute; independent of the order in which they arrive."""

    def __init__(self) -> None:
        self._pauses: dict[tuple[int, int], Pause] = {}
        self._first_ns: int | None = None

    def note(self, pauses: Iterable[Pause], begin_ns: int, end_ns: int) -> None:
        """Add the pauses of an interval, and drop pauses that are older than the long window."""
        self._first_ns = begin_ns if self._first_ns is None else min(self._first_ns, begin_ns)
        for pause in pauses:
            if pause.late_ns >= MIN_LATE_NS:
                self._pauses[pause.communicator, pause.seq] = pause
        recent = sorted(self._pauses.values(), key=lambda pause: -pause.at_ns)[:MAX_PAUSES]
        oldest_ns = end_ns - LONG_NS
        self._pauses = {(pause.communicator, pause.seq): pause for pause in recent if pause.at_ns > oldest_ns}

    def worst(self, end_ns: int) -> Pausing | None:
        """Return the host whose pauses cost most of the long window; None if no host pauses repeatedly."""
        if self._first_ns is None:
            return None
        span_ns = max(1, min(LONG_NS, end_ns - self._first_ns))
        total_ns = max(1, sum(pause.late_ns for pause in self._pauses.values()))
        by_host: dict[str, list[Pause]] = {}
        for pause in self._pauses.values():
            by_host.setdefault(pause.host, []).append(pause)
        pausing = [
            Pausing(
                host,
                tuple(sorted({pause.rank for pause in pauses})),
                min(1.0, sum(pause.late_ns for pause in pauses) / span_ns),
                sum(pause.late_ns for pause in pauses) / total_ns,
                len(pauses),
                max(pause.late_ns for pause in pauses),
                span_ns,
            )
            for host, pauses in by_host.items()
            if _goes_on(pauses, end_ns)
        ]
        return min(pausing, key=lambda host: (-host.lost, host.host), default=None)


def _goes_on(pauses: list[Pause], end_ns: int) -> bool:
    """Return whether a host paused repeatedly, and its next pause is not overdue at `end_ns`."""
    if len(pauses) < MIN_PAUSES:
        return False
    times = sorted(pause.at_ns for pause in pauses)
    gaps_ns = sorted(later - earlier for earlier, later in pairwise(times))
    return end_ns - times[-1] <= max(MIN_MEMORY_NS, GAP_TIMES * gaps_ns[len(gaps_ns) * 3 // 4])
