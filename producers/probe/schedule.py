"""Takes the turns that the solve stage lays for a NIC's prober: when to send, and where to.

In: `ProbeSchedule` of this NIC, the engine's clocks. Out: turns on the engine's own time. A plan that would have
it send faster than its settings say is refused.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from native.core.probe import Engine
from producers.probe.flow_targets import PathKey, schedule_rates_pps
from producers.settings import ProbeSettings

__all__ = ["ScheduleFollower", "fabric_time_ns", "slot_of", "schedule_error", "schedule_paths"]

_log = logging.getLogger(__name__)

Record = dict[str, Any]

FASTER: Final = 0.99
"""Share of the own time from turn to turn from which on another's is the same, rounded."""
MOST_WAYS: Final = 1 << 16
FARTHEST_NS: Final = 86_400 * 1_000_000_000 * 366
"""Turns that began longer ago are nobody's."""


def slot_of(settings: ProbeSettings) -> tuple[int, int]:
    """Return (ns from turn to turn, paths in each) that makes `rate_pps`; zeros where no turns are taken."""
    if not settings.turns:
        return 0, 0
    probes = (2 if settings.spacing_ns else 1) + settings.singles
    return max(1000, round(1e9 * probes / settings.rate_pps)), 1 + settings.singles


def schedule_error(record: Record, pace: tuple[int, int]) -> str:
    """Return why a prober of that pace cannot take a `ProbeSchedule`; empty where it can."""
    count, shots = len(record["path"]), record["probes_per_slot"]
    if not 1 <= shots <= pace[1]:
        return f"{shots} paths in a turn, expected 1 to {pace[1]}"
    if not FASTER * pace[0] <= record["slot_ns"] <= 1e12:
        return f"{record['slot_ns']} ns from turn to turn, expected {pace[0]} at least"
    if not 0 < count <= MOST_WAYS or count != len(record["peer"]) or count % shots:
        return f"{count} paths of {len(record['peer'])} peers, {shots} a turn, expected whole turns"
    if not (min(record["peer"]) >= 0 and max(record["peer"]) < len(record["peers"])):
        return f"peer {max(record['peer'])}, expected below {len(record['peers'])}"
    if not (abs(record["offset_ns"]) < 4e18 and abs(record["drift_ppb"]) < 1e8):
        return f"offset {record['offset_ns']} ns, drift {record['drift_ppb']} ppb: no clock is there"
    return ""


def schedule_paths(record: Record) -> list[tuple[str, int]]:
    """Return (peer, source port) of each shot of a round of a `ProbeSchedule` that was not refused."""
    return [(record["peers"][at], path) for at, path in zip(record["peer"], record["path"], strict=True)]


def fabric_time_ns(record: Record, clock_ns: int) -> int:
    """Return fabric time at a reading of the NIC's clock, by the line that a `ProbeSchedule` carries."""
    since_ns = clock_ns - record["clock_at_ns"]
    offset_ns: float = record["offset_ns"] + 1e-9 * record["drift_ppb"] * since_ns
    return clock_ns + round(offset_ns)


class ScheduleFollower:
    """The turns of one engine. `keep` is to be called several times a second."""

    def __init__(self, engine: Engine, nic: str, pace: tuple[int, int]) -> None:
        self.engine, self.nic, self.pace = engine, nic, pace
        self.refused = 0
        """Plans that were not taken."""
        self._record: Record | None = None
        self._ways: list[tuple[str, int]] = []
        self._of: tuple[Any, ...] | None = None
        """What the engine's turns were made of."""

    @property
    def taken(self) -> bool:
        """Whether the engine probes by turns."""
        return self._of is not None

    def rates_pps(self) -> dict[PathKey, float]:
        """Return (peer, source port) to looks a second of the plan that is followed; empty where none is."""
        if self._of is None or self._record is None:
            return {}
        return schedule_rates_pps(self._ways, self._record["slot_ns"], self._record["probes_per_slot"])

    def take(self, nic: str, record: Record | None, append_ms: int) -> None:
        """Take one message of `fabric.probe-schedules`; None: there is no plan any more."""
        if nic != self.nic:
            return
        if record is not None:
            why = schedule_error(record, self.pace)
            if why:
                self._refuse(why)
                return
            self._ways = schedule_paths(record)
        self._record = record

    def _refuse(self, why: str) -> None:
        self.refused += 1
        _log.warning("%s: turns refused: %s", self.nic, why)

    def keep(self) -> None:
        """Keep the engine's turns where the plan has them: clocks move apart, peers and ports change."""
        record = self._record
        if record is None:
            if self._of is not None:
                self.engine.set_schedule(0, 1e9, 1, ())
                self._of = None
            return
        clock_ns, monotonic_ns = self.engine.clock_now()
        since_ns = fabric_time_ns(record, clock_ns) - record["begin_ns"]
        if abs(since_ns) > FARTHEST_NS:
            self._refuse(f"turns began {since_ns} ns ago, expected within {FARTHEST_NS} ns of now")
            self._record = None
            return
        at_ns = monotonic_ns - since_ns
        of = (record["planned_ns"], self.engine.all_ports, tuple(peer.nic for peer in self.engine.peers))
        if of == self._of:
            self.engine.shift_schedule(at_ns)
            return
        self._of = of
        self.engine.set_schedule(at_ns, record["slot_ns"], record["probes_per_slot"], self._ways)
