"""Plans a leaf-spine fabric: names, addresses, cables and routes, before anything is built.

A Plan has plain values and is equal for equal settings. No function does I/O. Hosts are h1.. with devices
eth1.., leaves leaf1.., spines spine1.. with ports swp1..; a leaf's first ports lead to its hosts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from fabrictime.testbed.settings import AnswerForm, FabricSettings
from schemas.ids import link_id
from schemas.topology import CableEntry, NodeEntry, TopologyFile

Kind = Literal["host", "leaf", "spine"]
_Address = tuple[str | None, int | None]
"""Address and prefix length of a port; None if it is unnumbered."""

_HOSTS_NET = int(ipaddress.IPv4Address("10.64.0.0"))  # /24 a leaf: 10.64.0.0 .. 10.64.127.255
_LINKS_NET = int(ipaddress.IPv4Address("10.128.0.0"))  # a prefix for each cable between leaf and spine
_LOOPBACKS_NET = int(ipaddress.IPv4Address("10.255.0.0"))  # leaves, and from 10.255.1.1 on spines
_GATEWAY = "10.99.0.1"
_HOST_PREFIX, _FLAT_PREFIX = 31, 16
_RAIL_TABLE = 100
_TRANSIT_PREFIX: dict[AnswerForm, int | None] = {
    "transit_30": 30,
    "transit_24": 24,
    "loopback": None,
    "anycast_loopback": None,
    "tunnel": None,
    "flat": None,
}
"""Prefix length of cables between leaves and spines by form, if it is not 31; None if unnumbered."""


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a cable: an interface of a node. `rate_bps` is 0 if the rate is not limited.

    `prefix` is the prefix length of its network. If `prefix` is None, the port is unnumbered, and `address`
    is the loopback address of its switch.
    """

    node: str
    name: str
    address: str
    mac: str
    rate_bps: int
    prefix: int | None = 31

    def __str__(self) -> str:
        return f"{self.node}:{self.name}"


@dataclass(frozen=True, slots=True)
class Cable:
    """Two ports that are wired together, the lower one first: host to leaf, or leaf to spine."""

    lower: Port
    upper: Port

    def links(self) -> tuple[str, str]:
        """Return the ids of the cable's two directed links: first the upward link, then the downward one."""
        low, up = self.lower, self.upper
        return link_id(low.node, low.name, up.node, up.name), link_id(up.node, up.name, low.node, low.name)


@dataclass(frozen=True, slots=True)
class Nexthop:
    """A next hop of a route: `port`, and the `gateway` at the cable's other end, None for a direct route.

    `onlink` is true if no network of the port contains the gateway.
    """

    port: str
    gateway: str | None
    onlink: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """A static route of a node. `nexthops` are ordered equal-cost paths; `table` None is the main table."""

    destination: str
    nexthops: tuple[Nexthop, ...]
    table: int | None = None
    source: str | None = None


@dataclass(slots=True)
class Node:
    """A namespace: host, leaf or spine. `rules` has (source address, table) for hosts with several NICs."""

    name: str
    kind: Kind
    ports: list[Port] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    rules: list[tuple[str, int]] = field(default_factory=list)
    loopback: str | None = None


@dataclass(slots=True)
class Plan:
    """The description of a fabric before it is built: its nodes, cables and addresses."""

    nodes: dict[str, Node]
    cables: list[Cable]
    far: dict[tuple[str, str], Port]
    """The port at the other end of the cable, by (node, port name)."""
    racks: dict[str, int]
    """The index of each host's rack, by host."""

    def nics(self) -> Iterator[tuple[Port, Port, int]]:
        """Yield (host's port, leaf's port, rail) of each NIC, grouped by host."""
        for node in self.nodes.values():
            if node.kind == "host":
                for rail, port in enumerate(node.ports):
                    yield port, self.far[node.name, port.name], rail

    def links(self) -> dict[str, tuple[Port, Port]]:
        """Return, by id, (sending port, receiving port) of every directed link."""
        table = {}
        for cable in self.cables:
            up, down = cable.links()
            table[up] = (cable.lower, cable.upper)
            table[down] = (cable.upper, cable.lower)
        return table


