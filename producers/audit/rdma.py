"""Back-end checks: RDMA ports from sysfs, their network interfaces, GIDs and character devices."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, checked, failed, stated
from producers.audit.host import Host, Missing
from producers.audit.network import MAIN_TABLE, Interface, is_default
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

DEVICES: Final = "/sys/class/infiniband"
EMPTY_GID: Final = "0000:0000:0000:0000:0000:0000:0000:0000"
HARD_ERRORS: Final = ("local_link_integrity_errors", "excessive_buffer_overrun_errors")
"""Names of counters for which any increment is an error."""
LIMITS: Final = {
    "symbol_error": 0,
    "link_error_recovery": 0,
    "link_downed": 0,
    "port_rcv_errors": 100,
    "port_xmit_discards": 1000,
}
"""Largest value of each counter since the port's reset that raises no warning (Azure's checks)."""
CHECKS: Final = Checks()


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


class Gid(NamedTuple):
    """An entry of a GID table."""

    number: int
    """Index in the table."""
    text: str
    kind: str
    """`RoCE v2` or `IB/RoCE v1`."""

    @property
    def is_routable(self) -> bool:
        """Whether the GID contains an address that is reachable from other networks."""
        return not ipaddress.ip_address(self.text).is_link_local


def ports(host: Host) -> list[Port]:
    """Return all ports. Raises Missing without an RDMA device."""
    all_ports = [
        Port(device, number)
        for device in host.names(DEVICES)
        for number in host.names(f"{DEVICES}/{device}/ports")
    ]
    if not all_ports:
        raise Missing("no RDMA device")
    return all_ports


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


def is_active(host: Host, port: Port) -> bool:
    """Return whether a port has the state ACTIVE, in which it can carry data."""
    return host.read(f"{port.folder}/state").partition(":")[2].strip() == "ACTIVE"


@CHECKS.error("backend.port-state", "RDMA ports are active", 2, 4, 5)
@remedy.replace("Check cable and transceiver, then the switch port")
def _state(host: Host) -> Iterator[Finding]:
    for port in ports(host):
        state = host.read(f"{port.folder}/state").partition(":")[2].strip()
        physical = host.read(f"{port.folder}/phys_state").partition(":")[2].strip()
        is_up = state == "ACTIVE" and physical == "LinkUp"
        if not is_up and _is_unused(host, port):
            yield Finding(str(port), AuditStatus.SKIPPED, f"{state}, {physical}: the port is not used")
        else:
            yield checked(is_up, f"{state}, {physical}", str(port))


def _is_unused(host: Host, port: Port) -> bool:
    """Return whether a port that is down is a spare one.

    An Ethernet port is spare if its interface was set down and has no address. An InfiniBand port is spare if
    another port of its card is active.
    """
    if host.read(f"{port.folder}/link_layer") == "Ethernet":
        names = {name for other, name in interfaces(host) if other == port} - set(host.nics)
        own = [interface for interface in host.interfaces() if interface.name in names]
        return bool(own) and not any("UP" in interface.flags or interface.addresses for interface in own)
    card = _card(host, port)
    others = (other for other in ports(host) if other != port)
    return bool(card) and any(_card(host, other) == card and is_active(host, other) for other in others)


def _card(host: Host, port: Port) -> str:
    """Return the PCI address of a port's card without the function; empty for an emulated device."""
    try:
        return host.target(f"{DEVICES}/{port.device}/device").rpartition("/")[2].rpartition(".")[0]
    except Missing:
        return ""


