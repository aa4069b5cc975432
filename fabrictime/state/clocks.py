"""The fleet's clocks in the newest windows: state, offset and bound of each clock, and the suspect pairs.

Pure: takes records of `fabric.clock.offsets` and of the inventory, returns snapshots.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from schemas.ids import host_of, natural
from schemas.log_time import WindowOrder
from schemas.records import ClockEvent, ClockOffsets, ClockState, Nic, SuspectPair
from schemas.units import delay_text, seconds_text

MAX_AGE_S: Final = 10.0
"""Age of the newest window above which it is out of date and a check fails, s."""

MAX_AHEAD_S: Final = 1.0
"""How far in the future a window's append time may be before it is no evidence and a check fails, s."""

ANNOUNCED_S: Final = 95.0
"""Time without an announcement after which a NIC is no longer expected to be in a window, s; NICs announce
themselves every 30 s.
"""

STATES: Final = ("ABSENT", "UNSYNCED", "HOLDOVER", "SYNCED")
"""States of a clock, the worst first. ABSENT: announced by its NICs, but not in the newest window."""
_WINDOWS_KEPT: Final = 4
RETURN_WINDOWS: Final = 5
"""Number of windows within which a clock that stepped is usually measured again and reported as NEW."""


@dataclass(frozen=True, slots=True)
class ClockLine:
    """One clock in its shard's newest window; the figures are None if it is ABSENT.

    Add `offset_ns` to the clock's reading to get fabric time. `event` is the clock's last event, in the
    window that began at `event_at_ns` (fabric time). `event_ns` is the field of `ClockOffsets`.
    """

    clock: str
    hosts: tuple[str, ...]
    nics: int
    state: str
    shard: str | None = None
    domain: str | None = None
    offset_ns: int | None = None
    drift_ppb: float | None = None
    drift_sigma_ppb: float | None = None
    bound_ns: float | None = None
    pairs: int | None = None
    residual_ns: float | None = None
    event: str | None = None
    event_ns: float | None = None
    event_at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SuspectLine:
    """A pair whose path looks asymmetric. `weight` is the share of weight that the solver kept, 0 to 1."""

    shard: str
    prober: str
    peer: str
    asymmetry_ns: float
    sigma_ns: float
    weight: float


@dataclass(frozen=True, slots=True)
class ShardLine:
    """A shard's newest complete window: its end in fabric time, its age, and its reference and domains.

    `ahead_s` is the time by which its append time was in the future when the reader received it.
    """

    shard: str
    window: int
    window_end_ns: int
    age_s: float
    reference: str
    domains: tuple[str, ...]
    ahead_s: float = 0.0

    def doubt(self, max_age_s: float = MAX_AGE_S) -> str | None:
        """Return the reason why the window is no evidence about the present; None if it is evidence."""
        if self.ahead_s > MAX_AHEAD_S:
            return (
                f"{seconds_text(self.ahead_s)} in the future: the log's clock or this host's is wrong, "
                f"expected at most {MAX_AHEAD_S:g} s"
            )
        if self.age_s > max_age_s:
            return f"{seconds_text(self.age_s)} old, expected at most {max_age_s:g} s"
        return None


@dataclass(frozen=True, slots=True)
class Picture:
    """A snapshot of the fleet: clocks, the worst first; suspect pairs, the most asymmetric first; shards by
    name.

    Events are known from `since_ns` (log append time) on.
    """

    clocks: list[ClockLine]
    suspects: list[SuspectLine]
    shards: list[ShardLine]
    since_ns: int | None
    unreadable: int

    def count(self, state: str) -> int:
        """Return the number of clocks in a state."""
        return sum(line.state == state for line in self.clocks)

    def bounds_ns(self) -> list[float]:
        """Return the error bounds of the SYNCED and HOLDOVER clocks, ns."""
        usable = ("SYNCED", "HOLDOVER")
        return [c.bound_ns for c in self.clocks if c.bound_ns is not None and c.state in usable]

    @property
    def age_s(self) -> float | None:
        """Age of the oldest of the shards' newest windows, s; None without a window."""
        return max((line.age_s for line in self.shards), default=None)

    @property
    def is_fresh(self) -> bool:
        """Whether every shard's newest window is recent enough to be evidence about the present."""
        return bool(self.shards) and all(line.doubt() is None for line in self.shards)

    def summary(self) -> dict[str, Any]:
        """Return the fleet's figures by name. Bounds in ns cover the SYNCED and HOLDOVER clocks."""
        bounds = self.bounds_ns()
        widest = max((c for c in self.clocks if c.bound_ns in bounds), key=bound_or_zero_ns, default=None)
        return {
            "clocks": len(self.clocks),
            **{state.lower(): self.count(state) for state in reversed(STATES)},
            "bound_median_ns": statistics.median(bounds) if bounds else None,
            "bound_worst_ns": max(bounds, default=None),
            "bound_worst_clock": None if widest is None else widest.clock,
            "suspects": len(self.suspects),
            "domains": sum(len(line.domains) for line in self.shards),
            "references": sorted({line.reference for line in self.shards}),
            "age_s": self.age_s,
            "fresh": self.is_fresh,
        }

    def wrong(self, bound_us: float | None, max_age_s: float = MAX_AGE_S) -> list[str]:
        """Return a line for each reason why the fleet's clocks are not synchronised; empty if they are.
        `bound_us` is the largest allowed bound of a SYNCED clock.
        """
        if not self.clocks:
            return ["no clock that is asked for is in a window, expected at least one"]
        reasons = [
            f"shard {line.shard}: its newest window is {doubt}"
            for line in self.shards
            if (doubt := line.doubt(max_age_s)) is not None
        ]
        limit_ns = None if bound_us is None else bound_us * 1e3
        for line in self.clocks:
            if line.state != "SYNCED":
                reasons.append(f"clock {line.clock}: {line.state}, expected SYNCED")
            elif limit_ns is not None and bound_or_zero_ns(line) > limit_ns:
                expected = f"expected at most {ns_text(limit_ns)}"
                reasons.append(f"clock {line.clock}: bound {ns_text(line.bound_ns)}, {expected}")
        return reasons


