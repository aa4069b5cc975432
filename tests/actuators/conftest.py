"""A simulated host: oscillators, a system clock under NTP's hand, PTP clocks, a solver's records of them.

All times are the truth's ns; fabric time is the truth here, so an error is a difference to `now_ns`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from actuators.hostclock import HostClock, PageParameters
from actuators.lines import Crossing

S = 1_000_000_000
EPOCH = 1_760_000_000 * S
RAW_AT_EPOCH = 5_000 * S


@dataclass
class FakeClock:
    """Reads true + offset_ns + drift_ppb since EPOCH, with changes of its rate and steps."""

    offset_ns: float = 0
    drift_ppb: float = 0.0
    rates: list[tuple[int, float]] = field(default_factory=list)
    """(true moment, ppb) from which the rate is another by so much."""
    steps: list[tuple[int, int]] = field(default_factory=list)

    def reading(self, true_ns: int) -> int:
        t = true_ns - EPOCH
        extra = sum(ppb * 1e-9 * (true_ns - at) for at, ppb in self.rates if true_ns > at)
        stepped = sum(step for at, step in self.steps if true_ns >= at)
        return true_ns + round(self.offset_ns) + round(self.drift_ppb * 1e-9 * t + extra) + stepped

    def rate_ppb(self, true_ns: int) -> float:
        return self.drift_ppb + sum(ppb for at, ppb in self.rates if true_ns > at)


class FakeHost:
    """A host whose clocks are read every 200 ms, with records of a window a second that come 1.3 s late."""

    def __init__(self, **given: Any) -> None:
        self.now_ns = EPOCH
        self.raw = FakeClock(RAW_AT_EPOCH - EPOCH, 12_000.0)
        self.system = FakeClock(250_000, 9_000.0)
        self.others: dict[str, FakeClock] = {}
        self.published = ["system"]
        self.states: dict[str, dict[str, Any]] = {}
        self.error_ns: Callable[[str, int], float] = lambda name, window: 0.0
        self.bound_ns = 100.0
        self.half_ns = 30.0
        self.solving = True
        self.delay_ns = 1_300_000_000
        self.clock = HostClock("h1", PageParameters(**given))
        self.contents: list[Any] = []
        self._next_window = EPOCH // S

    def of(self, name: str) -> FakeClock:
        return self.system if name == "system" else self.others[name]

    def raw_ns(self) -> int:
        return self.raw.reading(self.now_ns)

    def record(self, window: int) -> dict[str, Any]:
        middle_ns = window * S + S // 2
        clocks = []
        for name in self.published:
            clock = self.of(name)
            at_ns = clock.reading(middle_ns)
            rate = 1 + clock.rate_ppb(middle_ns) * 1e-9
            clocks.append({
                "clock": f"h1/{name}", "at_ns": at_ns,
                "offset_ns": float(middle_ns - at_ns) + self.error_ns(name, window),
                "drift_ppb": (1 / rate - 1) * 1e9, "bound_ns": self.bound_ns, "state": "SYNCED",
                "drift_sigma_ppb": 5.0, "event": "NONE", **self.states.get(name, {}),
            })  # fmt: skip
        return {
            "shard": "fabric", "window": window, "part": 0, "parts": 1, "domain": "a",
            "window_start_ns": window * S, "window_end_ns": window * S + S, "log_offset_ns": 0,
            "solved_ns": 0, "clocks": clocks,
        }  # fmt: skip

    def turn(self) -> Any:
        """200 ms on; return what the page says then."""
        self.now_ns += 200_000_000
        while self.solving and (self._next_window + 1) * S + self.delay_ns - S <= self.now_ns:
            self.clock.take_offsets(self.record(self._next_window), self.raw_ns())
            self._next_window += 1
        if not self.solving:
            self._next_window = self.now_ns // S
        for name in ["system", *self.others]:
            crossing = Crossing(self.raw_ns(), self.of(name).reading(self.now_ns), self.half_ns)
            self.clock.cross(name, crossing)
        self.contents.append(self.clock.content(self.raw_ns()))
        self.clock.written()
        return self.contents[-1]

    def run(self, seconds: float) -> Any:
        for _ in range(round(seconds * 5)):
            content = self.turn()
        return content

    def fabric_error_ns(self, content: Any, ahead_ns: int = 0) -> float:
        """By how much the page's fabric time is wrong, and its bound, `ahead_ns` from now."""
        whole, rest = content.joined.fabric_ns(self.raw.reading(self.now_ns + ahead_ns))
        return whole - (self.now_ns + ahead_ns) + rest

    def row_error_ns(self, row: Any, name: str, away_ns: int = 0) -> float:
        """By how much a stamp of clock `name`, given `away_ns` from now, is converted wrongly."""
        stamp_ns = self.of(name).reading(self.now_ns + away_ns)
        converted = stamp_ns - (self.now_ns + away_ns) + row.offset_ns
        return converted + row.drift_ppb * 1e-9 * (stamp_ns - row.at_ns)


@pytest.fixture
def sim() -> SimpleNamespace:
    return SimpleNamespace(Clock=FakeClock, Host=FakeHost, S=S, EPOCH=EPOCH, RAW_AT_EPOCH=RAW_AT_EPOCH)
