"""Reads network interfaces, their addresses and routes by netlink, and finds the device of a NIC's probes.

`read_network` and `route_devices` query the kernel in the namespace of the calling thread. The other
functions are pure.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from producers.netlink import ask, attribute, attributes, dump, open_netlink

_RTM_GETLINK, _RTM_GETADDR, _RTM_GETROUTE, _RTM_GETRULE = 18, 22, 26, 34
_IFLA_IFNAME, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_INFO_KIND = 3, 5, 10, 18, 1
_IFLA_LINK_NETNSID: Final = 37
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_SRC, _RTA_OIF, _RTA_MULTIPATH, _RTA_TABLE = 1, 2, 4, 9, 15
_FRA_SRC, _FRA_IIFNAME, _FRA_FWMARK, _FRA_TABLE, _FRA_L3MDEV = 2, 3, 10, 15, 19
_RTN_UNICAST: Final = 1
_FIB_MATCH: Final = 0x2000
"""Flag of a route request: the answer is the whole route, with all its next hops."""
_TABLE_LOCAL: Final = 255
_MAX_NETWORKS: Final = 64
"""Maximum number of announced networks; with more routes, networks of several are announced."""
_TIMEOUT_S: Final = 2.0
_LINK: Final = struct.Struct("=BxHiII")
_ADDRESS: Final = struct.Struct("=BBBBi")
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_HOP: Final = struct.Struct("=HBBi")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface. `master`: index of its bond, bridge or VRF. `lower`: index of a VLAN's device."""

    name: str
    index: int
    kind: str = ""
    """Kind of a virtual interface, such as vlan, bond, vrf or dummy; empty for a physical device."""
    master: int = 0
    lower: int = 0
    addresses: tuple[str, ...] = ()


class Route(NamedTuple):
    """A unicast route: its destination, routing table and the indices of its devices."""

    destination: str
    table: int
    devices: tuple[int, ...]


class Rule(NamedTuple):
    """A routing rule for packets that this host sends. `is_vrf`: whether it selects the VRF's table."""

    source: str
    """Source addresses to which the rule applies, with prefix length; empty for all."""
    table: int
    is_vrf: bool


@dataclass(frozen=True, slots=True)
class NetworkState:
    """The interfaces, routes and rules of a network namespace, for one address family."""

    interfaces: tuple[Interface, ...]
    routes: tuple[Route, ...] = ()
    rules: tuple[Rule, ...] = ()

    def named(self, name: str) -> Interface | None:
        """Return the interface with this name; None if the namespace has none."""
        return next((interface for interface in self.interfaces if interface.name == name), None)

    @property
    def own_addresses(self) -> frozenset[str]:
        """All addresses of the namespace; packets sent to such an address never leave the host."""
        return frozenset(address for interface in self.interfaces for address in interface.addresses)


def egress_device(device: str, address: str, interfaces: Iterable[Interface]) -> str | None:
    """Return the device to which a NIC's probes are bound; None leaves the choice to the kernel.

    The result is the NIC's own device, or the bond, bridge or VLAN on that device that has the address. If
    the loopback interface has the address (BGP on the host), it is the NIC's own device. Addresses such as
    127.0.0.1 and devices that the kernel does not know are not bound.
    """
    by_index = {interface.index: interface for interface in interfaces}
    own = next((interface for interface in by_index.values() if interface.name == device), None)
    if own is None or ipaddress.ip_address(address).is_loopback:
        return None
    holders = [interface for interface in by_index.values() if address in interface.addresses]
    above = [interface.name for interface in holders if own.index in below(interface, by_index)]
    return device if own in holders or not above else above[0]


def below(top: Interface, by_index: dict[int, Interface]) -> set[int]:
    """Return the indices of all devices below the interface `top`; its packets may leave by any of these."""
    indices: set[int] = set()
    waiting = [top]
    while waiting:
        upper = waiting.pop()
        lower = [by_index[upper.lower]] if upper.lower in by_index else []
        lower += [other for other in by_index.values() if other.master == upper.index and upper.kind != "vrf"]
        waiting += [other for other in lower if other.index not in indices]
        indices.update(other.index for other in lower)
    return indices


def routed_networks(state: NetworkState, address: str, device: str) -> list[str]:
    """Return the networks that packets from `address` reach by `device`, according to this host's routes.

    There are at most 64 networks; neighbouring networks are combined if there are more. A default route is
    0.0.0.0/0 or ::/0.
    """
    interface = state.named(device)
    if interface is None:
        return []
    tables = _tables(state, address, interface)
    networks = {
        ipaddress.ip_network(route.destination)
        for route in state.routes
        if interface.index in route.devices and route.table in tables
    }
    return [str(network) for network in _joined(networks)]


def _tables(state: NetworkState, address: str, interface: Interface) -> set[int]:
    source = ipaddress.ip_address(address)
    tables = {
        rule.table
        for rule in state.rules
        if not rule.is_vrf and (not rule.source or source in ipaddress.ip_network(rule.source))
    }
    master = next((other for other in state.interfaces if other.index == interface.master), None)
    if master is not None and master.kind == "vrf" and any(rule.is_vrf for rule in state.rules):
        tables |= {route.table for route in state.routes if interface.index in route.devices}
    return tables - {_TABLE_LOCAL}


