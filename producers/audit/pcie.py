"""PCIe checks: link width and speed, error counters, access control services."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from producers.audit.base import Check, Finding, checked
from producers.audit.host import Host, Missing
from schemas.records import AuditAction, AuditCategory, AuditSeverity, AuditStatus

__all__ = ["CHECKS"]

DEVICES: Final = "/sys/bus/pci/devices"
CLASSES: Final = {"0x0200": "NIC", "0x0207": "NIC", "0x0300": "GPU", "0x0302": "GPU", "0x0108": "NVMe"}
"""Classes of devices whose bandwidth a job needs (PCI Code and ID Assignment Specification)."""
ACS_CAPABILITY: Final = 0x0D
ACS_FORWARDING: Final = 0b0111_1100
"""ACS controls that send peer-to-peer traffic through the root complex (PCIe base specification, 7.7.11)."""


def gigatransfers(speed: str) -> float:
    """Return GT/s from sysfs text such as `16.0 GT/s PCIe`."""
    value, _, unit = speed.partition(" ")
    if not unit.startswith("GT/s"):
        raise ValueError(f"PCIe speed {speed!r:.60}, expected GT/s")
    return float(value)


def aer_errors(text: str) -> int:
    """Return the total of an `aer_dev_*` file."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name.startswith("TOTAL"):
            return int(value)
    raise ValueError("no line TOTAL_ERR_*")


def _devices(host: Host) -> Iterator[tuple[str, str]]:
    """Yield the address and kind of each device that a job needs."""
    found = False
    for address in host.names(DEVICES):
        kind = CLASSES.get(host.read(f"{DEVICES}/{address}/class")[:6])
        if kind is not None:
            found = True
            yield address, kind
    if not found:
        raise Missing("no NIC, GPU or NVMe on PCIe")


def _link(host: Host) -> Iterator[Finding]:
    for address, kind in _devices(host):
        folder, subject = f"{DEVICES}/{address}", f"{kind} {address}"
        try:
            width, maximum = (int(host.read(f"{folder}/{when}_link_width")) for when in ("current", "max"))
            speed, top = (host.read(f"{folder}/{when}_link_speed") for when in ("current", "max"))
        except Missing:
            yield Finding(subject, AuditStatus.SKIPPED, "no PCIe link: a virtual device")
            continue
        if maximum in (0, 255) or speed == "Unknown":
            yield Finding(subject, AuditStatus.SKIPPED, "no PCIe link: a virtual device")
            continue
        is_full = width == maximum and gigatransfers(speed) == gigatransfers(top)
        yield checked(is_full, f"x{width} at {speed}, capable of x{maximum} at {top}", subject)


def _errors(host: Host) -> Iterator[Finding]:
    for address, kind in _devices(host):
        folder, subject = f"{DEVICES}/{address}", f"{kind} {address}"
        try:
            counts = {
                name: aer_errors(host.read(f"{folder}/aer_dev_{name}"))
                for name in ("fatal", "nonfatal", "correctable")
            }
        except Missing:
            yield Finding(subject, AuditStatus.SKIPPED, "no advanced error reporting")
            continue
        text = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        yield checked(
            not counts["fatal"] and not counts["nonfatal"], f"AER errors since boot: {text}", subject
        )


def acs_redirects(config: bytes) -> bool | None:
    """Return whether a bridge redirects peer-to-peer traffic; None without the ACS capability.

    `config`: extended configuration space. A capability's header is its 16-bit id, then 4 bits of version
    and 12 bits of the next offset (PCIe base specification, 7.6.3).
    """
    offset = 0x100
    for _ in range(64):
        if offset < 0x100 or offset + 8 > len(config):
            return None
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == ACS_CAPABILITY:
            return bool(int.from_bytes(config[offset + 6 : offset + 8], "little") & ACS_FORWARDING)
        offset = header >> 20
    return None


def _acs(host: Host) -> Iterator[Finding]:
    bridges = [
        each for each in host.names(DEVICES) if host.read(f"{DEVICES}/{each}/class").startswith("0x0604")
    ]
    if not bridges:
        raise Missing("no PCIe bridge")
    for address in bridges:
        config = host.read_bytes(f"{DEVICES}/{address}/config")
        if len(config) <= 0x100:
            text = "the extended configuration space is not readable without root"
            yield Finding(address, AuditStatus.UNKNOWN, text)
            continue
        redirects = acs_redirects(config)
        if redirects is not None:
            text = "ACS sends GPU-to-NIC traffic through the processor" if redirects else "ACS is off"
            yield checked(not redirects, text, address)


CHECKS: Final = (
    Check(
        "pcie.link", AuditCategory.PCIE, "PCIe links have full width and speed", _link, AuditSeverity.ERROR,
        AuditAction.REPLACE, "Reseat the card; if it stays, replace card or riser", rows=(29, 72),
    ),
    Check(
        "pcie.errors", AuditCategory.PCIE, "PCIe devices report no uncorrectable errors", _errors,
        AuditSeverity.ERROR, AuditAction.RESET,
        "`dmesg | grep AER`; reseat or replace the card if they return", rows=(72,),
    ),
    Check(
        "pcie.acs", AuditCategory.PCIE, "PCIe peers talk directly (ACS off)", _acs, AuditSeverity.WARNING,
        AuditAction.REBOOT, "Turn ACS off in the firmware or by setpci; virtual machines need it on",
        rows=(78,),
    ),
)  # fmt: skip
