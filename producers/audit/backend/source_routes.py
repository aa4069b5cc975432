"""Routing by source address: packets leave a host by the NIC whose address they carry.

Linux chooses the route by the destination. On a host with several NICs, each NIC's address needs a policy
rule that leads its packets to the NIC's own routes. This module repeats the kernel's look-up on the host's
rules and routes. The reverse path filter makes the same look-up for an arriving packet. If that finds another
NIC than the packet came in by, strict filtering drops the packet.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from producers.audit.backend.rdma import gids
from producers.audit.backend.rdma_ports import backend_interfaces, global_networks, ports
from producers.audit.base import Checks, Finding, checked, passed, stated
from producers.audit.frontend.addressing import STRICT, effective_setting, is_ruled
from producers.audit.host.base import Host, Missing
from producers.audit.host.network import Interface, Route, Rule, is_default
from schemas.audit_remedy import remedy

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
AddressRange = ipaddress.IPv4Network | ipaddress.IPv6Network
DROPPED: Final = frozenset({"unreachable", "blackhole", "prohibit"})
"""Kinds of routes that drop packets."""
ANYWHERE: Final = ("198.51.100.1", "2001:db8::1")
"""Addresses reserved for documentation (RFC 5737, RFC 3849): they stand for any address behind a router."""
MAX_NAMED: Final = 3
CHECKS: Final = Checks()


def devices_of(
    rules: Sequence[Rule], routes: Sequence[Route], source: Address, to: Address
) -> frozenset[str]:
    """Return the devices by which the kernel may send a packet of this host; empty if it has no route.

    Rules with further conditions, such as a mark or a protocol, are left out, as they do not apply to all
    packets. The devices are several for a route with several next hops.
    """
    family = socket.AF_INET6 if source.version == 6 else socket.AF_INET
    for rule in sorted(rules, key=lambda rule: rule.priority):
        if rule.family != family or rule.mark or rule.is_selective or rule.interface not in ("", "lo"):
            continue
        if not (_holds(rule.source, source) and _holds(rule.destination, to)):
            continue
        best_routes = _best(
            [route for route in routes if route.table == rule.table and _holds(route.destination, to)]
        )
        if (
            not best_routes
            or best_routes[0].kind == "throw"
            or _length(best_routes[0]) <= rule.suppress_length
        ):
            continue
        is_dropped = best_routes[0].kind in DROPPED
        return frozenset() if is_dropped else frozenset(route.interface for route in best_routes)
    return frozenset()


def _holds(network: str, address: Address) -> bool:
    return not network or address in ipaddress.ip_network(network, strict=False)


def _length(route: Route) -> int:
    return ipaddress.ip_network(route.destination, strict=False).prefixlen


def _best(routes: list[Route]) -> list[Route]:
    """Return the next hops of the best route: the longest prefix, then the least metric, then the oldest."""
    if not routes:
        return []
    first = min(routes, key=lambda route: (-_length(route), route.metric))
    same = (
        route for route in routes if (route.destination, route.metric) == (first.destination, first.metric)
    )
    return list(same) if first.paths > 1 else [first]


@CHECKS.error("backend.addresses", "RDMA interfaces have an address", 31)
@remedy.monitor("Give the interface its planned address")
def rdma_addresses(host: Host) -> Iterator[Finding]:
    """Find back-end interfaces without an address that other hosts can reach. A bond's member needs none."""
    for interface in own_interfaces(host):
        reached = global_networks(interface)
        text = ", ".join(map(str, reached)) or "no address for other hosts"
        yield checked(bool(reached), text, interface.name)


def own_interfaces(host: Host) -> list[Interface]:
    """Return the back-end interfaces that are set up and belong to no bond or bridge. Raises Missing."""
    backend = set(backend_interfaces(host))
    interfaces = [
        interface
        for interface in host.interfaces()
        if interface.name in backend
        and not interface.master
        and ("UP" in interface.flags or interface.name in host.nics)
    ]
    if not interfaces:
        raise Missing("no RDMA interface of its own is up")
    return interfaces


@CHECKS.error("backend.plane-routes", "Every RDMA interface has its route and rule", 30)
@remedy.monitor("Add the interface's route and policy rule as the others have them")
def plane_routes(host: Host) -> Iterator[Finding]:
    """Find back-end interfaces without a route, or without a policy rule if other interfaces have one."""
    interfaces = own_interfaces(host)
    faults = plane_faults(host, interfaces)
    counts = _route_counts(host)
    for interface in interfaces:
        text = faults.get(interface.name, f"{counts[interface.name]} routes lead through it")
        yield checked(interface.name not in faults, text, interface.name)


def plane_faults(host: Host, interfaces: list[Interface]) -> dict[str, str]:
    """Return the missing part of each interface: its route, or a policy rule if other interfaces have one."""
    counts, rules = _route_counts(host), host.rules()
    ruled = {interface.name for interface in interfaces if is_ruled(interface, rules)}
    faults = {}
    for interface in interfaces:
        has_rule = interface.name in ruled or not ruled or not global_networks(interface)
        text = f"{counts[interface.name]} routes lead through it"
        if not has_rule:
            text += f"; no policy rule for its address, {len(ruled)} other interfaces have one"
        if not has_rule or not counts[interface.name]:
            faults[interface.name] = text
    return faults


