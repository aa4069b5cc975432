"""Finds hosts of one name: two agents that announce the same NIC, as after copying a machine's image.

Each prober process has a random run id. A restarted prober has a new id, and its old id never returns. If an
id returns after another id, two processes work under one name. Their mixed timestamps make every clock
estimate wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from schemas.ids import host_of
from schemas.records import AlertKind, Severity
from schemas.topics import INVENTORY
from streams.alerts.rules import NEVER_NS
from streams.runtime.detection import SINCE, Detection, EvidenceRef
from streams.runtime.units import NS_PER_S

MIN_RETURNS: Final = 2
"""Returns of a run id that show two agents; a single one may be a message that was late."""
CALM_NS: Final = 60 * NS_PER_S
"""Time without a return after which one agent has ended: each one reports every second."""
MAX_RUNS: Final = 8
"""Run ids remembered for each NIC."""


@dataclass(slots=True)
class _Name:
    """The processes that report under one NIC's name."""

    run: int
    seen_ns: int
    earlier_ns: dict[int, int] = field(default_factory=dict)
    """Maps earlier run ids to the append time of their newest record."""
    returns_ns: deque[int] = field(default_factory=lambda: deque(maxlen=MIN_RETURNS))
    addresses: dict[int, str] = field(default_factory=dict)

    def take(self, run: int, append_ns: int) -> bool:
        """Note the run id of a record; return whether an id returned after another one."""
        before, self.seen_ns = (self.run, self.seen_ns), append_ns
        if run == self.run:
            return False
        self.run = run
        self.earlier_ns[before[0]] = before[1]
        returned_ns = self.earlier_ns.pop(run, None)
        while len(self.earlier_ns) > MAX_RUNS:
            del self.earlier_ns[next(iter(self.earlier_ns))]
        if returned_ns is None or append_ns - returned_ns > CALM_NS:
            return False
        self.returns_ns.append(append_ns)
        return True

    def is_duplicate(self) -> bool:
        """Whether two processes report under this name."""
        enough = len(self.returns_ns) == MIN_RETURNS
        return enough and self.returns_ns[-1] - self.returns_ns[0] <= CALM_NS


@dataclass(slots=True)
class _Active:
    """An active detection. `until_ns`: append time at which it ends unless an id returns."""

    until_ns: int
    nics: set[str]


class DuplicateNames:
    """Detector of hosts that share one name, in one shard."""

    def __init__(self) -> None:
        self._names: dict[str, _Name] = {}
        self._active: dict[str, _Active] = {}
        """Maps host to its active detection."""
        self._pending: list[Detection] = []

    @property
    def due_ns(self) -> int:
        """Append time at which `evaluate` next has detections to end or to return, ns; else `NEVER_NS`."""
        times_ns = [active.until_ns for active in self._active.values()]
        times_ns += [detection.at_ns for detection in self._pending]
        return min(times_ns, default=NEVER_NS)

    def is_duplicate(self, host: str) -> bool:
        """Return whether two agents work under the name of a host."""
        return host in self._active

    def recover(self, host: str, nics: Iterable[str], at_ns: int) -> None:
        """Restore an active alert; it was certainly active at append time `at_ns`."""
        self._active[host] = _Active(at_ns + CALM_NS, set(nics))

    def remove(self, nic: str) -> None:
        """Forget a NIC whose prober has ended."""
        self._names.pop(nic, None)

    def ingest(self, nic: str, run: int, append_ns: int, address: str | None = None) -> None:
        """Take the run id, and the address if stated, from a NIC's record appended at `append_ns`."""
        name = self._names.get(nic)
        if name is None:
            name = self._names[nic] = _Name(run, append_ns)
        if address is not None:
            name.addresses[run] = address
            while len(name.addresses) > MAX_RUNS:
                del name.addresses[next(iter(name.addresses))]
        if not name.take(run, append_ns) or not name.is_duplicate():
            return
        host = host_of(nic)
        active = self._active.setdefault(host, _Active(append_ns, set()))
        active.until_ns = max(active.until_ns, append_ns + CALM_NS)
        if nic not in active.nics:
            active.nics.add(nic)
            self._pending.append(_detection(host, nic, name, append_ns))

    def evaluate(self, now_ns: int) -> list[Detection]:
        """Return the detections that are new, and those that have ended by `now_ns`."""
        due = [detection for detection in self._pending if detection.at_ns <= now_ns]
        self._pending = [detection for detection in self._pending if detection.at_ns > now_ns]
        for host, active in sorted(self._active.items()):
            if active.until_ns <= now_ns:
                del self._active[host]
                text = f"one agent works under the name {host} again"
                due.append(_over(host, active.until_ns, text))
        return due


def _over(host: str, at_ns: int, text: str) -> Detection:
    return Detection(AlertKind.DUPLICATE_NAME, host, at_ns, at_ns, text, over=True)


def _detection(host: str, nic: str, name: _Name, at_ns: int) -> Detection:
    """Return the detection of a NIC that two agents announce."""
    runs = (name.run, *reversed(name.earlier_ns))
    addresses = sorted({address for run in runs if (address := name.addresses.get(run)) is not None})
    where = f" at {' and '.join(addresses[:2])}" if len(addresses) > 1 else ""
    text = (
        f"{nic} is announced by two agents{where} since {SINCE}: two hosts are named {host}; "
        "give each a name of its own (up.host_name)"
    )
    evidence = EvidenceRef(INVENTORY.name, nic, at_ns, f"{nic}: announced by two processes in turn")
    return Detection(
        kind=AlertKind.DUPLICATE_NAME,
        subject=host,
        at_ns=at_ns,
        since_ns=min(name.returns_ns),
        text=text,
        severity=Severity.CRITICAL,
        nics=(nic,),
        evidence=(evidence,),
    )
