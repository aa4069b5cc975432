"""Events of UFM, the manager of an InfiniBand fabric, on the host that runs it: ports with faults.

A line is `2026-11-20 10:35:41.231 [14] [110] CRITICAL [Hardware] IBPort [Switch: leaf1 / 3]: Link went down`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, failed, passed, short_lines
from producers.audit.host import Host
from schemas.audit_remedy import remedy

FOLDER: Final = "/opt/ufm/files/log"
TAIL: Final = ("tail", "--bytes=4000000", f"{FOLDER}/event.log")
"""Reads the newest part: the log of a large fabric has gigabytes."""
RECENT_S: Final = 86_400.0
_LINE: Final = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\S* \[\d+\] \[\d+\] (\w+) (?:\[\w+\] )*"
    r"((?:[^\[\]\n]|\[[^\]\n]*\])*?): (.*)$",
    re.MULTILINE,
)
"""The object may have colons within brackets."""
_FAULT: Final = re.compile(
    r"link went down|isolated|symbol (?:error|ber)|high ber|link integrity|buffer overrun|no response|"
    r"node is down|module temperature|excessive",
    re.IGNORECASE,
)
"""Events after which a port is taken out of use (imbue's and UFM's rules)."""
CHECKS: Final = Checks()


class UfmEvent(NamedTuple):
    """An event: seconds since the Unix epoch, severity, object and text."""

    at_s: float
    severity: str
    subject: str
    text: str


def ufm_events(log: str) -> list[UfmEvent]:
    """Return the events of a log, with its times taken as UTC; other lines are left out."""
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
    """Find ports that UFM reported within a day."""
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
