"""Back-end checks: RDMA ports from sysfs, their network interfaces, GIDs and character devices."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from producers.audit.backend.counters import HARD_ERRORS, MAX_FOUR_BITS
from producers.audit.backend.rdma_ports import (
    Port,
    Rate,
    backend_interfaces,
    board,
    board_by_interface,
    global_networks,
    has_link,
    interfaces,
    is_active,
    is_efa,
    is_ethernet,
    names_or_none,
    physical_state,
    port_rate,
    ports,
    spare_ports,
    state,
    used_ports,
)
from producers.audit.base import Checks, Finding, checked, failed, stated
from producers.audit.host.base import Host, Missing, NotRecorded
from producers.audit.host.network import Interface
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

EMPTY_GID: Final = "0000:0000:0000:0000:0000:0000:0000:0000"
LIMITS: Final = {
    "symbol_error": 0,
    "link_error_recovery": 0,
    "link_downed": 0,
    "port_rcv_errors": 100,
    "port_xmit_discards": 1000,
    **dict.fromkeys(HARD_ERRORS, 0),
}
"""Largest value of each counter since the port's reset that raises no warning (Azure's checks)."""
CHECKS: Final = Checks()


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


@CHECKS.error("backend.port-state", "RDMA ports are active", 2, 4, 5)
@remedy.replace("Check cable and transceiver, then the switch port")
def _state(host: Host) -> Iterator[Finding]:
    try:
        spare, is_known = spare_ports(host), True
    except NotRecorded:
        spare, is_known = set(), False
    for port in ports(host):
        logical, physical = state(host, port), physical_state(host, port)
        text = f"{logical}, {physical}"
        if not is_known and not has_link(host, port):
            yield Finding(str(port), AuditStatus.SKIPPED, f"{text}; its use is not in the bundle")
        elif port in spare:
            yield Finding(str(port), AuditStatus.SKIPPED, f"{text}: a spare port, without an address")
        elif logical == "INIT":
            yield failed(f"{text}: no subnet manager has set up the port", str(port))
        else:
            yield checked(logical == "ACTIVE" and physical == "LinkUp", text, str(port))


@CHECKS.error("backend.port-rate", "RDMA ports of like cards have one rate", 1, 18)
@remedy.replace("Replace the cable: a lane is lost, or the cable is of another speed")
def _rate(host: Host) -> Iterator[Finding]:
    """Compare the rate of each active port with ports of like cards; cards for storage have other rates.

    A port with fewer lanes than the others has lost a lane. A single port of another rate has another cable.
    """
    groups: dict[str, dict[Port, Rate]] = defaultdict(dict)
    for port in ports(host):
        if is_active(host, port):
            groups[board(host, port.device)][port] = port_rate(host.read(f"{port.folder}/rate"))
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


@CHECKS.warning("backend.link-counters", "RDMA ports count few link errors", 7, 8, 9, 10, 13)
@remedy.monitor("Watch the rate; clean or replace the cable if they grow")
def _warnings(host: Host) -> Iterator[Finding]:
    for port in ports(host):
        for name, limit in LIMITS.items():
            value = _counter(host, port, name)
            if value is not None:
                is_full = name in HARD_ERRORS and value == MAX_FOUR_BITS
                text = f"{name} = {value:,}{' or more' if is_full else ''}, expected at most {limit:,}"
                yield checked(value <= limit, text, str(port))


def _counter(host: Host, port: Port, name: str) -> int | None:
    """Return the value of a port's counter; None if the device does not have that counter."""
    try:
        return int(host.read(f"{port.folder}/counters/{name}"))
    except Missing:
        return None


