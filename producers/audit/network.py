"""A host's network as checks read it: interfaces, routes, rules, neighbours, flow control settings.

The records come from netlink and hold a kernel's answer in plain words. `live_network.py` reads them of a
network namespace; a recorded host has them as values.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Final, Protocol

from producers.ports.ethtool import LinkSettings

MAIN_TABLE: Final = 254
"""Routing table of routes without one of their own."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface."""

    name: str
    index: int
    mtu: int
    operstate: str
    """As in sysfs, in lower case: up, down, unknown, lowerlayerdown."""
    flags: frozenset[str]
    """Flags without `IFF_`, such as UP, LOWER_UP, LOOPBACK, NOARP, PROMISC."""
    kind: str = ""
    """Kind of a virtual interface, such as veth, vlan or bond; empty for a device."""
    mac: str = ""
    master: str = ""
    """Bond or bridge that the interface belongs to."""
    carrier_changes: int = 0
    addresses: tuple[str, ...] = ()
    """With their prefix lengths, such as 10.0.0.1/24."""
    counters: dict[str, int] = field(default_factory=dict)
    """Counters of the kernel (struct rtnl_link_stats64), such as rx_dropped."""

    @property
    def is_up(self) -> bool:
        """Whether it is set up and has a carrier."""
        return {"UP", "LOWER_UP"} <= self.flags


@dataclass(frozen=True, slots=True)
class Route:
    """A route to one next hop; a route of several paths is several of these."""

    destination: str
    """With its prefix length; 0.0.0.0/0 or ::/0 for the default."""
    gateway: str
    """Empty for a directly connected network."""
    interface: str
    table: int = MAIN_TABLE
    metric: int = 0
    kind: str = "unicast"
    source: str = ""
    """Preferred source address."""
    mtu: int | None = None
    """MTU of the route, if it has one of its own."""
    paths: int = 1
    """Next hops that share the route's traffic."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy routing rule."""

    priority: int
    table: int
    source: str = ""
    """With its prefix length; empty for all."""
    destination: str = ""
    interface: str = ""
    """Incoming interface."""
    mark: int = 0
    family: int = socket.AF_INET
    suppress_length: int = -1
    """Routes with prefixes up to this length are left out; -1: none."""
    is_selective: bool = False
    """True if it has further conditions: outgoing interface, protocol, ports, users, VRF."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A neighbour's link-layer address."""

    address: str
    mac: str
    interface: str
    state: str
    """Such as REACHABLE, STALE, FAILED, INCOMPLETE, PERMANENT, NOARP."""


@dataclass(frozen=True, slots=True)
class Dcb:
    """Flow control and priorities of an interface by IEEE 802.1Qaz. None: the driver does not report it."""

    pfc_priorities: frozenset[int] | None
    """Priorities with PFC."""
    pfc_pauses: tuple[int, int] | None
    """Pause frames sent and received, all priorities."""
    dscp_priority: dict[int, int]
    """DSCP to priority; empty without a map."""
    trust: tuple[str, ...] | None
    """Selectors in order, such as dscp, pcp. Where a driver has no table, derived from its DSCP map."""
    priority_class: tuple[int, ...] | None
    """Traffic class of each priority."""
    class_percent: tuple[int, ...] | None
    """Bandwidth share of each traffic class."""


class Network(Protocol):
    """The part of a host's network that a check may read. Methods raise Missing and Unreadable."""

    @property
    def nics(self) -> tuple[str, ...]:
        """Interfaces of the NICs that the host's agent measures; empty without an agent."""
        ...

    def interfaces(self) -> list[Interface]:
        """Return all interfaces."""
        ...

    def routes(self) -> list[Route]:
        """Return the routes of all tables but `local`, IPv4 and IPv6."""
        ...

    def rules(self) -> list[Rule]:
        """Return the policy rules, IPv4 and IPv6."""
        ...

    def neighbours(self) -> list[Neighbour]:
        """Return the neighbours."""
        ...

    def dcb(self, interface: str) -> Dcb | None:
        """Return flow control settings; None where the driver has none."""
        ...

    def ethtool_statistics(self, interface: str) -> dict[str, int]:
        """Return the driver's counters; empty where it has none."""
        ...

    def link_settings(self, interface: str) -> LinkSettings | None:
        """Return the settings of the link; None where the driver has none."""
        ...

    def echo(self, address: str, size: int) -> float | None:
        """Return the seconds to the answer of an unfragmented echo request of `size` bytes; None without."""
        ...

    def connect(self, address: str, port: int) -> float | None:
        """Return the seconds until TCP accepts or refuses a connection; None without an answer."""
        ...

    def exchange(self, address: str, port: int, request: bytes) -> bytes | None:
        """Return the answer to a datagram of UDP; None without one."""
        ...


def gateway_of(routes: list[Route], *, is_ipv6: bool = False) -> Route | None:
    """Return the default route of the main table with the smallest metric; None without one."""
    defaults = [
        route
        for route in routes
        if is_default(route)
        and (":" in route.destination) == is_ipv6
        and route.table == MAIN_TABLE
        and route.gateway
    ]
    return min(defaults, key=lambda route: route.metric, default=None)


def is_default(route: Route) -> bool:
    """Return whether a route leads to all networks."""
    return route.destination in ("0.0.0.0/0", "::/0")
