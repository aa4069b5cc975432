"""Reports dead and living paths from a NIC's prober to the host's flow actuator, soon after a loss.

The report is a datagram on the actuator's Unix socket. The actuator sees all paths of a host, so it can
localise a dead link faster than it could from any single path. Sending never blocks. A report that cannot be
delivered is dropped, because the next one repeats its content.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from native.core.probe import PathEvidence
from schemas import codec
from schemas.records import PathStatus, PathStatusReport

DEAD_LOSS_STREAK: Final = 3
"""A path is dead after this many consecutive requests without an answer."""
FIRST_GAP_NS: Final = 5_000_000
MAX_GAP_NS: Final = 40_000_000
"""Longest gap between reports. While requests are lost, the gap doubles from `FIRST_GAP_NS` up to this. A
dead path is thus reported three times within 40 ms, and a lasting loss seldom."""
HEARTBEAT_NS: Final = 1_000_000_000
LINKS_MAX_AGE_NS: Final = 1_000_000_000
"""The links of a living path are read again after this time."""
MAX_LOSING_PATHS: Final = 1000
"""Maximum number of losing paths in a report; those with the latest loss are kept. All paths of a dead NIC
would not fit into a datagram."""
SEND_BUFFER_BYTES: Final = 1 << 20

LinksOf = Callable[[str, int], Sequence[str]]
PathKey = tuple[str, int]


@dataclass(slots=True)
class _Path:
    loss_streak: int = 0
    answered_ns: int | None = None
    first_lost_ns: int | None = None
    last_lost_ns: int | None = None
    links: tuple[str, ...] = ()
    """Links from before the loss: the trace of a dead path ends at the dead link."""
    links_ns: int = -LINKS_MAX_AGE_NS

    @property
    def is_dead(self) -> bool:
        return self.loss_streak >= DEAD_LOSS_STREAK

    def update(self, path_evidence: PathEvidence, now_ns: int) -> None:
        """Update the path with the engine's evidence since the last call."""
        if path_evidence.answered:
            self.answered_ns = now_ns - max(0, path_evidence.answered_age_ns)
        if path_evidence.loss_streak and path_evidence.lost:
            if self.first_lost_ns is None or path_evidence.loss_streak <= path_evidence.lost:
                self.first_lost_ns = now_ns - max(0, path_evidence.first_lost_age_ns)
            self.last_lost_ns = now_ns - max(0, path_evidence.last_lost_age_ns)
        elif not path_evidence.loss_streak:
            self.first_lost_ns = self.last_lost_ns = None
        self.loss_streak = path_evidence.loss_streak


@dataclass(slots=True)
class PathStatusTracker:
    """Decides when to report one NIC's losing paths, and which paths the report contains.

    It reads no clock; times are monotonic, ns. A report contains the losing paths. For each of their links it
    also contains the most recently answered path over that link, to narrow down the dead link. A report
    without paths means that nothing is lost.
    """

    nic: str
    run: int
    links_of: LinksOf
    _paths: dict[PathKey, _Path] = field(default_factory=dict)
    _reported_ns: int = -HEARTBEAT_NS
    _gap_ns: int = 0
    """Gap to the next report while requests are lost; 0 if the last report had no loss."""

    def update(self, evidence: Iterable[PathEvidence], now_ns: int) -> PathStatusReport | None:
        """Process the engine's evidence; return a status report if one is due, else None."""
        for path_evidence in evidence:
            self._paths.setdefault((path_evidence.peer, path_evidence.path), _Path()).update(
                path_evidence, now_ns
            )
        losing = {key: path for key, path in self._paths.items() if path.loss_streak}
        if losing:
            is_due = now_ns >= self._reported_ns + self._gap_ns
            gap_ns = min(MAX_GAP_NS, max(FIRST_GAP_NS, 2 * self._gap_ns))
        else:
            is_due, gap_ns = self._gap_ns > 0 or now_ns >= self._reported_ns + HEARTBEAT_NS, 0
        if not is_due:
            return None
        self._reported_ns, self._gap_ns = now_ns, gap_ns
        rows = [_row(*key, path, now_ns) for key, path in self._selected(losing, now_ns)]
        return {"nic": self.nic, "run": self.run, "monotonic_ns": now_ns, "paths": rows}

    def keep_only(self, peers: Iterable[str]) -> None:
        """Drop the paths to peers that are not in `peers`."""
        remaining = set(peers)
        for key in [key for key in self._paths if key[0] not in remaining]:
            del self._paths[key]

    def _selected(self, losing: Mapping[PathKey, _Path], now_ns: int) -> Iterable[tuple[PathKey, _Path]]:
        """Return the losing paths and, for each link of these, the path over it that was answered last."""
        if not losing:
            return ()
        if len(losing) > MAX_LOSING_PATHS:
            latest = sorted(losing, key=lambda key: losing[key].last_lost_ns or 0)[-MAX_LOSING_PATHS:]
            losing = {key: losing[key] for key in latest}
        suspects: set[str] = set()
        for key, path in losing.items():
            path.links = path.links or tuple(self.links_of(*key))
            suspects.update(path.links)
        selected = self._latest_answered(suspects, now_ns) | losing.keys()
        return [(key, self._paths[key]) for key in sorted(selected)]

    def _latest_answered(self, suspects: set[str], now_ns: int) -> set[PathKey]:
        newest: dict[str, tuple[int, PathKey]] = {}
        for key, path in self._paths.items():
            if path.answered_ns is None:
                continue
            if not path.loss_streak and now_ns >= path.links_ns + LINKS_MAX_AGE_NS:
                path.links, path.links_ns = tuple(self.links_of(*key)) or path.links, now_ns
            for link in suspects.intersection(path.links):
                if link not in newest or path.answered_ns > newest[link][0]:
                    newest[link] = path.answered_ns, key
        return {key for _, key in newest.values()}


def _row(peer: str, port: int, path: _Path, now_ns: int) -> PathStatus:
    def age_ns(at_ns: int | None) -> int | None:
        return None if at_ns is None else max(0, now_ns - at_ns)

    return {
        "peer": peer,
        "path": port,
        "dead": path.is_dead,
        "loss_streak": path.loss_streak,
        "answered_age_ns": age_ns(path.answered_ns),
        "first_lost_age_ns": age_ns(path.first_lost_ns),
        "last_lost_age_ns": age_ns(path.last_lost_ns),
        "links": list(path.links),
        "back_links": [],
    }


class PathStatusReporter:
    """Sends one NIC's path reports to the flow actuator's socket at `path`."""

    def __init__(self, path: Path, tracker: PathStatusTracker) -> None:
        self._path, self._tracker = path, tracker
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.sent = 0

    def update(self, evidence: Iterable[PathEvidence]) -> None:
        """Process the engine's evidence, and send a report if one is due."""
        report = self._tracker.update(evidence, time.monotonic_ns())
        if report is None:
            return
        data = codec.encode(PathStatusReport, report)
        with contextlib.suppress(OSError):  # no receiver, or its queue is full: the next report repeats this
            directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:  # a socket address holds 107 bytes, and paths here may be longer
                self._socket.sendto(data, f"/proc/self/fd/{directory}/{self._path.name}")
                self.sent += 1
            finally:
                os.close(directory)

    def keep_only(self, peers: Iterable[str]) -> None:
        """Drop the paths to peers that are not in `peers`."""
        self._tracker.keep_only(peers)

    def close(self) -> None:
        """Close the socket to the flow actuator."""
        self._socket.close()
