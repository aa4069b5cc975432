"""Finds names that belong to one switch: a path enters a switch by one name and leaves it by another.

Several leaves may answer from one address, the anycast gateway of their hosts. Then a path leads from this
address over other switches back to the same address. Such a leaf is named by the address and the NIC.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from schemas.ids import end_parts, link_ends, natural
from schemas.topology import LAYER_2

AT: Final = "@"
"""Separates an address from the NIC whose switch has it."""


class SwitchNames(NamedTuple):
    """The relations between switch names that one route shows: equal names, leaves and anycast addresses."""

    joins: frozenset[tuple[str, str]] = frozenset()
    """Pairs of names that belong to one switch."""
    leaves: frozenset[tuple[str, str]] = frozenset()
    """Pairs of a leaf's name, made of address and NIC, and its address. They name one switch unless several
    leaves have the address."""
    anycast: frozenset[str] = frozenset()
    """Addresses at both ends of the route."""

    def union(self, other: SwitchNames) -> SwitchNames:
        """Return the names found on this route and on the route of `other`."""
        return SwitchNames(self.joins | other.joins, self.leaves | other.leaves, self.anycast | other.anycast)


class Groups:
    """Union-find structure that groups the names of each switch."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the name that represents the switch of `name`."""
        root = name
        while self._of.get(root, root) != root:
            root = self._of[root]
        while name != root:
            self._of[name], name = root, self._of.get(name, name)
        return root

    def join(self, a: str, b: str) -> None:
        """Merge two names that belong to one switch."""
        one, other = self.find(a), self.find(b)
        if one != other:
            first, second = sorted((one, other), key=by_name)
            self._of[second] = first

    def add(
        self,
        joins: Iterable[tuple[str, str]],
        leaves: Iterable[tuple[str, str]],
        anycast: Collection[str],
    ) -> None:
        """Merge the names found on routes; see `SwitchNames`."""
        for a, b in sorted(joins):
            self.join(a, b)
        for by_nic, node in sorted(leaves):
            if node not in anycast:
                self.join(by_nic, node)


def leaf_name(node: str, nic: str) -> str:
    """Return the name of a NIC's leaf, made of the leaf's address and the NIC."""
    return f"{node}{AT}{nic.replace('/', '.')}"


def names_of(nic: str, peer: str, links: tuple[str, ...], complete: bool) -> SwitchNames:
    """Return the names of the switches on a route from `nic` to `peer`; none if the route is incomplete."""
    if len(links) < 2:
        return SwitchNames()
    ends = [link_ends(link) for link in links]
    entered = [end_parts(far).node for _, far in ends[:-1]]
    left = [end_parts(near).node for near, _ in ends[1:]]
    if not complete or LAYER_2 in (entered[0], left[-1]):
        return SwitchNames()
    leaves = frozenset({(leaf_name(entered[0], nic), entered[0]), (leaf_name(left[-1], peer), left[-1])})
    anycast = frozenset({entered[0]} if entered[0] == left[-1] and len(links) > 2 else ())
    entered[0], left[-1] = leaf_name(entered[0], nic), leaf_name(left[-1], peer)
    joins = frozenset((a, b) for a, b in zip(entered, left, strict=True) if a != b)
    return SwitchNames(joins, leaves, anycast)


def address_of(node: str) -> str | None:
    """Return the address of a node that is named by its address; None if it has a name of another kind."""
    for text in (node, node.replace("-", ":")):
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            continue
    return None


def is_address(node: str) -> bool:
    """Return whether a node is named by its address."""
    return address_of(node) is not None


def by_name(name: str) -> tuple[int, Any]:
    """Return a sort key: names in natural order before addresses, so that a switch is called by a name."""
    if AT in name:
        return 2, natural(name)
    address = address_of(name)
    if address is None:
        return 0, natural(name)
    address_value = ipaddress.ip_address(address)
    return 1, [(address_value.version, int(address_value), "")]
