"""Checks of the kernel log: GPU errors (XID, SXID), faults of NICs and of the machine.

A line of the log shows that a fault occurred since boot. A later line can end the fault: a reset succeeded,
a link came back up, a device was found again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from producers.audit.base import Checks, Finding, passed
from producers.audit.gpu.xids import XidFinder, find_sxid
from producers.audit.host.base import Host, NotRecorded
from producers.audit.logs.lines import Line, read_lines
from producers.audit.logs.rules import Event, Find, Matcher, events_of, findings, rules
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

CHECKS: Final = Checks()
LOG: Final = ("dmesg", "--kernel")


def log_lines(host: Host) -> Iterator[Line]:
    """Return the lines of the host's kernel log. Raises Missing, Unreadable."""
    return read_lines(host.run(*LOG))


def uptime_s(host: Host) -> float:
    """Return the time since boot, or that of the log's last line if unknown. Raises Missing, Unreadable."""
    try:
        return float(host.read("/proc/uptime").split()[0])
    except NotRecorded:
        return max((line.at_s for line in log_lines(host)), default=0.0)


def events_since_boot(host: Host, find: Find, quiet: str) -> Iterator[Finding]:
    """Yield a finding per device and fault that `find` finds in the log, or one with the text `quiet`."""
    events = events_of(log_lines(host), find)
    yield from findings(events, uptime_s(host)) if events else (passed(quiet),)


def ruled(host: Host, check_id: str, quiet: str) -> Iterator[Finding]:
    """Yield a finding per device and fault by the rules of a check."""
    return events_since_boot(host, Matcher(rules(check_id)).find, quiet)


@CHECKS.error("kernel-log.xid", "GPUs reported no fault (XID)", 60, 62, 63, 64)
@remedy.reset("Each finding names its action: reset the GPU, reboot or replace")
def _xid(host: Host) -> Iterator[Finding]:
    finder, matcher = XidFinder(), Matcher(rules("kernel-log.xid"))
    events = events_of(log_lines(host), lambda line: finder.find(line) or matcher.find(line))
    listed = [event for event in events if event.rule.source]
    yield from findings(listed, uptime_s(host)) if listed else ()
    yield from (_unlisted(event) for event in events if not event.rule.source)
    if not events:
        yield passed("no XID since boot")


def _unlisted(event: Event) -> Finding:
    return Finding(event.subject, AuditStatus.UNKNOWN, event.text)


@CHECKS.error("kernel-log.sxid", "NVSwitches reported no fatal error (SXid)", 61)
@remedy.reboot("Reset all GPUs and NVSwitches of the host, or reboot")
def _sxid(host: Host) -> Iterator[Finding]:
    return events_since_boot(host, find_sxid, "no SXid since boot")


@CHECKS.error("kernel-log.amd-gpu", "AMD GPUs reported no fault", 80)
@remedy.reset("Reset the GPU (`amd-smi reset --gpureset`); replace it if the fault returns")
def _amd_gpu(host: Host) -> Iterator[Finding]:
    return ruled(host, "kernel-log.amd-gpu", "no fault of an AMD GPU since boot")


@CHECKS.error("kernel-log.nic", "NICs reported no fault", 27, 28)
@remedy.reset("Reset the NIC (mlxfwreset), check transceiver and slot")
def _nic(host: Host) -> Iterator[Finding]:
    return ruled(host, "kernel-log.nic", "no fault of a NIC since boot")


@CHECKS.error("kernel-log.machine", "The machine reported no fault", 86, 89, 91)
@remedy.reboot("Reboot; replace the part that fails again")
def _machine(host: Host) -> Iterator[Finding]:
    return ruled(host, "kernel-log.machine", "no fault of the machine since boot")


@CHECKS.warning("kernel-log.collective-library", "NCCL and RCCL crashed no program", 56)
@remedy.monitor("Compare the library's version with the fleet's; a core dump names the call")
def _library(host: Host) -> Iterator[Finding]:
    return ruled(host, "kernel-log.collective-library", "no crash in a collective library since boot")
