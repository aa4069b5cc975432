"""Signs that a path moved, from the probes themselves: its least round trip shifted, or it died and lives
again.

In: what the engine measured, `ProbeColumns` by `ProbeColumns`. Out: (peer, path) of those to trace again.
Pure. A round trip on our own clock less the turnaround on the peer's needs no clock to be right. A standing
queue lifts the floor as well: then a trace was made for nothing, which costs little.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from native.core.columns import ProbeColumns

__all__ = ["PathChangeDetector"]

WINDOW_S: Final = 1.0
AGREEING: Final = 3
"""Windows in a row whose least round trip must lie on the same side."""
LEARNT: Final = 5
LEAST_SHIFT_NS: Final = 1000
NOISES: Final = 6.0
DEAD_AFTER: Final = 3
REST_S: Final = 1.0
LOSS_REST_S: Final = 10.0
"""A path that loses some and lives is traced no more often than this: it may be grey, not moved."""
FORGET_S: Final = 120.0


@dataclass(slots=True)
class _Path:
    least_ns: int | None = None
    lost_in_a_row: int = 0
    floors: deque[int] = field(default_factory=lambda: deque(maxlen=LEARNT))
    astray: deque[int] = field(default_factory=lambda: deque(maxlen=AGREEING))
    owed: bool = False
    rest_s: float = LOSS_REST_S
    told_s: float = float("-inf")
    seen_s: float = 0.0

    def tell(self, now_s: float) -> None:
        """Note that the path was called moved."""
        self.told_s, self.owed, self.rest_s = now_s, False, LOSS_REST_S


class PathChangeDetector:
    """The floors of one NIC's paths."""

    def __init__(self) -> None:
        self._paths: dict[tuple[str, int], _Path] = {}
        self._end_s: float | None = None

    def observe(self, batch: ProbeColumns, now_s: float) -> list[tuple[str, int]]:
        """Take a batch; return the (peer, path) that may have moved."""
        if self._end_s is None:
            self._end_s = now_s + WINDOW_S
        moved = []
        for at, peer in enumerate(batch.peers):
            path = self._paths.setdefault((peer, int(batch.path[at])), _Path())
            path.seen_s = now_s
            begin, end = int(batch.start[at]), int(batch.start[at + 1])
            if end > begin:
                if path.lost_in_a_row >= DEAD_AFTER:
                    path.rest_s = REST_S
                path.owed = path.owed or bool(path.lost_in_a_row or batch.lost[at])
                if path.owed and now_s - path.told_s >= path.rest_s:
                    path.tell(now_s)
                    moved.append((peer, int(batch.path[at])))
                path.lost_in_a_row = 0
                least = int((batch.forward[begin:end] + batch.reverse[begin:end]).min())
                path.least_ns = least if path.least_ns is None else min(path.least_ns, least)
            else:
                path.lost_in_a_row += int(batch.lost[at])
        if now_s < self._end_s:
            return moved
        self._end_s = now_s + WINDOW_S
        for key, path in list(self._paths.items()):
            if now_s - path.seen_s > FORGET_S:
                del self._paths[key]
            elif _close(path) and now_s - path.told_s >= REST_S:
                path.tell(now_s)
                moved.append(key)
        return moved


def _close(path: _Path) -> bool:
    """End a path's window; return whether it may have moved."""
    least_ns, path.least_ns = path.least_ns, None
    if least_ns is None:
        return False
    if len(path.floors) < LEARNT:
        path.floors.append(least_ns)
        return False
    ordered = sorted(path.floors)
    middle = ordered[len(ordered) // 2]
    noise_ns = max(LEAST_SHIFT_NS, NOISES * sum(abs(floor - middle) for floor in ordered) / len(ordered))
    if abs(least_ns - middle) <= noise_ns:
        path.floors.append(least_ns)
        path.astray.clear()
        return False
    path.astray.append(least_ns)
    if len(path.astray) < AGREEING or not (min(path.astray) > middle or max(path.astray) < middle):
        return False
    path.floors.clear()
    path.floors.extend(path.astray)
    path.astray.clear()
    return True
