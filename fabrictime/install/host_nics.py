"""Finds the NICs of a host and their classes: fabric, front-end, storage, management, virtual, unused.

The host is read through the audit's class `Host`, so that a recorded host can be read like a live one. The
agent probes from the NICs of the class `fabric`. Each NIC has the reason for its class.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from fabrictime.install.rails import rails_of
from producers.audit.backend.rdma_ports import DEVICES, MANAGEMENT, names_or_none
from producers.audit.host.base import Host, Missing, NotRecorded, Unreadable
from producers.audit.host.network import MAIN_TABLE, Interface, Route, gateway_of
from schemas.ids import natural

STACKED: Final = frozenset({"bond", "team", "vlan", "bridge"})
"""Kinds of virtual interfaces that count as NICs where they stand on a device and have an address."""
GUEST: Final = frozenset({"veth", "macvlan", "ipvlan", "netkit"})
"""Kinds of the interfaces of a container. They count as NICs where no device is visible."""
USB_DRIVERS: Final = frozenset({"cdc_ether", "cdc_ncm", "rndis_host", "cdc_subset"})
"""Drivers of the link between a host and its management controller."""
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "lustre", "beegfs", "ceph", "cifs", "wekafs", "gpfs", "9p", "glusterfs"}
)
SET_DOWN: Final = "set down"
NO_ADDRESS: Final = "no address"
NOT_READY: Final = (SET_DOWN, NO_ADDRESS)
"""Reasons of NICs that may belong to the fabric once they are up."""
_STORAGE_NAME: Final = re.compile(r"stor|nfs|san\d|nvme")
_ADDRESS: Final = re.compile(r"(?<![\w.:])(\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F:]+\])(?![\w.])")


class NicClass(StrEnum):
    """The use of a NIC, such as fabric or storage."""

    FABRIC = "fabric"
    FRONT_END = "front-end"
    STORAGE = "storage"
    MANAGEMENT = "management"
    VIRTUAL = "virtual"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class HostNic:
    """A NIC of a host. Texts are empty and `rail` is None if the host does not show these facts."""

    device: str
    nic_class: NicClass
    reason: str
    address: str = ""
    rail: int | None = None
    rdma_device: str = ""
    ptp_clock: str = ""


def host_nics(host: Host, devices: Sequence[str] = ()) -> list[HostNic]:
    """Return the host's NICs with their classes, the fabric NICs first.

    `devices` are the fabric's devices, if the operator names them. Raises ValueError if one of them does not
    exist or has no address. Raises Unreadable if the interfaces cannot be read.
    """
    interfaces = [
        entry for entry in host.interfaces() if "LOOPBACK" not in entry.flags or entry.name in devices
    ]
    nics = [_described(host, interface, interfaces) for interface in interfaces]
    nics = _named(nics, devices) if devices else _classified(host, nics)
    fabric = [nic for nic in nics if nic.nic_class is NicClass.FABRIC]
    kinds = {_kind(host, nic) for nic in fabric} - {("", False)}
    unused = [nic.device for nic in nics if nic.reason in NOT_READY and _kind(host, nic) in kinds]
    rails = rails_of({nic.device: nic.address for nic in fabric}, unused)
    nics = [replace(nic, rail=rails.get(nic.device)) for nic in nics]
    order = list(NicClass)
    return sorted(nics, key=lambda nic: (order.index(nic.nic_class), natural(nic.device)))


def _kind(host: Host, nic: HostNic) -> tuple[str, bool]:
    """Return a NIC's driver and whether it has an RDMA device. All fabric NICs are of the same kind."""
    return _driver(host, nic.device), bool(nic.rdma_device)


def _described(host: Host, interface: Interface, interfaces: Sequence[Interface]) -> HostNic:
    """Return a NIC with the facts in its own entries. Its class is `fabric` unless these facts exclude it."""
    nic_class, reason = _own_class(host, interface, interfaces)
    return HostNic(
        interface.name,
        nic_class,
        reason,
        _address(interface),
        rdma_device=_rdma_device(host, interface.name),
        ptp_clock=next(iter(sorted(_names(host, f"/sys/class/net/{interface.name}/device/ptp"))), ""),
    )


