"""Detects trouble of probers: hosts too busy to measure, and agents that send far more than they should.

`ProberHealth` ingests the `LinkEvent` records of one shard, which report an agent's own trouble and count its
requests. It returns detections of kinds AGENT and PROBE_STORM, one per host. A prober that does not answer
while its host does is also an AGENT detection. A second of append time is evaluated once an event proves that
it has passed. The events of a shard come in order. So neither the order in which partitions are read nor a
slow reader has any influence.

A storm is measured against two rates, because neither suffices. Wrong settings also announce a wrong rate, so
the shard's median is needed. A small shard has no useful median, so the announced rate is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from schemas.ids import host_of
from schemas.records import AlertKind, EvidenceKind, LinkEvent, Severity
from schemas.topics import LINKS
from streams.alerts.rules import NEVER_NS
from streams.alerts.silent_agents import SilentAgents
from streams.runtime.detection import SINCE, Detection, EvidenceRef
from streams.runtime.thresholds import Thresholds
from streams.runtime.units import NS_PER_MS, NS_PER_S

GRACE_S: Final = 1
"""Time from a second's end to its evaluation, s; events that arrive later do not count."""
SILENT_SHARD_S: Final = 10
"""Time from a second's end to its evaluation if no event of the shard was appended since, s."""
MIN_RATE_NS: Final = NS_PER_S // 5
"""Shortest interval that gives a rate, ns."""
MIN_NICS: Final = 4
"""Number of NICs below which a shard has no useful median."""
MAX_EVIDENCE: Final = 8
KINDS: Final = frozenset({AlertKind.AGENT, AlertKind.PROBE_STORM})

TROUBLE_TEXT: Final = {
    "LOCAL_QUEUE": "packets wait in its own queue",
    "LOCAL_DROP": "requests never left it",
    "RX_OVERFLOW": "its sockets overflowed",
}


@dataclass(slots=True)
class _Second:
    """Reports of one NIC's agent within one second of append time."""

    number: int
    requests: int = 0
    interval_ns: int = 0
    late_ns: int = 0
    trouble: set[str] = field(default_factory=set)
    worst: tuple[int, int] = (-1, 0)
    """(lateness in ns, append time) of the event with most trouble."""

    @property
    def rate_pps(self) -> float | None:
        """Requests per second; None if the events cover too little time."""
        return 1e9 * self.requests / self.interval_ns if self.interval_ns >= MIN_RATE_NS else None

    @property
    def covers_s(self) -> int:
        """Time that the reports cover, s: an agent that gets little CPU time reports rarely."""
        return max(1, round(self.interval_ns / NS_PER_S))


@dataclass(slots=True)
class _Nic:
    """The last seconds of one NIC, and the state of its probe rate."""

    seconds: deque[_Second] = field(default_factory=deque)
    over_s: int | None = None
    """First of the seconds in which the agent has been sending too much."""
    under_s: int | None = None
    """First of the seconds in which the agent has not been sending too much."""
    rate_pps: float = 0.0
    limit_pps: float = 0.0
    limit_text: str = ""


@dataclass(slots=True)
class _Active:
    """An active detection. `from_s`: second of append time from which it may end."""

    from_s: int
    nics: set[str] = field(default_factory=set)


