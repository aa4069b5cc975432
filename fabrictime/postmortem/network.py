"""Selects the network's alerts, link health and contention that concern a job's hosts and time. Does no I/O.

The times of a job's files are those of hosts' system clocks, the times of records are fabric time. Both agree
within the error of the hosts' clocks, which is short beside the minutes that are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from fabrictime.postmortem.base import clock_text
from fabrictime.postmortem.observations import Observations
from schemas.ids import host_of
from schemas.records import Alert, ContentionWindow, LinkHealth

MARGIN_NS: Final = 60_000_000_000
"""Time before and after a job's records whose events may explain them, ns."""
_SHOWN: Final = 12
_EARLIEST_NS: Final = 10**17
"""Smaller times are not of a system clock: some traces count from their start."""


class Interval(NamedTuple):
    """The time from a job's first record to its last, ns since the Unix epoch."""

    from_ns: int
    until_ns: int


class Event(NamedTuple):
    """A fault or load of the network during some time. `until_ns` is None if it still lasts."""

    kind: str
    subject: str
    from_ns: int
    until_ns: int | None
    hosts: frozenset[str]
    text: str


class NetworkReport(NamedTuple):
    """The events at a job's hosts during the job, and the number of other events at that time; or the reason
    if the network's records were not compared.
    """

    events: tuple[Event, ...]
    others: int
    missing: str


def interval_of(out: Observations) -> Interval | None:
    """Return the time span of a job's records; None if they state no time."""
    times = [*_call_times(out), *_other_times(out)]
    times = [time_ns for time_ns in times if time_ns > _EARLIEST_NS]
    return Interval(min(times) - MARGIN_NS, max(times) + MARGIN_NS) if times else None


def _call_times(out: Observations) -> Iterator[int]:
    for calls in out.calls.values():
        for call in calls:
            yield from (call.created_ns, call.started_ns, call.ended_ns)


def _other_times(out: Observations) -> Iterator[int]:
    for span in out.spans:
        yield from (span.begin_ns, span.stamp_ns)
    for failure in out.failures:
        yield round(failure.time_s * 1e9)


def hosts_of(out: Observations) -> frozenset[str]:
    """Return the hosts that a job's files name, without their DNS domains."""
    of_tables = {host for table in out.tables for host in table.hosts}
    of_steps = {host for step in out.steps for host in step.hosts}
    names = {*out.hosts.values(), *out.networks, *of_tables, *of_steps}
    return frozenset(map(_short, names - {""}))


def _short(host: str) -> str:
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]


def alert_event(alert: Alert) -> Event:
    """Convert an alert to an event."""
    hosts = _hosts(alert["nics"], [*alert["links"], alert["subject"]])
    text = f"{alert['severity'].lower()}: {alert['text']}"
    return Event(alert["kind"], alert["subject"], alert["raised_ns"], alert["cleared_ns"], hosts, text)


def health_event(record: LinkHealth) -> Event:
    """Convert the health record of a link, NIC or host to an event."""
    hosts = _hosts([], [record["subject"], *record["links"]])
    return Event(record["state"], record["subject"], record["since_ns"], None, hosts, record["text"])


def contention_event(record: ContentionWindow) -> Event:
    """Convert a contention window to an event."""
    nics = [nic for flow in record["flows"] for nic in (flow["nic"], flow["peer"])]
    hosts = _hosts(nics, [record["link"]])
    return Event(
        record["kind"], record["link"], record["opened_ns"], record["closed_ns"], hosts, record["text"]
    )


def _hosts(nics: Iterable[str], links: Iterable[str]) -> frozenset[str]:
    """Return the nodes of NICs and at the ends of links, without their DNS domains."""
    ends = {end.partition(":")[0] for link in links for end in link.replace("<", ">").split(">")}
    return frozenset(_short(host_of(name)) for name in {*nics, *ends} if name)


def report(events: Collection[Event], hosts: Collection[str], interval: Interval) -> NetworkReport:
    """Return the events at the job's hosts that overlap its interval, oldest first, and a count of others."""
    overlapping = [event for event in events if _overlaps(event, interval)]
    own = sorted(
        (event for event in overlapping if event.hosts & set(hosts)), key=lambda event: event.from_ns
    )
    return NetworkReport(tuple(own), len(overlapping) - len(own), "")


def _overlaps(event: Event, interval: Interval) -> bool:
    return event.from_ns <= interval.until_ns and (
        event.until_ns is None or event.until_ns >= interval.from_ns
    )


def as_json(network: NetworkReport) -> Mapping[str, Any]:
    """Return the report as `explain --folder DIR --json` prints it."""
    return {
        "events": [{**event._asdict(), "hosts": sorted(event.hosts)} for event in network.events],
        "others": network.others,
        "missing": network.missing,
    }


def lines(network: NetworkReport) -> list[str]:
    """Return the report as lines of text."""
    if network.missing:
        return [f"network: not compared: {network.missing}"]
    shown = [_line(event) for event in network.events[:_SHOWN]]
    rest = len(network.events) - len(shown)
    shown += [f"network: {rest} more events of these hosts"] if rest else []
    if not network.events:
        shown = ["network: no alert, no link in trouble and no contention of these hosts at that time"]
    return shown + ([f"network: {network.others} events of other hosts"] if network.others else [])


def _line(event: Event) -> str:
    until = "until now" if event.until_ns is None else f"until {clock_text(event.until_ns)}"
    return f"network: {event.kind} {event.subject} since {clock_text(event.from_ns)} {until}: {event.text}"
