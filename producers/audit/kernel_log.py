"""Checks of the kernel log: GPU errors (XID, SXID), faults of NICs and of the machine, and what to do.

A line of the log shows that a fault occurred since boot. It does not show whether the fault persists.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, failed, passed, short_lines
from producers.audit.host import Host
from producers.audit.nic_log import DAY_S, events
from schemas.audit_remedy import remedy
from schemas.records import AuditAction

CHECKS: Final = Checks()


class Xid(NamedTuple):
    """Meaning of an XID error, and what to do."""

    text: str
    action: AuditAction
    is_fault: bool
    """False if a faulty program can cause the error as well as a faulty GPU."""


XIDS: Final[Mapping[int, Xid]] = {
    13: Xid("graphics engine exception", AuditAction.MONITOR, is_fault=False),
    31: Xid("memory page fault of a program", AuditAction.MONITOR, is_fault=False),
    43: Xid("a program's channel was stopped", AuditAction.MONITOR, is_fault=False),
    45: Xid("a program was ended early", AuditAction.MONITOR, is_fault=False),
    48: Xid("uncorrectable ECC error", AuditAction.RESET, is_fault=True),
    61: Xid("internal microcontroller breakpoint", AuditAction.RESET, is_fault=True),
    62: Xid("internal microcontroller halt", AuditAction.RESET, is_fault=True),
    63: Xid("a memory row was remapped", AuditAction.RESET, is_fault=False),
    64: Xid("a memory row could not be remapped", AuditAction.REPLACE, is_fault=True),
    69: Xid("graphics engine class error", AuditAction.MONITOR, is_fault=False),
    74: Xid("NVLink error", AuditAction.RESET, is_fault=True),
    79: Xid("the GPU fell off the bus", AuditAction.REBOOT, is_fault=True),
    92: Xid("many correctable ECC errors", AuditAction.MONITOR, is_fault=False),
    94: Xid("contained ECC error: the program was ended", AuditAction.RESET, is_fault=True),
    95: Xid("uncontained ECC error: all programs were ended", AuditAction.REBOOT, is_fault=True),
    109: Xid("context switch time-out", AuditAction.RESET, is_fault=True),
    119: Xid("GSP firmware did not answer", AuditAction.RESET, is_fault=True),
    120: Xid("GSP firmware error", AuditAction.RESET, is_fault=True),
    121: Xid("correctable error of the chip-to-chip link", AuditAction.MONITOR, is_fault=False),
    140: Xid("unrecovered ECC error", AuditAction.RESET, is_fault=True),
    143: Xid("the GPU did not start", AuditAction.REBOOT, is_fault=True),
    149: Xid("NVLink error that needs a reset", AuditAction.RESET, is_fault=True),
}
"""XID errors that decide whether a GPU is fit (NVIDIA, 'XID Errors')."""

REPEATS: Final = 5
"""From this number within a day on, XIDs that programs can cause show a fault as well (NVSentinel)."""
_XID: Final = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")
_SXID: Final = re.compile(r"nvidia-nvswitch\d*: SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+), (Fatal|Non-fatal)")
_NIC: Final = (
    (re.compile(r"mlx5_core (\S+?):.*(?:health compromised|Fatal error|fatal error|command timeout)", re.I),
     "firmware fault of the NIC"),
    (re.compile(r"mlx5_core (\S+?):.*(?:high temperature|over temperature|temperature.*exceed)", re.I),
     "the transceiver is too hot"),
    (re.compile(r"NETDEV WATCHDOG: (\S+?)[: (].*transmit queue \d+ timed out", re.I),
     "a transmit queue is stuck"),
)  # fmt: skip
_MACHINE: Final = (
    (
        re.compile(r"Machine Check Exception: \d|\[Hardware Error\]: (?:Uncorrected|Deferred|Fatal)", re.I),
        "uncorrected machine check",
    ),
    (re.compile(r"watchdog: BUG: soft lockup"), "soft lockup"),
    (re.compile(r"INFO: task (\S+) blocked for more than"), "a task was blocked for minutes"),
    (re.compile(r"EDAC .*\bUE\b"), "uncorrectable memory error"),
    (re.compile(r"(?:I/O|critical medium) error, dev (?!fd\d|sr\d|loop)(\S+?),"), "I/O error of a disk"),
    (re.compile(r"clocksource: .*(?:unstable|Marking clocksource)"), "the clock source is unstable"),
)
_LIBRARY: Final = (
    (
        re.compile(r"(\S+?)\[\d+\]: segfault at .* in lib[nr]ccl[\w.-]*\["),
        "the collective library crashed a program",
    ),
)


PATTERNS: Final = (_XID, _SXID, *(pattern for pattern, _ in (*_NIC, *_MACHINE, *_LIBRARY)))
"""Patterns of all lines that this module's checks evaluate."""


