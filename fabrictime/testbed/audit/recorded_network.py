"""The network of a recorded host, as constants: a front-end interface and four of a rail-optimised fabric."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from producers.audit.host.network import Dcb, Interface, Neighbour, Route, Rule
from producers.ports.ethtool import LinkSettings

UP = frozenset({"UP", "LOWER_UP", "RUNNING", "BROADCAST", "MULTICAST"})
LOOPBACK = frozenset({"UP", "LOWER_UP", "LOOPBACK"})
READS = ("interfaces", "routes", "rules", "neighbours", "dcb", "ethtool_statistics", "link_settings", "reach")
"""Names of the network reads that can be denied."""
FABRIC = ("eth0", "eth1")
"""Interfaces with RoCE; eth2 and eth3 are IP over InfiniBand."""


class RecordedNetwork:
    """The network part of a recorded host. `network` has the result of each read; faults change it."""

    def __init__(self) -> None:
        self.network: dict[str, Any] = deepcopy(NETWORK)
        self.nics: tuple[str, ...] = FABRIC

    def _check(self, name: str) -> None:
        raise NotImplementedError

    def _of(self, read: str) -> Any:
        self._check(read)
        return self.network[read]

    def interfaces(self) -> list[Interface]:
        """Return all interfaces."""
        return list(self._of("interfaces"))

    def routes(self) -> list[Route]:
        """Return the routes."""
        return list(self._of("routes"))

    def rules(self) -> list[Rule]:
        """Return the policy routing rules."""
        return list(self._of("rules"))

    def neighbours(self) -> list[Neighbour]:
        """Return the ARP and NDP neighbours."""
        return list(self._of("neighbours"))

    def dcb(self, interface: str) -> Dcb | None:
        """Return the priority flow control settings of an interface; None if it has none."""
        dcb: Dcb | None = self._of("dcb").get(interface)
        return dcb

    def ethtool_statistics(self, interface: str) -> dict[str, int]:
        """Return the counters of the interface's driver."""
        return dict(self._of("ethtool_statistics").get(interface, {}))

    def link_settings(self, interface: str) -> LinkSettings | None:
        """Return the ethtool link settings of an interface; None if it has none."""
        settings: LinkSettings | None = self._of("link_settings").get(interface)
        return settings

    def echo(self, address: str, size: int) -> float | None:
        """Return the time, s, until an ICMP echo request is answered; None without an answer."""
        reach = self._of("reach")
        is_heard = address not in reach["silent"] and size <= reach["largest"]
        return reach["seconds"] if is_heard else None

    def connect(self, address: str, port: int) -> float | None:
        """Return the time, s, until TCP accepts or refuses a connection; None if it does neither."""
        return None if address in self._of("reach")["filtered"] else 0.0002

    def exchange(self, address: str, port: int, request: bytes) -> bytes | None:
        """Return a name server's answer to a request; None without an answer."""
        reach = self._of("reach")
        code: int = reach["code"]
        return None if address in reach["silent"] else request[:2] + bytes([0x81, code]) + request[4:]


def _interface(index: int, name: str, mtu: int, address: str) -> Interface:
    counters = dict.fromkeys(("rx_dropped", "rx_errors", "tx_dropped", "tx_errors"), 0)
    counters |= {"rx_packets": 10**9, "tx_packets": 10**9}
    mac = f"08:00:27:00:00:{index:02x}"
    return Interface(name, index, mtu, "up", UP, mac=mac, addresses=(address,), counters=counters)


_PORTS = tuple((f"eth{number}", f"10.0.{number}.2") for number in range(4))

NETWORK: dict[str, Any] = {
    "interfaces": [
        Interface("lo", 1, 65536, "unknown", LOOPBACK, addresses=("127.0.0.1/8",)),
        _interface(2, "eno1", 1500, "192.168.4.12/24"),
        _interface(7, "eno2", 1500, "192.168.4.13/24"),
        *(_interface(3 + n, name, 9000, f"{address}/31") for n, (name, address) in enumerate(_PORTS)),
    ],
    "routes": [
        Route("0.0.0.0/0", "192.168.4.1", "eno1", metric=100),
        Route("192.168.4.0/24", "", "eno1", source="192.168.4.12"),
        *(Route(f"{address}/31", "", name, source=address) for name, address in _PORTS),
        *(Route("10.0.0.0/8", f"10.0.{n}.3", name, table=100 + n) for n, (name, _) in enumerate(_PORTS)),
    ],
    "rules": [
        Rule(0, 255),
        *(Rule(1000 + n, 100 + n, source=f"{address}/32") for n, (_, address) in enumerate(_PORTS)),
        Rule(32766, 254),
        Rule(32767, 253),
    ],
    "neighbours": [
        Neighbour("192.168.4.1", "08:00:27:01:00:00", "eno1", "REACHABLE"),
        *(Neighbour(f"10.0.{n}.3", f"08:00:27:01:00:1{n}", f"eth{n}", "REACHABLE") for n in range(4)),
    ],
    "dcb": {
        name: Dcb(
            pfc_priorities=frozenset({3}),
            pfc_pauses=(12, 40),
            dscp_priority={26: 3, 48: 6},
            trust=("dscp",),
            priority_class=(0, 0, 0, 3, 0, 0, 6, 0),
            class_percent=(50, 0, 0, 50, 0, 0, 0, 0),
        )
        for name in FABRIC
    },
    "ethtool_statistics": {
        name: dict.fromkeys(
            (
                "rx_discards_phy",
                "tx_discards_phy",
                "rx_symbol_err_phy",
                "rx_pcs_symbol_err_phy",
                "rx_crc_errors_phy",
                "link_down_events_phy",
            ),
            0,
        )
        | {"rx_bits_phy": 10**15, **{f"rx_err_lane_{number}_phy": 10**6 for number in range(4)}}
        for name in FABRIC
    }
    | {"eno1": dict.fromkeys((f"{name}_allowance_exceeded" for name in ("pps", "bw_in", "bw_out")), 0)},
    "reach": {"silent": set(), "filtered": set(), "largest": 9000, "seconds": 0.0002, "code": 0},
    "link_settings": {
        "eno1": LinkSettings(25_000_000_000, "full", True),
        "eno2": LinkSettings(25_000_000_000, "full", True),
        **{name: LinkSettings(400_000_000_000, "full", True) for name in FABRIC},
    },
}
"""The answer to each read of a healthy host."""


def require(holds: bool, thing: str) -> None:
    """Raise ValueError if `holds` is false: without `thing`, a fault cannot be planted."""
    if not holds:
        raise ValueError(f"expected {thing}")
