"""Follows the probe schedule of a NIC, which sets when its prober sends, and to which paths.

The schedule (`ProbeSchedule`) is in fabric time, but the engine needs times of its own clock. A schedule that
would probe faster than the settings allow is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from native.core.probe import Engine
from producers.probe.flow_targets import PathKey, schedule_rates_pps
from producers.settings import ProbeSettings
from schemas.records import ProbeSchedule

_log = logging.getLogger(__name__)

MIN_SLOT_SHARE: Final = 0.99
"""Minimum ratio of a schedule's slot to the prober's own slot; it is below 1 to allow for rounding."""
MAX_PATHS: Final = 1 << 16
MAX_AGE_NS: Final = 86_400 * 1_000_000_000 * 366
"""A schedule that begins further away in time than this comes from a wrong clock."""
MAX_SLOT_NS: Final = 1e12
MAX_OFFSET_NS: Final = 4e18
MAX_DRIFT_PPB: Final = 1e8


def slot_of(settings: ProbeSettings) -> tuple[int, int]:
    """Return a slot's length, ns, and its number of paths at `rate_pps`; zeros if schedules are disabled."""
    if not settings.scheduled:
        return 0, 0
    probes = (2 if settings.spacing_ns else 1) + settings.singles
    return max(1000, round(1e9 * probes / settings.rate_pps)), 1 + settings.singles


def schedule_error(record: ProbeSchedule, slot: tuple[int, int]) -> str:
    """Return why a prober with this slot (ns, paths) cannot follow a `ProbeSchedule`; empty if it can."""
    count, per_slot = len(record["path"]), record["probes_per_slot"]
    peers = record["peer"]
    if not 1 <= per_slot <= slot[1]:
        return f"{per_slot} paths per slot, expected 1 to {slot[1]}"
    if not MIN_SLOT_SHARE * slot[0] <= record["slot_ns"] <= MAX_SLOT_NS:
        return f"{record['slot_ns']} ns per slot, expected {slot[0]} or more"
    if not 0 < count <= MAX_PATHS or count != len(peers) or count % per_slot:
        return f"{count} paths of {len(peers)} peers, {per_slot} per slot, expected complete slots"
    if not (min(peers) >= 0 and max(peers) < len(record["peers"])):
        return f"peer {max(peers)}, expected below {len(record['peers'])}"
    if not (abs(record["offset_ns"]) < MAX_OFFSET_NS and abs(record["drift_ppb"]) < MAX_DRIFT_PPB):
        return f"offset {record['offset_ns']} ns, drift {record['drift_ppb']} ppb: outside any clock's range"
    return ""


def schedule_paths(record: ProbeSchedule) -> list[PathKey]:
    """Return (peer, source port) of each probe in one period of a valid `ProbeSchedule`, in order."""
    return [(record["peers"][at], path) for at, path in zip(record["peer"], record["path"], strict=True)]


def fabric_time_ns(record: ProbeSchedule, clock_ns: int) -> int:
    """Return the fabric time at which the NIC's clock reads `clock_ns`, by the model in a `ProbeSchedule`."""
    since_ns = clock_ns - record["clock_at_ns"]
    return clock_ns + record["offset_ns"] + round(1e-9 * record["drift_ppb"] * since_ns)


class ScheduleFollower:
    """Makes one engine follow its probe schedule. Call `refresh` several times per second."""

    def __init__(self, engine: Engine, nic: str, slot: tuple[int, int]) -> None:
        self.engine, self.nic, self.slot = engine, nic, slot
        self.refused = 0
        """Number of refused schedules."""
        self._record: ProbeSchedule | None = None
        self._paths: Sequence[PathKey] = ()
        self._applied: tuple[Any, ...] | None = None
        """Schedule, ports and peers that the engine's slots were computed from."""

    @property
    def is_active(self) -> bool:
        """Whether the engine follows a schedule now."""
        return self._applied is not None

    def rates_pps(self) -> dict[PathKey, float]:
        """Return, by (peer, source port), probes per second of the active schedule; empty without one."""
        if self._applied is None or self._record is None:
            return {}
        return schedule_rates_pps(self._paths, self._record["slot_ns"], self._record["probes_per_slot"])

    def on_schedule(self, nic: str, record: ProbeSchedule | None, append_ms: int) -> None:
        """Store a schedule from the schedule topic. A record of None removes the schedule."""
        if nic != self.nic:
            return
        if record is not None:
            error = schedule_error(record, self.slot)
            if error:
                self._refuse(error)
                return
            self._paths = schedule_paths(record)
        self._record = record

    def refresh(self) -> None:
        """Set the engine's slots from the schedule again, as clocks drift and peers and ports change."""
        record = self._record
        if record is None:
            if self._applied is not None:
                self.engine.set_schedule(0, 1e9, 1, ())
                self._applied = None
            return
        clock_ns, monotonic_ns = self.engine.clock_now()
        since_ns = fabric_time_ns(record, clock_ns) - record["begin_ns"]
        if abs(since_ns) > MAX_AGE_NS:
            self._refuse(f"it began {since_ns} ns ago, expected within {MAX_AGE_NS} ns of now")
            self._record = None
            return
        begin_ns = monotonic_ns - since_ns
        inputs = (record["planned_ns"], self.engine.all_ports, tuple(peer.nic for peer in self.engine.peers))
        if inputs == self._applied:
            self.engine.shift_schedule(begin_ns)
            return
        self._applied = inputs
        self.engine.set_schedule(begin_ns, record["slot_ns"], record["probes_per_slot"], list(self._paths))

    def _refuse(self, error: str) -> None:
        self.refused += 1
        _log.warning("%s: probe schedule refused: %s", self.nic, error)
