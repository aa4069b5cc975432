"""What ails the probers themselves: hosts too busy to measure, agents that send far more than they should.

In: `LinkEvent`s of one shard, which carry the agent's own trouble and count its requests; the pace that each
prober announces. Out: `Finding`s of kinds AGENT and PROBE_STORM, one a host. Seconds of append time are
judged one after the other, each a second after its end, so that the order in which partitions are read
changes nothing. Pure.

A storm is measured against two things at once, since neither is enough: an agent that is set wrong announces
the wrong pace too, so the median of its shard speaks as well; a shard of few says little, so the pace does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from schemas.topics import LINKS
from streams.alerts.detection import SINCE, Finding, Proof
from streams.runtime.thresholds import Thresholds

__all__ = ["ProberWatch"]

Record = Mapping[str, Any]

MS: Final = 1_000_000
S: Final = 1_000_000_000
NEVER: Final = 2**62
GRACE_S: Final = 1
"""s after a second's end until it is judged: what comes later is not counted."""
LEAST_NS: Final = S // 5
"""Of a shorter time no rate is told."""
LEAST_NICS: Final = 4
"""A shard of fewer has no median worth the name."""
MAX_PROOFS: Final = 8

SAID: Final = {
    "LOCAL_QUEUE": "packets wait in its own queue",
    "LOCAL_DROP": "requests never left it",
    "RX_OVERFLOW": "its sockets overflowed",
}


@dataclass(slots=True)
class _Second:
    """What one NIC's agent said within one second of append time."""

    number: int
    requests: int = 0
    interval_ns: int = 0
    late_ns: int = 0
    trouble: set[str] = field(default_factory=set)
    worst: tuple[int, int] = (-1, 0)
    """(lateness in ns, append time) of the event that tells most."""

    @property
    def rate_pps(self) -> float | None:
        """Requests a second; None where too little time is covered."""
        return 1e9 * self.requests / self.interval_ns if self.interval_ns >= LEAST_NS else None

    @property
    def covers_s(self) -> int:
        """Return for how many seconds it speaks: an agent that hardly runs speaks rarely."""
        return max(1, round(self.interval_ns / S))


@dataclass(slots=True)
class _Nic:
    """One NIC's last seconds, and the spells of its rate."""

    seconds: deque[_Second] = field(default_factory=deque)
    over_s: int | None = None
    """First second of the spell in which it sends too much."""
    under_s: int | None = None
    rate_pps: float = 0.0
    limit_pps: float = 0.0
    why: str = ""


@dataclass(slots=True)
class _Standing:
    """A finding that was told. `from_s`: second from which on it may be over."""

    from_s: int
    nics: set[str] = field(default_factory=set)


