"""Alerts as people read them, and any record as names and values.

In: Alert records, and decoded records that they stand on. Out: rows, addresses of the page, text. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fabrictime.state.fabric_state import Record, cleared
from fabrictime.state.labels import arrow
from fabrictime.state.units import delay_text, seconds_text
from fabrictime.web.addresses import fabric_address

SEVERITIES: Final = ("CRITICAL", "WARNING", "INFO")
WAYS: Final = 8
SHOWN_ITEMS: Final = 12


@dataclass(frozen=True, slots=True)
class Shown:
    """A record as it stands in the log: where, and its fields."""

    where: str
    fields: list[tuple[str, str]]


def ordered(alerts: Iterable[Record]) -> list[Record]:
    """Return the alerts: standing ones first, the severer and newer first; then the cleared, newest first."""
    return sorted(
        alerts,
        key=lambda a: (
            (1, 0, -int(a["cleared_ns"] or 0))
            if cleared(a)
            else (0, SEVERITIES.index(a["severity"]), -int(a["raised_ns"]))
        ),
    )


def standing_text(alert: Record, now_ns: int) -> str:
    """Return for how long an alert stands or stood."""
    end = alert["cleared_ns"] if alert["cleared_ns"] is not None else now_ns
    return seconds_text((end - alert["raised_ns"]) / 1e9)


def figures(alert: Record, now_ns: int) -> list[tuple[str, str]]:
    """Return what an alert says of itself."""
    state = "stands for" if not cleared(alert) else "stood for"
    rows = [
        ("kind", alert["kind"].replace("_", " ").lower()),
        ("severity", alert["severity"]),
        ("about", arrow(alert["subject"])),
        ("raised", time_text(alert["raised_ns"])),
        (state, standing_text(alert, now_ns)),
    ]
    if alert["cleared_ns"] is not None:
        rows.append(("cleared", time_text(alert["cleared_ns"])))
    named = {
        "links": [arrow(link) for link in alert["links"]],
        "NICs": alert["nics"],
        "jobs": alert["jobs"],
        "same cause": [arrow(each) for each in alert["grouped"]],
    }
    for name, items in named.items():
        if items:
            rows.append((name, _listed(items)))
    return rows


def ways_on(alert: Record) -> list[tuple[str, str]]:
    """Return (label, address) of where the page shows more: links, hosts of NICs, jobs."""
    links = list(alert["links"]) or [alert["subject"]] * (">" in alert["subject"])
    cables: dict[str, str] = {}
    for link in links:
        cables.setdefault("<>".join(sorted(link.replace("<>", ">").split(">"))), link)
    ways = [(f"{arrow(link)} in the fabric", fabric_address(link=link)) for link in cables.values()]
    if not ways:
        hosts = dict.fromkeys(nic.partition("/")[0] for nic in alert["nics"])
        ways = [(f"{host} in the fabric", fabric_address(node=host)) for host in hosts]
    ways += [(f"job {job}", fabric_address(job=job)) for job in alert["jobs"]]
    return ways[:WAYS]


def time_text(ns: int) -> str:
    """Return a time, to the millisecond."""
    return f"{datetime.fromtimestamp(ns / 1e9, tz=UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def nearest(found: Sequence[tuple[int, Record]], at_ns: int, said: str) -> tuple[int, Record] | None:
    """Return of (append time, record) the one that evidence means.

    That is one which carries `at_ns` itself; else of those whose NIC the evidence's text names, or of all
    where it names none, the one that the log took nearest to it.
    """

    def rank(each: tuple[int, Record]) -> tuple[bool, bool, int]:
        append_ns, record = each
        own = at_ns not in [v for name, v in record.items() if name.endswith("_ns") and isinstance(v, int)]
        named = str(record.get("nic") or "\0") not in said
        return own, named, abs(append_ns - at_ns)

    return min(found, key=rank, default=None)


def fields_of(record: Record) -> list[tuple[str, str]]:
    """Return a record's fields as names and text; long lists are cut."""
    return [(name, _value(name, value)) for name, value in record.items() if value not in (None, [], "")]


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "—"}[value]
    if isinstance(value, int) and name.endswith("_ns"):
        return time_text(value) if value > 10**17 else delay_text(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_value(k, v)}" for k, v in value.items() if v not in (None, [], ""))
    if isinstance(value, list | tuple):
        return _listed([_value(name, each) for each in value], "; ")
    return str(value)


def _listed(items: Sequence[str], between: str = ", ") -> str:
    more = len(items) - SHOWN_ITEMS
    return between.join(items[:SHOWN_ITEMS]) + (f"{between}and {more} more" if more > 0 else "")
