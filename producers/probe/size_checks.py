"""Decides which packet sizes to probe on which path, and derives the largest size that passes.

One packet of the NIC's MTU checks a path. If it is lost, additional small packets show whether the path drops
only large packets. A binary search then finds the limit, and a last series of packets confirms it: random
loss would not pass packets below the limit and drop all above it. Each traffic class is checked, since a
switch may drop the large packets of only one class. This module uses no socket and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from producers.probe.flow_targets import PathKey
from schemas.records import PathSize

SMALL_BYTES: Final = 100
"""Packet size that every living path passes, with the headers of IP and UDP."""
CONFIRM_TIMES: Final = 8
"""Number of full-size packets, after the first, that must be lost before the search. As many packets are sent
on either side of the limit to confirm it."""
MIN_PASSED: Final = 4
"""Of `CONFIRM_TIMES` packets below the limit, this many must pass; a path may lose some for other reasons."""
SEARCH_TIMES: Final = 4
"""Number of packets of one size that must be lost in the search before the size counts as dropped."""
MAX_SEARCHES: Final = 4
"""Maximum number of a NIC's paths with a search under way, which limits the load."""
RECHECK_S: Final = 5.0
"""Interval of full-size packets on a path that drops them."""
SEARCH_AGAIN_S: Final = 60.0
"""Interval at which the limit is searched again on a path that still drops large packets."""

_Key = tuple[str, int, int]
"""Peer, source port and index of the traffic class."""
Sizes = tuple[int, ...]
Check = Generator[Sizes, tuple[bool, ...], int | None]
"""A check of one path. It yields the sizes to send together and receives which of them arrived. It returns
the largest size that passes, or None if that is not known."""


class SizeProbe(NamedTuple):
    """A packet to send: path, number, size in bytes with IP and UDP headers, and index of the class."""

    key: PathKey
    seq: int
    size_bytes: int
    traffic_class: int = 0


def find_limit(full_bytes: int, hint_bytes: int = 0) -> Check:
    """Search the largest packet size up to `full_bytes` that passes; `hint_bytes`: likely limit, or 0."""
    small_passed = 0
    for _ in range(CONFIRM_TIMES):
        full, small = yield full_bytes, SMALL_BYTES
        if full:
            return full_bytes
        small_passed += small
    if small_passed < MIN_PASSED:
        return None
    passes, drops = SMALL_BYTES, full_bytes
    guesses = [size for size in (hint_bytes, hint_bytes + 1) if passes < size < drops]
    while drops - passes > 1:
        size = guesses.pop(0) if guesses else (passes + drops) // 2
        if not passes < size < drops:
            continue
        if (yield from _passes(size)):
            passes = size
        else:
            drops = size
    passed = 0
    for _ in range(CONFIRM_TIMES):
        at_limit, above = yield passes, drops
        if above:
            return None
        passed += at_limit
    return passes if passed >= MIN_PASSED else None


def _passes(size_bytes: int) -> Generator[Sizes, tuple[bool, ...], bool]:
    for _ in range(SEARCH_TIMES):
        (arrived,) = yield (size_bytes,)
        if arrived:
            return True
    return False


@dataclass(slots=True)
class _Path:
    """Progress of the checks of one path in one traffic class. Times are seconds of the monotonic clock."""

    full_bytes: int
    passes_bytes: int | None = None
    """Largest size known to pass; None if not known."""
    router_mtu_bytes: int = 0
    """MTU that a router reported for a packet of this check; 0 if none did."""
    due_s: float = 0.0
    searched_s: float = float("-inf")
    search: Check | None = None
    """The search for the limit; None while only one full-size packet is under way."""
    sent: list[SizeProbe] = field(default_factory=list)
    """Packets under way; empty if no check is in progress."""
    arrived: list[bool | None] = field(default_factory=list)
    """Whether each of `sent` arrived; None while not known."""
    deadline_s: float = 0.0
    began_s: float = 0.0
    """Time of the first packet of the check in progress."""
    checked_s: float = 0.0
    """Time of the first packet of the newest check that gave a result."""

    @property
    def is_blocked(self) -> bool:
        """Return whether the path is known to drop packets of full size."""
        return self.passes_bytes is not None and self.passes_bytes < self.full_bytes


