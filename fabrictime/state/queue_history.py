"""Inferred queues of the last minute, link by link, from LinkQueues records.

Times are fabric time. If a link's rate is unknown, its depths are computed from delays at an assumed 1
Gbit/s.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fabrictime.state.cable_graph import CableGraph
from schemas.records import LinkQueue, LinkQueues

KEPT_NS: Final = 65_000_000_000
"""How long windows are kept, ns: one minute, and the time until late windows arrive."""
MAX_POINTS: Final = 2_500_000
"""Largest number of stored points, one per link and window: about 50 MB."""
FRESH_NS: Final = 5_000_000_000
"""A link whose newest window is older than this counts as having no queue, ns."""
UNKNOWN_RATE_BPS: Final = 1_000_000_000
"""Rate that is assumed for a link of unknown rate."""

_Floats = NDArray[np.float32]


class QueueDepth(NamedTuple):
    """A link's queue in one window. The utilisation and its error bound are None if unknown."""

    start_ns: int
    length_ns: int
    mean_bytes: float
    max_bytes: float
    bound_bytes: float
    utilisation: float | None
    utilisation_bound: float | None
    rate_bps: int
    from_flows: bool
    samples: int
    group: int
    synced: bool

    def delay_ns(self, depth_bytes: float) -> float:
        """Return how long a packet waits behind `depth_bytes`, ns."""
        return depth_bytes * 8e9 / (self.rate_bps or UNKNOWN_RATE_BPS)


@dataclass(frozen=True, slots=True)
class QueueSeries:
    """A link's queue over the last minute, with one point at the middle of each window."""

    at_ns: list[int]
    mean_bytes: list[float]
    max_bytes: list[float]
    bound_bytes: list[float]
    utilisation: list[float | None]


@dataclass(frozen=True, slots=True)
class _Window:
    start_ns: int
    length_ns: int
    link: NDArray[np.int32]  # ascending
    figures: _Floats
    """Shape [5, N]: mean depth, largest depth and its bound, utilisation and its bound; NaN if unknown."""


class QueueHistory:
    """The LinkQueues windows of all shards in the last minute."""

    def __init__(self, cable_graph: CableGraph) -> None:
        self.version = 0
        self.newest_ns = 0
        self._cable_graph = cable_graph
        self._windows: deque[_Window] = deque()
        self._points = 0
        self._newest: dict[int, QueueDepth] = {}
        self._folds: dict[str, tuple[int, int]] = {}
        """Shard to (start of its newest window of several slots, number of combined slots)."""

    @property
    def fold(self) -> int:
        """Largest number of slots that a shard combines into one; above 1, its inference is too slow."""
        min_ns = self.newest_ns - FRESH_NS
        return max((fold for start_ns, fold in self._folds.values() if start_ns >= min_ns), default=1)

    def take(self, record: LinkQueues) -> None:
        """Add one LinkQueues record."""
        start_ns, length_ns = record["window_start_ns"], record["slot_ns"] * record["slots"]
        if self.newest_ns and start_ns < self.newest_ns - KEPT_NS:
            return
        if record["slots"] > 1 and start_ns >= self._folds.get(record["shard"], (start_ns, 1))[0]:
            self._folds[record["shard"]] = (start_ns, record["fold"])
        named: dict[int, LinkQueue] = {}
        for queue in record["links"]:
            number = self._cable_graph.number(queue["link"])
            if number is None:
                continue
            named[number] = queue
            before = self._newest.get(number)
            if before is None or before.start_ns <= start_ns:
                self._newest[number] = QueueDepth(
                    start_ns,
                    length_ns,
                    queue["depth_mean_bytes"],
                    queue["depth_max_bytes"],
                    queue["bound_bytes"],
                    queue["utilisation"],
                    queue["utilisation_bound"],
                    queue["rate_bps"],
                    queue["from_flows"],
                    queue["samples"],
                    queue["group"],
                    record["synced"],
                )
        self.newest_ns = max(self.newest_ns, start_ns + length_ns)
        self.version += 1
        if named:
            link = np.array(sorted(named), np.int32)
            rows = [named[number] for number in link.tolist()]
            columns = [
                [row["depth_mean_bytes"] for row in rows],
                [row["depth_max_bytes"] for row in rows],
                [row["bound_bytes"] for row in rows],
                [_or_nan(row["utilisation"]) for row in rows],
                [_or_nan(row["utilisation_bound"]) for row in rows],
            ]
            self._windows.append(_Window(start_ns, length_ns, link, np.array(columns, np.float32)))
            self._points += len(link)
        self._prune()

    def newest(self, number: int) -> QueueDepth | None:
        """Return a link's newest queue, or None without a fresh window."""
        queue = self._newest.get(number)
        return queue if queue is not None and queue.start_ns >= self.newest_ns - FRESH_NS else None

    def all_newest(self) -> dict[int, QueueDepth]:
        """Return the newest queue of every link with a fresh window, by link number."""
        min_ns = self.newest_ns - FRESH_NS
        return {number: depth for number, depth in self._newest.items() if depth.start_ns >= min_ns}

    def series(self, number: int) -> QueueSeries:
        """Return a link's queue over the last minute, the oldest window first."""
        figures_by_ns: dict[int, tuple[float, ...]] = {}
        for window in self._windows:
            at = int(np.searchsorted(window.link, number))
            if at < len(window.link) and window.link[at] == number:
                figures_by_ns[window.start_ns + window.length_ns // 2] = tuple(window.figures[:, at].tolist())
        at_ns = sorted(figures_by_ns)
        rows = [figures_by_ns[sample_ns] for sample_ns in at_ns]
        return QueueSeries(
            at_ns,
            [row[0] for row in rows],
            [row[1] for row in rows],
            [row[2] for row in rows],
            [None if row[3] != row[3] else row[3] for row in rows],
        )

    def _prune(self) -> None:
        min_ns = self.newest_ns - KEPT_NS
        while self._windows and (self._windows[0].start_ns < min_ns or self._points > MAX_POINTS):
            self._points -= len(self._windows.popleft().link)
        if self.version % 64 == 0:
            self._newest = self.all_newest()
            fresh_ns = self.newest_ns - FRESH_NS
            self._folds = {shard: entry for shard, entry in self._folds.items() if entry[0] >= fresh_ns}


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