class _Event(NamedTuple):
    window: int
    event: str
    event_ns: float
    at_ns: int


class _ShardView(NamedTuple):
    """The shard's line, clocks and suspect pairs from its newest window."""

    line: ShardLine
    clocks: list[ClockLine]
    suspects: list[SuspectLine]


class _Part(NamedTuple):
    """One of the records of a window, its append time, and the monotonic time of its receipt."""

    record: ClockOffsets
    append_ns: int
    received_s: float
    is_live: bool


class Fleet:
    """Clocks and NICs from the records of both topics so far. Pure: takes records, returns snapshots."""

    def __init__(self) -> None:
        self.unreadable = 0
        self.since_ns: int | None = None
        self._nics: dict[str, tuple[str, str, int]] = {}
        """NIC to (clock, host, append time of its newest announcement)."""
        self._windows: dict[str, dict[int, dict[int, _Part]]] = {}
        """Shard to window to part number to part."""
        self._order = WindowOrder()
        self._events: dict[tuple[str, str], _Event] = {}

    def add_nic(self, nic: str, record: Nic | None, append_ns: int) -> None:
        """Add the announcement of a NIC, appended to the log at `append_ns`; `record` None removes the
        NIC.
        """
        if record is None:
            self._nics.pop(nic, None)
        else:
            self._nics[nic] = (record["clock"], record["host"], append_ns)

    def add(self, record: ClockOffsets, append_ns: int, received_s: float | None = None) -> None:
        """Add a `ClockOffsets` record, appended to the log at `append_ns`. Add records in log order.

        `received_s` is the reader's monotonic time of receipt if the reader waited for the record, else None.
        """
        self.since_ns = append_ns if self.since_ns is None else min(self.since_ns, append_ns)
        shard, window = record["shard"], record["window"]
        windows = self._windows.setdefault(shard, {})
        if self._order.steps_back(record):
            for later in [number for number in windows if number > window]:
                del windows[later]
        at_s = time.monotonic() if received_s is None else received_s
        windows.setdefault(window, {})[record["part"]] = _Part(
            record, append_ns, at_s, received_s is not None
        )
        if len(windows) > _WINDOWS_KEPT:
            del windows[min(windows)]
        for clock in record["clocks"]:
            if clock["event"] != ClockEvent.NONE:
                key = (shard, clock["clock"])
                event = _Event(window, clock["event"], clock["event_ns"], record["window_start_ns"])
                self._events[key] = last_event(self._events.get(key), event)

    def newest(self) -> dict[str, int]:
        """Return the number of the newest complete window of each shard."""
        return {
            shard: max(complete_windows)
            for shard, windows in self._windows.items()
            if (complete_windows := [w for w, parts in windows.items() if len(parts) >= _parts(parts)])
        }

    def picture(
        self, patterns: Sequence[str] = (), hosts: Sequence[str] = (), now_ns: int | None = None
    ) -> Picture:
        """Return a snapshot of the clocks with a name that matches one of `patterns` and a host that matches
        one of `hosts`. An empty list matches all.
        """
        now_ns = time.time_ns() if now_ns is None else now_ns
        homes = self._homes()
        views = [self._shard(shard, window, homes, now_ns) for shard, window in sorted(self.newest().items())]
        clocks = [line for view in views for line in view.clocks]
        clocks += self._absent(clocks, homes, now_ns)
        matching_lines = [line for line in clocks if _chosen(line, patterns, hosts)]
        suspects = [row for view in views for row in view.suspects]
        if patterns or hosts:
            suspects = self._suspects_of(matching_lines, suspects)
        matching_lines.sort(
            key=lambda line: (STATES.index(line.state), -bound_or_zero_ns(line), natural(line.clock))
        )
        suspects.sort(key=lambda row: (-abs(row.asymmetry_ns), row.prober, row.peer))
        return Picture(
            matching_lines, suspects, [view.line for view in views], self.since_ns, self.unreadable
        )

    def _suspects_of(self, lines: Iterable[ClockLine], suspects: Iterable[SuspectLine]) -> list[SuspectLine]:
        """Return the suspect pairs with a NIC of at least one of the clocks."""
        clocks = {line.clock for line in lines}
        ours = {nic for nic, (clock, _, _) in self._nics.items() if clock in clocks} | clocks
        return [row for row in suspects if row.prober in ours or row.peer in ours]

    def _shard(self, shard: str, window: int, homes: Mapping[str, Sequence[str]], now_ns: int) -> _ShardView:
        parts = self._windows[shard][window]
        records = [parts[part].record for part in sorted(parts)]
        return _ShardView(
            _shard_line(records, *_age_and_ahead_s(parts.values(), now_ns, time.monotonic())),
            [
                self._line(shard, record["domain"], row, homes)
                for record in records
                for row in record["clocks"]
            ],
            [_suspect_line(shard, row) for record in records for row in record["suspects"]],
        )

    def _homes(self) -> dict[str, list[str]]:
        """Return the hosts of each clock, one entry for each of the clock's NICs."""
        homes: dict[str, list[str]] = defaultdict(list)
        for clock, host, _ in self._nics.values():
            homes[clock].append(host)
        return homes

    def _absent(
        self, present: Iterable[ClockLine], homes: Mapping[str, Sequence[str]], now_ns: int
    ) -> list[ClockLine]:
        """Return the ABSENT clocks: their NICs announce themselves, but no newest window contains the
        clocks.
        """
        there = {line.clock for line in present}
        oldest_ns = now_ns - ANNOUNCED_S * 1e9
        announced = {clock for clock, _, append_ns in self._nics.values() if append_ns > oldest_ns}
        return [
            ClockLine(clock, tuple(sorted(set(of))), len(of), "ABSENT")
            for clock, of in homes.items()
            if clock in announced and clock not in there
        ]

    def _line(
        self, shard: str, domain: str, row: ClockState, homes: Mapping[str, Sequence[str]]
    ) -> ClockLine:
        of = homes.get(row["clock"], ())
        event = self._events.get((shard, row["clock"]))
        return ClockLine(
            row["clock"],
            tuple(sorted(set(of))) or (host_of(row["clock"]),),
            len(of),
            row["state"],
            shard,
            domain,
            row["offset_ns"],
            row["drift_ppb"],
            row["drift_sigma_ppb"],
            row["bound_ns"],
            row["pairs"],
            row["residual_ns"],
            None if event is None else event.event,
            None if event is None else event.event_ns,
            None if event is None else event.at_ns,
        )