def make_plan(settings: FabricSettings) -> Plan:
    """Return the plan of the fabric that `settings` describe."""
    nodes: dict[str, Node] = {}
    hosts = [f"h{i + 1}" for i in range(settings.hosts)]
    leaves = [f"leaf{i + 1}" for i in range(settings.leaves)]
    spines = [f"spine{i + 1}" for i in range(settings.spines)]
    transit = _TRANSIT_PREFIX.get(settings.answers, 31)
    for names, kind in ((hosts, "host"), (leaves, "leaf"), (spines, "spine")):
        for number, name in enumerate(names, 1):
            nodes[name] = Node(name, kind)  # type: ignore[arg-type]  # the loop's literals widen to str
            if kind != "host" and transit is None:
                loopback = _LOOPBACKS_NET + (256 if kind == "spine" else 0) + number
                nodes[name].loopback = str(ipaddress.IPv4Address(loopback))

    cables: list[Cable] = []
    far: dict[tuple[str, str], Port] = {}

    def wire(lower: str, upper: str, addresses: tuple[_Address, _Address], rate_bps: int) -> None:
        ends = []
        for at, node in enumerate((nodes[lower], nodes[upper])):
            number = len(node.ports) + 1
            address, prefix = addresses[at]
            name = f"eth{number}" if node.kind == "host" else f"swp{number}"
            port = Port(
                node.name, name, address or node.loopback or "", _mac(len(cables), at), rate_bps, prefix
            )
            node.ports.append(port)
            ends.append(port)
        cables.append(Cable(ends[0], ends[1]))
        far[lower, ends[0].name] = ends[1]
        far[upper, ends[1].name] = ends[0]

    rails = settings.nics_per_host
    racks = settings.leaves // rails
    rack_of = {name: i * racks // settings.hosts for i, name in enumerate(hosts)}
    placed = [0] * settings.leaves
    for name in hosts:
        for rail in range(rails):
            leaf = rack_of[name] * rails + rail
            addresses = _host_addresses(settings.answers, _HOSTS_NET + 256 * leaf + 2 * placed[leaf])
            wire(name, leaves[leaf], addresses, settings.host_rate_bps)
            placed[leaf] += 1
    count = 0
    for leaf_name in leaves:
        for spine_name in spines:
            for _ in range(settings.links_per_leaf_spine):
                wire(leaf_name, spine_name, _transit_addresses(transit, count), settings.fabric_rate_bps)
                count += 1

    plan = Plan(nodes, cables, far, rack_of)
    for name in hosts:
        _route_host(plan, nodes[name])
    _route_switches(plan)
    return plan


def _host_addresses(form: AnswerForm, first: int) -> tuple[_Address, _Address]:
    """Return the addresses at a host's cable: (host's port, leaf's port)."""
    leaf, host = str(ipaddress.IPv4Address(first)), str(ipaddress.IPv4Address(first + 1))
    if form == "flat":
        return (host, _FLAT_PREFIX), (None, None)
    if form in ("anycast", "anycast_loopback"):
        return (host, 32), (_GATEWAY, 32)
    if form in ("loopback", "tunnel"):
        return (host, 32), (None, None)
    return (host, _HOST_PREFIX), (leaf, _HOST_PREFIX)


def _transit_addresses(prefix: int | None, cable: int) -> tuple[_Address, _Address]:
    """Return the addresses at a cable between leaf and spine: (leaf's port, spine's port)."""
    if prefix is None:
        return (None, None), (None, None)
    first = _LINKS_NET + (cable << 32 - prefix)
    low, high = {31: (0, 1), 30: (1, 2), 24: (1, 254)}[prefix]
    return (str(ipaddress.IPv4Address(first + low)), prefix), (
        str(ipaddress.IPv4Address(first + high)),
        prefix,
    )


def _route_switches(plan: Plan) -> None:
    """Give every leaf and spine routes to the hosts of each leaf, over all shortest equal-cost cables."""
    nodes, far = plan.nodes, plan.far
    leaves, spines = _names(plan, "leaf"), _names(plan, "spine")
    with_hosts = {leaf.node for _, leaf, _ in plan.nics()}
    prefixes = {
        leaf: f"{ipaddress.IPv4Address(_HOSTS_NET + 256 * i)}/24"
        for i, leaf in enumerate(leaves)
        if leaf in with_hosts
    }

    def nexthops(name: str, neighbours: Collection[str]) -> tuple[Nexthop, ...]:
        ends = [(port, far[name, port.name]) for port in nodes[name].ports]
        return tuple(
            Nexthop(port.name, end.address, port.prefix is None)
            for port, end in ends
            if end.node in neighbours
        )

    hosts = {(leaf.node, leaf.name): host for host, leaf, _ in plan.nics()}
    for name in leaves:
        up = nexthops(name, spines)
        nodes[name].routes = [
            Route(f"{hosts[name, port.name].address}/32", (Nexthop(port.name, None),))
            for port in nodes[name].ports
            if port.prefix != _HOST_PREFIX and (name, port.name) in hosts
        ]
        nodes[name].routes += [Route(prefix, up) for leaf, prefix in prefixes.items() if leaf != name]
    for name in spines:
        down = [(prefix, nexthops(name, (leaf,))) for leaf, prefix in prefixes.items()]
        nodes[name].routes = [Route(prefix, hops) for prefix, hops in down if hops]


@dataclass(frozen=True, slots=True)
class Swap:
    """A cable whose upper end moves from one spine's port to another's, with its address and MAC."""

    before: Port
    after: Port
    lower: Port


def exchange(
    plan: Plan, one: str, other: str, leaves: Collection[str] | None = None
) -> tuple[Plan, list[Swap]]:
    """Return (plan with two spines' cables exchanged at `leaves`, or at all if None; the moved cables).

    Raises ValueError if the names are not those of two spines and of leaves.
    """
    _check_exchange(plan, one, other, leaves)
    swaps = _swaps(plan, one, other, _names(plan, "leaf") if leaves is None else leaves)
    after = {swap.before: swap.after for swap in swaps}
    moved = {(swap.after.node, swap.after.name): swap.after for swap in swaps}
    nodes = {
        node.name: replace(
            node,
            ports=[moved.get((port.node, port.name), port) for port in node.ports],
            routes=list(node.routes),
        )
        for node in plan.nodes.values()
    }
    cables = [replace(cable, upper=after.get(cable.upper, cable.upper)) for cable in plan.cables]
    far: dict[tuple[str, str], Port] = {}
    for cable in cables:
        far[cable.lower.node, cable.lower.name] = cable.upper
        far[cable.upper.node, cable.upper.name] = cable.lower
    changed = Plan(nodes, cables, far, plan.racks)
    _route_switches(changed)
    return changed, swaps


def _swaps(plan: Plan, one: str, other: str, leaves: Iterable[str]) -> list[Swap]:
    swaps: list[Swap] = []
    for leaf in leaves:
        at_leaf = [cable for cable in plan.cables if cable.lower.node == leaf]
        of = [[cable for cable in at_leaf if cable.upper.node == spine] for spine in (one, other)]
        for a, b in zip(*of, strict=True):
            swaps.append(Swap(a.upper, replace(a.upper, node=other, name=b.upper.name), a.lower))
            swaps.append(Swap(b.upper, replace(b.upper, node=one, name=a.upper.name), b.lower))
    return swaps


def _names(plan: Plan, kind: str) -> list[str]:
    return [node.name for node in plan.nodes.values() if node.kind == kind]


def _check_exchange(plan: Plan, one: str, other: str, leaves: Collection[str] | None) -> None:
    spines, leaf_names = _names(plan, "spine"), _names(plan, "leaf")
    if any(node.loopback for node in plan.nodes.values()):
        raise ValueError("switches with unnumbered ports: a cable that moves has no addresses to keep")
    for name in (one, other):
        if name not in spines:
            raise ValueError(f"spine {name!r}: expected one of {', '.join(spines)}")
    if one == other:
        raise ValueError(f"spine {one!r}: expected two different spines")
    for name in leaves or ():
        if name not in leaf_names:
            raise ValueError(f"leaf {name!r}: expected one of {', '.join(leaf_names)}")


def _route_host(plan: Plan, host: Node) -> None:
    """Give a host its default route; with several NICs, packets leave by the NIC of their source address."""
    for rail, port in enumerate(host.ports):
        leaf = plan.far[host.name, port.name]
        first_hop = (
            (Nexthop(port.name, None),)
            if port.prefix == _FLAT_PREFIX
            else (Nexthop(port.name, leaf.address, port.prefix == 32),)
        )
        if rail == 0:
            host.routes.append(Route("default", first_hop, source=port.address))
        if len(host.ports) > 1:
            host.routes.append(Route("default", first_hop, table=_RAIL_TABLE + rail, source=port.address))
            host.rules.append((port.address, _RAIL_TABLE + rail))


def _mac(cable: int, end: int) -> str:
    """Return a locally administered unicast MAC address, unique for each end of each cable."""
    raw = (0x02_F7_00_00_00_00 | cable << 8 | end).to_bytes(6, "big")
    return raw.hex(":")


def topology_file(plan: Plan) -> TopologyFile:
    """Return the fabric as an operator's topology file: names, addresses, cables and their rates."""
    many_rails = any(node.kind == "host" and len(node.ports) > 1 for node in plan.nodes.values())
    rail_of = {far.node: rail for _, far, rail in plan.nics()} if many_rails else {}
    return TopologyFile(
        nodes=tuple(
            NodeEntry(
                name=node.name,
                kind=node.kind,
                rail=rail_of.get(node.name) if node.kind == "leaf" else None,
                addresses=() if node.loopback is None else (node.loopback,),
                ports={port.name: () if port.prefix is None else (port.address,) for port in node.ports},
            )
            for node in plan.nodes.values()
        ),
        links=tuple(
            CableEntry(ends=(str(cable.lower), str(cable.upper)), rate_bps=cable.lower.rate_bps)
            for cable in plan.cables
        ),
    )
