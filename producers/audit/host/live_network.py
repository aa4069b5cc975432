"""Reads the network of a namespace by netlink (pyroute2), by ethtool, and by dcbnl.

pyroute2 takes 25 MB, so that it is imported only for the first read. It keeps one socket per thread, and a
thread cannot leave a namespace; so each read runs in a new thread.
"""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from producers.audit.host import live_reach
from producers.audit.host.base import as_unreadable
from producers.audit.host.network import Dcb, Interface, Neighbour, Route, Rule
from producers.netlink import ask, attribute, attributes, open_netlink
from producers.netns import in_netns
from producers.ports import ethtool
from producers.ports.ethtool import LinkSettings

SOCKET_S: Final = 2.0
"""Time-out of sockets: a check has ten seconds."""
FRESH_S: Final = 5.0
"""Checks share an answer up to this age: a read takes ten milliseconds of processor time."""
LOCAL_TABLE: Final = 255
NO_DRIVER: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL})
"""Error numbers of a call that the driver does not implement."""

T = TypeVar("T")
Message = Any  # a decoded netlink message of pyroute2, which has no types


def interface_of(link: Message, names: Mapping[int, str], addresses: Mapping[int, list[str]]) -> Interface:
    """Return the interface of an RTM_NEWLINK message."""
    from pyroute2.netlink.rtnl.ifinfmsg import IFF_VALUES

    info = link.get_attr("IFLA_LINKINFO")
    index = int(link["index"])
    return Interface(
        name=names[index],
        index=index,
        mtu=int(link.get_attr("IFLA_MTU") or 0),
        operstate=str(link.get_attr("IFLA_OPERSTATE") or "unknown").lower(),
        flags=frozenset(
            name.removeprefix("IFF_") for bit, name in IFF_VALUES.items() if int(link["flags"]) & bit
        ),
        kind=str((info and info.get_attr("IFLA_INFO_KIND")) or ""),
        mac=str(link.get_attr("IFLA_ADDRESS") or ""),
        master=names.get(link.get_attr("IFLA_MASTER") or 0, ""),
        carrier_changes=int(link.get_attr("IFLA_CARRIER_CHANGES") or 0),
        addresses=tuple(addresses.get(index, ())),
        counters={str(name): int(value) for name, value in (link.get_attr("IFLA_STATS64") or {}).items()},
    )


def routes_of(message: Message, names: Mapping[int, str]) -> Iterator[Route]:
    """Yield a `Route` for each next hop of an RTM_NEWROUTE message; nothing for the table `local`."""
    from pyroute2.netlink.rtnl import rt_type

    table = int(message.get_attr("RTA_TABLE") or message["table"])
    if table == LOCAL_TABLE:
        return
    kinds = {number: name for name, number in rt_type.items()}
    metrics = message.get_attr("RTA_METRICS")
    hops = message.get_attr("RTA_MULTIPATH") or [message]
    for hop in hops:
        interface = hop.get_attr("RTA_OIF") if hop is message else hop["oif"]
        via = hop.get_attr("RTA_VIA")
        yield Route(
            destination=_prefix(message.get_attr("RTA_DST"), message["dst_len"], message["family"]),
            gateway=str(hop.get_attr("RTA_GATEWAY") or (via and via.get("addr")) or ""),
            interface=names.get(interface or 0, ""),
            table=table,
            metric=int(message.get_attr("RTA_PRIORITY") or 0),
            kind=str(kinds.get(message["type"], message["type"])),
            source=str(message.get_attr("RTA_PREFSRC") or ""),
            mtu=metrics.get_attr("RTAX_MTU") if metrics else None,
            paths=len(hops),
        )


def rule_of(message: Message) -> Rule:
    """Return the rule of an RTM_NEWRULE message."""
    family = int(message["family"])
    source, destination = message.get_attr("FRA_SRC"), message.get_attr("FRA_DST")
    return Rule(
        priority=int(message.get_attr("FRA_PRIORITY") or 0),
        table=int(message.get_attr("FRA_TABLE") or message["table"]),
        source=_prefix(source, message["src_len"], family) if source else "",
        destination=_prefix(destination, message["dst_len"], family) if destination else "",
        interface=str(message.get_attr("FRA_IIFNAME") or ""),
        mark=int(message.get_attr("FRA_FWMARK") or 0),
        family=family,
        suppress_length=_suppress_length(message),
        is_selective=any(message.get_attr(attribute) for attribute in _CONDITIONS),
    )


_CONDITIONS: Final = (
    *("FRA_OIFNAME", "FRA_L3MDEV", "FRA_UID_RANGE"),
    *("FRA_IP_PROTO", "FRA_SPORT_RANGE", "FRA_DPORT_RANGE"),
)
"""Attributes of a rule that limit it to some of this host's packets."""


