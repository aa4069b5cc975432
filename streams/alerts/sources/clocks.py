"""Raises alerts from clock offsets: too many clocks are UNSYNCED, or log time is wrong.

Fabric time starts at the median of the hosts' system clocks and never steps. So `log_offset_ns`, fabric time
minus append time, shows the difference between the log's clock and the hosts' clocks. Simulated hosts have no
system clocks for this comparison, and a slow simulation leaves too few probes for a window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from schemas.ids import host_of
from schemas.log_time import WindowOrder, is_log_time_wrong
from schemas.records import AlertKind, ClockOffsets, ClockSync, LinkHealth, LinkState, Severity
from schemas.topics import CLOCK_OFFSETS
from streams.alerts.book import AlertBook, OpenAlert, clock_text, evidence_ref
from streams.alerts.rules import MAX_NAMES, NEVER_NS
from streams.alerts.sources.link_health import nodes_of
from streams.alerts.sources.simulation import SimulationAlerts
from streams.runtime.units import NS_PER_S

LOG_SUBJECT: Final = "log"
"""Subject of the alert that log time is wrong."""


@dataclass(slots=True)
class _Window:
    """The clocks of one window, from the parts of its record received so far."""

    parts: set[int] = field(default_factory=set)
    count: int = 0
    unsynced: list[str] = field(default_factory=list)


class ClockAlerts:
    """Raises alerts from `ClockOffsets` records.

    `health`: newest link health; clocks of dead hosts are ignored.

    `is_duplicate`: whether two agents share a host's name, which has an alert of its own. `simulation`:
    whether the shard's NICs are simulated, and slow.
    """

    def __init__(
        self,
        book: AlertBook,
        health: Mapping[str, LinkHealth],
        simulation: SimulationAlerts,
        is_duplicate: Callable[[str], bool] = lambda host: False,
    ) -> None:
        self._book, self._health, self._simulation = book, health, simulation
        self._is_duplicate = is_duplicate
        self._windows: dict[int, _Window] = {}
        self._order = WindowOrder()
        self._unsynced_from_ns: int | None = None

    def ingest(self, record: ClockOffsets) -> None:
        """Take one part of a window of clock offsets."""
        self._evaluate_log_time(record)
        number = record["window"]
        if self._order.steps_back(record) and self._windows and max(self._windows) > number:
            self._windows.clear()
        if self._windows and number < max(self._windows):
            return
        window = self._windows.setdefault(number, _Window())
        if record["part"] in window.parts:
            return
        window.parts.add(record["part"])
        dead = {
            h for r in self._health.values() if r["state"] == LinkState.DOWN for h in nodes_of(r["subject"])
        }
        hosts = {host_of(c["clock"]) for c in record["clocks"]}
        dead |= {host for host in hosts if self._is_duplicate(host)}
        counted = [c for c in record["clocks"] if host_of(c["clock"]) not in dead]
        window.count += len(counted)
        window.unsynced += [c["clock"] for c in counted if c["state"] == ClockSync.UNSYNCED]
        if len(window.parts) >= record["parts"]:
            self._windows = {number: window}
            self._evaluate(window, record)

    def _evaluate(self, window: _Window, record: ClockOffsets) -> None:
        """Raise, hold or end the alert about unsynced clocks, given a complete window."""
        book = self._book
        unsynced = sorted(window.unsynced)
        percent = 100 * len(unsynced) / max(window.count, 1)
        alert = book.find(AlertKind.CLOCKS, book.shard)
        end_ns = record["window_end_ns"]
        if not unsynced or percent < book.thresholds["alert_clocks_percent"]:
            self._unsynced_from_ns = None
            if alert is not None and alert.clear_at_ns == NEVER_NS and end_ns > alert.raised_ns:
                alert.over_ns = end_ns
                alert.clear_at_ns = book.now_ns + book.thresholds.ns("alert_clear_s")
            return
        if self._simulation.is_slow:
            self._unsynced_from_ns = None
            return
        if alert is not None:
            alert.clear_at_ns = NEVER_NS
            return
        if self._unsynced_from_ns is None:
            self._unsynced_from_ns = record["window_start_ns"]
        since_ns = self._unsynced_from_ns
        is_long = end_ns - since_ns >= book.thresholds.ns("alert_clocks_s")
        if is_long and not book.was_covered(book.shard, since_ns):
            self._raise(unsynced, window.count, since_ns, record)

    def _evaluate_log_time(self, record: ClockOffsets) -> None:
        """Raise, hold or end the alert that log time is wrong."""
        book, end_ns = self._book, record["window_end_ns"]
        ahead_s = -record["log_offset_ns"] / NS_PER_S
        alert = book.find(AlertKind.CLOCKS, LOG_SUBJECT)
        if self._simulation.is_simulated or not is_log_time_wrong(ahead_s):
            if alert is not None and alert.clear_at_ns == NEVER_NS and end_ns > alert.raised_ns:
                alert.over_ns = end_ns
                alert.clear_at_ns = book.now_ns + book.thresholds.ns("alert_clear_s")
            return
        if alert is not None:
            alert.clear_at_ns = NEVER_NS
            return
        text = (
            f"log time is {abs(ahead_s):,.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the hosts' system "
            f"clocks since {clock_text(record['window_start_ns'])}: correct the clock of the log's host"
        )
        alert = OpenAlert(
            kind=AlertKind.CLOCKS,
            subject=LOG_SUBJECT,
            severity=Severity.CRITICAL,
            raised_ns=record["window_start_ns"],
            updated_ns=end_ns,
            text=text,
            evidence=[
                evidence_ref(CLOCK_OFFSETS.name, f"{book.shard}/0", record["window_start_ns"], text),
            ],
            members={LOG_SUBJECT},
        )
        book.raise_alert(alert)

    def _raise(self, unsynced: list[str], count: int, since_ns: int, record: ClockOffsets) -> None:
        shard = self._book.shard
        more = f" and {len(unsynced) - 3} more" if len(unsynced) > 3 else ""
        text = (
            f"{len(unsynced)} of {count} clocks are UNSYNCED since {clock_text(since_ns)}: "
            f"{', '.join(unsynced[:3])}{more}; do not trust absolute delays"
        )
        alert = OpenAlert(
            kind=AlertKind.CLOCKS,
            subject=shard,
            severity=Severity.WARNING,
            raised_ns=since_ns,
            updated_ns=record["window_end_ns"],
            text=text,
            grouped=unsynced[:MAX_NAMES],
            evidence=[evidence_ref(CLOCK_OFFSETS.name, f"{shard}/0", record["window_start_ns"], text)],
            members={shard},
        )
        self._book.raise_alert(alert)