def _route_counts(host: Host) -> Counter[str]:
    return Counter(route.interface for route in host.routes() if _leads_out(route))


def _leads_out(route: Route) -> bool:
    destination = ipaddress.ip_network(route.destination, strict=False)
    return route.kind == "unicast" and not destination.is_link_local and not destination.is_multicast


@CHECKS.warning("backend.source-routes", "Packets leave by the NIC whose address they carry", 30)
@remedy.monitor(
    "Give each NIC's address a policy rule and a routing table of its own: "
    "ip rule add from ADDRESS table N; ip route add default via GATEWAY dev INTERFACE table N",
)
def source_routes(host: Host) -> Iterator[Finding]:
    """Find NICs whose packets, to peers in their network or behind their routers, leave by another NIC.

    NICs that lack a route or rule are left to `plane_routes`. A bond or VLAN counts as one interface. A NIC
    in a VRF uses the VRF's routes.
    """
    interfaces = own_interfaces(host)
    if len(interfaces) < 2:
        raise Missing("one NIC alone")
    kinds = {interface.name: interface.kind for interface in host.interfaces()}
    routes, rules = host.routes(), host.rules()
    faults = plane_faults(host, interfaces)
    right = 0
    for interface in interfaces:
        if kinds.get(interface.master) == "vrf":
            yield passed(f"has the routes of VRF {interface.master}", interface.name)
        elif interface.name in faults:
            yield passed(f"{faults[interface.name]}: see backend.plane-routes", interface.name)
        else:
            wrong = list(_strays(interface, rules, routes))
            right += not wrong
            text = "; ".join(wrong[:MAX_NAMED]) or "packets with its addresses leave by it"
            if wrong and _is_strict(host, interface):
                text += "; rp_filter 1 drops what comes from there"
            yield checked(not wrong, text, interface.name)
    yield stated("source_routed", f"{right} of {len(interfaces)}")


def _is_strict(host: Host, interface: Interface) -> bool:
    is_ipv4 = any(address.version == 4 for address in global_networks(interface))
    return is_ipv4 and effective_setting(host, interface.name, "rp_filter") == STRICT


def _strays(interface: Interface, rules: list[Rule], routes: list[Route]) -> Iterator[str]:
    """Yield a text for each kind of packets from a NIC's address that leave by another NIC, or by none."""
    for own in global_networks(interface):
        beyond = {
            route.destination
            for route in routes
            if route.interface == interface.name and route.gateway and route.kind == "unicast"
        }
        for destination in (str(own.network), *sorted(beyond)):
            to = _representative(ipaddress.ip_network(destination, strict=False), own.ip, routes)
            if to is None or to.version != own.ip.version:
                continue
            devices = devices_of(rules, routes, own.ip, to)
            if devices != {interface.name}:
                by = " or ".join(sorted(devices)) or "no device"
                yield f"packets from {own.ip} to {destination} leave by {by}"


def _representative(network: AddressRange, own: Address, routes: list[Route]) -> Address | None:
    """Return an address in `network` that no more specific route covers; None if none is found."""
    parts = [
        part
        for part in (ipaddress.ip_network(route.destination, strict=False) for route in routes)
        if part.version == network.version and part.prefixlen > network.prefixlen and part[0] in network
    ]
    last = network.num_addresses - 1
    candidates = [network[at] for at in (1, last // 2, last // 3, last - 1, last, 0) if 0 <= at <= last]
    if is_default(Route(str(network), "", "")):
        candidates = [ipaddress.ip_address(ANYWHERE[network.version == 6]), *candidates]
    return next(
        (
            candidate
            for candidate in candidates
            if candidate != own and not any(candidate in part for part in parts)
        ),
        None,
    )


@CHECKS.warning("backend.gid-index", "RoCE v2 GIDs have one index on all ports", 20)
@remedy.monitor("Give all interfaces the same number of addresses, or set NCCL_IB_GID_INDEX")
def gid_index(host: Host) -> Iterator[Finding]:
    """Find RoCE ports whose routable RoCE v2 GID has another index: libraries use one index for all ports."""
    index_by_port = {}
    for port in ports(host):
        if host.read(f"{port.folder}/link_layer") == "Ethernet":
            indices = [gid.number for gid in gids(host, port) if gid.is_routable and gid.kind == "RoCE v2"]
            if indices:
                index_by_port[str(port)] = min(indices)
    if not index_by_port:
        raise Missing("no RoCE v2 GID with a routable address")
    majority = Counter(index_by_port.values()).most_common(1)[0][0]
    for subject, index in index_by_port.items():
        yield checked(index == majority, f"RoCE v2 GID at index {index}, most ports have {majority}", subject)
        yield stated("gid_index", index, subject)