def xids(log: str) -> Iterator[tuple[str, int]]:
    """Yield (PCI address, number) of each XID in the kernel log."""
    for match in _XID.finditer(log):
        yield match[1], int(match[2])


def lines_with(log: str, rules: tuple[tuple[re.Pattern[str], str], ...]) -> Iterator[Finding]:
    """Yield a failed finding, with the number of lines, for each rule and subject found in the log."""
    counts: dict[tuple[str, str], int] = {}
    for line in short_lines(log).splitlines():
        for pattern, text in rules:
            match = pattern.search(line)
            if match:
                subject = match[1] if pattern.groups else ""
                counts[subject, text] = counts.get((subject, text), 0) + 1
    for (subject, text), count in sorted(counts.items()):
        yield failed(f"{text}, {count} lines" if count > 1 else text, subject)


def _log(host: Host) -> str:
    return host.run("dmesg", "--kernel", "--notime")


@CHECKS.error("kernel-log.xid", "GPUs reported no fault (XID)", 60, 62, 63, 64)
@remedy.reset("Each finding names its action: reset the GPU, reboot or replace")
def _xid(host: Host) -> Iterator[Finding]:
    counts: dict[tuple[str, int], int] = {}
    for device, number in xids(_log(host)):
        counts[device, number] = counts.get((device, number), 0) + 1
    is_quiet, recent = True, _recent(host) if max(counts.values(), default=0) >= REPEATS else {}
    for (device, number), count in sorted(counts.items()):
        xid = XIDS.get(number, Xid("not in the catalogue", AuditAction.MONITOR, is_fault=False))
        text = f"XID {number}, {xid.text}, {count} times; action {xid.action}"
        if xid.is_fault or recent.get((device, number), 0) >= REPEATS:
            is_quiet = False
            yield failed(text, f"GPU {device}")
        else:
            yield passed(text, f"GPU {device}")
    if is_quiet and not counts:
        yield passed("no XID since boot")


def _recent(host: Host) -> dict[tuple[str, int], int]:
    """Return how often each (device, XID) occurred within the last day."""
    since_s = float(host.read("/proc/uptime").split()[0]) - DAY_S
    log = events(host.run("dmesg", "--kernel"))
    return Counter(xids("\n".join(event.text for event in log if event.at_s >= since_s)))


@CHECKS.error("kernel-log.sxid", "NVSwitches reported no fatal error (SXid)", 61)
@remedy.reboot("Reset all GPUs and NVSwitches of the host, or reboot")
def _sxid(host: Host) -> Iterator[Finding]:
    any_sxid = False
    for match in _SXID.finditer(_log(host)):
        any_sxid = True
        text = f"SXid {match[2]}, {match[3].lower()}"
        yield (
            failed(text, f"NVSwitch {match[1]}")
            if match[3] == "Fatal"
            else passed(text, f"NVSwitch {match[1]}")
        )
    if not any_sxid:
        yield passed("no SXid since boot")


@CHECKS.error("kernel-log.nic", "NICs reported no fault", 27, 28)
@remedy.reset("Reset the NIC (mlxfwreset), check transceiver and slot")
def _nic(host: Host) -> Iterator[Finding]:
    faults = list(lines_with(_log(host), _NIC))
    yield from faults or [passed("no fault of a NIC since boot")]


@CHECKS.error("kernel-log.machine", "The machine reported no fault", 86, 89, 91)
@remedy.reboot("Reboot; replace the part that fails again")
def _machine(host: Host) -> Iterator[Finding]:
    faults = list(lines_with(_log(host), _MACHINE))
    yield from faults or [passed("no fault of the machine since boot")]


@CHECKS.warning("kernel-log.collective-library", "NCCL and RCCL crashed no program", 56)
@remedy.monitor("Compare the library's version with the fleet's; a core dump names the call")
def _library(host: Host) -> Iterator[Finding]:
    faults = list(lines_with(_log(host), _LIBRARY))
    yield from faults or [passed("no crash in a collective library since boot")]
