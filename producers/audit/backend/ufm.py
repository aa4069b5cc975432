"""Check of the events of UFM, an InfiniBand fabric's manager, on the host that runs it: faulty ports.

A line is `2026-11-20 10:35:41.231 [14] [110] CRITICAL [Hardware] IBPort [Switch: leaf1 / 3]: Link went down`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, failed, passed, short_lines
from producers.audit.host.base import Host
from schemas.audit_remedy import remedy

FOLDER: Final = "/opt/ufm/files/log"
TAIL: Final = ("tail", "--bytes=4000000", f"{FOLDER}/event.log")
"""Command that prints the newest part of the log, which has gigabytes on a large fabric."""
RECENT_S: Final = 86_400.0
_LINE: Final = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\S* \[\d+\] \[\d+\] (\w+) (?:\[\w+\] )*"
    r"((?:[^\[\]\n]|\[[^\]\n]*\])*?): (.*)$",
    re.MULTILINE,
)
"""An event's line. The object may contain colons within brackets."""
_FAULT: Final = re.compile(
    r"link went down|isolated|symbol (?:error|ber)|high ber|link integrity|buffer overrun|no response|"
    r"node is down|module temperature|excessive",
    re.IGNORECASE,
)
"""Texts of events after which a port should be taken out of use (imbue's and UFM's rules)."""
CHECKS: Final = Checks()


class UfmEvent(NamedTuple):
    """An event in UFM's log. `at_s`: seconds since the Unix epoch."""

    at_s: float
    severity: str
    subject: str
    text: str


def ufm_events(log: str) -> list[UfmEvent]:
    """Return the events in a log, leaving out other lines. Its times are taken as UTC."""
    events = []
    for time, severity, subject, text in _LINE.findall(short_lines(log)):
        try:
            at = datetime.strptime(time, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        except ValueError:  # no such day
            continue
        events.append(UfmEvent(at.timestamp(), severity, subject, text))
    return events


@CHECKS.error("backend.ufm-events", "UFM reports no faulty port", 43, 46)
@remedy.replace("Replace the cable of the port, or isolate it in UFM")
def fabric_events(host: Host) -> Iterator[Finding]:
    """Find ports for which UFM reported a fault within the last day."""
    since_s = host.now_s() - RECENT_S
    counts: dict[tuple[str, str], int] = defaultdict(int)
    host.names(FOLDER)
    for event in ufm_events(host.run(*TAIL)):
        if (
            event.at_s >= since_s
            and event.severity in ("WARNING", "CRITICAL", "MINOR")
            and _FAULT.search(event.text)
        ):
            counts[event.subject, event.text] += 1
    for (subject, text), count in sorted(counts.items()):
        yield failed(f"{text}, {count} times in 24 h", subject)
    if not counts:
        yield passed("no fault of a port in 24 h")
