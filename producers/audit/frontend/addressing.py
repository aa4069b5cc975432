"""Addresses, routes and rules of a host: default route, gateway, and RDMA interfaces of several planes."""

from __future__ import annotations

import ipaddress
import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from producers.audit.backend.rdma_ports import backend_interfaces, global_networks
from producers.audit.base import Checks, Finding, checked, failed, passed
from producers.audit.host.base import Host, Missing
from producers.audit.host.network import Interface, Route, Rule, gateway_of
from schemas.audit_remedy import remedy

UNREACHED: Final = frozenset({"FAILED", "INCOMPLETE"})
STANDARD_TABLES: Final = frozenset({253, 254, 255})
STRICT: Final = 1
"""Value of rp_filter that drops packets whose answer would leave by another interface."""
CHECKS: Final = Checks()


def gateways(host: Host) -> list[Route]:
    """Return the default routes in use, of IPv4 and of IPv6. Raises Missing if there is neither."""
    routes = host.routes()
    defaults = [
        route for is_ipv6 in (False, True) if (route := gateway_of(routes, is_ipv6=is_ipv6)) is not None
    ]
    if not defaults:
        raise Missing("no default route")
    return defaults


def _back(host: Host) -> set[str]:
    try:
        return set(backend_interfaces(host))
    except Missing:
        return set()


def _vlan_carriers(host: Host) -> set[str]:
    """Return the interfaces that carry a VLAN, by the kernel's table or by a name such as eno7.100."""
    names = {interface.name.rpartition(".")[0] for interface in host.interfaces() if interface.kind == "vlan"}
    try:
        lines = host.read("/proc/net/vlan/config").splitlines()
    except Missing:
        return names
    return names | {line.rpartition("|")[2].strip() for line in lines if line.count("|") == 2}


@CHECKS.warning("frontend.addresses", "Interfaces that are up have an address", 31, 100)
@remedy.monitor("Check the network's configuration; set the interface down if it is unused")
def addresses(host: Host) -> Iterator[Finding]:
    """Find interfaces that are up, belong to no bond, bridge or VLAN, and have no address for other hosts."""
    routed = {route.interface for route in host.routes()}
    exempt = _back(host) | _vlan_carriers(host)
    any_interface = False
    for interface in host.interfaces():
        is_inner = interface.master or (interface.kind and interface.name not in routed)
        if interface.name in exempt or is_inner or "LOOPBACK" in interface.flags or not interface.is_up:
            continue
        any_interface = True
        reached = global_networks(interface)
        text = ", ".join(map(str, reached)) or "up, without an address that other hosts reach"
        yield checked(bool(reached), text, interface.name)
    if not any_interface:
        raise Missing("no interface is up")


@CHECKS.error("frontend.default-route", "There is one default route, by an interface that is up", 100)
@remedy.monitor("ip route replace default via GATEWAY dev INTERFACE")
def default_route(host: Host) -> Iterator[Finding]:
    """Find a host without a default route, or with several of equal metric; several next hops are allowed."""
    routes = host.routes()
    defaults = [route for route in routes if route.destination == "0.0.0.0/0" and route.table == 254]
    up = {interface.name for interface in host.interfaces() if interface.is_up}
    for route in defaults:
        rivals = [other for other in defaults if other.metric == route.metric and other.paths == 1]
        devices = {route.interface, *(other.interface for other in rivals)} if route.paths == 1 else {""}
        text = f"via {route.gateway or 'no gateway'}, metric {route.metric}"
        if route.interface not in up:
            text += "; the interface is down"
        elif len(devices) > 1:
            text += f"; so have {len(devices)} interfaces"
        yield checked(route.interface in up and len(devices) == 1, text, route.interface)
    if not defaults:
        has_ipv6 = gateway_of(routes, is_ipv6=True) is not None
        yield checked(has_ipv6, "default route of IPv6 only" if has_ipv6 else "no default route")


@CHECKS.error("frontend.policy-rules", "Policy rules lead to routes", 30, 100)
@remedy.monitor("Add the route to the rule's table, or delete the rule: `ip rule`, `ip route show table N`")
def policy_rules(host: Host) -> Iterator[Finding]:
    """Find policy rules with an empty table, or with a source address that the host does not have.

    An address with a host route of its own counts as the host's: it belongs to a container.
    """
    routes = host.routes()
    tables = {route.table for route in routes}
    own = {
        address.ip
        for interface in host.interfaces()
        for address in map(ipaddress.ip_interface, interface.addresses)
    }
    contained = (ipaddress.ip_network(route.destination, strict=False) for route in routes)
    own |= {network.network_address for network in contained if network.num_addresses == 1}
    for rule in host.rules():
        if rule.table in STANDARD_TABLES or not rule.table:
            continue
        subject = f"rule {rule.priority}"
        if rule.table not in tables:
            yield failed(f"table {rule.table} has no route", subject)
        elif _is_foreign(rule, own):
            yield failed(f"from {rule.source}, which is no address of this host", subject)
        else:
            yield passed(f"table {rule.table}", subject)
    yield passed("the standard rules are in use")


