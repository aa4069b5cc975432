"""Events of NICs in the kernel log, with their times: flaps, repeated faults, modules, narrow slots."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from producers.audit.base import Checks, Finding, failed, passed
from producers.audit.host.base import Host
from producers.audit.logs.kernel_log import log_lines, ruled, uptime_s
from producers.audit.logs.lines import Line
from producers.audit.logs.rules import HOUR_S, REPEATS, Matcher, events_of, rules
from schemas.audit_remedy import remedy

DAY_S: Final = 86_400.0
MAX_DOWNS_A_DAY: Final = 5
"""Largest number of carrier losses a day that is no error (Azure's checks)."""
OUTAGES: Final = (3, 25.0, DAY_S / 2)
"""(Count, s, s): so many outages of at least the first time, within the second, are flapping (gpud)."""
LINK: Final = re.compile(
    r"^(?:\w+: )?(?:(?!NIC |Device |Link |Carrier )(?P<name>[A-Za-z][\w.-]{0,14}):? )?(?:NIC |Device )?"
    r"(?:link|carrier)(?: is| status[^,]*,)? ?(?P<state>up|down)\b|^Port:? \d+ Link (?P<port>ACTIVE|DOWN)\b",
    re.IGNORECASE,
)
"""Text by which drivers say that a link came up or went down; some put the interface into the text."""
_FAULTS: Final = ("backend.module-events", "kernel-log.nic")
"""Checks whose lines in the kernel log are faults of a NIC."""
CHECKS: Final = Checks()


def link_changes(lines: Iterable[Line]) -> Mapping[str, list[tuple[float, bool]]]:
    """Return the times, s since boot, at which links came up (True) or went down, by interface."""
    changes: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for line in lines:
        match = LINK.match(line.text)
        if match:
            state = (match["state"] or match["port"]).lower()
            changes[line.name or match["name"] or line.subject].append((line.at_s, state in ("up", "active")))
    return changes


def _losses(changes: Sequence[tuple[float, bool]]) -> list[float]:
    """Return the times of an interface's losses of link, s. Some drivers only log that a link came up: a link
    that comes up twice in a row was lost between.
    """
    was_up, losses_s = False, []
    for at_s, is_up in changes:
        if was_up or not is_up:
            losses_s.append(at_s)
        was_up = is_up
    return losses_s


def flaps(lines: Iterable[Line], now_s: float) -> Iterator[Finding]:
    """Yield a finding per interface; it fails after over five losses of link a day, or three long outages."""
    count, length_s, span_s = OUTAGES
    for name, changes in sorted(link_changes(lines).items()):
        downs = sum(at_s > now_s - DAY_S for at_s in _losses(changes))
        ends = [*changes[1:], (now_s, True)]
        long = sum(
            not is_up and at_s > now_s - span_s and end_s - at_s >= length_s
            for (at_s, is_up), (end_s, _) in zip(changes, ends, strict=True)
        )
        if downs > MAX_DOWNS_A_DAY:
            yield failed(f"lost its link {downs} times in 24 h, expected at most {MAX_DOWNS_A_DAY}", name)
        elif long >= count:
            yield failed(f"{long} outages of {length_s:g} s or more in {span_s / 3600:g} h", name)
        else:
            yield passed(f"lost its link {downs} times in 24 h", name)


@CHECKS.error("backend.link-flaps", "Links do not flap", 5, 6, 15)
@remedy.replace("Replace the cable or transceiver, then try another switch port")
def link_flaps(host: Host) -> Iterator[Finding]:
    """Find interfaces with a flapping link."""
    findings = list(flaps(log_lines(host), uptime_s(host)))
    yield from findings or [passed("no link was lost since the log begins")]


@CHECKS.error("backend.repeated-faults", "No NIC reports three faults within an hour", 16)
@remedy.replace("Replace the cable or transceiver")
def repeated_faults(host: Host) -> Iterator[Finding]:
    """Find NICs with three faults within an hour; link losses, module events and NIC faults count alike."""
    count, hours = REPEATS
    times: dict[str, list[float]] = defaultdict(list)
    lines, now_s = list(log_lines(host)), uptime_s(host)
    for name, changes in link_changes(lines).items():
        times[name] += [at_s for at_s, is_up in changes if not is_up]
    for event in events_of(lines, Matcher([rule for check in _FAULTS for rule in rules(check)]).find):
        times[event.subject].append(event.first_s)
    for name, occurrences in sorted(times.items()):
        recent = sum(at_s > now_s - hours * HOUR_S for at_s in occurrences)
        text = f"{recent} faults within {hours * 60:g} min"
        yield failed(f"{text}, expected fewer than {count}", name) if recent >= count else passed(text, name)
    if not times:
        yield passed("no NIC reported a fault")


@CHECKS.warning("backend.module-events", "Cables and modules are accepted", 28)
@remedy.replace("Reseat the cable; use one that the NIC supports")
def module_events(host: Host) -> Iterator[Finding]:
    """Find NICs that reported a fault of cable, module or register access."""
    return ruled(host, "backend.module-events", "no fault of a cable or module since boot")


@CHECKS.error("backend.slot-bandwidth", "Slots do not limit NICs", 29)
@remedy.replace("Move the NIC to a slot of full width, or reseat it")
def limited_slots(host: Host) -> Iterator[Finding]:
    """Find NICs whose bandwidth a slot or bridge limits, as the kernel logs when the driver starts.

    Slots of some virtual machines have no width; their lines say 'limited by Unknown x0 link'.
    """
    return ruled(host, "backend.slot-bandwidth", "no NIC is limited by its slot")
