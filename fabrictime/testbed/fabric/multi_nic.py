"""Builds hosts with many NICs, in the layouts of real clusters: namespaces, with bridges as leaves.

`FORMS` declares the layouts. `MultiNic` builds one: a namespace per host and one for all leaves. The process
must have called `userns.enter`. A layout that needs a device which this kernel lacks raises FabricError.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from fabrictime.testbed.fabric.fabric import FabricError
from fabrictime.testbed.processes import userns

T = TypeVar("T")

_LEAVES: Final = "leaves"
_GATEWAY: Final = 254
_FIRST_TABLE: Final = 100
_BOND_ACTIVE_BACKUP, _BOND_XOR = 1, 2
_serial = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Form:
    """A layout of a network. `nics` is the number of NICs per host, each on its own rail."""

    name: str
    title: str
    nics: int
    one_subnet: bool = False
    """Whether all NICs are in one subnet on one leaf; otherwise each rail has its own subnet and leaf."""
    gateways: bool = False
    """Whether each NIC has a default route via its own leaf, in a table that its address selects."""
    routed: bool = False
    """Whether the leaves forward packets between rails."""
    device: str = "eth{}"
    """Pattern of a NIC's name, filled in with the number of its rail."""
    vlan: int | None = None
    """VLAN number of the first rail, if NICs are VLAN interfaces, each on its own cable."""
    bonded: bool = False
    """Whether each NIC is a bond of two cables to two leaves."""
    active_backup: bool = False
    """Whether the second cable of a bond is idle; otherwise both carry packets."""
    macvlan: bool = False
    """Whether each NIC is a macvlan interface on its cable, similar to a virtual function of a port."""
    vrf: bool = False
    """Whether each NIC is in its own VRF."""
    ipv6: bool = False
    """Whether hosts have no IPv4 addresses."""
    link_local: bool = False
    """Whether hosts have only link-local IPv6 addresses."""
    sysctls: dict[str, str] = field(default_factory=dict)
    """Settings below /proc/sys/net on the hosts."""

    def connects(self, rail: int, other: int) -> bool:
        """Return whether the NICs of two rails can reach each other."""
        return rail == other or self.one_subnet or self.routed


_NO_FLUX: Final = {"ipv4/conf/all/arp_ignore": "1", "ipv4/conf/all/arp_announce": "2"}

FORMS: Final[dict[str, Form]] = {
    form.name: form
    for form in (
        Form("one-subnet", "two NICs in one subnet", 2, one_subnet=True, sysctls=_NO_FLUX),
        Form("one-subnet-8", "eight NICs in one subnet", 8, one_subnet=True, sysctls=_NO_FLUX),
        Form("own-subnets", "two rails with subnets of their own", 2),
        Form("own-subnets-8", "eight rails with subnets of their own", 8),
        Form("routed-rails", "two rails, joined by routers", 2, gateways=True, routed=True),
        Form("dual-plane", "two planes, each with a default route, not joined", 2, gateways=True),
        Form("dual-tor", "bonds over two leaves", 2, bonded=True),
        Form("active-backup", "bonds over two leaves with an idle cable", 2, bonded=True, active_backup=True),
        Form(
            "macvlans",
            "macvlan interfaces in place of virtual functions",
            2,
            macvlan=True,
            sysctls=_NO_FLUX,  # else the port answers for the addresses of its functions
        ),
        Form("vlans", "VLANs on the NICs", 2, vlan=100),
        Form("vrfs", "each NIC in a VRF of its own", 2, vrf=True),
        Form("dotted-names", "interfaces with dots in their names", 2, device="eth{}.100"),
        Form("long-names", "interfaces with names of 15 characters", 2, device="enp129s0f0np0v{}"),
        Form("dotted-long-names", "names of 15 characters with a dot", 2, device="enp129s0f0np.1{}"),
        Form("ipv6-only", "hosts without IPv4", 2, ipv6=True),
        Form("link-local", "hosts with link-local addresses alone", 2, ipv6=True, link_local=True),
        Form("arp-flux", "two NICs in one subnet, ARP answered by any", 2, one_subnet=True),
        Form(
            "strict-filter",
            "two NICs in one subnet, strict reverse path filtering",
            2,
            one_subnet=True,
            sysctls={**_NO_FLUX, "ipv4/conf/all/rp_filter": "1", "ipv4/conf/default/rp_filter": "1"},
        ),
    )
}


class MultiNicPort(NamedTuple):
    """One NIC of a host: its names, address and namespace, and its cables as (host's interface, leaf)."""

    host: str
    device: str
    rail: int
    address: str
    netns: str
    cables: tuple[tuple[str, str], ...]

    @property
    def nic(self) -> str:
        """The NIC's id."""
        return f"{self.host}/{self.device}"