@CHECKS.error("backend.gids", "RoCE ports have a RoCE v2 GID", 20, 31)
@remedy.monitor("Give the interface an IP address, and enable RoCE v2 on the NIC")
def _gids(host: Host) -> Iterator[Finding]:
    """Find RoCE ports without a GID of version 2: for an address, if the port's interface has one."""
    addressed = {interface.name for interface in host.interfaces() if global_networks(interface)}
    name_by_port = dict(interfaces(host))
    for port in used_ports(host):
        if not is_ethernet(host, port):
            yield Finding(str(port), AuditStatus.SKIPPED, "no Ethernet port: it has no RoCE version")
            continue
        table = list(gids(host, port))
        kinds = Counter(gid.kind for gid in table)
        text = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "no GID"
        has_address = name_by_port.get(port) in addressed
        is_right = any(gid.kind == "RoCE v2" and (gid.is_routable or not has_address) for gid in table)
        text += "; expected a RoCE v2 GID" + (" of the interface's address" if has_address else "")
        yield checked(is_right, text, str(port))


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
        if not is_ethernet(host, port):
            continue
        mode = f"/sys/kernel/config/rdma_cm/{port.device}/ports/{port.number}/default_roce_mode"
        kind = host.read(mode)
        reason = "" if kind == "RoCE v2" else ", which no router forwards"
        yield checked(not reason, f"rdma_cm connects with {kind}{reason}", str(port))


@CHECKS.error("backend.pkeys", "InfiniBand ports of like cards share their PKeys", 21)
@remedy.monitor("Correct the partition in the subnet manager")
def _pkeys(host: Host) -> Iterator[Finding]:
    """Compare the PKeys of ports of like cards; the network for storage may be another partition."""
    groups: dict[str, dict[Port, frozenset[str]]] = defaultdict(dict)
    for port in used_ports(host):
        if host.read(f"{port.folder}/link_layer") == "InfiniBand":
            groups[board(host, port.device)][port] = frozenset(
                key
                for index in host.names(f"{port.folder}/pkeys")
                if (key := host.read(f"{port.folder}/pkeys/{index}")) != "0x0000"
            )
    if not groups:
        raise Missing("no InfiniBand port")
    for keys in groups.values():
        majority = Counter(keys.values()).most_common(1)[0][0]
        for port, port_keys in keys.items():
            text = f"PKeys {', '.join(sorted(port_keys)) or 'none'}"
            if port_keys != majority:
                text += f"; most ports of like cards have {', '.join(sorted(majority))}"
            yield checked(port_keys == majority and bool(port_keys), text, str(port))


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
    if all(is_efa(device) for device in devices):
        yield Finding("rdma_cm", AuditStatus.SKIPPED, "EFA has no connection manager")
    else:
        yield checked("rdma_cm" in present, "/dev/infiniband/rdma_cm", "rdma_cm")


def _backend(host: Host) -> list[Interface]:
    backend = set(backend_interfaces(host))
    return [interface for interface in host.interfaces() if interface.name in backend]


@CHECKS.error("backend.mtu", "RDMA interfaces of like cards have the same MTU", 19)
@remedy.monitor("ip link set dev INTERFACE mtu MTU, and in the network's configuration")
def _mtu(host: Host) -> Iterator[Finding]:
    boards, groups = board_by_interface(host), defaultdict[str, list[Interface]](list)
    for interface in _backend(host):
        groups[boards.get(interface.name, "")].append(interface)
    for backend in groups.values():
        majority = Counter(interface.mtu for interface in backend).most_common(1)[0][0]
        for interface in backend:
            text = f"MTU {interface.mtu}, most interfaces of like cards have {majority}"
            yield checked(interface.mtu == majority, text, interface.name)
            yield stated("mtu_bytes", interface.mtu, interface.name)


@CHECKS.error("backend.carrier", "RDMA interfaces are up", 2, 15)
@remedy.replace("Check cable and transceiver, then the switch port")
def _carrier(host: Host) -> Iterator[Finding]:
    for interface in _backend(host):
        text = f"{interface.operstate}; {interface.carrier_changes:,} changes of carrier"
        yield checked(interface.is_up and interface.operstate in ("up", "unknown"), text, interface.name)