def last_event(before: _Event | None, newer: _Event) -> _Event:
    """Return the one of two events, given in the log's order, that is shown as a clock's last event.

    It is normally `newer`. But a NEW for a clock that is used again does not hide the STEP before it.
    """
    if before is None or (before.event, newer.event) != (ClockEvent.STEP, ClockEvent.NEW):
        return newer
    return before if 0 <= newer.window - before.window <= RETURN_WINDOWS else newer


def _age_and_ahead_s(parts: Iterable[_Part], now_ns: int, now_s: float) -> tuple[float, float]:
    """Return a window's age, and the time by which its append time was in the future at its receipt, both in
    s.

    If the window arrived while the reader waited, its age is measured by the reader's monotonic clock. Else
    it is the age in fabric time, because the log's clock may be behind.
    """
    newest = max(parts, key=lambda part: part.received_s)
    waited_s = now_s - newest.received_s
    log_age_s = (now_ns - newest.append_ns) / 1e9
    age_s = log_age_s - newest.record["log_offset_ns"] / 1e9
    return max(waited_s, 0.0 if newest.is_live else age_s), max(0.0, waited_s - log_age_s)


def _shard_line(records: Sequence[ClockOffsets], age_s: float, ahead_s: float) -> ShardLine:
    first = records[0]
    domains = tuple(sorted({record["domain"] for record in records if record["clocks"]}))
    return ShardLine(
        first["shard"], first["window"], first["window_end_ns"], age_s, first["reference"], domains, ahead_s
    )


def _suspect_line(shard: str, row: SuspectPair) -> SuspectLine:
    return SuspectLine(shard, **row)


def _parts(parts: Mapping[int, _Part]) -> int:
    return next(iter(parts.values())).record["parts"]


def _chosen(line: ClockLine, patterns: Sequence[str], hosts: Sequence[str]) -> bool:
    named = not patterns or any(fnmatchcase(line.clock, pattern) for pattern in patterns)
    there = not hosts or any(fnmatchcase(host, pattern) for host in line.hosts for pattern in hosts)
    return named and there


def bound_or_zero_ns(line: ClockLine) -> float:
    """Return a clock's error bound for comparisons, ns; 0 if the bound is unknown."""
    return line.bound_ns or 0.0


def ns_text(ns: float | None) -> str:
    """Return a duration as text for terminals: '3.21 ns', '1.50 us'; '-' for None."""
    return "-" if ns is None else delay_text(ns).replace("µ", "u")
