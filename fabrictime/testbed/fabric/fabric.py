"""A packet-forwarding leaf-spine fabric: network namespaces with veth pairs and static equal-cost routes.

The process must have called `userns.enter`. `Fabric` creates the namespaces, describes every NIC for a prober
and every directed link, and opens sockets inside a namespace by `open_in`. Closing the fabric, or the end of
its last process, removes everything. A comment gives the reason of each sysctl: without them equal-cost paths
do not follow the 5-tuple.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from fabrictime.testbed.fabric import answers, classes
from fabrictime.testbed.fabric.clocks import ClockTruth, draw_clock
from fabrictime.testbed.fabric.topology import Cable, Nexthop, Node, Plan, Port, Route, exchange, make_plan
from fabrictime.testbed.processes import userns
from fabrictime.testbed.settings import FabricSettings
from schemas.ids import nic_id

T = TypeVar("T")

_TC_H_ROOT = 0xFFFFFFFF
_PERMANENT = 0x80  # NUD_PERMANENT
_WARM_UP_PORT = 9  # discard
_RTNH_F_DEAD, _RTNH_F_ONLINK, _RTNH_F_LINKDOWN = 1, 4, 16
_SCOPE_LINK = 253
_CARRIER_S = 5.0
_LOWER_INDEX = 1001
"""First index of the interfaces at the lower ends of cables. With equal indexes at both ends of a veth pair,
each in its namespace, the kernel does not recognise the link. It then reports a carrier up to 1 s late."""

# Needed: a fabric without them would lie. Every namespace gets them before its first interface.
_SYSCTLS = {
    "ipv4/ip_forward": "1",
    "ipv4/fib_multipath_hash_policy": "3",  # by the packet: 1 would take the socket's own hash
    "ipv4/icmp_ratelimit": "0",  # every trace is answered
    "ipv4/icmp_errors_use_inbound_ifaddr": "1",  # an answer names the port that the packet came in by
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/ignore_routes_with_linkdown": "1",  # a switch that lost only the carrier reroutes too
    "ipv4/conf/default/ignore_routes_with_linkdown": "1",
}
# Taken where the kernel has them.
_SYSCTLS_OPTIONAL = {
    "ipv4/icmp_msgs_per_sec": "1000000",
    "ipv4/tcp_no_metrics_save": "1",  # no connection learns from an earlier one
    "ipv4/tcp_slow_start_after_idle": "0",  # one that paused goes on at its rate, as a NIC's queue pair does
    "ipv6/conf/all/disable_ipv6": "1",  # no packets but those that somebody sends
    "ipv6/conf/default/disable_ipv6": "1",
}

_serial = itertools.count(1)


class FabricError(RuntimeError):
    """The fabric could not be built or changed; `str()` names the object and the reason in one line."""


@dataclass(frozen=True, slots=True)
class FabricNic:
    """One NIC of the fabric, for a prober. `rail` and `rack` are as in the inventory; `netns` is a path."""

    nic: str
    host: str
    device: str
    address: str
    netns: str
    leaf: str
    leaf_port: str
    shard: str
    rail: int | None
    rack: str
    clock: ClockTruth | None


class Fabric:
    """A fabric from `open` (or `with`) to `close`. Any thread may call its methods, one fault at a time."""

    def __init__(self, settings: FabricSettings | None = None, name: str | None = None) -> None:
        self.settings = settings or FabricSettings()
        self.plan: Plan = make_plan(self.settings)
        nics = {nic_id(port.node, port.name) for port, _, _ in self.plan.nics()}
        for nic in self.settings.unstable_clocks:
            if nic not in nics:
                raise FabricError(
                    f"unstable_clocks {nic!r}: expected NICs of the fabric, such as {min(nics)}"
                )
        self.name = name or f"ft{os.getpid()}-{next(_serial)}"
        self.links: dict[str, tuple[Port, Port]] = self.plan.links()
        self.lock = threading.RLock()
        self.generation = 0
        """Grows with each change of a port: paths found before may have moved."""
        self.layout = 0
        """Increases with each move; interfaces may then belong to other ports."""
        self._paths: dict[str, str] = {}
        self._epoch_ns = 0
        self._nics: list[FabricNic] = []
        self._closers: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Build the fabric.

        Raises NamespacesDenied outside `userns.enter`, FabricError if the kernel refuses.
        """
        if self._paths:
            raise FabricError(f"fabric {self.name}: it is open already")
        if not userns.inside():
            raise userns.NamespacesDenied(
                "a fabric is built after fabrictime.testbed.processes.userns.enter() only"
            )
        try:
            userns.in_helper_thread(self._build)
        except (OSError, NetlinkError) as error:
            self.close()
            raise FabricError(f"fabric {self.name}: {_line(error)}") from error
        except BaseException:
            self.close()
            raise
        self._epoch_ns = time.time_ns()
        self._nics = list(self._describe())
        return self

    def close(self) -> None:
        """Call the registered closers, then remove the namespaces; a second call does nothing."""
        while self._closers:
            self._closers.pop()()
        for path in self._paths.values():
            userns.remove_netns(path)
        self._paths.clear()
        self._nics.clear()

    def on_close(self, closer: Callable[[], None]) -> None:
        """Register a function to call before the namespaces are removed, in reverse order of registration."""
        self._closers.append(closer)

    def nics(self) -> list[FabricNic]:
        """Return every NIC of every host, grouped by host."""
        return list(self._nics)

    def nic(self, name: str) -> FabricNic:
        """Return the NIC with the name `h1/eth1`, or the first NIC of host `h1`. Raises FabricError."""
        for nic in self._nics:
            if name in (nic.nic, nic.host):
                return nic
        raise FabricError(f"NIC {name!r}: expected one of {_some(nic.nic for nic in self._nics)}")

    def netns(self, node: str) -> str:
        """Return the path of a node's namespace. Raises FabricError if the fabric has no such node."""
        try:
            return self._paths[node]
        except KeyError:
            raise FabricError(f"node {node!r}: expected one of {_some(self._paths)}") from None

    def open_in(self, node: str, work: Callable[[], T]) -> T:
        """Run `work` in a helper thread inside a node's namespace and return its result.

        Sockets that `work` opens stay in that namespace.
        """
        return userns.in_netns(self.netns(node), work)

    def set_port(self, port: Port, up: bool, down: Iterable[tuple[str, str]] = ()) -> None:
        """Take a port down, or up with every address, neighbour and route that it lost by going down.

        `down` has (node, port) of each port that is still down; routes omit these, as the kernel demands.
        """
        dead = set(down)
        self.generation += 1

        def work() -> None:
            with IPRoute() as ip:
                index = socket.if_nametoindex(port.name)
                ip.link("set", index=index, state="up" if up else "down")
                if not up:
                    return
                self._neighbour(ip, port, index)
                node = self.plan.nodes[port.node]
                for route in node.routes:
                    if any(hop.port == port.name for hop in route.nexthops):
                        _set_route(ip, route, {name for at, name in dead if at == node.name})

        try:
            self.open_in(port.node, work)
        except (OSError, NetlinkError) as error:
            raise FabricError(f"port {port}: {_line(error)}") from error

    def move(self, one: str, other: str, leaves: Collection[str] | None = None) -> list[str]:
        """Exchange two spines at some leaves, or at all if None; return the ids of the resulting links.

        At each leaf, the two spines' cables change ports at the spines. A cable keeps its addresses, as if an
        operator gave the spines' ports new addresses. Raises ValueError, FabricError.
        """
        with self.lock:
            plan, swaps = exchange(self.plan, one, other, leaves)
            self.generation += 1
            self.layout += 1
            descriptors = {
                name: os.open(self.netns(name), os.O_RDONLY | os.O_CLOEXEC) for name in (one, other)
            }
            try:
                for number, swap in enumerate(swaps):
                    to = descriptors[swap.after.node]
                    self.open_in(swap.before.node, partial(_transfer, swap.before.name, to, f"moved{number}"))
                self.plan = plan
                self.links = plan.links()
                for name in (one, other):
                    arrived = {
                        f"moved{number}": swap.after
                        for number, swap in enumerate(swaps)
                        if swap.after.node == name
                    }
                    self.open_in(name, partial(self._settle, name, arrived))
                for leaf in {swap.lower.node for swap in swaps}:
                    self.open_in(leaf, _wait_for_routes)
                self.generation += 1
            except (OSError, NetlinkError) as error:
                raise FabricError(f"move of {one} and {other}: {_line(error)}") from error
            finally:
                for descriptor in descriptors.values():
                    os.close(descriptor)
            return [link for swap in swaps for link in Cable(swap.lower, swap.after).links()]

    def _settle(self, name: str, arrived: dict[str, Port]) -> None:
        """Configure interfaces that arrived in a spine's namespace: names, settings and routes."""
        with IPRoute() as ip:
            for temporary, port in arrived.items():
                index = socket.if_nametoindex(temporary)
                ip.link("set", index=index, ifname=port.name)
                self._set_up(ip, port, index)
            for route in self.plan.nodes[name].routes:
                _set_route(ip, route, set())

    def _build(self) -> None:
        """Create every namespace, then wire and configure node by node. Runs in a helper thread."""
        descriptors: dict[str, int] = {}
        try:
            for name in self.plan.nodes:
                self._paths[name] = userns.new_netns(f"{self.name}-{name}")
                descriptors[name] = os.open(self._paths[name], os.O_RDONLY | os.O_CLOEXEC)
                self._write_sysctls()
                answers.write_limits(self.settings.answers, self.plan.nodes[name].kind)
            for name, node in self.plan.nodes.items():
                userns.setns(self._paths[name])
                with IPRoute() as ip:
                    self._wire(ip, node, descriptors)
            # Ports are up on both ends only now: routes need a carrier to be used at once.
            for name, node in self.plan.nodes.items():
                userns.setns(self._paths[name])
                with IPRoute() as ip:
                    for route in node.routes:
                        _set_route(ip, route, set())
                    for address, table in node.rules:
                        ip.rule("add", src=address, src_len=32, table=table, priority=1000 + table)
                if node.kind == "host":
                    self._warm_up(node)
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)

    def _write_sysctls(self) -> None:
        base = Path("/proc/sys/net")
        fields = (
            "0x37" if self.settings.hash_protocol else "0x33"
        )  # addresses and ports, with the protocol or not
        for key, value in {**_SYSCTLS, "ipv4/fib_multipath_hash_fields": fields}.items():
            (base / key).write_text(value)
        optional = {**_SYSCTLS_OPTIONAL, "ipv4/fib_multipath_hash_seed": str(self.settings.hash_seed)}
        for key, value in optional.items():
            try:
                (base / key).write_text(value)
            except FileNotFoundError:
                continue

    def _wire(self, ip: IPRoute, node: Node, fds: dict[str, int]) -> None:
        """Create a node's veth pairs to upper nodes, and move the far ends there; then set its ports up."""
        frame = self.settings.frame_bytes
        shape = {
            "gso_max_segs": 1,
            "gso_max_size": frame,
            "gro_max_size": frame,
            "mtu": self.settings.mtu_bytes,
        }
        ip.link("set", index=1, state="up")
        if node.loopback is not None:
            ip.addr("add", index=1, address=node.loopback, prefixlen=32)
        for number, port in enumerate(node.ports):
            far = self.plan.far[node.name, port.name]
            if _lower(node, self.plan.nodes[far.node]):
                ip.link(
                    "add",
                    index=_LOWER_INDEX + number,
                    ifname=port.name,
                    kind="veth",
                    address=port.mac,
                    **shape,
                    peer={"ifname": far.name, "address": far.mac, "net_ns_fd": fds[far.node], **shape},
                )
        for port in node.ports:
            self._set_up(ip, port, socket.if_nametoindex(port.name))
        if self.settings.classes:
            marking = node.ports if node.kind != "host" else ()
            classes.add_rules({port.name: port.rate_bps for port in marking}, self.settings)
        answers.add_rules(self.settings.answers, node.kind)
        if node.kind == "leaf":
            answers.write_proxy(self.settings.answers, (port.name for port in node.ports))

    def _set_up(self, ip: IPRoute, port: Port, index: int) -> None:
        if port.prefix is not None:
            ip.addr("add", index=index, address=port.address, prefixlen=port.prefix)
        if self.settings.classes:
            classes.add_queues(ip, index, port.rate_bps, self.settings)
        elif port.rate_bps:
            ip.tc("add", "tbf", index, 0x10000, parent=_TC_H_ROOT, **self._shaping(port.rate_bps))
        ip.link("set", index=index, state="up")
        self._neighbour(ip, port, index)

    def _shaping(self, rate_bps: int) -> dict[str, float]:
        """Return TBF's parameters. The burst is rounded up to whole microseconds; the kernel rounds down."""
        bytes_per_us = rate_bps / 8e6
        burst_us = math.ceil(self.settings.burst_for(rate_bps) / bytes_per_us) + 0.5
        return {
            "rate": rate_bps // 8,
            "burst": burst_us * bytes_per_us,
            "limit": self.settings.buffer_bytes,
        }

    def _neighbour(self, ip: IPRoute, port: Port, index: int) -> None:
        far = self.plan.far[port.node, port.name]
        ip.neigh("replace", ifindex=index, dst=far.address, lladdr=far.mac, state=_PERMANENT)

    def _warm_up(self, node: Node) -> None:
        """Send one packet out of each port, as the first packet of a new veth pair may be lost."""
        for port in node.ports:
            far = self.plan.far[node.name, port.name]
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.sendto(b"", (far.address, _WARM_UP_PORT))

    def _describe(self) -> Iterable[FabricNic]:
        many = self.settings.nics_per_host > 1
        for port, far, rail in self.plan.nics():
            nic = nic_id(port.node, port.name)
            yield FabricNic(
                nic=nic,
                host=port.node,
                device=port.name,
                address=port.address,
                netns=self._paths[port.node],
                leaf=far.node,
                leaf_port=far.name,
                shard=self.settings.shard,
                rail=rail if many else None,
                rack=f"rack{self.plan.racks[port.node] + 1}",
                clock=draw_clock(self.settings, nic, self._epoch_ns),
            )


