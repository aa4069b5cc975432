"""From a NIC's prober to the host's actuator, at once: which of its paths are dead, and which live.

In: the probe engine's evidence, the links that its paths were traced over. Out: `ProberWord`s on the
actuator's datagram socket, with each loss: who hears of all paths of a host knows sooner which link is dead
than any one path does. Never blocks: nobody there, or one who does not read, is told the next time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from native.core.probe import WayNews
from schemas import codec

__all__ = ["DEAD_IN_A_ROW", "WordBook", "Words"]

DEAD_IN_A_ROW: Final = 3
"""Requests without an answer, one after the other, that make a path dead."""
AGAIN_NS: Final = 20_000_000
"""While requests get lost, all is told again so often: what lives is news as well."""
ALL_NS: Final = 1_000_000_000

Record = dict[str, Any]
LinksOf = Callable[[str, int], Sequence[str]]


@dataclass(slots=True)
class _Way:
    in_a_row: int = 0
    answered_ns: int | None = None
    first_lost_ns: int | None = None
    last_lost_ns: int | None = None
    links: list[str] = field(default_factory=list)
    """As they were while it lived: a trace of a dead path ends where it is dead."""

    @property
    def dead(self) -> bool:
        return self.in_a_row >= DEAD_IN_A_ROW


@dataclass(slots=True)
class WordBook:
    """What is known of one NIC's paths, and when to tell it. Pure: it is told the time (ns, monotonic)."""

    nic: str
    run: int
    links_of: LinksOf
    _ways: dict[tuple[str, int], _Way] = field(default_factory=dict)
    _told_ns: int = -ALL_NS

    def take(self, ways: Iterable[WayNews], now_ns: int) -> Record | None:
        """Take what the engine saw; return the `ProberWord` that is due, None where none is."""
        urgent = False
        for news in ways:
            way = self._ways.setdefault((news.peer, news.path), _Way())
            if news.answered:
                way.answered_ns = now_ns - max(0, news.answered_age_ns)
            if news.in_a_row and news.lost:
                if way.first_lost_ns is None or news.in_a_row <= news.lost:
                    way.first_lost_ns = now_ns - max(0, news.first_lost_age_ns)
                way.last_lost_ns = now_ns - max(0, news.last_lost_age_ns)
            elif not news.in_a_row:
                way.first_lost_ns = way.last_lost_ns = None
            urgent = urgent or bool(news.lost) or (way.in_a_row > 0 and not news.in_a_row)
            way.in_a_row = news.in_a_row
        losing = any(way.in_a_row for way in self._ways.values())
        if not (urgent or now_ns >= self._told_ns + (AGAIN_NS if losing else ALL_NS)):
            return None
        self._told_ns = now_ns
        rows = [self._row(*path, way, now_ns) for path, way in self._ways.items()]
        told = [row for row in rows if row is not None]
        return {"nic": self.nic, "run": self.run, "monotonic_ns": now_ns, "paths": told} if told else None

    def forget(self, peers: Iterable[str]) -> None:
        """Keep the paths to these peers alone."""
        kept = set(peers)
        for path in [path for path in self._ways if path[0] not in kept]:
            del self._ways[path]

    def _row(self, peer: str, path: int, way: _Way, now_ns: int) -> Record | None:
        if not way.in_a_row or not way.links:
            way.links = list(self.links_of(peer, path)) or way.links
        if not way.in_a_row and way.answered_ns is None:
            return None  # nobody knows

        def age_ns(at_ns: int | None) -> int | None:
            return None if at_ns is None else max(0, now_ns - at_ns)

        return {
            "peer": peer, "path": path, "dead": way.dead, "in_a_row": way.in_a_row,
            "answered_age_ns": age_ns(way.answered_ns), "first_lost_age_ns": age_ns(way.first_lost_ns),
            "last_lost_age_ns": age_ns(way.last_lost_ns), "links": way.links, "back_links": [],
        }  # fmt: skip


class Words:
    """Tells the actuator at `path`."""

    def __init__(self, path: Path, book: WordBook) -> None:
        self._path, self._book = path, book
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self.sent = 0

    def tell(self, ways: Iterable[WayNews]) -> None:
        """Take what the engine saw, and tell what is due."""
        word = self._book.take(ways, time.monotonic_ns())
        if word is None:
            return
        data = codec.encode("ProberWord", word)
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
