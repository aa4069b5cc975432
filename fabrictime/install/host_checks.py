"""Checks of a host for its agent: kernel, capabilities, ports, NICs, time stamps, clock."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Iterator, Sequence
from typing import Final

from fabrictime.install.outcome import Level, Outcome, audited
from producers.audit.checks import CHECKS
from producers.audit.host.base import Host, Unreadable
from producers.netns import in_netns
from producers.ports.ethtool import TimeStamps, time_stamps
from producers.settings import FlowSettings, NicSettings, ProbeSettings
from schemas.ids import nic_id

MIN_KERNEL: Final = (5, 7)
"""Before Linux 5.7, binding a socket to a device needs CAP_NET_RAW."""
CAPABILITIES: Final = {
    "CAP_NET_RAW": (13, "routes of TCP flows are not traced"),
    "CAP_NET_ADMIN": (12, "hardware time stamps cannot be switched on, flows cannot be paced"),
    "CAP_SYS_NICE": (23, "probers wait behind other programs for a processor"),
    "CAP_SYSLOG": (34, "the audit does not see errors in the kernel log"),
}
"""Capability to its bit in Linux' capability.h, and to the loss without it."""
AUDITS: Final = {
    "host": ("frontend.arp", "frontend.reverse-path", "frontend.port-clash"),
    "clock": (
        *("node.clock-source", "node.clock-synchronised", "frontend.clock-service"),
        *("frontend.chrony", "frontend.ptp", "frontend.hardware-clocks"),
    ),
}
"""Audit checks that concern the agent, by area."""


def host_outcomes(
    host: Host, nics: Sequence[NicSettings], probes: ProbeSettings, flows: FlowSettings
) -> Iterator[Outcome]:
    """Yield the outcomes of the checks of host, NICs and clock."""
    yield _kernel(host)
    yield from _capabilities(host)
    yield _port_range(host, flows)
    for check_id in AUDITS["host"]:
        yield from audited("host", CHECKS[check_id], host)
    for nic in nics:
        yield from _nic(nic, probes)
    yield from _ptp(nics, host)
    for check_id in AUDITS["clock"]:
        yield from audited("clock", CHECKS[check_id], host)


def _kernel(host: Host) -> Outcome:
    release = host.read("/proc/sys/kernel/osrelease")
    match = re.match(r"(\d+)\.(\d+)", release)
    expected = ".".join(map(str, MIN_KERNEL))
    if match is None:
        return Outcome(
            "host", "kernel", Level.WARNING, f"release {release!r}", f"use Linux {expected} or later"
        )
    if (int(match[1]), int(match[2])) < MIN_KERNEL:
        text = f"Linux {release}, expected {expected} or later"
        return Outcome("host", "kernel", Level.FAILED, text, "update the kernel")
    return Outcome("host", "kernel", Level.OK, f"Linux {release}")


def _capabilities(host: Host) -> Iterator[Outcome]:
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", host.read("/proc/self/status"), re.MULTILINE)
    effective = int(match[1], 16) if match else 0
    for name, (bit, loss) in CAPABILITIES.items():
        if effective >> bit & 1:
            yield Outcome("host", name, Level.OK, "this process has it")
        else:
            fix = f"run it as root, or add {name} to AmbientCapabilities= of the unit"
            yield Outcome("host", name, Level.WARNING, f"missing: {loss}", fix)


def _port_range(host: Host, flows: FlowSettings) -> Outcome:
    """Check that the kernel's ephemeral ports exclude the source ports to which flows may be moved."""
    path = "/proc/sys/net/ipv4/ip_local_port_range"
    first, last = map(int, host.read(path).split())
    limit = flows.first_candidate_port
    if last < limit:
        return Outcome("host", "port-range", Level.OK, f"{first} to {last}, below {limit}")
    fix = f"sysctl -w net.ipv4.ip_local_port_range='{min(first, limit - 2)} {limit - 1}'"
    text = f"the kernel assigns {first} to {last}, but flows may be moved to {limit} and above"
    return Outcome("host", "port-range", Level.WARNING, text, fix)


def _nic(nic: NicSettings, probes: ProbeSettings) -> Iterator[Outcome]:
    name = nic_id(nic.host, nic.device)
    try:
        with contextlib.closing(in_netns(nic.netns, lambda: _bound(nic, probes.udp_port))):
            yield Outcome("nics", f"{name} socket", Level.OK, f"UDP port {probes.udp_port} is free")
    except OSError as error:
        yield _socket_fault(name, nic, probes, error)
        if error.errno != errno.EADDRINUSE:
            return
    yield in_netns(nic.netns, lambda: _stamps(name, nic, probes))


def _bound(nic: NicSettings, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in nic.address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        scope = (0, socket.if_nametoindex(nic.device)) if family == socket.AF_INET6 else ()
        opened.bind((nic.address, port, *scope))
    except OSError:
        opened.close()
        raise
    return opened


def _socket_fault(name: str, nic: NicSettings, probes: ProbeSettings, error: OSError) -> Outcome:
    check, port = f"{name} socket", probes.udp_port
    match error.errno:
        case errno.EADDRINUSE:
            text = f"UDP port {port} is in use: by the agent, if it runs"
            return Outcome("nics", check, Level.OK, text)
        case errno.EADDRNOTAVAIL:
            fix = f"correct the address in the fleet file: ip address show dev {nic.device}"
            return Outcome("nics", check, Level.FAILED, f"this host has no address {nic.address}", fix)
        case _:
            fix = f"ip link show dev {nic.device}; correct the fleet file, or run it as root"
            return Outcome("nics", check, Level.FAILED, error.strerror or str(error), fix)


def _stamps(name: str, nic: NicSettings, probes: ProbeSettings) -> Outcome:
    """Check whether the NIC or only the kernel can time-stamp packets."""
    check = f"{name} time stamps"
    if not probes.hardware_stamps:
        return Outcome("nics", check, Level.OK, "by the kernel, as probes.hardware_stamps = false demands")
    try:
        stamps = _time_stamps(nic.device)
    except OSError as error:
        text = f"not known: {error.strerror or error}"
        return Outcome(
            "nics", check, Level.WARNING, text, f"ethtool -T {nic.device} shows the driver's answer"
        )
    if stamps.hardware:
        return Outcome("nics", check, Level.OK, f"by the NIC, clock /dev/ptp{stamps.clock}")
    if stamps.software:
        return Outcome("nics", check, Level.OK, "by the kernel: the NIC does not stamp every packet")
    fix = "update the driver, or probe from another NIC; the bound of this clock is wide"
    return Outcome("nics", check, Level.WARNING, "the driver has neither hardware nor software stamps", fix)


def _time_stamps(device: str) -> TimeStamps:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        return time_stamps(opened, device)


def _ptp(nics: Sequence[NicSettings], host: Host) -> Iterator[Outcome]:
    """Check that this user can read the PTP hardware clocks of the NICs."""
    for nic in nics:
        try:
            clocks = host.names(f"/sys/class/net/{nic.device}/device/ptp")
        except Unreadable:
            continue
        for clock in clocks:
            path = f"/dev/{clock}"
            if not os.access(path, os.R_OK | os.W_OK):
                fix = f"run it as root, or: chgrp fabrictime {path}; chmod g+rw {path}"
                yield Outcome("clock", path, Level.WARNING, "this user cannot open it", fix)