class MultiNic:
    """The hosts of one layout, which exist inside a `with` block."""

    def __init__(self, form: Form, hosts: int = 3, name: str | None = None) -> None:
        self.form, self.hosts = form, [f"h{number + 1}" for number in range(hosts)]
        self.name = name or f"mn{os.getpid()}-{next(_serial)}"
        self._paths: dict[str, str] = {}
        self._far_ports = itertools.count()
        self.ports: list[MultiNicPort] = []

    def __enter__(self) -> Self:
        if not userns.inside():
            raise userns.NamespacesDenied(
                "hosts are built after fabrictime.testbed.processes.userns.enter() only"
            )
        try:
            for node in (_LEAVES, *self.hosts):
                self._paths[node] = userns.new_netns(f"{self.name}-{node}")
            self.open_in(_LEAVES, self._build_leaves)
            for number, host in enumerate(self.hosts):
                self.open_in(host, partial(self._build_host, number, host))
        except (OSError, NetlinkError) as error:
            self.__exit__(None, None, None)
            if getattr(error, "code", getattr(error, "errno", None)) == errno.EOPNOTSUPP:
                raise FabricError(
                    f"form {self.form.name}: this kernel lacks a device that it needs"
                ) from error
            raise FabricError(f"form {self.form.name}: {error}") from error
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._paths.values():
            userns.remove_netns(path)
        self._paths.clear()

    def open_in(self, node: str, work: Callable[[], T]) -> T:
        """Run `work` in a helper thread inside the namespace of a host or of `leaves`; return its result."""
        return userns.in_netns(self._paths[node], work)

    def port(self, nic: str) -> MultiNicPort:
        """Return the port with the NIC id `nic`. Raises KeyError."""
        return {port.nic: port for port in self.ports}[nic]

    def peer_of(self, port: MultiNicPort) -> MultiNicPort:
        """Return the NIC of the same rail on the next host."""
        host = self.hosts[(self.hosts.index(port.host) + 1) % len(self.hosts)]
        return next(
            other_port for other_port in self.ports if (other_port.host, other_port.rail) == (host, port.rail)
        )

    def sent_packets(self, host: str) -> dict[str, int]:
        """Return the number of packets that a host has sent, by cable, from the kernel's counters."""
        cables = {cable for port in self.ports if port.host == host for cable, _ in port.cables}

        def read() -> dict[str, int]:
            with IPRoute() as ip:
                links = {str(link.get_attr("IFLA_IFNAME")): link for link in ip.get_links()}
            return {cable: int(links[cable].get_attr("IFLA_STATS64")["tx_packets"]) for cable in cables}

        return self.open_in(host, read)

    # ---- building, inside a node's namespace

    def _leaf(self, rail: int, member: int = 0) -> str:
        return f"leaf{0 if self.form.one_subnet else rail}{'b' if member else ''}"

    def _address(self, rail: int, host: int) -> str:
        subnet = 0 if self.form.one_subnet else rail
        number = 1 + host * self.form.nics + rail if host != _GATEWAY else _GATEWAY
        if self.form.link_local:
            return f"fe80::{subnet:x}:{number:x}"
        return f"fd09:{subnet:x}::{number:x}" if self.form.ipv6 else f"10.9.{subnet}.{number}"

    @property
    def _prefix(self) -> int:
        return 64 if self.form.ipv6 else 24

    def _build_leaves(self) -> None:
        form = self.form
        _write_sysctls({"ipv4/ip_forward": "1" if form.routed else "0", "ipv4/conf/all/rp_filter": "0"})
        with IPRoute() as ip:
            for rail in range(1 if form.one_subnet else form.nics):
                for member in range(2 if form.bonded else 1):
                    ip.link("add", ifname=self._leaf(rail, member), kind="bridge")
                    _up(ip, self._leaf(rail, member))
                if form.bonded:  # the leaves of a pair are joined, as by a peer link
                    far = f"peer{rail}b"
                    ip.link("add", ifname=f"peer{rail}", kind="veth", peer={"ifname": far})
                    _join(ip, f"peer{rail}", self._leaf(rail))
                    _join(ip, far, self._leaf(rail, 1))
                if form.gateways:
                    _address(ip, self._leaf(rail), self._address(rail, _GATEWAY), self._prefix)

    def _build_host(self, number: int, host: str) -> None:
        form = self.form
        _write_sysctls({"ipv6/conf/all/accept_dad": "0", "ipv6/conf/default/accept_dad": "0"})
        _write_sysctls(form.sysctls)
        with IPRoute() as ip:
            ip.link("set", index=1, state="up")
            for rail in range(form.nics):
                device, cables = self._wire(ip, host, rail)
                address = self._address(rail, number)
                if form.vrf:
                    vrf = f"vrf{rail}"
                    ip.link("add", ifname=vrf, kind="vrf", vrf_table=_FIRST_TABLE + rail)
                    _up(ip, vrf)
                    ip.link("set", index=socket.if_nametoindex(device), master=socket.if_nametoindex(vrf))
                _address(ip, device, address, self._prefix)
                if form.gateways:
                    self._route_by_rule(ip, device, address, rail)
                self.ports.append(MultiNicPort(host, device, rail, address, self._paths[host], cables))

    def _wire(self, ip: IPRoute, host: str, rail: int) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Create the cables of a NIC; return (its device, its cables as (interface, leaf))."""
        form, device = self.form, self.form.device.format(rail)
        if form.bonded:
            members = (f"m{rail}a", f"m{rail}b")
            mode = _BOND_ACTIVE_BACKUP if form.active_backup else _BOND_XOR
            ip.link("add", ifname=device, kind="bond", bond_mode=mode)
            for at, member in enumerate(members):
                self._cable(ip, host, member, self._leaf(rail, at))
                index = socket.if_nametoindex(member)
                ip.link("set", index=index, state="down")
                ip.link("set", index=index, master=socket.if_nametoindex(device))
                ip.link("set", index=index, state="up")
            cables = tuple((member, self._leaf(rail, at)) for at, member in enumerate(members))
            _up(ip, device)
            return device, cables
        if form.macvlan:
            port = f"pf{rail}"
            self._cable(ip, host, port, self._leaf(rail))
            lower = socket.if_nametoindex(port)
            ip.link("add", ifname=device, kind="macvlan", link=lower, macvlan_mode="bridge")
            _up(ip, device)
            return device, ((port, self._leaf(rail)),)
        self._cable(ip, host, device, self._leaf(rail), form.vlan)
        cable = ((device, self._leaf(rail)),)
        if form.vlan is None:
            return device, cable
        tagged = f"{device}.{form.vlan + rail}"
        _vlan(ip, device, tagged, form.vlan + rail)
        return tagged, cable

    def _cable(self, ip: IPRoute, host: str, device: str, leaf: str, vlan: int | None = None) -> None:
        """Connect a new interface of this host to a leaf's bridge; with a VLAN, the bridge port is tagged."""
        far = f"{host}p{next(self._far_ports)}"
        with open(self._paths[_LEAVES]) as leaves:
            peer: dict[str, Any] = {"ifname": far, "net_ns_fd": leaves.fileno()}
            ip.link("add", ifname=device, kind="veth", peer=peer)
        _up(ip, device)

        def plug() -> None:
            with IPRoute() as far_ip:
                if vlan is None:
                    _join(far_ip, far, leaf)
                    return
                _up(far_ip, far)
                rail = int(leaf.removeprefix("leaf"))
                tagged = f"{far}.{vlan + rail}"
                _vlan(far_ip, far, tagged, vlan + rail)
                _join(far_ip, tagged, leaf)

        self.open_in(_LEAVES, plug)

    def _route_by_rule(self, ip: IPRoute, device: str, address: str, rail: int) -> None:
        table, index = _FIRST_TABLE + rail, socket.if_nametoindex(device)
        subnet = f"10.9.{0 if self.form.one_subnet else rail}.0/24"
        ip.route("add", dst=subnet, oif=index, table=table, scope=253)
        ip.route("add", dst="default", gateway=self._address(rail, _GATEWAY), oif=index, table=table)
        ip.rule("add", src=address, src_len=32, table=table, priority=1000 + rail)


def _up(ip: IPRoute, device: str) -> None:
    ip.link("set", index=socket.if_nametoindex(device), state="up")


def _join(ip: IPRoute, device: str, bridge: str) -> None:
    ip.link("set", index=socket.if_nametoindex(device), master=socket.if_nametoindex(bridge))
    _up(ip, device)


def _vlan(ip: IPRoute, lower: str, device: str, number: int) -> None:
    ip.link("add", ifname=device, kind="vlan", link=socket.if_nametoindex(lower), vlan_id=number)
    _up(ip, device)


def _address(ip: IPRoute, device: str, address: str, prefix: int) -> None:
    ip.addr("add", index=socket.if_nametoindex(device), address=address, prefixlen=prefix)


def _write_sysctls(values: dict[str, str]) -> None:
    for key, value in values.items():
        Path("/proc/sys/net", key).write_text(value)