def _own_class(host: Host, interface: Interface, interfaces: Sequence[Interface]) -> tuple[NicClass, str]:
    has_devices = any(not entry.kind for entry in interfaces)
    if interface.kind and not _stands_on_device(host, interface, interfaces, has_devices):
        return NicClass.VIRTUAL, f"virtual interface of kind {interface.kind}"
    if _driver(host, interface.name) in USB_DRIVERS:
        return NicClass.MANAGEMENT, "link to the management controller over USB"
    if interface.master and not _address(interface):
        return NicClass.UNUSED, f"member of {interface.master}"
    if "UP" not in interface.flags:
        return NicClass.UNUSED, SET_DOWN
    if not _address(interface):
        return NicClass.UNUSED, NO_ADDRESS
    return NicClass.FABRIC, "device with an address"


def _stands_on_device(
    host: Host, interface: Interface, interfaces: Sequence[Interface], has_devices: bool
) -> bool:
    """Return whether a virtual interface counts as a NIC: it is above a device, or the NIC of a container."""
    if interface.kind in GUEST:
        return not has_devices
    if interface.kind not in STACKED:
        return False
    by_name = {entry.name: entry for entry in interfaces}
    lower = {name.removeprefix("lower_") for name in _names(host, f"/sys/class/net/{interface.name}")}
    members = {entry.name for entry in interfaces if entry.master == interface.name}
    below = [by_name[name] for name in (lower | members) if name in by_name]
    return any(not entry.kind or (entry.kind in STACKED and entry.kind != "bridge") for entry in below)


def _named(nics: Sequence[HostNic], devices: Sequence[str]) -> list[HostNic]:
    """Return the NICs, with only the named devices in the class `fabric`. Raises ValueError."""
    by_device = {nic.device: nic for nic in nics}
    for device in devices:
        if device not in by_device:
            names = ", ".join(sorted(by_device, key=natural)) or "none"
            raise ValueError(f"device {device}: no such interface, this host has {names}")
        if not by_device[device].address:
            raise ValueError(f"device {device}: has no address, expected one that probes can use")
    return [
        replace(nic, nic_class=NicClass.FABRIC, reason="named by --device")
        if nic.device in devices
        else replace(nic, nic_class=NicClass.UNUSED, reason="not named by --device")
        if nic.nic_class is NicClass.FABRIC
        else nic
        for nic in nics
    ]


def _classified(host: Host, nics: Sequence[HostNic]) -> list[HostNic]:
    """Return the NICs with the classes that follow from routes, mounts and RDMA devices.

    A rule that would leave no fabric NIC does not apply: a host with only one NIC probes from this NIC.
    """
    routes = _routes(host)
    gateways = [gateway_of(routes), gateway_of(routes, is_ipv6=True)]
    front_end = {route.interface for route in gateways if route is not None and route.paths == 1}
    storage = _storage_devices(host, routes)
    rules: list[tuple[NicClass, Mapping[str, str]]] = [
        (NicClass.FRONT_END, dict.fromkeys(front_end, "holds the default route")),
        (NicClass.STORAGE, storage),
        (NicClass.STORAGE, {nic.device: "named for storage" for nic in nics if _is_storage_name(nic)}),
        (NicClass.FRONT_END, _without_rdma(nics)),
    ]
    for nic_class, reasons in rules:
        fabric = [nic.device for nic in nics if nic.nic_class is NicClass.FABRIC]
        if not set(fabric) - set(reasons):
            nics = [_remarked(nic, reasons) for nic in nics]
            continue
        nics = [
            replace(nic, nic_class=nic_class, reason=reasons[nic.device])
            if nic.nic_class is NicClass.FABRIC and nic.device in reasons
            else nic
            for nic in nics
        ]
    return list(nics)


def _remarked(nic: HostNic, reasons: Mapping[str, str]) -> HostNic:
    if nic.nic_class is not NicClass.FABRIC or nic.device not in reasons:
        return nic
    return replace(nic, reason=f"{reasons[nic.device]}, but there is no other NIC to probe from")