def _set_route(ip: IPRoute, route: Route, down: set[str]) -> None:
    """Set a route over those of its ports that are up; if no port is up, set no route."""
    hops = [hop for hop in route.nexthops if hop.port not in down]
    if not hops:
        return
    fields: dict[str, Any] = {"family": socket.AF_INET}
    if route.table is not None:
        fields["table"] = route.table
    if route.source is not None:
        fields["prefsrc"] = route.source
    nexthops = [_nexthop_fields(hop) for hop in hops]
    fields |= nexthops[0] if len(hops) == 1 else {"multipath": nexthops}
    if hops[0].gateway is None:
        fields["scope"] = _SCOPE_LINK
    ip.route("replace", dst=route.destination, **fields)


def _nexthop_fields(hop: Nexthop) -> dict[str, Any]:
    fields: dict[str, Any] = {} if hop.gateway is None else {"gateway": hop.gateway}
    fields["oif"] = socket.if_nametoindex(hop.port)
    if hop.onlink:
        fields["flags"] = _RTNH_F_ONLINK
    return fields


def _wait_for_routes() -> None:
    """Wait until every route in this namespace uses all its ports; the kernel may report a carrier late."""
    deadline = time.monotonic() + _CARRIER_S
    with IPRoute() as ip:
        while time.monotonic() < deadline:
            hops = [
                hop
                for route in ip.get_routes(family=socket.AF_INET)
                for hop in (route.get_attr("RTA_MULTIPATH") or [route])
            ]
            if not any(hop["flags"] & (_RTNH_F_DEAD | _RTNH_F_LINKDOWN) for hop in hops):
                return
            time.sleep(0.01)
    raise OSError(errno.ETIMEDOUT, f"a port has no carrier after {_CARRIER_S:g} s")


def _transfer(name: str, to: int, temporary: str) -> None:
    """Move an interface of this namespace into another one, under a temporary name that is unused there."""
    with IPRoute() as ip:
        index = socket.if_nametoindex(name)
        ip.link("set", index=index, state="down")
        ip.link("set", index=index, ifname=temporary)
        ip.link("set", index=index, net_ns_fd=to)


def _lower(node: Node, far: Node) -> bool:
    order = ("host", "leaf", "spine")
    return order.index(node.kind) < order.index(far.kind)


def _line(error: Exception) -> str:
    """Return an error that the kernel reported as a line of text."""
    code = getattr(error, "code", None) or getattr(error, "errno", None)
    if code == errno.EOPNOTSUPP:
        return f"this kernel lacks a part that the fabric needs (veth, or the TBF queue): {error}"
    return " ".join(str(error).split())


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:12]) + (f" and {len(listed) - 12} more" if len(listed) > 12 else "") or "(none)"
