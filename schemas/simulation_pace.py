"""Tracks the pace and time of simulated fleets, from the announcements of their NICs.

A machine that is too small simulates a fleet slowly: its hosts' clocks, and so fabric time, fall behind log
time. Readers that compare fabric time and log time use `SimulatedTime`. A shard, or the whole fleet, counts
as simulated only if none of its NICs is real, so that no reader applies the pace to real NICs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from schemas.records import Nic

FULL_PACE: Final = 0.95
"""A simulation with a lower pace, in simulated seconds per second, is slow."""
MIN_PACE: Final = 0.02
"""A slower simulation is taken to have this pace: it waits for the workers but has not stopped."""
NICS_SHARE: Final = 0.9
"""The advised size is this share of the NICs that the machine could simulate in real time, for headroom."""
NICS_STEP: Final = 8
"""Advised sizes are multiples of this: hosts have eight NICs."""
MAX_LAG_NS: Final = 7 * 86_400_000_000_000
"""Largest lag of fabric time behind log time, that of a fleet at half pace for two weeks. An announcement
with a larger lag, such as one without its time, is not used for fabric time."""


@dataclass(slots=True)
class _Shard:
    simulated: set[str] = field(default_factory=set)
    real: set[str] = field(default_factory=set)
    announced_ns: int = 0
    """Fabric time of the newest announcement by a simulated NIC."""
    append_ns: int = 0
    pace: float = 1.0

    @property
    def is_simulated(self) -> bool:
        """Whether all NICs of the shard are simulated."""
        return bool(self.simulated) and not self.real


class SimulatedTime:
    """The pace of each simulated shard, and how its fabric time relates to log time."""

    def __init__(self) -> None:
        self._shards: dict[str, _Shard] = {}
        self._shard_of: dict[str, str] = {}

    def take(self, nic: str, record: Nic | None, append_ns: int) -> None:
        """Process a NIC's announcement, appended at `append_ns`; `record` is None if the NIC was removed.

        A NIC without a probe port has stopped, and does not count. Pass announcements in the log's order.
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
        if pace is not None:
            shard.announced_ns, shard.append_ns, shard.pace = record["announced_ns"], append_ns, pace

    def pace(self, shard: str) -> float | None:
        """Return a shard's simulated seconds per second; None unless all of its NICs are simulated."""
        nics = self._shards.get(shard)
        return nics.pace if nics is not None and nics.is_simulated else None

    @property
    def is_simulated(self) -> bool:
        """Whether NICs are announced and none of them is real, in any shard."""
        return self._slowest() is not None

    def nics(self, shard: str) -> int:
        """Return the number of the shard's simulated NICs."""
        nics = self._shards.get(shard)
        return 0 if nics is None else len(nics.simulated)

    def _slowest(self) -> str | None:
        """Return the name of the slowest simulated shard; None if any NIC is real, or none is announced."""
        if any(shard.real for shard in self._shards.values()):
            return None
        simulated = [name for name, shard in self._shards.items() if shard.is_simulated]
        return min(simulated, key=lambda name: (self._shards[name].pace, name), default=None)

    @property
    def text(self) -> str:
        """The pace of the slowest shard as text for users; empty unless all NICs are simulated."""
        shard = self._slowest()
        return "" if shard is None else pace_text(self._shards[shard].pace)

    @property
    def slow_text(self) -> str:
        """A warning with the slowest shard's pace and advice; empty at full pace, or if any NIC is real."""
        shard = self._slowest()
        if shard is None or self._shards[shard].pace >= FULL_PACE:
            return ""
        return slow_text(self._shards[shard].pace, self.nics(shard))

    def lag_ns(self, log_ns: int) -> int:
        """Return the lag of fabric time behind log time `log_ns`, in ns; 0 unless all NICs are simulated.

        With several shards, the lag is that of the slowest shard.
        """
        slowest = self._slowest()
        if slowest is None:
            return 0
        shard = self._shards[slowest]
        announced_lag_ns = shard.append_ns - shard.announced_ns
        if abs(announced_lag_ns) > MAX_LAG_NS:
            return 0
        lag_ns = announced_lag_ns + self.lost_ns(slowest, log_ns - shard.append_ns)
        return min(max(0, lag_ns), MAX_LAG_NS)

    def lost_ns(self, shard: str, elapsed_ns: int) -> int:
        """Return by how many ns a shard's time falls behind in `elapsed_ns` of log time, at its present pace.

        The result is 0 unless all NICs of the shard are simulated.
        """
        pace = self.pace(shard)
        return 0 if pace is None else round((1 - pace) * max(0, elapsed_ns))

    def stretched_ns(self, shard: str, time_ns: int) -> int:
        """Return the log time, in ns, that passes while `time_ns` of a shard's simulated time pass."""
        pace = self.pace(shard)
        return time_ns if pace is None else round(time_ns / max(pace, MIN_PACE))


def pace_text(pace: float) -> str:
    """Return a pace, in simulated seconds per second, as text for display."""
    return "simulated in real time" if pace >= FULL_PACE else f"simulates {pace:.2g} s per second"


def slow_text(pace: float, nics: int) -> str:
    """Return a warning with a slow simulation's pace and the advice to use fewer NICs."""
    return f"the simulation is slow: {pace_text(pace)}; {advice(pace, nics)}"


def advice(pace: float, nics: int) -> str:
    """Return the advice to use fewer NICs, with a number that the machine can simulate; '' at full pace."""
    if pace >= FULL_PACE:
        return ""
    carried = int(NICS_SHARE * pace * nics)
    size = max(2, carried - carried % NICS_STEP if carried > NICS_STEP else carried)
    return f"use fewer NICs (sim:{size})"