@CHECKS.error("backend.port-rate", "RDMA ports of like cards have one rate", 1, 18)
@remedy.replace("Replace the cable: a lane is lost, or the cable is of another speed")
def _rate(host: Host) -> Iterator[Finding]:
    """Compare the rate of each active port with those of like cards; cards for storage have other rates.

    A port with fewer lanes than the others has lost one. A port that alone has another rate has a cable of
    another speed.
    """
    groups: dict[str, dict[Port, Rate]] = defaultdict(dict)
    for port in ports(host):
        if is_active(host, port):
            groups[_board(host, port)][port] = port_rate(host.read(f"{port.folder}/rate"))
    for rates in groups.values():
        majority, count = Counter(rates.values()).most_common(1)[0]
        for port, rate in rates.items():
            is_only = len(rates) > 2 and count == len(rates) - 1 and rate != majority
            text = (
                f"{rate.gbps:g} Gbit/s on {rate.width} lanes, most ports of like cards have {majority.gbps:g}"
            )
            yield checked(rate.width >= majority.width and not is_only, text, str(port))
            yield stated("rate_gbps", rate.gbps, str(port))
    every = [rate.gbps for rates in groups.values() for rate in rates.values()]
    yield stated("rdma_gbps", sum(every))


def _board(host: Host, port: Port) -> str:
    try:
        return host.read(f"{DEVICES}/{port.device}/board_id")
    except Missing:
        return ""


@CHECKS.error("backend.link-errors", "RDMA ports count no fatal link error", 11)
@remedy.replace("Clean or replace cable and transceiver")
def _counters(host: Host) -> Iterator[Finding]:
    for port in ports(host):
        for name in HARD_ERRORS:
            value = _counter(host, port, name)
            if value is not None:
                yield checked(value == 0, f"{name} = {value:,}, expected 0", str(port))


@CHECKS.warning("backend.link-counters", "RDMA ports count few link errors", 7, 8, 9, 10, 13)
@remedy.monitor("Watch the rate; clean or replace the cable if they grow")
def _warnings(host: Host) -> Iterator[Finding]:
    for port in ports(host):
        for name, limit in LIMITS.items():
            value = _counter(host, port, name)
            if value is not None:
                yield checked(value <= limit, f"{name} = {value:,}, expected at most {limit:,}", str(port))


def _counter(host: Host, port: Port, name: str) -> int | None:
    """Return the value of a port's counter; None if the device does not have that counter."""
    try:
        return int(host.read(f"{port.folder}/counters/{name}"))
    except Missing:
        return None


@CHECKS.error("backend.gids", "RoCE ports have a RoCE v2 GID", 20, 31)
@remedy.monitor("Give the interface an IP address, and enable RoCE v2 on the NIC")
def _gids(host: Host) -> Iterator[Finding]:
    for port in ports(host):
        if host.read(f"{port.folder}/link_layer") != "Ethernet":
            yield Finding(str(port), AuditStatus.SKIPPED, "InfiniBand: no RoCE version")
            continue
        kinds = Counter(gid.kind for gid in gids(host, port))
        text = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "no GID"
        yield checked(kinds["RoCE v2"] > 0, f"{text}; expected a RoCE v2 GID", str(port))


def gids(host: Host, port: Port) -> Iterator[Gid]:
    """Yield the entries of a port's GID table that are set."""
    for index in host.names(f"{port.folder}/gids"):
        text = host.read(f"{port.folder}/gids/{index}")
        if text == EMPTY_GID:
            continue
        try:
            yield Gid(int(index), text, host.read(f"{port.folder}/gid_attrs/types/{index}"))
        except Missing:  # an index without a GID
            continue


@CHECKS.error("backend.roce-version", "Connections use RoCE v2", 20)
@remedy.monitor("cma_roce_mode -d DEVICE -p PORT -m 2")
def _roce_v1(host: Host) -> Iterator[Finding]:
    """Find ports whose default RoCE version for connections by rdma_cm is not v2."""
    for port in ports(host):
        if host.read(f"{port.folder}/link_layer") != "Ethernet":
            continue
        mode = f"/sys/kernel/config/rdma_cm/{port.device}/ports/{port.number}/default_roce_mode"
        kind = host.read(mode)
        yield checked(kind == "RoCE v2", f"rdma_cm connects with {kind}, which no router forwards", str(port))


