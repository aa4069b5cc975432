"""Events of NICs in the kernel log, with their times: flaps, repeated faults, modules, narrow slots."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, failed, passed
from producers.audit.host import Host
from schemas.audit_remedy import remedy

DAY_S: Final = 86_400.0
MAX_DOWNS_A_DAY: Final = 5
"""Largest number of carrier losses a day that is no error (Azure's checks)."""
OUTAGES: Final = (3, 25.0, DAY_S / 2)
"""(Count, s, s): so many outages of at least the first time, within the second, are flapping (gpud)."""
REPEATS: Final = (3, 3_600.0)
"""(Count, s): so many warnings of one NIC within this time are an error (NVSentinel)."""
_LINE: Final = re.compile(r"^\[\s*(\d+\.\d+)\] (.*)$")
_LINK: Final = re.compile(
    r"(?:^|\s)([A-Za-z][\w.-]{0,14}): (?:NIC )?(?:link|carrier)(?: is| status[^,]*,)? ?(up|down)\b",
    re.IGNORECASE,
)
_MODULE: Final = re.compile(
    r"mlx5_core (\S+?):.*(Cable error|Cable unplugged|insufficient power|ACCESS_REG\S*.*failed"
    r"|unsupported cable)",
    re.IGNORECASE,
)
_SLOT: Final = re.compile(
    r"(?:mlx5_core|ice|bnxt_en|ionic|ena) (\S+?): .*?([\d.]+ Gb/s) available PCIe bandwidth, "
    r"limited by (?!Unknown)(.+)"
)


PATTERNS: Final = (_LINK, _MODULE, _SLOT)
CHECKS: Final = Checks()


class Event(NamedTuple):
    """A line of the kernel log. `at_s`: seconds since boot."""

    at_s: float
    text: str


def events(log: str) -> list[Event]:
    """Return the lines of a log that have a time. Raises ValueError if none of its lines has one."""
    dated_events = [
        Event(float(match[1]), match[2]) for line in log.splitlines() if (match := _LINE.match(line))
    ]
    if log.strip() and not dated_events:
        raise ValueError("the kernel log has no times (printk.time is off)")
    return dated_events


def _link_events(log: Sequence[Event]) -> Mapping[str, list[tuple[float, bool]]]:
    changes: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for event in log:
        match = _LINK.search(event.text)
        if match:
            changes[match[1]].append((event.at_s, match[2].lower() == "up"))
    return changes


def flaps(log: Sequence[Event], now_s: float) -> Iterator[Finding]:
    """Yield a finding per interface; it fails after over five losses of link a day, or three long outages."""
    count, length_s, span_s = OUTAGES
    for name, changes in sorted(_link_events(log).items()):
        downs = sum(not is_up and at_s > now_s - DAY_S for at_s, is_up in changes)
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


def _log(host: Host) -> list[Event]:
    return events(host.run("dmesg", "--kernel"))


def _uptime_s(host: Host) -> float:
    return float(host.read("/proc/uptime").split()[0])


@CHECKS.error("backend.link-flaps", "Links do not flap", 5, 6, 15)
@remedy.replace("Replace the cable or transceiver, then try another switch port")
def link_flaps(host: Host) -> Iterator[Finding]:
    """Find interfaces with a flapping link."""
    findings = list(flaps(_log(host), _uptime_s(host)))
    yield from findings or [passed("no link was lost since the log begins")]


@CHECKS.error("backend.repeated-faults", "No NIC reports three faults within an hour", 16)
@remedy.replace("Replace the cable or transceiver")
def repeated_faults(host: Host) -> Iterator[Finding]:
    """Find NICs with three faults within an hour; losses of link and module events count together."""
    count, span_s = REPEATS
    times: dict[str, list[float]] = defaultdict(list)
    log, now_s = _log(host), _uptime_s(host)
    for name, changes in _link_events(log).items():
        times[name] += [at_s for at_s, is_up in changes if not is_up]
    for event in log:
        match = _MODULE.search(event.text)
        if match:
            times[match[1]].append(event.at_s)
    for name, occurrences in sorted(times.items()):
        recent = sum(at_s > now_s - span_s for at_s in occurrences)
        text = f"{recent} faults within {span_s / 60:g} min"
        yield failed(f"{text}, expected fewer than {count}", name) if recent >= count else passed(text, name)
    if not times:
        yield passed("no NIC reported a fault")


@CHECKS.warning("backend.module-events", "Cables and modules are accepted", 28)
@remedy.replace("Reseat the cable; use one that the NIC supports")
def module_events(host: Host) -> Iterator[Finding]:
    """Find NICs that reported a fault of cable, module or register access."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for event in _log(host):
        match = _MODULE.search(event.text)
        if match:
            counts[match[1], match[2]] += 1
    for (name, text), number in sorted(counts.items()):
        yield failed(f"{text}, {number} times since boot", name)
    if not counts:
        yield passed("no fault of a cable or module since boot")


@CHECKS.error("backend.slot-bandwidth", "Slots do not limit NICs", 29)
@remedy.replace("Move the NIC to a slot of full width, or reseat it")
def limited_slots(host: Host) -> Iterator[Finding]:
    """Find NICs whose bandwidth a slot or bridge limits, as the kernel logs when the driver starts.

    Slots of some virtual machines have no width; their lines say 'limited by Unknown x0 link'.
    """
    matches = {match[1]: match for event in _log(host) if (match := _SLOT.search(event.text))}
    for name, match in sorted(matches.items()):
        yield failed(f"{match[2]} of PCIe bandwidth, limited by {match[3]}", name)
    if not matches:
        yield passed("no NIC is limited by its slot")