def _suppress_length(message: Message) -> int:
    length = message.get_attr("FRA_SUPPRESS_PREFIXLEN")
    return -1 if length is None or length == 2**32 - 1 else int(length)


def neighbour_of(message: Message, names: Mapping[int, str]) -> Neighbour:
    """Return the neighbour of an RTM_NEWNEIGH message."""
    from pyroute2.netlink.rtnl.ndmsg import NUD_VALUES

    states = {number: name for number, name in NUD_VALUES.items() if isinstance(number, int)}
    states |= {number: name for name, number in NUD_VALUES.items() if isinstance(number, int)}
    return Neighbour(
        address=str(message.get_attr("NDA_DST") or ""),
        mac=str(message.get_attr("NDA_LLADDR") or ""),
        interface=names.get(int(message["ifindex"]), ""),
        state=str(states.get(message["state"], message["state"])).removeprefix("NUD_").upper(),
    )


def _prefix(address: str | None, length: int, family: int) -> str:
    return f"{address or ('::' if family == socket.AF_INET6 else '0.0.0.0')}/{length}"  # noqa: S104


class LiveNetwork:
    """The network of namespace `netns` (None: the process's own). `nics`: the agent's NICs' interfaces."""

    def __init__(self, netns: str | None = None, nics: tuple[str, ...] = ()) -> None:
        self.netns, self.nics = netns, nics
        self._answers: dict[str, _Answer] = {}
        self._answers_lock = threading.Lock()

    def interfaces(self) -> list[Interface]:
        """Return all interfaces. Raises Unreadable."""

        def read(ip: Any) -> list[Interface]:
            links = list(ip.get_links())
            names = _names(links)
            addresses: dict[int, list[str]] = {}
            for message in ip.get_addr():
                address = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
                addresses.setdefault(int(message["index"]), []).append(f"{address}/{message['prefixlen']}")
            return [interface_of(link, names, addresses) for link in links]

        return self._ask("interfaces", read)

    def routes(self) -> list[Route]:
        """Return the routes of all tables but `local`. Raises Unreadable."""

        def read(ip: Any) -> list[Route]:
            names = _names(ip.get_links())
            messages = [message for family in _FAMILIES for message in ip.get_routes(family=family)]
            return [route for message in messages for route in routes_of(message, names)]

        return self._ask("routes", read)

    def rules(self) -> list[Rule]:
        """Return the policy rules. Raises Unreadable."""
        return self._ask(
            "rules",
            lambda ip: [rule_of(message) for family in _FAMILIES for message in ip.get_rules(family=family)],
        )

    def neighbours(self) -> list[Neighbour]:
        """Return the neighbour table (ARP and NDP). Raises Unreadable."""

        def read(ip: Any) -> list[Neighbour]:
            names = _names(ip.get_links())
            return [
                neighbour_of(message, names)
                for family in _FAMILIES
                for message in ip.get_neighbours(family=family)
            ]

        return self._ask("neighbours", read)

    def dcb(self, interface: str) -> Dcb | None:
        """Return the flow control settings; None if the driver has none. Raises Missing, Unreadable."""
        try:
            return dcb_of(
                self.within(f"dcb of {interface}", lambda: _dcb_answer(interface), raises=NO_DRIVER)
            )
        except OSError:
            return None

    def ethtool_statistics(self, interface: str) -> dict[str, int]:
        """Return the driver's counters by name; empty if it has none. Raises Missing, Unreadable."""

        def read() -> dict[str, int]:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
                count = ethtool.stat_count(opened, interface)
                if not count:
                    return {}
                names = ethtool.stat_names(opened, interface, count)
                return dict(zip(names, ethtool.stat_values(opened, interface, count), strict=False))

        try:
            return self.within(interface, read, raises=NO_DRIVER)
        except OSError:
            return {}

    def link_settings(self, interface: str) -> LinkSettings | None:
        """Return the settings of the link; None if the driver reports none. Raises Missing, Unreadable."""

        def read() -> LinkSettings:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
                return ethtool.link_settings(opened, interface)

        try:
            return self.within(interface, read, raises=NO_DRIVER)
        except OSError:
            return None

    def open_socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Return a new socket of the namespace, with a time-out; the caller closes it. Raises Unreadable."""
        opened = self.within("socket", lambda: socket.socket(family, kind, protocol))
        opened.settimeout(SOCKET_S)
        return opened

    def echo(self, address: str, size: int) -> float | None:
        """Send an unfragmented echo request of `size` bytes; return the round trip, s, None if unanswered.

        Raises Unreadable without the right to open raw sockets.
        """
        with self.open_socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as opened:
            return live_reach.echo(opened, address, size)

    def connect(self, address: str, port: int) -> float | None:
        """Return the seconds until the host accepts or refuses a TCP connection; None if it does neither."""
        with self.open_socket(live_reach.family_of(address), socket.SOCK_STREAM) as opened:
            return live_reach.connect(opened, address, port)

    def exchange(self, address: str, port: int, request: bytes) -> bytes | None:
        """Send a UDP datagram and return the answer; None if no answer comes."""
        with self.open_socket(live_reach.family_of(address), socket.SOCK_DGRAM) as opened:
            return live_reach.exchange(opened, address, port, request)

    def within(self, name: str, work: Callable[[], T], raises: frozenset[int] = frozenset()) -> T:
        """Return `work()`, called in the namespace.

        Turns an OSError into Missing or Unreadable about `name`, unless its number is in `raises`.
        """
        try:
            return in_netns(self.netns, work)
        except OSError as error:
            if error.errno in raises:
                raise
            raise as_unreadable(name, error) from error

    def _ask(self, name: str, read: Callable[[Any], list[T]]) -> list[T]:
        """Return the rows that `read` gets by netlink. Calls with one `name` share them for FRESH_S."""
        with self._answers_lock:
            answer = self._answers.setdefault(name, _Answer())
        with answer.lock:
            if time.monotonic() - answer.at_s > FRESH_S:
                answer.rows = self.within(name, lambda: _by_netlink(read))
                answer.at_s = time.monotonic()
            return list(answer.rows)


class _Answer:
    """Rows read by netlink that several checks share, and when they were read."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at_s = float("-inf")
        self.rows: list[Any] = []