class ProberWatch:
    """The probers of one shard. `pace`: NIC to (ns from turn to turn, paths in each) as it announces it, None
    where it does not."""

    def __init__(self, shard: str, pace: Callable[[str], tuple[int, int] | None] | None = None) -> None:
        self.shard = shard
        self.late = 0
        """Events of seconds that were judged already."""
        self._pace = pace or (lambda nic: None)
        self._nics: dict[str, _Nic] = {}
        self._pending: dict[int, dict[str, _Second]] = {}
        self._standing: dict[tuple[str, str], _Standing] = {}
        """(kind, host) to what was told."""
        self._next_s = -1

    def restore(self, kind: str, host: str, nics: list[str], at_ns: int) -> None:
        """Take over what was told of a host; `at_ns`: append time up to which it surely stood."""
        self._standing[kind, host] = _Standing(at_ns // S + 1, set(nics))
        self._next_s = max(self._next_s, at_ns // S + 1)

    @property
    def due_ns(self) -> int:
        """When `judge` has something to do, ns of append time."""
        if not (self._pending or self._nics or self._standing):
            return NEVER
        return (self._next_s + 1 + GRACE_S) * S

    def take(self, event: Record, append_ns: int) -> None:
        """Take one `LinkEvent` that the log took at `append_ns`."""
        if event["kind"] != "PROBE":
            return
        number = append_ns // S
        if self.due_ns == NEVER:
            self._next_s = max(self._next_s, number)
        if number < self._next_s:
            self.late += 1
            return
        of_second = self._pending.setdefault(number, {})
        found = of_second.get(event["nic"])
        if found is None:
            found = of_second[event["nic"]] = _Second(number)
        found.requests += sum(p["answered"] + p["lost"] - p["late"] for p in event["paths"])
        found.interval_ns += event["interval_ns"]
        found.late_ns = max(found.late_ns, event["late_ns"])
        found.trouble.update(event["trouble"])
        if event["trouble"]:
            found.worst = max(found.worst, (event["late_ns"], append_ns))

    def judge(self, to_ns: int, thresholds: Thresholds) -> list[Finding]:
        """Judge all seconds that are due up to `to_ns`, ns of append time; return what is news."""
        found: list[Finding] = []
        while self.due_ns <= to_ns:
            number, self._next_s = self._next_s, self._next_s + 1
            self._enter(number, thresholds)
            found += self._agents(number, thresholds)
            found += self._storms(number, thresholds)
        return found

    def _enter(self, number: int, thresholds: Thresholds) -> None:
        heard = self._pending.pop(number, {})
        for nic, second in sorted(heard.items()):
            self._nics.setdefault(nic, _Nic()).seconds.append(second)
        longest_s = max(_whole(thresholds["alert_agent_s"]), _whole(thresholds["alert_storm_s"]))
        for nic, known in list(self._nics.items()):
            while known.seconds and known.seconds[0].number <= number - longest_s:
                known.seconds.popleft()
            if not known.seconds:
                del self._nics[nic]
        rates = [s.rate_pps for s in heard.values() if s.rate_pps is not None]
        usual_pps = median(rates) if len(rates) >= LEAST_NICS else None
        for nic, second in heard.items():
            if second.rate_pps is not None:
                self._weigh(nic, self._nics[nic], second.rate_pps, usual_pps, number, thresholds)

    def _weigh(
        self, nic: str, known: _Nic, rate_pps: float, usual_pps: float | None, number: int,
        thresholds: Thresholds,
    ) -> None:  # fmt: skip
        """Hold a NIC's rate of a second against what it announces and what its shard's others do."""
        pace = self._pace(nic)
        own_pps = 1e9 * (pace[1] + 1) / pace[0] if pace is not None and pace[0] else None
        known_pps = ((own_pps, "it announces"), (usual_pps, "is usual in its shard"))
        allowed = min(
            ((pps, why) for pps, why in known_pps if pps is not None), key=lambda a: a[0], default=None
        )
        limit_pps = NEVER if allowed is None else thresholds["alert_storm_times"] * allowed[0]
        if rate_pps >= max(limit_pps, thresholds["alert_storm_min_pps"]):
            known.over_s = number if known.over_s is None else known.over_s
            known.under_s = None
            known.rate_pps, known.limit_pps, known.why = rate_pps, *(allowed or (0.0, ""))
        else:
            known.under_s = number if known.under_s is None else known.under_s
            known.over_s = None

    # ------------------------------------------------------------------------------------ trouble

    def _agents(self, number: int, thresholds: Thresholds) -> Iterator[Finding]:
        length_s, late_ns = _whole(thresholds["alert_agent_s"]), thresholds.ns("alert_agent_late_ms")
        bad: dict[str, list[_Second]] = {}
        for nic, known in self._nics.items():
            seconds = [
                s for s in known.seconds
                if s.number > number - length_s and (s.trouble & SAID.keys() or s.late_ns >= late_ns)
            ]  # fmt: skip
            if seconds:
                bad[nic] = seconds
        by_host: dict[str, list[str]] = {}
        for nic in sorted(bad):
            if 2 * _covered_s(bad[nic]) >= length_s:
                by_host.setdefault(_host(nic), []).append(nic)
        for host, nics in sorted(by_host.items()):
            news = self._news("AGENT", host, nics, number)
            if news is not None:
                yield self._trouble(host, {nic: bad[nic] for nic in sorted(news)}, number, late_ns)
        for host, standing in self._told("AGENT"):
            worst = max((_covered_s(bad.get(nic, ())) for nic in self._of(host)), default=0)
            if 4 * worst < length_s and number - standing.from_s + 1 >= length_s:
                yield self._over("AGENT", host, number, f"{host}: its prober runs well again")

    def _trouble(self, host: str, bad: Mapping[str, list[_Second]], number: int, late_ns: int) -> Finding:
        seconds = [second for each in bad.values() for second in each]
        most_ns = max(s.late_ns for s in seconds)
        kinds = sorted({kind for s in seconds for kind in s.trouble} & SAID.keys())
        why = [f"up to {most_ns / MS:.0f} ms late"] if most_ns >= late_ns else []
        why += [SAID[kind] for kind in kinds]
        proofs = []
        for nic, each in bad.items():
            worst = max(each, key=lambda s: (s.late_ns, len(s.trouble), s.number))
            said = ", ".join(sorted(worst.trouble)) or "late"
            text = f"{nic}: {said}" + (f", {worst.late_ns / MS:.0f} ms" if worst.late_ns else "")
            proofs.append(Proof(LINKS.name, self.shard, worst.worst[1], text))
        return Finding(
            "AGENT", host, (number + 1) * S, min(s.number for s in seconds) * S,
            f"{host}: its own prober is in trouble since {SINCE}, no link: {', '.join(why)}",
            severity="INFO" if kinds == ["LOCAL_QUEUE"] and most_ns < late_ns else "WARNING",
            nics=tuple(bad), proofs=tuple(proofs[:MAX_PROOFS]),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------ storms

    def _storms(self, number: int, thresholds: Thresholds) -> Iterator[Finding]:
        length_s = _whole(thresholds["alert_storm_s"])
        by_host: dict[str, list[str]] = {}
        for nic, known in sorted(self._nics.items()):
            if known.over_s is not None and known.seconds[-1].number - known.over_s + 1 >= length_s:
                by_host.setdefault(_host(nic), []).append(nic)
        for host, nics in sorted(by_host.items()):
            news = self._news("PROBE_STORM", host, nics, number)
            if news is not None:
                yield self._storm(host, news, number)
        for host, standing in self._told("PROBE_STORM"):
            calm = all(
                known.under_s is not None and number - known.under_s + 1 >= length_s
                for known in (self._nics[nic] for nic in self._of(host))
            )
            if calm and number - standing.from_s + 1 >= length_s:
                yield self._over("PROBE_STORM", host, number, f"{host} probes at its pace again")

    def _storm(self, host: str, nics: list[str], number: int) -> Finding:
        found = {nic: self._nics[nic] for nic in nics}
        first, known = max(found.items(), key=lambda item: (item[1].rate_pps, item[0]))
        more = f", and {len(nics) - 1} more of its NICs" if len(nics) > 1 else ""
        return Finding(
            "PROBE_STORM", host, (number + 1) * S, min(k.over_s or number for k in found.values()) * S,
            f"{first} sends {known.rate_pps:,.0f} probes/s since {SINCE}, "
            f"{known.rate_pps / known.limit_pps:.0f} times the {known.limit_pps:,.0f} that {known.why}{more}"
            f": look at probes.rate_pps of {host}",
            nics=tuple(nics),
            proofs=tuple(
                Proof(
                    LINKS.name, self.shard, k.seconds[-1].number * S + S // 2,
                    f"{nic}: {k.rate_pps:,.0f} requests/s",
                )
                for nic, k in sorted(found.items())[:MAX_PROOFS]
            ),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------ standing

    def _of(self, host: str) -> list[str]:
        return [nic for nic in self._nics if _host(nic) == host]

    def _told(self, kind: str) -> list[tuple[str, _Standing]]:
        return [(host, each) for (of_kind, host), each in sorted(self._standing.items()) if of_kind == kind]

    def _news(self, kind: str, host: str, nics: list[str], number: int) -> list[str] | None:
        """Return a host's NICs that were not told of yet, noting them; None: all were."""
        standing = self._standing.get((kind, host))
        if standing is None:
            standing = self._standing[kind, host] = _Standing(number)
        news = [nic for nic in nics if nic not in standing.nics]
        standing.nics.update(news)
        return news or None

    def _over(self, kind: str, host: str, number: int, text: str) -> Finding:
        del self._standing[kind, host]
        return Finding(kind, host, (number + 1) * S, (number + 1) * S, text, over=True)


def _covered_s(seconds: Iterable[_Second]) -> int:
    return sum(second.covers_s for second in seconds)


def _host(nic: str) -> str:
    return nic.partition("/")[0]


def _whole(seconds: float) -> int:
    return max(1, round(seconds))
