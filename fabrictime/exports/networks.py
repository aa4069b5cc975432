"""The networks of a fabric as trees of hosts, for schedulers. Pure.

A scheduler places a job well if it knows which hosts share a leaf or a pod. It needs a tree, but fabrics are
no trees: leaves have several spines, and a host has a leaf per rail. So a group is a set of hosts that reach
each other without leaving the switches up to a tier. A group of tier 1 has the leaves that share hosts (the
rails of a pod, the two leaves of a bond). A group of tier 2 has the leaves that share a spine, and so on.

Switches that no cable connects are different networks, such as compute and storage: each is a tree of its
own. Networks that group the hosts in the same way, such as rails without spines, are one network.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from schemas.ids import natural
from schemas.topology import Topology, split_end


@dataclass(frozen=True, slots=True)
class Group:
    """Hosts that reach each other through switches up to a tier. The lowest tier has no children."""

    name: str
    """The group's first switch of its tier, in natural order: the name stays while that switch does."""
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    """The switches of the group's tier."""
    children: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """The groups of one network: `levels[0]` has those of the leaves, the last level one group."""

    levels: tuple[tuple[Group, ...], ...]

    @property
    def name(self) -> str:
        """Return the name of the top group."""
        return self.levels[-1][0].name

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return all hosts of the network in natural order."""
        return self.levels[-1][0].hosts


def networks_of(topology: Topology) -> tuple[Network, ...]:
    """Return the networks of a topology, the largest first; see `networks_between`."""
    cables = [tuple(split_end(end).node for end in cable.split("<>")) for cable in topology.cable_ids()]
    nodes = {node for cable in cables for node in cable}
    return networks_between({node: topology.tier(node) or 0 for node in nodes}, [(a, b) for a, b in cables])


def networks_between(tier_of: Mapping[str, int], cables: Iterable[tuple[str, str]]) -> tuple[Network, ...]:
    """Return the networks that cables between nodes make, the largest first.

    `tier_of`: the tier of each node, 0 for hosts. Without a host at a switch there is no network.
    """
    hosts_of: dict[str, set[str]] = defaultdict(set)
    """Hosts at each switch."""
    neighbours: dict[str, set[str]] = defaultdict(set)
    """Switches at each switch."""
    for a, b in cables:
        for switch, other in ((a, b), (b, a)):
            if tier_of[switch] and tier_of[other]:
                neighbours[switch].add(other)
                hosts_of.setdefault(switch, set())
            elif tier_of[switch]:
                hosts_of[switch].add(other)
    tiers = {switch: tier_of[switch] for switch in hosts_of}
    by_partition: dict[frozenset[tuple[tuple[str, ...], ...]], Network] = {}
    for switches in _connected(hosts_of, neighbours):
        network = _network(switches, hosts_of, neighbours, tiers)
        if network is not None:
            partition = frozenset(tuple(group.hosts for group in level) for level in network.levels)
            first = min(by_partition.get(partition, network), network, key=lambda one: natural(one.name))
            by_partition[partition] = first
    return tuple(sorted(by_partition.values(), key=lambda one: (-len(one.hosts), natural(one.name))))


def _connected(nodes: Iterable[str], neighbours: Mapping[str, Collection[str]]) -> list[set[str]]:
    """Return the connected components of `nodes`, in natural order of their first node."""
    left = dict.fromkeys(sorted(nodes, key=natural))
    components = []
    while left:
        component: set[str] = set()
        stack = [next(iter(left))]
        while stack:
            node = stack.pop()
            if node in left:
                del left[node]
                component.add(node)
                stack += neighbours.get(node, ())
        components.append(component)
    return components


def _network(
    switches: Collection[str],
    hosts_of: Mapping[str, Collection[str]],
    neighbours: Mapping[str, Collection[str]],
    tiers: Mapping[str, int],
) -> Network | None:
    """Return the levels of a network, without those that join no groups; None without a host."""
    links: dict[str, set[str]] = defaultdict(set)
    for switch in switches:
        for host in hosts_of[switch]:  # hosts and switches have different names in a topology
            links[switch].add(host)
            links[host].add(switch)
    levels: list[tuple[Group, ...]] = []
    hosts = {host for switch in switches for host in hosts_of[switch]}
    for tier in sorted({tiers[switch] for switch in switches}):
        lower = {switch for switch in switches if tiers[switch] <= tier}
        for switch in lower:
            links[switch] |= set(neighbours.get(switch, ())) & lower
        groups = _groups(_connected(lower | hosts, links), hosts, tiers, tier, levels[-1] if levels else ())
        if groups and (not levels or len(groups) < len(levels[-1])):
            levels.append(groups)
    return Network(tuple(levels)) if levels and len(levels[-1]) == 1 else None


def _groups(
    components: Iterable[Collection[str]],
    hosts: Collection[str],
    tiers: Mapping[str, int],
    tier: int,
    lower: Collection[Group],
) -> tuple[Group, ...]:
    """Return a group for each component that has hosts; a component without a switch of this tier keeps its
    groups of the tier below."""
    groups: list[Group] = []
    for component in components:
        members = tuple(sorted(set(component) & set(hosts), key=natural))
        switches = tuple(sorted((s for s in component if tiers.get(s) == tier), key=natural))
        children = tuple(group for group in lower if set(group.hosts) <= set(members))
        if members and switches:
            groups.append(Group(switches[0], members, switches, _complete(children, members, switches)))
        else:
            groups += children
    return tuple(sorted(groups, key=lambda group: natural(group.name)))


def _complete(
    children: tuple[Group, ...], hosts: Collection[str], switches: tuple[str, ...]
) -> tuple[Group, ...]:
    """Return the children of a group, and one more for hosts that are cabled to the group's own switches."""
    below = {host for child in children for host in child.hosts}
    direct = tuple(host for host in hosts if host not in below)
    if not children or not direct:
        return children
    return (*children, Group(f"{switches[0]}-hosts", direct, switches))