def _is_foreign(rule: Rule, own: set[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> bool:
    if not rule.source:
        return False
    network = ipaddress.ip_network(rule.source, strict=False)
    return network.num_addresses == 1 and network.network_address not in own


class GatewayState(NamedTuple):
    """A gateway and whether it answers to address resolution; None if it was not used lately."""

    interface: str
    text: str
    answers: bool | None


def gateway_states(host: Host) -> list[GatewayState]:
    """Return the states of the gateways of IPv4 and of IPv6. Raises Missing without a default route."""
    neighbours = {(neighbour.interface, neighbour.address): neighbour for neighbour in host.neighbours()}
    states = []
    for route in gateways(host):
        neighbour = neighbours.get((route.interface, route.gateway))
        if neighbour is None:
            states.append(GatewayState(route.interface, f"gateway {route.gateway} was not used lately", None))
        else:
            text = f"gateway {route.gateway} is {neighbour.state}, {neighbour.mac or 'no address'}"
            states.append(GatewayState(route.interface, text, neighbour.state not in UNREACHED))
    return states


@CHECKS.error("frontend.gateway", "A gateway answers to address resolution", 99, 100)
@remedy.replace("Check cable, VLAN and switch port; `ip neigh` shows the state")
def gateway(host: Host) -> Iterator[Finding]:
    """Find a host none of whose gateways answers: cable or port are at fault only then."""
    states = gateway_states(host)
    if all(state.answers is False for state in states):
        yield from (failed(state.text, state.interface) for state in states)
    else:
        yield from (passed(state.text, state.interface) for state in states if state.answers is not False)


@CHECKS.warning("frontend.gateways", "The gateways of IPv4 and of IPv6 both answer", 99, 100)
@remedy.monitor("Check the router of that family, or remove its default route: `ip -6 route`, `ip -6 neigh`")
def both_gateways(host: Host) -> Iterator[Finding]:
    """Find a gateway that does not answer while the gateway of the other address family may answer."""
    states = gateway_states(host)
    for state in states:
        is_silent = state.answers is False and any(other.answers is not False for other in states)
        yield checked(not is_silent, state.text, state.interface)


def shared_networks(interfaces: list[Interface]) -> Mapping[str, list[str]]:
    """Return the names of the interfaces in each IPv4 network that several interfaces belong to."""
    names_by_network: dict[str, list[str]] = defaultdict(list)
    for interface in interfaces:
        for address in global_networks(interface):
            if address.version == 4 and address.network.num_addresses > 1 and interface.is_up:
                names_by_network[str(address.network)].append(interface.name)
    return {network: names for network, names in names_by_network.items() if len(set(names)) > 1}


def effective_setting(host: Host, interface: str, setting: str) -> int:
    """Return the effective value of an IPv4 setting: the higher of `all` and the interface's own."""
    folder = "/proc/sys/net/ipv4/conf"
    return max(int(host.read(f"{folder}/{name}/{setting}")) for name in ("all", interface))


def _filters_by_route(host: Host, interface: str) -> bool:
    """Return whether an interface answers ARP only for addresses that it has the route for (arp_filter)."""
    try:
        return effective_setting(host, interface, "arp_filter") >= 1
    except Missing:
        return False


def _shared(host: Host) -> Iterator[tuple[str, str]]:
    """Yield (interface, network) for each interface that shares its network. Raises Missing if none does."""
    names_by_network = shared_networks(host.interfaces())
    if not names_by_network:
        raise Missing("no two interfaces are in one network")
    for network, names in names_by_network.items():
        for name in sorted(set(names)):
            yield name, network


@CHECKS.error("frontend.reverse-path", "Interfaces in one network do not filter by reverse path", 100)
@remedy.monitor("sysctl net.ipv4.conf.INTERFACE.rp_filter=2")
def reverse_path(host: Host) -> Iterator[Finding]:
    """Find interfaces of a multi-homed host on which strict reverse path filtering drops packets.

    It drops none on an interface whose address has a policy rule: the reverse path then leads back to it.
    """
    rules = host.rules()
    ruled = {interface.name for interface in host.interfaces() if is_ruled(interface, rules)}
    for name, network in _shared(host):
        value = effective_setting(host, name, "rp_filter")
        text = f"rp_filter is {value} in {network}, expected 2 or 0, or a policy rule"
        yield checked(value != STRICT or name in ruled, text, name)


@CHECKS.warning("frontend.arp", "Interfaces in one network answer for their own addresses only", 100)
@remedy.monitor("sysctl net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
def arp_replies(host: Host) -> Iterator[Finding]:
    """Find interfaces that answer ARP for each other's addresses: packets then arrive at the wrong NIC."""
    for name, network in _shared(host):
        ignore, announce = (
            effective_setting(host, name, setting) for setting in ("arp_ignore", "arp_announce")
        )
        is_right = (ignore >= 1 and announce >= 2) or _filters_by_route(host, name)
        text = f"arp_ignore {ignore}, arp_announce {announce} in {network}"
        yield checked(is_right, f"{text}; expected at least 1 and 2, or arp_filter 1", name)


def is_ruled(interface: Interface, rules: list[Rule]) -> bool:
    """Return whether a policy rule leads packets from an IPv4 address of the interface."""
    sources = {
        str(ipaddress.ip_network(rule.source, strict=False).network_address)
        for rule in rules
        if rule.source and rule.family == socket.AF_INET and rule.table not in STANDARD_TABLES
    }
    return any(str(address.ip) in sources for address in global_networks(interface))