def _without_rdma(nics: Sequence[HostNic]) -> dict[str, str]:
    """Return the reason by device for fabric NICs without an RDMA device, if other fabric NICs have one."""
    fabric = [nic for nic in nics if nic.nic_class is NicClass.FABRIC]
    if not any(nic.rdma_device for nic in fabric):
        return {}
    return {nic.device: "no RDMA device, other NICs have one" for nic in fabric if not nic.rdma_device}


def _is_storage_name(nic: HostNic) -> bool:
    return _STORAGE_NAME.search(nic.device) is not None


def _storage_devices(host: Host, routes: Sequence[Route]) -> dict[str, str]:
    """Return the devices on the routes to the servers of network file systems, each with the reason."""
    devices: dict[str, str] = {}
    for address, mount in _storage_servers(host):
        route = route_to(address, routes)
        if route is not None and route.interface:
            devices.setdefault(route.interface, f"leads to {address} ({mount})")
    return devices


def _storage_servers(host: Host) -> Iterator[tuple[str, str]]:
    """Yield address and use of each server of a mounted network file system or of a remote NVMe drive."""
    for line in _text(host, "/proc/mounts").splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2] in NETWORK_FILE_SYSTEMS:
            match = _ADDRESS.search(f"{fields[0].replace('@', ' ')} {fields[3].replace('=', ' ')}")
            if match:
                yield match[1].strip("[]"), f"{fields[2]} at {fields[1]}"
    for name in _names(host, "/sys/class/nvme"):
        match = re.search(r"traddr=([0-9a-fA-F.:]+)", _text(host, f"/sys/class/nvme/{name}/address"))
        if match:
            yield match[1], f"NVMe drive {name}"


def route_to(address: str, routes: Sequence[Route]) -> Route | None:
    """Return the main table's route with the longest prefix that contains an address; None without one."""
    try:
        target = ipaddress.ip_address(address)
    except ValueError:
        return None
    matches = [
        route
        for route in routes
        if route.table == MAIN_TABLE
        and route.kind == "unicast"
        and target in ipaddress.ip_network(route.destination, strict=False)
    ]
    return max(matches, key=lambda route: int(route.destination.rpartition("/")[2]), default=None)


def _address(interface: Interface) -> str:
    """Return the address for probes: a global IPv4 or IPv6 address, else a link-local IPv6 address.

    Addresses of 127.0.0.0/8 count on the loopback interface alone.
    """
    addresses = [ipaddress.ip_interface(address).ip for address in interface.addresses]
    is_loopback = "LOOPBACK" in interface.flags
    ranked = sorted(
        (address for address in addresses if is_loopback or not address.is_loopback),
        key=lambda address: (address.is_link_local, address.version),
    )
    usable = [address for address in ranked if not (address.is_link_local and address.version == 4)]
    return str(usable[0]) if usable else ""


def _rdma_device(host: Host, device: str) -> str:
    for name in sorted(_names(host, DEVICES), key=natural):
        if MANAGEMENT.match(name):
            continue
        netdevs = set(_names(host, f"{DEVICES}/{name}/device/net"))
        for port in _names(host, f"{DEVICES}/{name}/ports"):
            netdevs.add(_text(host, f"{DEVICES}/{name}/ports/{port}/gid_attrs/ndevs/0"))
        if device in netdevs:
            return name
    return ""


def _driver(host: Host, device: str) -> str:
    try:
        return host.target(f"/sys/class/net/{device}/device/driver").rpartition("/")[2]
    except (Unreadable, NotRecorded):
        return ""


def _routes(host: Host) -> list[Route]:
    try:
        return host.routes()
    except (Missing, NotRecorded):
        return []


def _names(host: Host, folder: str) -> set[str]:
    try:
        return names_or_none(host, folder)
    except (Unreadable, NotRecorded):
        return set()


def _text(host: Host, path: str) -> str:
    try:
        return host.read(path)
    except (Unreadable, NotRecorded):
        return ""