def _by_netlink(read: Callable[[Any], T]) -> T:
    """Return `read(socket)` for a new netlink socket. Raises OSError."""
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    with IPRoute() as ip:
        try:
            return read(ip)
        except NetlinkError as error:
            raise OSError(error.code, str(error)) from error


_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


def _names(links: Any) -> dict[int, str]:
    return {int(link["index"]): str(link.get_attr("IFLA_IFNAME")) for link in links}


# Data centre bridging (linux/dcbnl.h): a header, then attributes, some of them nested.

_RTM_GETDCB: Final = 78
_DCB: Final = struct.Struct("=BBH")  # family, command, padding
_COMMAND_IEEE_GET: Final = 21
_IFNAME, _IEEE = 1, 13
_ETS, _PFC, _APPS, _TRUST = 1, 2, 3, 11
_PRIORITIES: Final = 8
_PFC_STRUCT: Final = struct.Struct("=BBBxH2x8Q8Q")
_SELECTOR_DSCP: Final = 5
_TRUST_NAMES: Final = {1: "ethertype", 5: "dscp", 255: "pcp"}


def _dcb_answer(interface: str) -> bytes:
    """Return the kernel's answer to DCB_CMD_IEEE_GET. Raises OSError."""
    body = _DCB.pack(0, _COMMAND_IEEE_GET, 0) + attribute(_IFNAME, interface.encode() + b"\0")
    with open_netlink(timeout_s=SOCKET_S) as opened:
        return ask(opened, _RTM_GETDCB, body)[_DCB.size :]


def dcb_of(data: bytes) -> Dcb | None:
    """Return the settings in a dcbnl answer's attributes; None if it has no IEEE attributes."""
    ieee = dict(attributes(data)).get(_IEEE)
    if ieee is None:
        return None
    fields = dict(attributes(ieee))
    applications = [value[:4] for _, value in attributes(fields.get(_APPS, b"")) if len(value) >= 4]
    dscp = {
        int.from_bytes(value[2:4], "little"): value[1] for value in applications if value[0] == _SELECTOR_DSCP
    }
    ets = fields.get(_ETS, b"")
    has_ets = len(ets) >= 3 + 4 * _PRIORITIES
    pfc = fields.get(_PFC, b"")
    pauses = _PFC_STRUCT.unpack_from(pfc) if len(pfc) >= _PFC_STRUCT.size else None
    return Dcb(
        pfc_priorities=None if pauses is None else frozenset(n for n in range(8) if pauses[1] >> n & 1),
        pfc_pauses=None if pauses is None else (sum(pauses[4:12]), sum(pauses[12:20])),
        dscp_priority=dscp,
        trust=_trust(fields.get(_TRUST), dscp),
        priority_class=tuple(ets[27:35]) if has_ets else None,
        class_percent=tuple(ets[3:11]) if has_ets else None,
    )


def _trust(table: bytes | None, dscp: Mapping[int, int]) -> tuple[str, ...]:
    """Return the selectors of the trust table. Without one: DSCP with a DSCP map, as mlx5, else PCP."""
    if table is None:
        return ("dscp",) if dscp else ("pcp",)
    return tuple(_TRUST_NAMES.get(value[0], str(value[0])) for _, value in attributes(table) if value)
