"""Finds paths that may have moved, from the probes' own measurements.

There are two signs: the minimum round trip of a path shifted, or the path lost probes and answers again. The
round trip on our own clock minus the turnaround on the peer's clock needs no clock offset. A persistent queue
raises the minimum too; the trace that follows is then unnecessary, which costs little. This module is pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from native.core.columns import ProbeColumns

WINDOW_S: Final = 1.0
AGREEING_WINDOWS: Final = 3
"""Number of consecutive windows in which the minimum must deviate in the same direction."""
LEARNING_WINDOWS: Final = 5
MIN_SHIFT_NS: Final = 1000
NOISE_FACTOR: Final = 6.0
"""A shift must exceed this multiple of the mean deviation of the learnt minima from their median."""
DEAD_LOSS_STREAK: Final = 3
REST_S: Final = 1.0
LOSS_REST_S: Final = 10.0
"""Minimum time between traces of a path that loses only some probes; it may be grey, not moved."""
FORGET_S: Final = 120.0
SILENT_S: Final = 10.0
"""Time without an answer after which a path that loses probes counts as silent."""


@dataclass(slots=True)
class _Path:
    min_ns: int | None = None
    loss_streak: int = 0
    losing_s: float = 0.0
    """Time of the first loss since the last answer; meaningful while `loss_streak` is above 0."""
    floors: deque[int] = field(default_factory=lambda: deque(maxlen=LEARNING_WINDOWS))
    deviating: deque[int] = field(default_factory=lambda: deque(maxlen=AGREEING_WINDOWS))
    trace_pending: bool = False
    rest_s: float = LOSS_REST_S
    reported_s: float = float("-inf")
    seen_s: float = 0.0

    def is_silent(self, now_s: float) -> bool:
        """Return whether the path has lost every probe for `SILENT_S` seconds."""
        is_losing = self.loss_streak >= DEAD_LOSS_STREAK and now_s - self.losing_s >= SILENT_S
        return is_losing and now_s - self.seen_s < SILENT_S

    def mark_reported(self, now_s: float) -> None:
        """Record that the path was reported as possibly moved, at `now_s`."""
        self.reported_s, self.trace_pending, self.rest_s = now_s, False, LOSS_REST_S


class PathChangeDetector:
    """Detects paths of one NIC that may have moved, by their minimum round trips and losses."""

    def __init__(self) -> None:
        self.silent_peers: set[str] = set()
        """The peers to which a path has lost every probe for `SILENT_S`, at the end of the last window."""
        self._paths: dict[tuple[str, int], _Path] = {}
        self._window_end_s: float | None = None

    def observe(self, batch: ProbeColumns, now_s: float) -> list[tuple[str, int]]:
        """Add a batch of probes; return the paths that may have moved, as (peer, source port)."""
        if self._window_end_s is None:
            self._window_end_s = now_s + WINDOW_S
        moved = []
        columns = (batch.peers, batch.path.tolist(), batch.lost.tolist(), _min_round_trips_ns(batch))
        for peer, port, lost, min_ns in zip(*columns, strict=True):
            key = (peer, port)
            path = self._paths.get(key)
            if path is None:
                path = self._paths[key] = _Path()
            path.seen_s = now_s
            if _add_samples(path, lost, min_ns, now_s):
                moved.append(key)
        if now_s < self._window_end_s:
            return moved
        self._window_end_s = now_s + WINDOW_S
        for key, path in list(self._paths.items()):
            if now_s - path.seen_s > FORGET_S:
                del self._paths[key]
            elif _close_window(path) and now_s - path.reported_s >= REST_S:
                path.mark_reported(now_s)
                moved.append(key)
        self.silent_peers = {peer for (peer, _), path in self._paths.items() if path.is_silent(now_s)}
        return moved


def _min_round_trips_ns(batch: ProbeColumns) -> list[int | None]:
    """Return, per row, the smallest round trip minus the peer's turnaround, ns; None without samples."""
    minima: list[int | None] = [None] * len(batch.peers)
    filled = np.flatnonzero(batch.start[1:] > batch.start[:-1])
    if filled.size:
        round_trips_ns = batch.forward + batch.reverse
        row_minima_ns = np.minimum.reduceat(round_trips_ns, batch.start[filled])
        for row, min_ns in zip(filled.tolist(), row_minima_ns.tolist(), strict=True):
            minima[row] = min_ns
    return minima


def _add_samples(path: _Path, lost: int, min_ns: int | None, now_s: float) -> bool:
    """Add one row of a batch; return whether the path answers after a loss and may be reported again."""
    if min_ns is None:
        if lost and not path.loss_streak:
            path.losing_s = now_s
        path.loss_streak += lost
        return False
    if path.loss_streak >= DEAD_LOSS_STREAK:
        path.rest_s = REST_S
    path.trace_pending = path.trace_pending or bool(path.loss_streak or lost)
    is_due = path.trace_pending and now_s - path.reported_s >= path.rest_s
    if is_due:
        path.mark_reported(now_s)
    path.loss_streak = 0
    path.min_ns = min_ns if path.min_ns is None else min(path.min_ns, min_ns)
    return is_due


def _close_window(path: _Path) -> bool:
    """End a path's measurement window; return whether its minimum round trip shifted for long enough."""
    min_ns, path.min_ns = path.min_ns, None
    if min_ns is None:
        return False
    if len(path.floors) < LEARNING_WINDOWS:
        path.floors.append(min_ns)
        return False
    ordered = sorted(path.floors)
    median_ns = ordered[len(ordered) // 2]
    mean_deviation_ns = sum(abs(floor - median_ns) for floor in ordered) / len(ordered)
    if abs(min_ns - median_ns) <= max(MIN_SHIFT_NS, NOISE_FACTOR * mean_deviation_ns):
        path.floors.append(min_ns)
        path.deviating.clear()
        return False
    path.deviating.append(min_ns)
    same_side = min(path.deviating) > median_ns or max(path.deviating) < median_ns
    if len(path.deviating) < AGREEING_WINDOWS or not same_side:
        return False
    path.floors.clear()
    path.floors.extend(path.deviating)
    path.deviating.clear()
    return True
