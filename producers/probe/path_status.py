"""From a NIC's prober to the host's actuator, at once: which of its paths are dead, and which live.

In: the probe engine's evidence, the links that its paths were traced over. Out: `PathStatusReport`s on the
actuator's datagram socket, soon after a loss: who hears of all paths of a host knows sooner which link is
dead than any one path does. Never blocks: nobody there, or one who does not read, is told the next time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from native.core.probe import PathEvidence
from schemas import codec

__all__ = ["DEAD_LOSS_STREAK", "PathStatusTracker", "PathStatusReporter"]

DEAD_LOSS_STREAK: Final = 3
"""Requests without an answer, one after the other, that make a path dead."""
SOON_NS: Final = 5_000_000
LATE_NS: Final = 40_000_000
"""While requests get lost, the next word comes after the first of these at first, each time after twice as
long, up to the second: a host hears of a death thrice within 40 ms, and of what lasts without end seldom."""
CALM_NS: Final = 1_000_000_000
LINKS_NS: Final = 1_000_000_000
"""How long the links of a path that lives are taken to be what they were."""
LOSING_MOST: Final = 1000
"""Paths of which one word tells that they lose, the last ones: all of a dead NIC's fit into no datagram."""
SEND_BYTES: Final = 1 << 20

Record = dict[str, Any]
LinksOf = Callable[[str, int], Sequence[str]]


@dataclass(slots=True)
class _Way:
    loss_streak: int = 0
    answered_ns: int | None = None
    first_lost_ns: int | None = None
    last_lost_ns: int | None = None
    links: tuple[str, ...] = ()
    """As they were while it lived: a trace of a dead path ends where it is dead."""
    links_ns: int = -LINKS_NS

    @property
    def dead(self) -> bool:
        return self.loss_streak >= DEAD_LOSS_STREAK


@dataclass(slots=True)
class PathStatusTracker:
    """What is known of one NIC's paths, and when to tell it. Pure: it is told the time (ns, monotonic).

    A word holds the paths that lose and, for each link of theirs, the path across it that was answered last:
    no other path says more about what is dead. One without paths says that nothing gets lost.
    """

    nic: str
    run: int
    links_of: LinksOf
    _ways: dict[tuple[str, int], _Way] = field(default_factory=dict)
    _told_ns: int = -CALM_NS
    _gap_ns: int = 0
    """Between this word and the next while requests get lost; 0: none was lost by the last word."""

    def take(self, ways: Iterable[PathEvidence], now_ns: int) -> Record | None:
        """Take what the engine saw; return the `PathStatusReport` that is due, None where none is."""
        for news in ways:
            way = self._ways.get((news.peer, news.path))
            if way is None:
                way = self._ways[(news.peer, news.path)] = _Way()
            if news.answered:
                way.answered_ns = now_ns - max(0, news.answered_age_ns)
            if news.loss_streak and news.lost:
                if way.first_lost_ns is None or news.loss_streak <= news.lost:
                    way.first_lost_ns = now_ns - max(0, news.first_lost_age_ns)
                way.last_lost_ns = now_ns - max(0, news.last_lost_age_ns)
            elif not news.loss_streak:
                way.first_lost_ns = way.last_lost_ns = None
            way.loss_streak = news.loss_streak
        losing = {path: way for path, way in self._ways.items() if way.loss_streak}
        if losing:
            due = now_ns >= self._told_ns + self._gap_ns
            gap_ns = min(LATE_NS, max(SOON_NS, 2 * self._gap_ns))
        else:
            due, gap_ns = self._gap_ns > 0 or now_ns >= self._told_ns + CALM_NS, 0
        if not due:
            return None
        self._told_ns, self._gap_ns = now_ns, gap_ns
        rows = [self._row(*path, way, now_ns) for path, way in self._telling(losing, now_ns)]
        return {"nic": self.nic, "run": self.run, "monotonic_ns": now_ns, "paths": rows}

    def forget(self, peers: Iterable[str]) -> None:
        """Keep the paths to these peers alone."""
        kept = set(peers)
        for path in [path for path in self._ways if path[0] not in kept]:
            del self._ways[path]

    def _telling(
        self, losing: Mapping[tuple[str, int], _Way], now_ns: int
    ) -> Iterable[tuple[tuple[str, int], _Way]]:
        """Return the paths of a word: those that lose, and who speaks for their links."""
        if not losing:
            return ()
        if len(losing) > LOSING_MOST:
            last = sorted(losing, key=lambda path: losing[path].last_lost_ns or 0)[-LOSING_MOST:]
            losing = {path: losing[path] for path in last}
        suspects: set[str] = set()
        for path, way in losing.items():
            way.links = way.links or tuple(self.links_of(*path))
            suspects.update(way.links)
        newest: dict[str, tuple[int, tuple[str, int]]] = {}
        for path, way in self._ways.items():
            if way.answered_ns is None:
                continue
            if not way.loss_streak and now_ns >= way.links_ns + LINKS_NS:
                way.links, way.links_ns = tuple(self.links_of(*path)) or way.links, now_ns
            for link in suspects.intersection(way.links):
                if link not in newest or way.answered_ns > newest[link][0]:
                    newest[link] = way.answered_ns, path
        told = {path for _, path in newest.values()} | losing.keys()
        return [(path, self._ways[path]) for path in sorted(told)]

    def _row(self, peer: str, path: int, way: _Way, now_ns: int) -> Record:
        def age_ns(at_ns: int | None) -> int | None:
            return None if at_ns is None else max(0, now_ns - at_ns)

        return {
            "peer": peer,
            "path": path,
            "dead": way.dead,
            "loss_streak": way.loss_streak,
            "answered_age_ns": age_ns(way.answered_ns),
            "first_lost_age_ns": age_ns(way.first_lost_ns),
            "last_lost_age_ns": age_ns(way.last_lost_ns),
            "links": list(way.links),
            "back_links": [],
        }


class PathStatusReporter:
    """Tells the actuator at `path`."""

    def __init__(self, path: Path, book: PathStatusTracker) -> None:
        self._path, self._book = path, book
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        self.sent = 0

    def tell(self, ways: Iterable[PathEvidence]) -> None:
        """Take what the engine saw, and tell what is due."""
        word = self._book.take(ways, time.monotonic_ns())
        if word is None:
            return
        data = codec.encode("PathStatusReport", word)
        with contextlib.suppress(OSError):  # nobody there, or too much waits: the next word says it again
            directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:  # an address holds 107 bytes; paths here may be longer
                self._socket.sendto(data, f"/proc/self/fd/{directory}/{self._path.name}")
                self.sent += 1
            finally:
                os.close(directory)

    def forget(self, peers: Iterable[str]) -> None:
        """Keep the paths to these peers alone."""
        self._book.forget(peers)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