class ProberHealth:
    """Detects prober trouble in one shard. `thresholds` may be set at any time.

    `probe_slots` returns (ns between slots, probes per slot) as a NIC announces them, or None without an
    announcement.
    """

    def __init__(
        self,
        shard: str,
        thresholds: Thresholds,
        probe_slots: Callable[[str], tuple[int, int] | None] | None = None,
    ) -> None:
        self.shard = shard
        self.thresholds = thresholds
        self.late = 0
        """Number of events of seconds that had already been evaluated."""
        self._probe_slots = probe_slots or (lambda nic: None)
        self._nics: dict[str, _Nic] = {}
        self._pending: dict[int, dict[str, _Second]] = {}
        self._silent = SilentAgents()
        self._active: dict[tuple[AlertKind, str], _Active] = {}
        """Maps (kind, host) to the active detection."""
        self._next_s = self._newest_s = self._from_s = -1
        """The second that is evaluated next, that of the newest event, and the first one that a former owner
        has not evaluated."""

    @property
    def due_ns(self) -> int:
        """Append time at which `evaluate` next has a second to evaluate, ns; `NEVER_NS` if none."""
        if not (self._pending or self._nics or self._active):
            return NEVER_NS
        next_s = self._from_s if self._next_s < 0 else self._next_s
        is_over = self._newest_s > next_s + GRACE_S
        return (next_s + 1 + (GRACE_S if is_over else SILENT_SHARD_S)) * NS_PER_S

    def recover(self, kind: AlertKind, host: str, nics: Iterable[str], at_ns: int) -> None:
        """Restore an active alert of kind AGENT or PROBE_STORM; it was active at append time `at_ns`."""
        if kind in KINDS:
            self._active[kind, host] = _Active(at_ns // NS_PER_S + 1, set(nics))
            self._from_s = max(self._from_s, at_ns // NS_PER_S + 1)

    def forget_agent(self, host: str) -> None:
        """Forget a prober's trouble whose alert the host's replaced; it is detected again if it lasts."""
        self._active.pop((AlertKind.AGENT, host), None)

    def reach(self, append_ns: int) -> None:
        """Note that the shard's next event came at `append_ns`, so that earlier seconds are complete."""
        self._newest_s = max(self._newest_s, append_ns // NS_PER_S)

    def ingest(self, event: LinkEvent, append_ns: int) -> None:
        """Take a `LinkEvent` appended at `append_ns`. The caller must evaluate due seconds first."""
        self.reach(append_ns)
        number = append_ns // NS_PER_S
        self._silent.ingest(event, number)
        if event["kind"] != EvidenceKind.PROBE:
            return
        if self._next_s < 0:
            self._next_s = number if self._from_s < 0 else min(number, self._from_s)
        elif self.due_ns == NEVER_NS:
            self._next_s = max(self._next_s, number)
        if number < self._next_s:
            self.late += 1
            return
        of_second = self._pending.setdefault(number, {})
        second = of_second.get(event["nic"])
        if second is None:
            second = of_second[event["nic"]] = _Second(number)
        second.requests += sum(p["answered"] + p["lost"] - p["late"] for p in event["paths"])
        second.interval_ns += event["interval_ns"]
        second.late_ns = max(second.late_ns, event["late_ns"])
        second.trouble.update(event["trouble"])
        if event["trouble"]:
            second.worst = max(second.worst, (event["late_ns"], append_ns))

    def evaluate(self, now_ns: int) -> list[Detection]:
        """Evaluate all seconds that are due by `now_ns`; return new, updated and ended detections."""
        detections: list[Detection] = []
        while self.due_ns <= now_ns:
            number = self._from_s if self._next_s < 0 else self._next_s
            self._next_s = number + 1
            self._add_second(number)
            silent = self._silent.at(min(number, self._newest_s - GRACE_S))
            if number < self._from_s:  # the events of what a former owner has evaluated count later
                continue
            detections += self._find_silent(silent, number)
            detections += self._find_trouble(silent, number)
            detections += self._find_storms(number)
        return detections

    def _add_second(self, number: int) -> None:
        reports = self._pending.pop(number, {})
        for nic, second in sorted(reports.items()):
            self._nics.setdefault(nic, _Nic()).seconds.append(second)
        longest_s = max(self._whole_s("alert_agent_s"), self._whole_s("alert_storm_s"))
        for nic, nic_state in list(self._nics.items()):
            while nic_state.seconds and nic_state.seconds[0].number <= number - longest_s:
                nic_state.seconds.popleft()
            if not nic_state.seconds:
                del self._nics[nic]
        rates = [s.rate_pps for s in reports.values() if s.rate_pps is not None]
        usual_pps = median(rates) if len(rates) >= MIN_NICS else None
        for nic, second in reports.items():
            if second.rate_pps is not None:
                self._check_rate(nic, self._nics[nic], second.rate_pps, usual_pps, number)

    def _check_rate(
        self, nic: str, nic_state: _Nic, rate_pps: float, usual_pps: float | None, number: int
    ) -> None:
        """Compare a NIC's rate in second `number` with the lower of its announced and the usual rate."""
        slot = self._probe_slots(nic)
        own_pps = 1e9 * (slot[1] + 1) / slot[0] if slot is not None and slot[0] else None
        known_pps = ((own_pps, "it announces"), (usual_pps, "is usual in its shard"))
        limits = [(pps, text) for pps, text in known_pps if pps is not None]
        allowed = min(limits, key=lambda limit: limit[0], default=None)
        limit_pps = NEVER_NS if allowed is None else self.thresholds["alert_storm_times"] * allowed[0]
        if rate_pps >= max(limit_pps, self.thresholds["alert_storm_min_pps"]):
            nic_state.over_s = number if nic_state.over_s is None else nic_state.over_s
            nic_state.under_s = None
            nic_state.rate_pps, nic_state.limit_pps, nic_state.limit_text = rate_pps, *(allowed or (0.0, ""))
        else:
            nic_state.under_s = number if nic_state.under_s is None else nic_state.under_s
            nic_state.over_s = None

    # --------------------------------------------------------------------------------------- trouble

    def _find_silent(self, silent: Mapping[str, int], number: int) -> Iterator[Detection]:
        """Yield detections for hosts of silent probers. `silent`: by NIC, the second of its last event."""
        by_host: dict[str, list[str]] = {}
        for nic in sorted(silent):
            by_host.setdefault(host_of(nic), []).append(nic)
        for host, nics in sorted(by_host.items()):
            new = self._new_nics(AlertKind.AGENT, host, nics, number)
            if new is None:
                continue
            at_ns, since_ns = (number + 1) * NS_PER_S, min(silent[nic] for nic in new) * NS_PER_S
            text = f"the prober of {', '.join(new)} does not answer since {SINCE}, the host does"
            yield Detection(
                kind=AlertKind.AGENT,
                subject=host,
                at_ns=at_ns,
                since_ns=since_ns,
                text=text,
                nics=tuple(new),
                evidence=(EvidenceRef(LINKS.name, self.shard, at_ns, text.replace(f" since {SINCE}", "")),),
            )

    def _find_trouble(self, silent: Mapping[str, int], number: int) -> Iterator[Detection]:
        length_s, late_ns = self._whole_s("alert_agent_s"), self.thresholds.ns("alert_agent_late_ms")
        bad = self._seconds_with_trouble(number - length_s, late_ns)
        by_host: dict[str, list[str]] = {}
        for nic in sorted(bad):
            if 2 * _covered_s(bad[nic]) >= length_s:
                by_host.setdefault(host_of(nic), []).append(nic)
        for host, nics in sorted(by_host.items()):
            new = self._new_nics(AlertKind.AGENT, host, nics, number)
            if new is not None:
                yield self._trouble(host, {nic: bad[nic] for nic in sorted(new)}, number, late_ns)
        for host, active in self._active_of(AlertKind.AGENT):
            worst_s = max((_covered_s(bad.get(nic, ())) for nic in self._nics_of(host)), default=0)
            if any(host_of(nic) == host for nic in silent):
                continue
            if 4 * worst_s < length_s and number - active.from_s + 1 >= length_s:
                yield self._over(AlertKind.AGENT, host, number, f"{host}: its prober is healthy again")

    def _seconds_with_trouble(self, after: int, late_ns: int) -> dict[str, list[_Second]]:
        """Return, by NIC, its seconds later than `after` with trouble, or an agent late by `late_ns`."""
        seconds_by_nic: dict[str, list[_Second]] = {}
        for nic, nic_state in self._nics.items():
            seconds = [
                s
                for s in nic_state.seconds
                if s.number > after and (s.trouble & TROUBLE_TEXT.keys() or s.late_ns >= late_ns)
            ]
            if seconds:
                seconds_by_nic[nic] = seconds
        return seconds_by_nic

    def _trouble(self, host: str, bad: Mapping[str, list[_Second]], number: int, late_ns: int) -> Detection:
        seconds = [second for nic_seconds in bad.values() for second in nic_seconds]
        max_late_ns = max(s.late_ns for s in seconds)
        kinds = sorted({kind for s in seconds for kind in s.trouble} & TROUBLE_TEXT.keys())
        causes = [f"up to {max_late_ns / NS_PER_MS:.0f} ms late"] if max_late_ns >= late_ns else []
        causes += [TROUBLE_TEXT[kind] for kind in kinds]
        is_minor = kinds == ["LOCAL_QUEUE"] and max_late_ns < late_ns
        evidence = [self._evidence(nic, nic_seconds) for nic, nic_seconds in bad.items()]
        return Detection(
            kind=AlertKind.AGENT,
            subject=host,
            at_ns=(number + 1) * NS_PER_S,
            since_ns=min(s.number for s in seconds) * NS_PER_S,
            text=f"{host}: its own prober is in trouble since {SINCE}, no link: {', '.join(causes)}",
            severity=Severity.INFO if is_minor else Severity.WARNING,
            nics=tuple(bad),
            evidence=tuple(evidence[:MAX_EVIDENCE]),
        )

    def _evidence(self, nic: str, seconds: list[_Second]) -> EvidenceRef:
        """Return a reference to the event with the most trouble among a NIC's seconds."""
        worst = max(seconds, key=lambda s: (s.late_ns, len(s.trouble), s.number))
        trouble = ", ".join(sorted(worst.trouble)) or "late"
        text = f"{nic}: {trouble}" + (f", {worst.late_ns / NS_PER_MS:.0f} ms" if worst.late_ns else "")
        return EvidenceRef(LINKS.name, self.shard, worst.worst[1], text)

    # --------------------------------------------------------------------------------------- storms

    def _find_storms(self, number: int) -> Iterator[Detection]:
        length_s = self._whole_s("alert_storm_s")
        by_host: dict[str, list[str]] = {}
        for nic, nic_state in sorted(self._nics.items()):
            if (
                nic_state.over_s is not None
                and nic_state.seconds[-1].number - nic_state.over_s + 1 >= length_s
            ):
                by_host.setdefault(host_of(nic), []).append(nic)
        for host, nics in sorted(by_host.items()):
            new = self._new_nics(AlertKind.PROBE_STORM, host, nics, number)
            if new is not None:
                yield self._storm(host, new, number)
        for host, active in self._active_of(AlertKind.PROBE_STORM):
            calm = all(
                nic_state.under_s is not None and number - nic_state.under_s + 1 >= length_s
                for nic_state in (self._nics[nic] for nic in self._nics_of(host))
            )
            if calm and number - active.from_s + 1 >= length_s:
                yield self._over(
                    AlertKind.PROBE_STORM, host, number, f"{host} probes at its announced rate again"
                )

    def _storm(self, host: str, nics: list[str], number: int) -> Detection:
        states = {nic: self._nics[nic] for nic in nics}
        first, fastest = max(states.items(), key=lambda item: (item[1].rate_pps, item[0]))
        more = f", and {len(nics) - 1} more of its NICs" if len(nics) > 1 else ""
        times = fastest.rate_pps / fastest.limit_pps
        return Detection(
            kind=AlertKind.PROBE_STORM,
            subject=host,
            at_ns=(number + 1) * NS_PER_S,
            since_ns=min(k.over_s or number for k in states.values()) * NS_PER_S,
            text=(
                f"{first} sends {fastest.rate_pps:,.0f} probes/s since {SINCE}, {times:.0f} times the "
                f"{fastest.limit_pps:,.0f} that {fastest.limit_text}{more}: check probes.rate_pps of {host}"
            ),
            nics=tuple(nics),
            evidence=tuple(
                EvidenceRef(
                    LINKS.name,
                    self.shard,
                    k.seconds[-1].number * NS_PER_S + NS_PER_S // 2,
                    f"{nic}: {k.rate_pps:,.0f} requests/s",
                )
                for nic, k in sorted(states.items())[:MAX_EVIDENCE]
            ),
        )

    # --------------------------------------------------------------------------------------- active ones

    def _nics_of(self, host: str) -> list[str]:
        return [nic for nic in self._nics if host_of(nic) == host]

    def _active_of(self, kind: AlertKind) -> list[tuple[str, _Active]]:
        return [(host, active) for (of_kind, host), active in sorted(self._active.items()) if of_kind == kind]

    def _new_nics(self, kind: AlertKind, host: str, nics: list[str], number: int) -> list[str] | None:
        """Add a host's NICs to the active detection; return the new ones, or None if all are known."""
        active = self._active.get((kind, host))
        if active is None:
            active = self._active[kind, host] = _Active(number)
        new = [nic for nic in nics if nic not in active.nics]
        active.nics.update(new)
        return new or None

    def _over(self, kind: AlertKind, host: str, number: int, text: str) -> Detection:
        del self._active[kind, host]
        return Detection(kind, host, (number + 1) * NS_PER_S, (number + 1) * NS_PER_S, text, over=True)

    def _whole_s(self, threshold: str) -> int:
        """Return the value of a threshold, rounded to whole seconds, at least 1."""
        return max(1, round(self.thresholds[threshold]))


def _covered_s(seconds: Iterable[_Second]) -> int:
    return sum(second.covers_s for second in seconds)
