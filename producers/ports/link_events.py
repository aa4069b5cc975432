"""Builds `LinkEvent` records from the probe engine's evidence and the port's changes, and limits their rate.

Evidence is published soon after a loss, and otherwise at regular intervals. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from native.core.probe import Evidence, PathEvidence
from schemas import records
from schemas.records import CounterDelta, EvidenceKind, HostEvidence, LinkEvent, PathSize
from schemas.topics import MAX_ELEMENTS

LOCAL_QUEUE_NS: Final = 2_000_000
"""A wait in the host's own queue is reported if it lasted at least this long."""
ONGOING_LOSS_GAP_S: Final = 0.1
"""Minimum time between events while losses continue that were already reported."""
GAP_FACTOR: Final = 2.0
MAX_URGENT_GAP_S: Final = 0.04
"""While losses continue, the gap between urgent events grows up to this, because the first event suffices."""


class EvidencePacer:
    """Decides when the probe engine's evidence must be published next.

    After a publication, urgent evidence is due in `min_s`, which grows to 40 ms while losses continue. Other
    evidence is due in 100 ms with losses, and in `calm_s` without. Times are seconds of one clock.
    """

    def __init__(self, min_s: float, calm_s: float, now: float) -> None:
        self._min_s, self._calm_s = min_s, calm_s
        self._last = now
        self._rest_s = calm_s
        self._urgent_s = min_s

    def due(self, urgent: bool) -> float:
        """Return the time, s, by the caller's clock, at which evidence must be published."""
        return self._last + (self._urgent_s if urgent else self._rest_s)

    def on_evidence_taken(self, evidence: Evidence, now: float) -> None:
        """Record that evidence was taken from the engine at `now`, so the next evidence is due later."""
        losing = any(path.lost or path.loss_streak for path in evidence.paths)
        self._rest_s = max(self._min_s, ONGOING_LOSS_GAP_S) if losing else self._calm_s
        longer_s = min(GAP_FACTOR * self._urgent_s, max(self._min_s, MAX_URGENT_GAP_S))
        self._urgent_s = longer_s if losing else self._min_s
        self._last = now


class LinkEvents:
    """Builds the `LinkEvent`s of one run of a prober, numbered in sequence."""

    def __init__(self, nic: str, shard: str, run: int) -> None:
        self._nic, self._shard, self._run = nic, shard, run
        self._next = 0

    def probes(self, evidence: Evidence) -> list[LinkEvent]:
        """Return events with the engine's evidence, at most 4,096 paths in each.

        The list is empty if no path was probed and the agent itself has no trouble to report.
        """
        trouble = agent_trouble(evidence)
        if not evidence.paths and not trouble:
            return []
        parts = [evidence.paths[i : i + MAX_ELEMENTS] for i in range(0, len(evidence.paths), MAX_ELEMENTS)]
        times = (evidence.clock_ns, evidence.system_ns, evidence.interval_ns)
        return [
            {
                **self.event(EvidenceKind.PROBE, *times),
                "trouble": trouble,
                "late_ns": evidence.late_ns,
                "paths": [_path_row(path) for path in part],
            }
            for part in parts or [[]]
        ]

    def hosts(
        self, hosts: Sequence[HostEvidence], clock_ns: int, system_ns: int, interval_ns: int
    ) -> LinkEvent:
        """Return an event that reports whether the hosts of silent probers answer."""
        event = self.event(EvidenceKind.HOST, clock_ns, system_ns, interval_ns)
        return {**event, "hosts": list(hosts[:MAX_ELEMENTS])}

    def sizes(self, sizes: Sequence[PathSize], clock_ns: int, system_ns: int, interval_ns: int) -> LinkEvent:
        """Return an event with the largest packet size that passes on each path."""
        event = self.event(EvidenceKind.SIZE, clock_ns, system_ns, interval_ns)
        return {**event, "sizes": list(sizes[:MAX_ELEMENTS])}

    def carrier(self, up: bool, clock_ns: int, system_ns: int, is_enabled: bool | None = None) -> LinkEvent:
        """Return an event: the port gained or lost its carrier. `is_enabled`: set up by the administrator."""
        event = self.event(EvidenceKind.CARRIER, clock_ns, system_ns)
        return {**event, "carrier": up, "port_enabled": is_enabled}

    def speed(self, speed_bps: int, clock_ns: int, system_ns: int) -> LinkEvent:
        """Return an event: the port's speed changed to `speed_bps`, bit/s."""
        return {**self.event(EvidenceKind.SPEED, clock_ns, system_ns), "speed_bps": speed_bps}

    def counters(
        self, growth: Mapping[str, tuple[int, int]], clock_ns: int, system_ns: int, interval_ns: int
    ) -> list[LinkEvent]:
        """Return events with the counters in `growth`, which maps names to (increase, present value)."""
        rows: list[CounterDelta] = [
            {"name": name, "delta": delta, "total": total} for name, (delta, total) in growth.items()
        ]
        return [
            {
                **self.event(EvidenceKind.COUNTERS, clock_ns, system_ns, interval_ns),
                "counters": rows[i : i + MAX_ELEMENTS],
            }
            for i in range(0, len(rows), MAX_ELEMENTS)
        ]

    def verbs(self, name: str, clock_ns: int, system_ns: int) -> LinkEvent:
        """Return an event that an RDMA device reported. `name`: type of that event, such as PORT_ERR."""
        return {**self.event(EvidenceKind.VERBS, clock_ns, system_ns), "verbs": name}

    def event(self, kind: EvidenceKind, clock_ns: int, system_ns: int, interval_ns: int = 0) -> LinkEvent:
        """Return the next event with the fields common to all kinds; the caller adds those of `kind`."""
        record: LinkEvent = {
            "nic": self._nic,
            "shard": self._shard,
            "run": self._run,
            "event": self._next,
            "kind": kind,
            "clock_ns": clock_ns,
            "system_ns": system_ns,
            "interval_ns": interval_ns,
            "trouble": [],
            "late_ns": 0,
            "paths": [],
            "carrier": None,
            "speed_bps": None,
            "counters": [],
            "verbs": None,
            "hosts": [],
            "sizes": [],
            "port_enabled": None,
        }
        self._next += 1
        return record


def agent_trouble(evidence: Evidence) -> list[str]:
    """Return the agent's own trouble in the interval, as the values of `LinkEvent.trouble`.

    - STARVED: the agent's thread, or one of its answers, was late. Its own losses still count, because the
      kernel sets the timestamps and all arrived packets were read first. Losses seen by its peers do not
      count.
    - LOCAL_QUEUE: packets waited in the host's own queue. A timeout starts when the packet has left the
      queue.
    - LOCAL_DROP: requests never left the host. They are counted nowhere else.
    - RX_OVERFLOW: its sockets overflowed, so answers or peers' requests were lost here.
    - CAPPED: its rate cap delayed probes or answers.
    """
    symptoms: Sequence[tuple[str, bool]] = (
        ("STARVED", evidence.late_ns > 0 or evidence.missed_timers > 0),
        ("LOCAL_QUEUE", evidence.queue_ns >= LOCAL_QUEUE_NS),
        ("LOCAL_DROP", evidence.stuck > 0),
        ("RX_OVERFLOW", evidence.receive_drops > 0),
        ("CAPPED", evidence.capped > 0),
    )
    return [name for name, so in symptoms if so]


def _path_row(path: PathEvidence) -> records.PathEvidence:
    row = {**path._asdict(), "classes": [traffic_class._asdict() for traffic_class in path.classes]}
    return cast("records.PathEvidence", row)