def _joined(networks: set[Network]) -> list[Network]:
    """Drop networks inside other networks; combine the smallest networks until few enough remain."""
    joined = _collapsed(networks)
    while len(joined) > _MAX_NETWORKS:
        longest = max(network.prefixlen for network in joined)
        joined = _collapsed(
            network.supernet() if network.prefixlen == longest else network for network in joined
        )
    return joined


def _collapsed(networks: Iterable[Network]) -> list[Network]:
    return list(ipaddress.collapse_addresses(networks))  # type: ignore[type-var]  # all of one family


# ---- netlink (linux/rtnetlink.h)


def read_network(family: int) -> NetworkState:
    """Return interfaces with all addresses, and the routes and rules of an address family. Raises OSError."""
    addresses: dict[int, list[str]] = {}
    selector = bytes([family]).ljust(_ROUTE.size, b"\0")
    with open_netlink(timeout_s=_TIMEOUT_S) as sock:
        for body in dump(sock, _RTM_GETADDR, bytes(_ADDRESS.size)):
            of_family, *_, index = _ADDRESS.unpack_from(body)
            fields = dict(attributes(body, _ADDRESS.size))
            packed = fields.get(_IFA_LOCAL, fields.get(_IFA_ADDRESS))
            if packed is not None:
                addresses.setdefault(index, []).append(socket.inet_ntop(of_family, packed))
        interfaces = [_interface(body, addresses) for body in dump(sock, _RTM_GETLINK, bytes(_LINK.size))]
        routes = [_route(body, family) for body in dump(sock, _RTM_GETROUTE, selector)]
        rules = [_rule(body, family) for body in dump(sock, _RTM_GETRULE, selector)]
    return NetworkState(
        tuple(interfaces),
        tuple(route for route in routes if route is not None),
        tuple(rule for rule in rules if rule is not None),
    )


def _interface(body: bytes, addresses: dict[int, list[str]]) -> Interface:
    index = _LINK.unpack_from(body)[2]
    fields = dict(attributes(body, _LINK.size))
    info = dict(attributes(fields.get(_IFLA_LINKINFO, b"")))
    kind = info.get(_IFLA_INFO_KIND, b"").rstrip(b"\0").decode()
    lower = 0 if _IFLA_LINK_NETNSID in fields else _number(fields.get(_IFLA_LINK))
    return Interface(
        name=fields[_IFLA_IFNAME].rstrip(b"\0").decode(errors="replace"),
        index=index,
        kind=kind,
        master=_number(fields.get(_IFLA_MASTER)),
        lower=0 if lower == index or kind == "veth" else lower,
        addresses=tuple(addresses.get(index, ())),
    )


def _route(body: bytes, family: int) -> Route | None:
    """Return the unicast route in a netlink message; None for other routes and for one without a device."""
    _, bits, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(body)
    fields = dict(attributes(body, _ROUTE.size))
    devices = [_number(fields[_RTA_OIF])] if _RTA_OIF in fields else []
    hops = fields.get(_RTA_MULTIPATH, b"")
    while len(hops) >= _HOP.size:
        length, _, _, index = _HOP.unpack_from(hops)
        devices.append(index)
        hops = hops[max(length, _HOP.size) :]
    if kind != _RTN_UNICAST or not devices:
        return None
    return Route(
        _prefix(fields.get(_RTA_DST), bits, family),
        _number(fields.get(_RTA_TABLE)) or table,
        tuple(devices),
    )


def _rule(body: bytes, family: int) -> Rule | None:
    """Return the policy rule in a message; None if it covers only forwarded or marked packets."""
    bits, table = body[2], body[4]
    fields = dict(attributes(body, _ROUTE.size))
    if _FRA_IIFNAME in fields or _number(fields.get(_FRA_FWMARK)):
        return None
    source = _prefix(fields[_FRA_SRC], bits, family) if _FRA_SRC in fields else ""
    return Rule(source, _number(fields.get(_FRA_TABLE)) or table, bool(fields.get(_FRA_L3MDEV, b"\0")[0]))


def _prefix(packed: bytes | None, bits: int, family: int) -> str:
    size = 16 if family == socket.AF_INET6 else 4
    return f"{socket.inet_ntop(family, packed or bytes(size))}/{bits}"


def _number(value: bytes | None) -> int:
    return int(struct.unpack_from("=i", value)[0]) if value is not None and len(value) >= 4 else 0


def route_devices(family: int, destination: str, source: str) -> tuple[int, ...]:
    """Return the indices of the devices by which the kernel sends packets from `source` to `destination`.

    Raises OSError, with EHOSTUNREACH or ENETUNREACH if there is no route.
    """
    packed = [socket.inet_pton(family, address) for address in (destination, source)]
    bits = 8 * len(packed[0])
    body = _ROUTE.pack(family, bits, bits, 0, 0, 0, 0, 0, _FIB_MATCH)
    for kind, value in zip((_RTA_DST, _RTA_SRC), packed, strict=True):
        body += attribute(kind, value)
    with open_netlink(timeout_s=_TIMEOUT_S) as sock:
        route = _route(ask(sock, _RTM_GETROUTE, body), family)
    return () if route is None else route.devices