class SizeChecks:
    """Checks the paths of one NIC in turn. The caller sends the packets of `step` and reports their fate.

    `rate_pps`: full-size packets per second on all paths together, while none is lost. `timeout_s`: time
    after which a packet counts as lost. `dscps`: DSCP of each traffic class; each path is checked in all
    classes. Times are seconds of the monotonic clock.
    """

    def __init__(self, rate_pps: float, timeout_s: float, dscps: Sequence[int] = (0,)) -> None:
        self._gap_s, self._timeout_s, self._dscps = 1.0 / rate_pps, timeout_s, tuple(dscps)
        self._paths: dict[_Key, _Path] = {}
        self._order: deque[_Key] = deque()
        self._seq = 0
        self._key_of: dict[int, _Key] = {}
        """Path and class of each packet under way, by the packet's number."""
        self._next_s = 0.0
        self._results: set[PathKey] = set()
        """Paths with a result that `take_results` has not returned yet."""
        self.is_urgent = False
        """True if a new result differs from the path's last one."""

    def set_paths(self, sizes: Mapping[PathKey, int]) -> None:
        """Set the paths to check, each with its full packet size in bytes."""
        for key in [key for key, path in self._paths.items() if sizes.get(key[:2]) != path.full_bytes]:
            self._end_round(self._paths.pop(key))
            self._results.discard(key[:2])
        for at in range(len(self._dscps)):
            for peer, port in sizes:
                key = (peer, port, at)
                if key not in self._paths:
                    self._paths[key] = _Path(sizes[peer, port])
                    if key not in self._order:
                        self._order.append(key)

    @property
    def due_s(self) -> float:
        """Time at which `step` must be called next, s: at once if a packet has arrived."""
        if not self._paths:
            return float("inf")
        if not self._key_of:
            return self._next_s
        deadlines = (self._paths[key].deadline_s for key in self._key_of.values())
        return min(self._next_s, min(deadlines, default=float("inf")))

    def step(self, now_s: float) -> list[SizeProbe]:
        """Return the packets to send now, and evaluate the packets whose timeout is over."""
        probes: list[SizeProbe] = []
        for key in dict.fromkeys(self._key_of.values()):
            path = self._paths[key]
            if None not in path.arrived or now_s >= path.deadline_s:
                probes += self._advance(key, path, now_s)
        while now_s >= self._next_s:
            self._next_s = max(self._next_s + self._gap_s, now_s - 1.0)
            key_due = self._next_key(now_s)
            if key_due is None:
                break
            path = self._paths[key_due]
            path.began_s = now_s
            probes += self._send(key_due, path, (path.full_bytes,), now_s)
        return probes

    def on_arrived(self, seq: int) -> None:
        """Record that packet number `seq` arrived."""
        self._note(seq, True)

    def on_too_big(self, seq: int, mtu_bytes: int) -> None:
        """Record that a router dropped packet number `seq` and reported an MTU of `mtu_bytes`."""
        path = self._note(seq, False)
        if path is not None:
            path.router_mtu_bytes = mtu_bytes

    def on_unsent(self, seq: int) -> None:
        """Record that packet number `seq` was not sent: its path's check ends without a result."""
        key = self._key_of.get(seq)
        if key is not None:
            path = self._paths[key]
            self._end_round(path)
            path.search = None

    def pending(self, peer: str, port: int, above_bytes: int) -> list[int]:
        """Return the numbers of a path's unanswered packets that are larger than `above_bytes`."""
        paths = self._classes_of((peer, port))
        return [probe.seq for path in paths for probe in path.sent if probe.size_bytes > above_bytes]

    def take_results(self, now_s: float) -> list[PathSize]:
        """Return the new results, one per path: that of the class with the smallest passing size.

        A path has no result until all classes are known, unless one class drops full-size packets.
        """
        rows = [row for key in sorted(self._results) if (row := self._result(key, now_s)) is not None]
        self._results, self.is_urgent = set(), False
        return rows

    def _result(self, key: PathKey, now_s: float) -> PathSize | None:
        paths = self._classes_of(key)
        passed_bytes = {
            at: path.passes_bytes for at, path in enumerate(paths) if path.passes_bytes is not None
        }
        worst = min(passed_bytes, key=passed_bytes.__getitem__)
        path = paths[worst]
        if not path.is_blocked and len(passed_bytes) < len(paths):
            return None
        checked_s = path.checked_s if path.is_blocked else min(one.checked_s for one in paths)
        is_alone = any(passed > passed_bytes[worst] for passed in passed_bytes.values())
        return {
            "peer": key[0],
            "path": key[1],
            "probed_bytes": path.full_bytes,
            "passed_bytes": passed_bytes[worst],
            "router_mtu_bytes": path.router_mtu_bytes,
            "checked_age_ns": max(0, round((now_s - checked_s) * 1e9)),
            "dscp": self._dscps[worst] if is_alone else None,
        }

    # ---- one path and class

    def _classes_of(self, key: PathKey) -> list[_Path]:
        paths = (self._paths.get((*key, at)) for at in range(len(self._dscps)))
        return [path for path in paths if path is not None]

    def _next_key(self, now_s: float) -> _Key | None:
        """Return the next path and class to check, in turn; due paths that drop large packets go first."""
        blocked = [k for k, p in self._paths.items() if p.is_blocked and not p.sent and now_s >= p.due_s]
        if blocked:
            return min(blocked, key=lambda key: self._paths[key].due_s)
        for _ in range(len(self._order)):
            key = self._order.popleft()
            path = self._paths.get(key)
            if path is None:
                continue
            self._order.append(key)
            if not path.sent and not path.is_blocked:
                return key
        return None

    def _send(self, key: _Key, path: _Path, sizes: Sizes, now_s: float) -> list[SizeProbe]:
        path.deadline_s = now_s + self._timeout_s
        path.sent, path.arrived = [], [None] * len(sizes)
        for size in sizes:
            self._seq = (self._seq + 1) & 0xFFFFFFFF
            path.sent.append(SizeProbe(key[:2], self._seq, size, key[2]))
            self._key_of[self._seq] = key
        return list(path.sent)

    def _note(self, seq: int, arrived: bool) -> _Path | None:
        path = self._paths.get(self._key_of.get(seq, ("", 0, 0)))
        if path is not None:
            path.arrived[[probe.seq for probe in path.sent].index(seq)] = arrived
        return path

    def _end_round(self, path: _Path) -> tuple[bool, ...]:
        for probe in path.sent:
            del self._key_of[probe.seq]
        arrived = tuple(bool(flag) for flag in path.arrived)
        path.sent, path.arrived = [], []
        return arrived

    def _advance(self, key: _Key, path: _Path, now_s: float) -> list[SizeProbe]:
        """Evaluate which of a path's packets arrived; return the next packets of the path's check."""
        arrived = self._end_round(path)
        if path.search is None:
            return self._on_first(key, path, arrived[0], now_s)
        try:
            sizes = path.search.send(arrived)
        except StopIteration as end:
            path.search = None
            self._finish(key, path, end.value, now_s)
            return []
        return self._send(key, path, sizes, now_s)

    def _on_first(self, key: _Key, path: _Path, arrived: bool, now_s: float) -> list[SizeProbe]:
        if arrived:
            self._finish(key, path, path.full_bytes, now_s)
            return []
        if path.is_blocked and now_s - path.searched_s < SEARCH_AGAIN_S:
            self._finish(key, path, path.passes_bytes, now_s)
            return []
        if sum(other.search is not None for other in self._paths.values()) >= MAX_SEARCHES:
            return []
        path.search = find_limit(path.full_bytes, path.router_mtu_bytes or self._known_limit())
        path.searched_s = now_s
        return self._send(key, path, next(path.search), now_s)

    def _finish(self, key: _Key, path: _Path, passes_bytes: int | None, now_s: float) -> None:
        path.due_s = now_s + RECHECK_S
        if passes_bytes is None and path.is_blocked:
            passes_bytes = path.passes_bytes  # a search that random losses disturbed
        if passes_bytes is None:
            return
        if passes_bytes == path.full_bytes:
            path.router_mtu_bytes = 0
        was_blocked, limit = path.is_blocked, path.passes_bytes
        path.passes_bytes = passes_bytes
        self.is_urgent = self.is_urgent or ((was_blocked or path.is_blocked) and passes_bytes != limit)
        path.checked_s = path.began_s
        self._results.add(key[:2])

    def _known_limit(self) -> int:
        """Return a size limit found on another path, bytes, which may apply here too; 0 if none was found."""
        return next((path.passes_bytes or 0 for path in self._paths.values() if path.is_blocked), 0)
