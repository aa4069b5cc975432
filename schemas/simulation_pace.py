"""Pace and time of simulated fleets, by the announcements of their NICs.

A machine that is too small simulates a fleet slowly: its hosts' clocks, and so fabric time, fall behind log
time. Readers that compare both use `SimulatedTime`. A shard counts as simulated only if none of its NICs is
real, so no reader is misled about real NICs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from schemas.records import Nic

__all__ = ["FULL_PACE", "SimulatedTime", "advice", "pace_text", "slow_text"]

FULL_PACE: Final = 0.95
"""Pace below which a simulation is slow."""
MIN_PACE: Final = 0.02
"""A slower simulation counts as one of this pace: it waits for the workers, but does not stand."""
NICS_SHARE: Final = 0.9
"""Share of the NICs that the present pace would carry, to advise a fleet that has headroom."""
NICS_STEP: Final = 8
"""Advised sizes are multiples of this: hosts have eight NICs."""


@dataclass(slots=True)
class _Shard:
    simulated: set[str] = field(default_factory=set)
    real: set[str] = field(default_factory=set)
    announced_ns: int = 0
    """Fabric time of the newest announcement."""
    append_ns: int = 0
    pace: float = 1.0


class SimulatedTime:
    """The pace of each simulated shard, and its fabric time by log time."""

    def __init__(self) -> None:
        self._shards: dict[str, _Shard] = {}
        self._shard_of: dict[str, str] = {}

    def take(self, nic: str, record: Nic | None, append_ns: int) -> None:
        """Take a NIC's announcement, appended to the log at `append_ns`; None: it was removed.

        A NIC without a probe port has stopped, and counts no longer.
        """
        shard = self._shards.get(self._shard_of.pop(nic, ""))
        if shard is not None:
            shard.simulated.discard(nic)
            shard.real.discard(nic)
        if record is None or not record["probe_port"]:
            return
        shard = self._shards.setdefault(record["shard"], _Shard())
        self._shard_of[nic] = record["shard"]
        pace = record["simulation_pace"]
        (shard.real if pace is None else shard.simulated).add(nic)
        if pace is not None and record["announced_ns"] >= shard.announced_ns:
            shard.announced_ns, shard.append_ns, shard.pace = record["announced_ns"], append_ns, pace

    def pace(self, shard: str) -> float | None:
        """Return simulated seconds per second; None unless all NICs of the shard are simulated."""
        found = self._shards.get(shard)
        return None if found is None or found.real or not found.simulated else found.pace

    def is_simulated(self, shard: str) -> bool:
        """Return whether all NICs of the shard are simulated."""
        return self.pace(shard) is not None

    def is_slow(self, shard: str) -> bool:
        """Return whether the shard is simulated slower than real time."""
        pace = self.pace(shard)
        return pace is not None and pace < FULL_PACE

    def nics(self, shard: str) -> int:
        """Return the number of the shard's simulated NICs."""
        found = self._shards.get(shard)
        return 0 if found is None else len(found.simulated)

    def paces(self) -> Mapping[str, float]:
        """Return the pace of each simulated shard."""
        return {shard: pace for shard in sorted(self._shards) if (pace := self.pace(shard)) is not None}

    @property
    def text(self) -> str:
        """The pace of the slowest shard for people; empty without a simulated shard."""
        pace = min(self.paces().values(), default=None)
        return "" if pace is None else pace_text(pace)

    @property
    def slow_text(self) -> str:
        """The pace of the slowest shard with advice, if that is slow; else empty."""
        shard = min(self.paces(), key=self.paces().__getitem__, default="")
        return slow_text(self.paces()[shard], self.nics(shard)) if self.is_slow(shard) else ""

    def lag_ns(self, log_ns: int) -> int:
        """Return by how much fabric time is behind log time at `log_ns`; 0 without a simulated shard.

        With several simulated shards, that of the slowest.
        """
        slowest = min(self.paces().items(), key=lambda item: item[1], default=None)
        if slowest is None:
            return 0
        shard = self._shards[slowest[0]]
        return max(0, shard.append_ns - shard.announced_ns + self.lost_ns(log_ns - shard.append_ns))

    def lost_ns(self, elapsed_ns: int) -> int:
        """Return by how much fabric time falls behind in `elapsed_ns` of log time, at the present pace."""
        return round((1 - min(self.paces().values(), default=1.0)) * max(0, elapsed_ns))

    def stretched_ns(self, shard: str, time_ns: int) -> int:
        """Return the log time in which `time_ns` of a shard's time pass."""
        pace = self.pace(shard)
        return time_ns if pace is None else round(time_ns / max(pace, MIN_PACE))


def pace_text(pace: float) -> str:
    """Return the pace for people."""
    return f"simulates {pace:.2g} s per second"


def slow_text(pace: float, nics: int) -> str:
    """Return a slow pace with advice, for people."""
    return f"the simulation is slow: {pace_text(pace)}; {advice(pace, nics)}"


def advice(pace: float, nics: int) -> str:
    """Return what to do about a pace: a size of the fleet that the machine carries; empty at full pace."""
    if pace >= FULL_PACE:
        return ""
    carried = int(NICS_SHARE * pace * nics)
    size = max(2, carried - carried % NICS_STEP if carried > NICS_STEP else carried)
    return f"use fewer NICs (sim:{size})"
