"""PCIe checks: link width and speed, error counters, access control services."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, checked
from producers.audit.gpu.sku import DEVICES, GPU_CLASSES, saves_power
from producers.audit.host.base import Host, Missing
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

NO_WIDTH: Final = 255
CLASSES: Final = {"0x0200": "NIC", "0x0207": "NIC", "0x0108": "NVMe", **dict.fromkeys(GPU_CLASSES, "GPU")}
"""PCI classes of devices whose bandwidth a job needs (PCI Code and ID Assignment Specification)."""
ACS_CAPABILITY: Final = 0x0D
ACS_FORWARDING: Final = 0b0010_1100
"""ACS bits that keep peer-to-peer traffic from the shortest path: redirection of requests and of completions,
and egress control (PCIe base specification, 7.7.11)."""
CHECKS: Final = Checks()


def gigatransfers(speed: str) -> float:
    """Return the GT/s in a text of sysfs such as `16.0 GT/s PCIe`."""
    value, _, unit = speed.partition(" ")
    if not unit.startswith("GT/s"):
        raise ValueError(f"PCIe speed {speed!r:.60}, expected GT/s")
    return float(value)


def aer_errors(text: str) -> int:
    """Return the total number of errors in an `aer_dev_*` file."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name.startswith("TOTAL"):
            return int(value)
    raise ValueError("no line TOTAL_ERR_*")


def _devices(host: Host) -> Iterator[tuple[str, str]]:
    """Yield the address and kind of each device that a job needs."""
    any_device = False
    for address in host.names(DEVICES):
        kind = CLASSES.get(host.read(f"{DEVICES}/{address}/class")[:6])
        if kind is not None:
            any_device = True
            yield address, kind
    if not any_device:
        raise Missing("no NIC, GPU or NVMe on PCIe")


class Link(NamedTuple):
    """Width and speed of a PCIe link."""

    width: int
    gts: float
    """GT/s of a lane."""

    def __str__(self) -> str:
        return f"x{self.width} at {self.gts:g} GT/s"


def _read_link(host: Host, folder: str, when: str) -> Link | None:
    """Return a device's link, `when` being `current` or `max`; None for a virtual device or a root bus."""
    try:
        width, speed = int(host.read(f"{folder}/{when}_link_width")), host.read(f"{folder}/{when}_link_speed")
    except Missing:
        return None
    return None if width == NO_WIDTH or speed.startswith("Unknown") else Link(width, gigatransfers(speed))


def _capability(host: Host, folder: str) -> Link | None:
    """Return the best link that both the device and the port above it support."""
    own = _read_link(host, folder, "max")
    try:
        above = _read_link(host, host.target(folder).rpartition("/")[0], "max")
    except Missing:
        return own
    if own is None or above is None or not above.width:
        return own
    return Link(min(own.width, above.width), min(own.gts, above.gts))


@CHECKS.error("pcie.link", "PCIe links have full width and speed", 29, 72)
@remedy.replace("Reseat the card; if it stays, replace card or riser")
def _link(host: Host) -> Iterator[Finding]:
    for address, kind in _devices(host):
        folder, subject = f"{DEVICES}/{address}", f"{kind} {address}"
        now, best = _read_link(host, folder, "current"), _capability(host, folder)
        if now is None or best is None or not best.width:
            yield Finding(subject, AuditStatus.SKIPPED, "no PCIe link: a virtual device")
            continue
        text = f"{now}, device and slot are capable of {best}"
        if kind == "GPU" and now.width == best.width and now.gts < best.gts and saves_power(host, address):
            text += "; such GPUs lower the speed at rest"
            is_like_peers = _peer_speeds(host, address) == {now.gts}
            status = AuditStatus.PASSED if is_like_peers else AuditStatus.UNKNOWN
            yield Finding(subject, status, text if is_like_peers else f"{text}, others are faster")
        else:
            yield checked(now.width >= best.width and now.gts >= best.gts, text, subject)


def _peer_speeds(host: Host, address: str) -> set[float]:
    """Return the present speeds, GT/s, of all GPUs of a GPU's model."""
    model, speeds = _model(host, address), set()
    for other, kind in _devices(host):
        if kind == "GPU" and _model(host, other) == model:
            link = _read_link(host, f"{DEVICES}/{other}", "current")
            speeds |= {link.gts} if link is not None else set()
    return speeds


def _model(host: Host, address: str) -> tuple[str, str]:
    return host.read(f"{DEVICES}/{address}/vendor"), host.read(f"{DEVICES}/{address}/device")


@CHECKS.error("pcie.errors", "PCIe devices report no uncorrectable errors", 72)
@remedy.reset("`dmesg | grep AER`; reseat or replace the card if they return")
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

    `config`: the extended configuration space. A capability's header has its id (16 bits), version (4 bits)
    and the offset of the next capability (12 bits) (PCIe base specification, 7.6.3).
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


@CHECKS.warning("pcie.acs", "PCIe devices exchange data directly (ACS is off)", 78)
@remedy.reboot("Turn ACS off in the firmware or by setpci; virtual machines need it on")
def _acs(host: Host) -> Iterator[Finding]:
    bridges = [
        name for name in host.names(DEVICES) if host.read(f"{DEVICES}/{name}/class").startswith("0x0604")
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
