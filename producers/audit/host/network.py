"""A host's network as checks read it: interfaces, routes, rules, neighbours, flow control settings.

`live_network.py` fills the classes below from the kernel's netlink messages, for one network namespace. For a
recorded host they are plain values.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Final, Protocol

from producers.ports.ethtool import LinkSettings

MAIN_TABLE: Final = 254
"""Number of the routing table `main`, which holds routes that name no other table."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface."""

    name: str
    index: int
    mtu: int
    operstate: str
    """Operational state as in sysfs, in lower case: up, down, unknown, lowerlayerdown."""
    flags: frozenset[str]
    """Names of the flags, without `IFF_`: such as UP, LOWER_UP, LOOPBACK, NOARP, PROMISC."""
    kind: str = ""
    """Kind of a virtual interface, such as veth, vlan or bond; empty for a device."""
    mac: str = ""
    master: str = ""
    """Bond or bridge that the interface belongs to; empty without one."""
    carrier_changes: int = 0
    addresses: tuple[str, ...] = ()
    """Addresses with prefix lengths, such as 10.0.0.1/24."""
    counters: dict[str, int] = field(default_factory=dict)
    """Counters of the kernel (struct rtnl_link_stats64), such as rx_dropped."""

    @property
    def is_up(self) -> bool:
        """Whether the interface is set up and has a carrier."""
        return {"UP", "LOWER_UP"} <= self.flags


@dataclass(frozen=True, slots=True)
class Route:
    """A route to one next hop. A multipath route is one `Route` for each next hop."""

    destination: str
    """Destination network with its prefix length; 0.0.0.0/0 or ::/0 for the default route."""
    gateway: str
    """Address of the next hop; empty for a directly connected network."""
    interface: str
    table: int = MAIN_TABLE
    metric: int = 0
    kind: str = "unicast"
    source: str = ""
    """Preferred source address; empty without one."""
    mtu: int | None = None
    """MTU of the route; None if it uses the interface's."""
    paths: int = 1
    """Number of next hops that share the route's traffic."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy routing rule."""

    priority: int
    table: int
    source: str = ""
    """Source network with its prefix length; empty for all sources."""
    destination: str = ""
    interface: str = ""
    """Incoming interface that the rule is limited to; empty for all."""
    mark: int = 0
    family: int = socket.AF_INET
    suppress_length: int = -1
    """The look-up ignores routes with prefixes up to this length; -1 ignores none."""
    is_selective: bool = False
    """True if the rule has further conditions: outgoing interface, protocol, ports, users, VRF."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A neighbour's link-layer address."""

    address: str
    mac: str
    interface: str
    state: str
    """State of the entry, such as REACHABLE, STALE, FAILED, INCOMPLETE, PERMANENT, NOARP."""


@dataclass(frozen=True, slots=True)
class Dcb:
    """Flow control and priorities of an interface (IEEE 802.1Qaz). Fields that a driver lacks are None."""

    pfc_priorities: frozenset[int] | None
    """Priorities for which PFC is on."""
    pfc_pauses: tuple[int, int] | None
    """Numbers of PFC pause frames (sent, received), summed over all priorities."""
    dscp_priority: dict[int, int]
    """Priority by DSCP; empty without a map."""
    trust: tuple[str, ...] | None
    """Fields that set a packet's priority, in order, such as dscp, pcp. Without a trust table in the driver
    they are derived from the DSCP map."""
    priority_class: tuple[int, ...] | None
    """Traffic class of each priority."""
    class_percent: tuple[int, ...] | None
    """Bandwidth share of each traffic class, percent."""


class Network(Protocol):
    """The part of a host's network that a check may read. All methods may raise Missing or Unreadable."""

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
        """Return the neighbour table (ARP and NDP)."""
        ...

    def dcb(self, interface: str) -> Dcb | None:
        """Return the flow control settings; None if the driver has none."""
        ...

    def ethtool_statistics(self, interface: str) -> dict[str, int]:
        """Return the driver's counters by name; empty if it has none."""
        ...

    def link_settings(self, interface: str) -> LinkSettings | None:
        """Return the settings of the link; None if the driver reports none."""
        ...

    def echo(self, address: str, size: int) -> float | None:
        """Send an unfragmented echo request of `size` bytes; return the round trip, s, None if unanswered."""
        ...

    def connect(self, address: str, port: int) -> float | None:
        """Return the seconds until the host accepts or refuses a TCP connection; None if it does neither."""
        ...

    def exchange(self, address: str, port: int, request: bytes) -> bytes | None:
        """Send a UDP datagram and return the answer; None without one."""
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
