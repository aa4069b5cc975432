"""The RDMA ports of a host that carry data: rates, boards, spare ports, network interfaces.

Some RDMA devices are no part of the back end. The fabric manager reaches the switches of NVLink 5 by
InfiniBand devices of their own. A multi-plane card has a second device for subnet management alone.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from producers.audit.host.base import Host, Missing, NotRecorded, Unreadable
from producers.audit.host.network import MAIN_TABLE, Interface, is_default

DEVICES: Final = "/sys/class/infiniband"
PCI_DEVICES: Final = "/sys/bus/pci/devices"
SWITCH_MARK: Final = b"SW_MNG"
"""Text in the vital product data of an InfiniBand device that manages NVSwitches. The start script of the
fabric manager searches for it (siderolabs/extensions#717)."""
MANAGEMENT: Final = re.compile(r"^smi\d*$")
"""Names of devices for subnet management alone, `smi1` in the manual of rdma(8); UCX leaves them out too
(openucx/ucx#10507). One card then has two devices (Mellanox/rdmamap#17)."""
MAX_SPARE_SHARE: Final = 0.5
"""From this share on of one port on all like cards, ports without a link and an address are spare."""


class Port(NamedTuple):
    """A port of an RDMA device."""

    device: str
    number: str

    @property
    def folder(self) -> str:
        """The port's directory in sysfs."""
        return f"{DEVICES}/{self.device}/ports/{self.number}"

    def __str__(self) -> str:
        return f"{self.device}/{self.number}"


class Rate(NamedTuple):
    """Rate of a port, Gbit/s, and its width in lanes, which is 0 if the driver does not report it."""

    gbps: float
    width: int


def port_rate(text: str) -> Rate:
    """Return the rate in sysfs text such as `400 Gb/sec (4X NDR)`."""
    match = re.match(r"([\d.]+) Gb/sec(?: \((\d+)X)?", text)
    if match is None:
        raise ValueError(f"port rate {text!r:.60}, expected Gb/sec")
    return Rate(float(match[1]), int(match[2] or 0))


def names_or_none(host: Host, folder: str) -> set[str]:
    """Return the names in a directory; empty if it is missing, as when its kernel module is not loaded."""
    try:
        return set(host.names(folder))
    except Missing:
        return set()


def manages_switches(host: Host, device: str) -> bool:
    """Return whether an RDMA device belongs to NVSwitches; False if the product data cannot be read.

    Only root may read the product data; support bundles lack them.
    """
    folder = f"{DEVICES}/{device}"
    try:
        if host.read(f"{folder}/ports/1/link_layer") != "InfiniBand":
            return False
    except Missing:
        return False
    try:
        return SWITCH_MARK in host.read_bytes(f"{folder}/device/vpd")
    except (Unreadable, NotRecorded):  # another make has no such data
        return False


def all_devices(host: Host) -> list[str]:
    """Return all RDMA devices. Raises Missing without one."""
    devices = host.names(DEVICES)
    if not devices:
        raise Missing("this host has no RDMA device")
    return devices


def ports(host: Host) -> list[Port]:
    """Return the ports that carry data. Raises Missing without one."""
    data_ports = [
        Port(device, number)
        for device in all_devices(host)
        if MANAGEMENT.match(device) is None and not manages_switches(host, device)
        for number in host.names(f"{DEVICES}/{device}/ports")
    ]
    if not data_ports:
        raise Missing("no RDMA device carries data: all belong to NVSwitches or subnet management")
    return data_ports


def state(host: Host, port: Port) -> str:
    """Return a port's state, such as ACTIVE, in which it can carry data."""
    return host.read(f"{port.folder}/state").partition(":")[2].strip()


def physical_state(host: Host, port: Port) -> str:
    """Return a port's physical state, such as LinkUp or Polling."""
    return host.read(f"{port.folder}/phys_state").partition(":")[2].strip()


def is_active(host: Host, port: Port) -> bool:
    """Return whether a port has the state ACTIVE, in which it can carry data."""
    return state(host, port) == "ACTIVE"


def has_link(host: Host, port: Port) -> bool:
    """Return whether a port has a link: a cable with a working partner, also before it carries data."""
    return is_active(host, port) or physical_state(host, port) == "LinkUp"


def is_ethernet(host: Host, port: Port) -> bool:
    """Return whether a port's link is Ethernet (RoCE); other links are InfiniBand or Amazon's EFA."""
    return host.read(f"{port.folder}/link_layer") == "Ethernet"


def is_efa(device: str) -> bool:
    """Return whether a device is an Elastic Fabric Adapter of Amazon."""
    return device.startswith(("efa_", "rdmap"))


def board(host: Host, device: str) -> str:
    """Return the board (PSID) of a device's card, by which like cards are known.

    Other makes than NVIDIA state none: then it is the PCI vendor and device; empty for an emulated device.
    """
    try:
        return host.read(f"{DEVICES}/{device}/board_id")
    except Missing:
        pass
    try:
        address = host.target(f"{DEVICES}/{device}/device").rpartition("/")[2]
        return " ".join(host.read(f"{PCI_DEVICES}/{address}/{name}") for name in ("vendor", "device"))
    except Missing:
        return ""


def interfaces(host: Host) -> Iterator[tuple[Port, str]]:
    """Yield (port, network interface) for each Ethernet port."""
    for port in ports(host):
        try:
            name = host.read(f"{port.folder}/gid_attrs/ndevs/0")
        except Missing:
            continue
        yield port, name


def spare_ports(host: Host) -> set[Port]:
    """Return the ports without a link that are not in use.

    A port is spare if its interface was set down and has no address. It is spare as well if most like cards
    have no link at the same port, but have one at another: the second ports of cards with two.
    """
    dark_ports = [port for port in ports(host) if not has_link(host, port)]
    if not dark_ports:
        return set()
    by_name = {interface.name: interface for interface in host.interfaces()}
    name_by_port = dict(interfaces(host))
    spare, idle = set(), set()
    for port in dark_ports:
        name = name_by_port.get(port, "")
        interface = by_name.get(name)
        if name in host.nics or (interface is not None and _is_configured(interface)):
            continue
        idle.add(port)
        if interface is not None and "UP" not in interface.flags:
            spare.add(port)
    return spare | (idle & _dark_positions(host))


def global_networks(interface: Interface) -> list[ipaddress.IPv4Interface | ipaddress.IPv6Interface]:
    """Return the interface's addresses that other hosts can reach: neither link-local nor loopback."""
    addresses = [ipaddress.ip_interface(address) for address in interface.addresses]
    return [address for address in addresses if not address.ip.is_link_local and not address.ip.is_loopback]


def _is_configured(interface: Interface) -> bool:
    """Return whether an interface has an address that other hosts reach, or belongs to a bond."""
    return bool(interface.master or global_networks(interface))


def _dark_positions(host: Host) -> set[Port]:
    """Return the ports without a link of which most like cards have none, but have one at another port."""
    by_position: dict[tuple[str, str], dict[Port, bool]] = defaultdict(dict)
    for port in ports(host):
        position = f"{_function(host, port.device)}/{port.number}"
        by_position[board(host, port.device), position][port] = has_link(host, port)
    lit_boards = {key[0] for key, lit_ports in by_position.items() if any(lit_ports.values())}
    return {
        port
        for (board_id, _), lit_ports in by_position.items()
        if board_id in lit_boards and list(lit_ports.values()).count(False) > MAX_SPARE_SHARE * len(lit_ports)
        for port, is_lit in lit_ports.items()
        if not is_lit
    }


def _function(host: Host, device: str) -> str:
    """Return the PCI function of a device, such as 1 of 0000:17:00.1; empty for an emulated device."""
    try:
        return host.target(f"{DEVICES}/{device}/device").rpartition(".")[2]
    except Missing:
        return ""


def used_ports(host: Host) -> list[Port]:
    """Return the ports that carry data and are not spare. Raises Missing without one."""
    spare = spare_ports(host)
    return [port for port in ports(host) if port not in spare]


def backend_interfaces(host: Host) -> list[str]:
    """Return the network interfaces of RDMA ports, and the NICs that the agent measures. Raises Missing.

    Front-end cards can do RDMA as well: interfaces of a default route are left out, unless the agent measures
    them. Interfaces of spare ports are left out too.
    """
    backend = set(host.nics)
    try:
        spare = spare_ports(host)
        names = {name for port, name in interfaces(host) if port not in spare}
        backend |= names - (_frontend_interfaces(host) - backend)
    except Missing:  # a host without RDMA
        if not backend:
            raise
    if not backend:
        raise Missing("no RDMA port of the back end has a network interface")
    return sorted(backend)


def board_by_interface(host: Host) -> dict[str, str]:
    """Return the board of the card of each interface of an RDMA port: like cards have like settings."""
    try:
        return {name: board(host, port.device) for port, name in interfaces(host)}
    except Missing:
        return {}


def _frontend_interfaces(host: Host) -> set[str]:
    """Return the interfaces of default routes; for a bond also its members."""
    routes = host.routes()
    default = {route.interface for route in routes if route.table == MAIN_TABLE and is_default(route)}
    return default | {interface.name for interface in host.interfaces() if interface.master in default}
