"""Finds NICs without measurements: their prober works, but no probe from or to them is answered.

Rails that cannot reach each other, a missing route or a closed port leave a NIC without a peer that answers.
Failures of its links then go unnoticed. A NIC that is alone in its fabric has no peers by nature.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from schemas.ids import host_of, natural
from schemas.records import AlertKind, EvidenceKind, LinkEvent, Nic
from schemas.topics import LINKS
from streams.alerts.rules import NEVER_NS
from streams.runtime.detection import SINCE, Detection, EvidenceRef
from streams.runtime.units import NS_PER_S

MIN_UNMEASURED_NS: Final = 30 * NS_PER_S
"""Time without an answered probe after which a NIC is unmeasured: probers choose peers within seconds."""
REPORTED_NS: Final = 5 * NS_PER_S
"""Longest time between two reports of a prober that runs: it sends one each second."""
MAX_NAMED: Final = 3
"""Number of NICs that the text names."""


@dataclass(slots=True)
class _Prober:
    """Append times of the reports of one NIC's prober."""

    reported_ns: int
    measured_ns: int
    """Newest answered probe from or to the NIC, or the start of its uninterrupted reports."""

    def runs_at(self, now_ns: int) -> bool:
        """Return whether the prober's newest report is recent enough: the prober runs."""
        return now_ns - self.reported_ns <= REPORTED_NS


class UnmeasuredNics:
    """Detects the NICs of one shard without measurements.

    `explained` returns NICs and hosts that other active alerts name: their silence already has a cause.
    """

    def __init__(self, shard: str, explained: Callable[[], Collection[str]]) -> None:
        self.shard, self._explained = shard, explained
        self._probers: dict[str, _Prober] = {}
        self._simulated: set[str] = set()
        self._reported: set[str] = set()
        """NICs of the active detection."""
        self._next_ns = NEVER_NS

    @property
    def due_ns(self) -> int:
        """Append time at which `evaluate` next checks the NICs, ns."""
        return self._next_ns

    def recover(self, nics: Iterable[str], at_ns: int) -> None:
        """Restore an active alert about `nics`, which was certainly active at append time `at_ns`."""
        self._reported = set(nics)
        self._next_ns = at_ns + MIN_UNMEASURED_NS

    def announce(self, name: str, nic: Nic | None) -> None:
        """Take a NIC's inventory record; None if the NIC was removed. Simulated NICs are not watched."""
        if nic is None:
            self._probers.pop(name, None)
        elif nic["simulation_pace"] is not None:
            self._simulated.add(name)
            self._probers.pop(name, None)

    def ingest(self, event: LinkEvent, append_ns: int) -> None:
        """Take the counts of answered probes from one event."""
        if event["kind"] != EvidenceKind.PROBE or event["nic"] in self._simulated:
            return
        prober = self._probers.get(event["nic"])
        if prober is None or not prober.runs_at(append_ns):
            self._probers[event["nic"]] = _Prober(append_ns, append_ns)
            self._next_ns = min(self._next_ns, append_ns + MIN_UNMEASURED_NS)
        else:
            prober.reported_ns = append_ns
        peers = {path["peer"] for path in event["paths"] if path["answered"]}
        for name in (event["nic"], *peers) if peers else ():
            if name in self._probers:
                self._probers[name].measured_ns = append_ns

    def evaluate(self, now_ns: int) -> list[Detection]:
        """Return a detection if more NICs are unmeasured at `now_ns` than before, or none any more."""
        running = {name: prober for name, prober in self._probers.items() if prober.runs_at(now_ns)}
        oldest_ns = min((prober.measured_ns for prober in running.values()), default=NEVER_NS)
        self._next_ns = max(now_ns + NS_PER_S, oldest_ns + MIN_UNMEASURED_NS)
        if self._reported:
            self._next_ns = now_ns + NS_PER_S
        explained = self._explained()
        unmeasured = {
            name: prober.measured_ns
            for name, prober in running.items()
            if now_ns - prober.measured_ns >= MIN_UNMEASURED_NS
            and name not in explained
            and host_of(name) not in explained
        }
        if len({host_of(name) for name in running}) < 2:
            unmeasured = {}  # nobody else could measure it
        if unmeasured.keys() - self._reported:
            self._reported |= unmeasured.keys()
            return [self._detection(unmeasured, now_ns)]
        if self._reported and not unmeasured:
            self._reported = set()
            text = "each NIC has a peer that answers"
            return [Detection(AlertKind.UNMEASURED, self._subject, now_ns, now_ns, text, over=True)]
        return []

    @property
    def _subject(self) -> str:
        return f"unmeasured@{self.shard}"

    def _detection(self, unmeasured: dict[str, int], now_ns: int) -> Detection:
        names = sorted(unmeasured, key=natural)
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        text = (
            f"no probe from or to {', '.join(names[:MAX_NAMED])}{more} is answered since {SINCE}, although "
            "the probers run: check routes between rails, rules of firewalls and the probe port"
        )
        evidence = EvidenceRef(LINKS.name, self.shard, now_ns, f"{names[0]}: no answered probe")
        return Detection(
            kind=AlertKind.UNMEASURED,
            subject=self._subject,
            at_ns=now_ns,
            since_ns=min(unmeasured.values()),
            text=text,
            nics=tuple(names),
            evidence=(evidence,),
        )
