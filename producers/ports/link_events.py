"""Evidence about links, as one host sees it: what the probe engine and the port say, as `LinkEvent` records.

In: the engine's `Evidence`, changes of the port. Out: records of fabric.links, and when the next one is due:
soon after a loss, and now and then while all is well. Knows no Kafka, no socket and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from native.core.probe import Evidence, PathEvidence
from schemas.topics import MAX_ELEMENTS

__all__ = ["LinkEvents", "EvidencePacer", "trouble_of"]

Record = dict[str, Any]

LOCAL_QUEUE_NS: Final = 2_000_000
"""Wait in the host's own queue that is worth telling."""
MERELY_MORE_S: Final = 0.1
"""Between two events while losses go on that were told before."""
LONGER: Final = 2.0
LONGEST_S: Final = 0.04
"""While losses go on, urgent news wait longer each time, up to this: whoever judges has the first of them."""


class EvidencePacer:
    """When evidence is to be taken: soon after the last time where there is urgent news, `least_s` at first
    and up to 40 ms while losses go on; else every 100 ms while paths are lost, every `calm_s` while all is
    well. Times are of any one clock, s."""

    def __init__(self, least_s: float, calm_s: float, now: float) -> None:
        self._least_s, self._calm_s = least_s, calm_s
        self._last = now
        self._rest_s = calm_s
        self._urgent_s = least_s

    def due(self, urgent: bool) -> float:
        """Return when to take it."""
        return self._last + (self._urgent_s if urgent else self._rest_s)

    def taken(self, evidence: Evidence, now: float) -> None:
        """Note what was taken."""
        losing = any(way.lost or way.loss_streak for way in evidence.paths)
        self._rest_s = max(self._least_s, MERELY_MORE_S) if losing else self._calm_s
        longer_s = min(LONGER * self._urgent_s, max(self._least_s, LONGEST_S))
        self._urgent_s = longer_s if losing else self._least_s
        self._last = now


class LinkEvents:
    """Makes the numbered `LinkEvent`s of one prober's run."""

    def __init__(self, nic: str, shard: str, run: int) -> None:
        self._head = {"nic": nic, "shard": shard, "run": run}
        self._next = 0

    def probes(self, evidence: Evidence) -> list[Record]:
        """Return what the engine saw, in parts where there are more than 4,096 ways.

        Empty where nothing was asked and the agent is well.
        """
        trouble = trouble_of(evidence)
        if not evidence.paths and not trouble:
            return []
        parts = [evidence.paths[i : i + MAX_ELEMENTS] for i in range(0, len(evidence.paths), MAX_ELEMENTS)]
        times = (evidence.clock_ns, evidence.system_ns, evidence.interval_ns)
        return [
            self._event(
                "PROBE", *times, trouble=trouble, late_ns=evidence.late_ns, paths=[_path(way) for way in part]
            )
            for part in parts or [[]]
        ]

    def carrier(self, up: bool, clock_ns: int, system_ns: int) -> Record:
        """Return that the port has a carrier, or none, now."""
        return self._event("CARRIER", clock_ns, system_ns, 0, carrier=up)

    def speed(self, speed_bps: int, clock_ns: int, system_ns: int) -> Record:
        """Return the port's speed now, bit/s."""
        return self._event("SPEED", clock_ns, system_ns, 0, speed_bps=speed_bps)

    def counters(
        self, grown: Mapping[str, tuple[int, int]], clock_ns: int, system_ns: int, interval_ns: int
    ) -> list[Record]:
        """Return the counters that grew, name to (by how much, what it reads now); nothing where none did."""
        rows = [{"name": name, "delta": delta, "total": total} for name, (delta, total) in grown.items()]
        return [
            self._event("COUNTERS", clock_ns, system_ns, interval_ns, counters=rows[i : i + MAX_ELEMENTS])
            for i in range(0, len(rows), MAX_ELEMENTS)
        ]

    def verbs(self, name: str, clock_ns: int, system_ns: int) -> Record:
        """Return an event of the RDMA device."""
        return self._event("VERBS", clock_ns, system_ns, 0, verbs=name)

    def _event(self, kind: str, clock_ns: int, system_ns: int, interval_ns: int, **more: Any) -> Record:
        record: Record = {
            **self._head,
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
            **more,
        }
        self._next += 1
        return record


def trouble_of(evidence: Evidence) -> list[str]:
    """Return what the agent itself suffered within the interval, by the names of `LinkEvent.trouble`.

    - STARVED: the agent's thread, or an answer of it, came late. Its own verdicts stand nevertheless, since
      the kernel stamps and all that had come was read before; what its peers lost to it then is its fault.
    - LOCAL_QUEUE: packets waited in the host's own queue. Time-outs begin when a packet has left it.
    - LOCAL_DROP: requests never left the host. They are counted nowhere else.
    - RX_OVERFLOW: its sockets overflowed, so answers, or its peers' requests, were lost here.
    - CAPPED: its rate cap held probes or answers back.
    """
    said: Sequence[tuple[str, bool]] = (
        ("STARVED", evidence.late_ns > 0 or evidence.missed_timers > 0),
        ("LOCAL_QUEUE", evidence.queue_ns >= LOCAL_QUEUE_NS),
        ("LOCAL_DROP", evidence.stuck > 0),
        ("RX_OVERFLOW", evidence.receive_drops > 0),
        ("CAPPED", evidence.capped > 0),
    )
    return [name for name, so in said if so]


PATH_FIELDS: Final = (
    "peer", "path", "lost", "answered", "late", "delayed", "loss_streak", "first_lost_age_ns", "last_lost_age_ns",
    "answered_age_ns", "arrived_age_ns", "timeout_ns",
)  # fmt: skip
"""Fields of `PathEvidence`, in the order of the engine's tuples."""


def _path(way: PathEvidence) -> Record:
    return dict(zip(PATH_FIELDS, way, strict=True))
