"""Local repair: moves a flow to its first living fallback when its path dies and no decision arrives.

It uses path status reports of the host's probers and the `Fallbacks` that policy publishes. It is pure:
callers pass in the time (ns, monotonic).

A link is dead if several consecutive requests on the paths that cross it were lost, all after the last
answered request that crossed it. Each living path exonerates its links. Of a dead path, only links that no
living path crosses remain as suspects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemas.records import Fallbacks, FlowFallbacks, PathStatusReport

Fence = tuple[int, int]

DEAD_LOSSES: Final = 3
FRESH_NS: Final = 2_000_000_000
"""Time for which a prober's report counts."""
_MAX_NICS: Final = 4096
"""Maximum number of probers."""
REST_NS: Final = 100_000_000
"""Pause after a move that failed."""


class _Path(NamedTuple):
    loss_streak: int
    answered_ns: int | None
    first_lost_ns: int | None
    last_lost_ns: int | None
    links: tuple[str, ...]


class Repair(NamedTuple):
    """A flow to move, its new path and the reason."""

    flow_id: str
    to_path: int
    detail: str
    job: str | None = None


@dataclass(slots=True)
class DeadLinks:
    """The dead links of a host's paths, derived from its probers' reports."""

    _statuses: dict[str, tuple[int, list[_Path]]] = field(default_factory=dict)
    _sent_ns: dict[str, int] = field(default_factory=dict)
    """Maps NIC to the send time of its newest report."""
    _dead: frozenset[str] = frozenset()
    _stale: bool = False
    """True if reports have arrived since the last evaluation."""

    @property
    def dead(self) -> frozenset[str]:
        """The dead links according to the reports taken so far."""
        if self._stale:
            self._stale = False
            self._update()
        return self._dead

    def take(self, status: PathStatusReport, now_ns: int) -> None:
        """Process a `PathStatusReport`; it replaces the NIC's previous report.

        Raises ValueError if the report is old, or if it would exceed the maximum number of probers.
        """
        if status["monotonic_ns"] < max(now_ns - FRESH_NS, self._sent_ns.get(status["nic"], 0)):
            raise ValueError(
                f"{status['nic']}: sent at {status['monotonic_ns']}, expected newer than the last report"
            )
        at_ns = min(now_ns, status["monotonic_ns"])

        def then(age_ns: int | None) -> int | None:
            return None if age_ns is None else at_ns - age_ns

        paths = [
            _Path(
                row["loss_streak"],
                then(row["answered_age_ns"]),
                then(row["first_lost_age_ns"]),
                then(row["last_lost_age_ns"]),
                (*row["links"], *row["back_links"]),
            )
            for row in status["paths"]
        ]
        for nic in [
            nic for nic, (received_ns, _) in self._statuses.items() if received_ns < now_ns - FRESH_NS
        ]:
            del self._statuses[nic], self._sent_ns[nic]
        if len(self._statuses) >= _MAX_NICS and status["nic"] not in self._statuses:
            raise ValueError(f"{status['nic']}: {_MAX_NICS} probers report already")
        self._statuses[status["nic"]], self._sent_ns[status["nic"]] = (now_ns, paths), at_ns
        self._stale = True

    def dead_at(self, now_ns: int) -> frozenset[str]:
        """Return the dead links; none if all reports are too old."""
        fresh = any(received_ns >= now_ns - FRESH_NS for received_ns, _ in self._statuses.values())
        return self.dead if fresh else frozenset()

    def _update(self) -> None:
        paths = [path for _, statuses in self._statuses.values() for path in statuses if path.links]
        answered_ns: dict[str, int] = {}
        for path in paths:
            if path.answered_ns is not None:
                for link in path.links:
                    answered_ns[link] = max(answered_ns.get(link, path.answered_ns), path.answered_ns)
        lost: Counter[str] = Counter()
        for path in paths:
            for link in path.links:
                lost[link] += _losses_after(path, answered_ns.get(link))
        self._dead = frozenset(link for link, count in lost.items() if count >= DEAD_LOSSES)


@dataclass(slots=True)
class _Waiting:
    since_ns: int
    fence: Fence


class LocalRepair:
    """Decides which flows of one host to repair. `wait_ns`: time to wait for a decision."""

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._rows: dict[str, FlowFallbacks] = {}
        self._newest = (-1, -1)
        self._waiting: dict[str, _Waiting] = {}
        self._checked_ns = 0

    def take_fallbacks(self, record: Fallbacks | None) -> None:
        """Set the newest complete `Fallbacks` of the host; None if it has none any more.

        A record of an older epoch comes from a worker that lost its shard, and is ignored.
        """
        if record is None:
            self._rows.clear()
        elif (record["epoch"], record["seq"]) >= self._newest:
            self._newest = (record["epoch"], record["seq"])
            self._rows = {row["flow_id"]: row for row in record["flows"]}
        self._waiting = {name: waiting for name, waiting in self._waiting.items() if name in self._rows}

    def flows(self) -> Iterable[str]:
        """Return the ids of the flows that have fallbacks."""
        return self._rows.keys()

    def due(
        self, dead: frozenset[str], paths: Mapping[str, int | None], fences: Mapping[str, Fence], now_ns: int
    ) -> list[Repair]:
        """Return the moves to make now. `paths`: the flows' present paths; `fences`: their newest decisions.

        A flow without a living fallback waits for new reports.
        """
        self._checked_ns = now_ns
        if not dead:
            self._waiting.clear()
            return []
        repairs = []
        for flow_id, row in self._rows.items():
            path, fence = paths.get(flow_id), fences.get(flow_id, (-1, -1))
            links = None if path is None else _links_of(row, path)
            if links is None or dead.isdisjoint(links):
                self._waiting.pop(flow_id, None)
                continue
            waiting = self._waiting.get(flow_id)
            if waiting is None or waiting.fence != fence:
                waiting = self._waiting[flow_id] = _Waiting(now_ns, fence)
            if now_ns < waiting.since_ns + self._wait_ns:
                continue
            to_path = _living_path(row, path, dead)
            if to_path is not None:
                link = min(dead.intersection(links))
                detail = f"path {path} is dead at {link}, no decision came"
                repairs.append(Repair(flow_id, to_path, detail, row["job"]))
                waiting.since_ns = now_ns + REST_NS
        return repairs

    def due_ns(self) -> int | None:
        """Return the time of the next check, ns; None if only a new report can change the result."""
        dues = (waiting.since_ns + self._wait_ns for waiting in self._waiting.values())
        return min((due_ns for due_ns in dues if due_ns > self._checked_ns), default=None)


def _links_of(row: FlowFallbacks, path: int) -> list[str] | None:
    """Return the links of a flow's path; None if they are unknown."""
    if path == row["path"]:
        return list(row["links"]) or None
    for other, links in zip(row["other_paths"], row["other_links"], strict=False):
        if other == path:
            return list(links) or None
    return None


def _losses_after(path: _Path, answered_ns: int | None) -> int:
    """Return the number of a path's losses after a link's last answer; at least 1 if any are newer."""
    if not path.loss_streak or path.last_lost_ns is None or path.first_lost_ns is None:
        return 0
    if answered_ns is None or answered_ns < path.first_lost_ns:
        return path.loss_streak
    return int(answered_ns < path.last_lost_ns)


def _living_path(row: FlowFallbacks, path: int | None, dead: frozenset[str]) -> int | None:
    """Return a flow's first fallback path without a dead link; None if there is none."""
    for other, links in zip(row["other_paths"], row["other_links"], strict=False):
        if other != path and links and dead.isdisjoint(links):
            return other
    return None
