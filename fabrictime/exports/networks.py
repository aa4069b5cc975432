"""The networks of a fabric as trees of hosts, for schedulers. Pure.

A scheduler places a job well if it knows which hosts share a leaf or a pod. It needs a tree, but fabrics are
no trees: leaves have several spines, and a host has a leaf per rail. So a group is a set of hosts that reach
each other through switches up to a certain tier. A group of tier 1 has the leaves that share hosts (the rails
of a pod, the two leaves of a bond). A group of tier 2 has the leaves that share a spine, and so on.

A few hosts that are cabled to two pods, such as storage servers, do not make one group of these pods. Leaves
are joined if they share more than half of one leaf's hosts. A host at several groups belongs to the group
with most of its cables, then with most hosts: a job on this host then finds the largest choice of near hosts.

Switches that no cable connects are different networks, such as compute and storage: each is a tree of its
own. Networks that group their common hosts in the same manner, such as rails without spines, are one network.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from schemas.ids import natural
from schemas.topology import Topology, split_end


@dataclass(frozen=True, slots=True)
class Group:
    """Hosts that reach each other through switches up to one tier. Groups of the lowest tier have no
    children.
    """

    name: str
    """The group's first switch of its tier, in natural order: the name stays while that switch does."""
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    """The switches of the group's tier."""
    children: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """The groups of one network. `levels[0]` has one group per leaf or joined leaves, the last level one
    group.
    """

    levels: tuple[tuple[Group, ...], ...]
    multihomed: tuple[str, ...] = ()
    """Hosts that are cabled to other groups than their own as well."""

    @property
    def name(self) -> str:
        """Return the name of the network's top group."""
        return self.levels[-1][0].name

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return all hosts of the network in natural order."""
        return self.levels[-1][0].hosts

    @property
    def lowest(self) -> tuple[Group, ...]:
        """Return the groups without children, exactly one of which contains each host."""
        return tuple(_lowest(self.levels[-1][0]))


def _lowest(group: Group) -> Iterator[Group]:
    if not group.children:
        yield group
    for child in group.children:
        yield from _lowest(child)


def networks_of(topology: Topology) -> tuple[Network, ...]:
    """Return the networks of a topology, the largest first; see `networks_between`.

    A switch without a stated tier has its distance from the nearest host as tier.
    """
    cables = [tuple(split_end(end).node for end in cable.split("<>")) for cable in topology.cable_ids()]
    near: dict[str, set[str]] = defaultdict(set)
    for a, b in cables:
        near[a].add(b)
        near[b].add(a)
    hosts = [node for node in near if node not in topology.nodes or topology.tier(node) == 0]
    distances = _distances(hosts, near)
    tiers = {node: topology.tier(node) or distances.get(node, 1) for node in near}
    return networks_between(tiers, [(a, b) for a, b in cables])


def _distances(hosts: Iterable[str], near: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return the number of cables from each node to the nearest host."""
    distances = dict.fromkeys(hosts, 0)
    edge = list(distances)
    while edge:
        further = {other for node in edge for other in near[node] if other not in distances}
        distances |= dict.fromkeys(further, distances[edge[0]] + 1)
        edge = list(further)
    return distances