@CHECKS.error("backend.pkeys", "InfiniBand ports share their PKeys", 21)
@remedy.monitor("Correct the partition in the subnet manager")
def _pkeys(host: Host) -> Iterator[Finding]:
    keys = {}
    for port in ports(host):
        if host.read(f"{port.folder}/link_layer") == "InfiniBand":
            keys[port] = frozenset(
                key
                for index in host.names(f"{port.folder}/pkeys")
                if (key := host.read(f"{port.folder}/pkeys/{index}")) != "0x0000"
            )
    if not keys:
        raise Missing("no InfiniBand port")
    majority = Counter(keys.values()).most_common(1)[0][0]
    for port, port_keys in keys.items():
        text = (
            f"PKeys {', '.join(sorted(port_keys)) or 'none'}; most ports have {', '.join(sorted(majority))}"
        )
        yield checked(port_keys == majority and bool(port_keys), text, str(port))


def names_or_none(host: Host, folder: str) -> set[str]:
    """Return the names in a directory; empty if it is not there because its module is not loaded."""
    try:
        return set(host.names(folder))
    except Missing:
        return set()


@CHECKS.error("backend.character-devices", "Programs can open the RDMA devices", 22)
@remedy.reboot("modprobe ib_uverbs rdma_ucm")
def _character_devices(host: Host) -> Iterator[Finding]:
    devices = {port.device for port in ports(host)}
    present = names_or_none(host, "/dev/infiniband")
    verbs = {
        host.read(f"/sys/class/infiniband_verbs/{name}/ibdev"): name
        for name in names_or_none(host, "/sys/class/infiniband_verbs")
        if name.startswith("uverbs")
    }
    for device in sorted(devices):
        name = verbs.get(device)
        if name is None:
            yield failed("no uverbs device", device)
        else:
            yield checked(name in present, f"/dev/infiniband/{name}", device)
    yield checked("rdma_cm" in present, "/dev/infiniband/rdma_cm", "rdma_cm")


def interfaces(host: Host) -> Iterator[tuple[Port, str]]:
    """Yield (port, network interface) for each Ethernet port."""
    for port in ports(host):
        try:
            name = host.read(f"{port.folder}/gid_attrs/ndevs/0")
        except Missing:
            continue
        yield port, name


def backend_interfaces(host: Host) -> list[str]:
    """Return the network interfaces of RDMA ports, and those that the agent measures. Raises Missing.

    Front-end cards can do RDMA as well: interfaces of a default route are left out, unless the agent measures
    them.
    """
    backend = set(host.nics)
    try:
        backend |= {name for _, name in interfaces(host)} - (_frontend_interfaces(host) - backend)
    except Missing:  # a host without RDMA
        if not backend:
            raise
    if not backend:
        raise Missing("no RDMA port of the back end has a network interface")
    return sorted(backend)


def _frontend_interfaces(host: Host) -> set[str]:
    """Return the interfaces of default routes; for a bond also its members."""
    routes = host.routes()
    default = {route.interface for route in routes if route.table == MAIN_TABLE and is_default(route)}
    return default | {interface.name for interface in host.interfaces() if interface.master in default}


def _backend(host: Host) -> list[Interface]:
    backend = set(backend_interfaces(host))
    return [interface for interface in host.interfaces() if interface.name in backend]


@CHECKS.error("backend.mtu", "RDMA interfaces have the same MTU", 19)
@remedy.monitor("ip link set dev INTERFACE mtu MTU, and in the network's configuration")
def _mtu(host: Host) -> Iterator[Finding]:
    backend = _backend(host)
    majority = Counter(interface.mtu for interface in backend).most_common(1)[0][0]
    for interface in backend:
        text = f"MTU {interface.mtu}, most interfaces of this host have {majority}"
        yield checked(interface.mtu == majority, text, interface.name)
        yield stated("mtu_bytes", interface.mtu, interface.name)


@CHECKS.error("backend.carrier", "RDMA interfaces are up", 2, 15)
@remedy.replace("Check cable and transceiver, then the switch port")
def _carrier(host: Host) -> Iterator[Finding]:
    for interface in _backend(host):
        text = f"{interface.operstate}; {interface.carrier_changes:,} changes of carrier"
        if "UP" not in interface.flags and not interface.addresses and interface.name not in host.nics:
            yield Finding(interface.name, AuditStatus.SKIPPED, "set down, without an address: it is not used")
            continue
        yield checked(interface.is_up and interface.operstate in ("up", "unknown"), text, interface.name)
