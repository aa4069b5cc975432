"""Shared by the stream tests: clocks with known truth, and the fits of a mesh of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.records import make_part

WINDOW_NS = 1_000_000_000
FIRST = 1_760_000_000


@dataclass
class TrueClock:
    """A clock that shows c(t) = t + offset_ns + drift_ppb * 1e-9 * (t - epoch) at the true time t."""

    offset_ns: float = 0.0
    drift_ppb: float = 0.0
    epoch_ns: int = FIRST * WINDOW_NS

    def reading(self, true_ns: int) -> int:
        drifted_ns = round(self.drift_ppb * 1e-9 * (true_ns - self.epoch_ns))
        return true_ns + round(self.offset_ns) + drifted_ns


@dataclass
class Fleet:
    """NICs with clocks that probe each other; `fits(window)` returns the delay stage's records."""

    clocks: dict[str, TrueClock]
    peers: Callable[[str], Iterable[str]] | None = None
    clock_of: dict[str, str] = field(default_factory=dict)
    delay_ns: Callable[[str, str, int], float] = lambda a, b, w: 5_000.0
    noise_ns: float = 50.0
    system_error_ns: Callable[[str, int], float] = lambda nic, true_ns: 0.0
    silent: set[str] = field(default_factory=set)
    jumps: dict[tuple[str, int], int] = field(default_factory=dict)
    seed: int = 1
    log_ahead_ns: int = 0
    append_delay_ns: Callable[[str], int] = lambda nic: 3_000_000

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def clock(self, nic: str) -> TrueClock:
        return self.clocks[nic]

    def fits(self, window: int, source: str = "fabric.probes/0") -> list[dict[str, Any]]:
        start = window * WINDOW_NS
        nics, pairs = [], []
        for nic in sorted(self.clocks):
            if nic in self.silent:
                continue
            flush = start + 900_000_000
            nics.append(
                {
                    "nic": nic,
                    "clock": self.clock_of.get(nic, nic),
                    "run": 1,
                    "batches": 10,
                    "samples": 100,
                    "lost": 0,
                    "lost_batches": 0,
                    "restarts": 0,
                    "clock_jump_ns": self.jumps.get((nic, window), 0),
                    "clock_ns": self.clock(nic).reading(flush),
                    "system_ns": flush + round(self.system_error_ns(nic, flush)),
                    "append_ns": flush + self.append_delay_ns(nic) + self.log_ahead_ns,
                    "last_batch": 0,
                }
            )
            for peer in self.peers(nic) if self.peers else [n for n in sorted(self.clocks) if n != nic]:
                if peer in self.silent or peer == nic:
                    continue
                pairs.append(
                    self._pair(
                        nic, peer, window, start + 500_000_000 + int(self.rng.integers(-(10**8), 10**8))
                    )
                )
        return [
            {
                "shard": "fabric",
                "source": source,
                "window": window,
                "part": 0,
                "parts": 1,
                "first_offset": window * 10,
                "next_offset": window * 10 + 10,
                "nics": nics,
                "pairs": pairs,
            }
        ]

    def _pair(self, prober: str, peer: str, window: int, true_ns: int) -> dict[str, Any]:
        forward, reverse = self.delay_ns(prober, peer, window), self.delay_ns(peer, prober, window)
        mine, theirs = self.clock(prober), self.clock(peer)
        apart_ns = theirs.reading(true_ns) - mine.reading(true_ns)
        beyond_ns = (forward - reverse) / 2 + float(self.rng.normal(0, self.noise_ns))
        drift_sigma = self.noise_ns * 3.5
        return make_part(
            "ClockFits",
            "PairFit",
            prober=prober,
            peer=peer,
            at_ns=mine.reading(true_ns),
            offset_ns=apart_ns + round(beyond_ns),
            offset_fraction_ns=beyond_ns - round(beyond_ns),
            drift_ppb=theirs.drift_ppb - mine.drift_ppb + float(self.rng.normal(0, drift_sigma)),
            sigma_ns=self.noise_ns,
            drift_sigma_ppb=drift_sigma,
            rtt_min_ns=forward + reverse,
            samples=100,
            accepted=50,
        )

    def errors_ns(
        self, records: Iterable[Mapping[str, Any]], nic_of: Mapping[str, str] | None = None
    ) -> dict[str, float]:
        """Return each clock's error at its own at_ns against true time, minus the median error."""
        found = {}
        for record in records:
            for state in record["clocks"]:
                clock = self.clocks[(nic_of or {}).get(state["clock"], state["clock"])]
                true_ns = state["at_ns"]
                for _ in range(4):
                    true_ns -= clock.reading(true_ns) - state["at_ns"]
                found[state["clock"]] = (
                    state["at_ns"] - true_ns + state["offset_ns"] + state["offset_fraction_ns"]
                )
        middle = float(np.median(list(found.values())))
        return {name: error - middle for name, error in found.items()}


def states(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {clock["clock"]: clock for record in records for clock in record["clocks"]}


@pytest.fixture(scope="session")
def sim() -> SimpleNamespace:
    """The simulation: clocks, fleets, and access to the solver's records."""
    return SimpleNamespace(
        Clock=TrueClock,
        Fleet=Fleet,
        states=states,
        WINDOW_NS=WINDOW_NS,
        FIRST=FIRST,
        random_fleet=random_fleet,
    )


def random_fleet(nics: int, seed: int = 1, **settings: Any) -> Fleet:
    """Make NICs with clocks that are ms and tens of ppm apart."""
    rng = np.random.default_rng(seed)
    clocks = {
        f"h{i:02d}/e0": TrueClock(float(rng.uniform(-5e6, 5e6)), float(rng.uniform(-3e4, 3e4)))
        for i in range(nics)
    }
    return Fleet(clocks, seed=seed, **settings)