def networks_between(tier_of: Mapping[str, int], cables: Iterable[tuple[str, str]]) -> tuple[Network, ...]:
    """Return the networks that cables between nodes form, the largest first.

    `tier_of` is the tier of each node, 0 for hosts. Switches without any host form no network.
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
    separate = [
        (network, switches)
        for switches in _connected(hosts_of, neighbours)
        if (network := _network(switches, hosts_of, neighbours, tiers)) is not None
    ]
    networks = [_network(switches, hosts_of, neighbours, tiers) for switches in _joined(separate)]
    return tuple(sorted((one for one in networks if one is not None), key=_order))


def _joined(separate: Collection[tuple[Network, Collection[str]]]) -> list[set[str]]:
    """Return the switches of each network. A network that is part of a larger one adds its switches to it."""
    joined: list[tuple[Network, set[str]]] = []
    for network, switches in sorted(separate, key=lambda pair: _order(pair[0])):
        larger = next((pair for pair in joined if _is_part(network, pair[0])), None)
        if larger is None:
            joined.append((network, set(switches)))
        else:
            larger[1].update(switches)
    return [switches for _, switches in joined]


def _order(network: Network) -> tuple[int, Any]:
    return -len(network.hosts), natural(network.name)


def _is_part(network: Network, larger: Network) -> bool:
    """Return whether `network` has most hosts of `larger`, and both group these hosts in the same manner.

    So a rail that lacks a host because of a dead NIC belongs to the other rails.
    """
    hosts = set(network.hosts)
    is_similar = len(network.levels) == len(larger.levels) and 2 * len(hosts) > len(larger.hosts)
    return is_similar and all(
        {frozenset(group.hosts) for group in level}
        == {frozenset(part) for group in larger_level if (part := hosts & set(group.hosts))}
        for level, larger_level in zip(network.levels, larger.levels, strict=True)
    )


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
    """Return a network's levels without those that join no groups; None unless one group is on top."""
    links: dict[str, set[str]] = defaultdict(set)
    hosts_of, multihomed = _homes(switches, hosts_of, tiers)
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
        if groups and (not levels or _adds(groups, levels[-1])):
            levels.append(groups)
    return Network(tuple(levels), multihomed) if levels and len(levels[-1]) == 1 else None


def _homes(
    switches: Collection[str], hosts_of: Mapping[str, Collection[str]], tiers: Mapping[str, int]
) -> tuple[dict[str, set[str]], tuple[str, ...]]:
    """Return each switch's hosts, with each host in one group per tier, and the hosts at several groups."""
    homes = {switch: set(hosts_of[switch]) for switch in switches}
    multihomed: set[str] = set()
    for tier in {tiers[switch] for switch in switches}:
        groups = _joined_by_hosts({switch: homes[switch] for switch in switches if tiers[switch] == tier})
        sizes = [len(set().union(*(homes[switch] for switch in group))) for group in groups]
        cables: dict[str, Counter[int]] = defaultdict(Counter)
        for number, group in enumerate(groups):
            for switch in group:
                for host in homes[switch]:
                    cables[host][number] += 1
        for host, counts in cables.items():
            home = max(counts, key=lambda number: (counts[number], sizes[number], -number))
            for switch in (switch for number in counts if number != home for switch in groups[number]):
                homes[switch].discard(host)
                multihomed.add(host)
    return homes, tuple(sorted(multihomed, key=natural))


def _joined_by_hosts(hosts_of: Mapping[str, Collection[str]]) -> list[set[str]]:
    """Return sets of joined switches. Two switches are joined if they share most hosts of one of them."""
    switches_of: dict[str, list[str]] = defaultdict(list)
    for switch, hosts in hosts_of.items():
        for host in hosts:
            switches_of[host].append(switch)
    shared = Counter(pair for switches in switches_of.values() for pair in combinations(sorted(switches), 2))
    near: dict[str, set[str]] = defaultdict(set)
    for (a, b), count in shared.items():
        if 2 * count > min(len(hosts_of[a]), len(hosts_of[b])):
            near[a].add(b)
            near[b].add(a)
    return _connected(hosts_of, near)


def _adds(groups: Collection[Group], lower: Collection[Group]) -> bool:
    """Return whether `groups` join groups of the level below, `lower`, or have more hosts."""
    hosts, lower_hosts = (sum(len(group.hosts) for group in level) for level in (groups, lower))
    return len(groups) < len(lower) or hosts > lower_hosts


def _groups(
    components: Iterable[Collection[str]],
    hosts: Collection[str],
    tiers: Mapping[str, int],
    tier: int,
    lower: Collection[Group],
) -> tuple[Group, ...]:
    """Return a group for each component that has hosts. A component without a switch of this tier keeps its
    groups of the tier below.
    """
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
    """Return a group's children, and one more child for hosts that are cabled to the group's own switches."""
    below = {host for child in children for host in child.hosts}
    direct = tuple(host for host in hosts if host not in below)
    if not children or not direct:
        return children
    return (*children, Group(f"{switches[0]}-hosts", direct, switches))
