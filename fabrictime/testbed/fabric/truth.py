"""Records the truth about a testbed, against which tests and experiments evaluate detectors.

It has the packets sent, received and queued per directed link, the paths of flows, the log of faults and the
NICs' clocks. It reads leaves and spines, which no detector may: only tests, benchmarks and the command line
do.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from fabrictime.testbed.fabric.classes import read_marked
from fabrictime.testbed.fabric.clocks import ClockTruth
from fabrictime.testbed.fabric.fabric import Fabric, FabricNic
from fabrictime.testbed.fabric.faults import FaultEvent, Faults
from producers.netlink import ask, attribute, attributes, dump, open_netlink

Protocol = Literal["udp", "tcp"]

_RTM_GETROUTE, _RTM_GETQDISC, _RTM_GETSTATS = 26, 38, 94
_RTA_DST, _RTA_SRC, _RTA_IIF, _RTA_OIF, _RTA_IP_PROTO, _RTA_SPORT, _RTA_DPORT = 1, 2, 3, 4, 27, 28, 29
_TC_H_ROOT = 0xFFFFFFFF
_TCA_STATS2, _TCA_STATS_QUEUE = 7, 3
_IFLA_STATS_LINK_64 = 1
_NUMBER = {"udp": socket.IPPROTO_UDP, "tcp": socket.IPPROTO_TCP}
_BURST_PACKETS, _BURST_PACKETS_MAX = 32, 256
_BURST_BYTES = 1000
_BURST_TIMEOUT_S = 1.0
_HOPS_MAX = 8
_SAMPLES_KEPT = 100_000


class PathUnclear(RuntimeError):
    """A path could not be determined: packets were lost, or other traffic masked the burst."""


@dataclass(frozen=True, slots=True)
class LinkTruth:
    """Counters of a link since the fabric was built.

    `sent_*` left the sending port; `received_*` arrived at the other end. Their difference is on the wire
    now. `backlog_*` wait in the sending port's queue now; `dropped_packets` did not fit into the queue.
    Packets that a blackhole or grey fault drops count as received, as the fault acts after the counter.
    """

    sent_packets: int = 0
    sent_bytes: int = 0
    received_packets: int = 0
    received_bytes: int = 0
    backlog_packets: int = 0
    backlog_bytes: int = 0
    dropped_packets: int = 0


@dataclass(frozen=True, slots=True)
class TruthSample:
    """The counters of all links, read between two CLOCK_REALTIME times."""

    at_ns: int
    end_ns: int
    links: dict[str, LinkTruth]


class Truth:
    """The truth recorder of one testbed. Methods may be called from any thread."""

    def __init__(self, fabric: Fabric, faults: Faults | None = None) -> None:
        self._fabric = fabric
        self._faults = faults
        self._lock = threading.Lock()
        self._sockets: dict[str, socket.socket] = {}
        self._names: dict[str, dict[int, str]] = {}
        self._samples: deque[TruthSample] = deque(maxlen=_SAMPLES_KEPT)
        self._recording: threading.Event | None = None
        self._thread: threading.Thread | None = None
        self._paths: dict[tuple[str, str, int, int, Protocol], list[str]] = {}
        self._generation = -1
        self._layout = 0
        fabric.on_close(self.close)

    def close(self) -> None:
        """Stop recording and close the sockets."""
        self.stop()
        with self._lock:
            for sock in self._sockets.values():
                sock.close()
            self._sockets.clear()

    def links(self) -> dict[str, LinkTruth]:
        """Return the present counters and queue lengths of every directed link."""
        with self._lock:
            ports: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
            for node in self._fabric.plan.nodes:
                sock = self._socket(node)
                stats, queues = _stats(sock), _queues(sock)
                for index, name in self._names[node].items():
                    ports[node, name] = (stats.get(index, [0] * 8), queues.get(index, [0] * 3))
        table = {}
        for link, (sender, receiver) in self._fabric.links.items():
            sent, queue = ports[sender.node, sender.name]
            received = ports[receiver.node, receiver.name][0]
            table[link] = LinkTruth(sent[1], sent[3], received[0], received[2], *queue)
        return table

    def queued(self, links: Sequence[str]) -> list[int]:
        """Return the bytes that wait at the links' sending ports. Raises ValueError for an unknown link."""
        if unknown := [link for link in links if link not in self._fabric.links]:
            raise ValueError(f"link {unknown[0]!r}: no such link here")
        queued_bytes: dict[tuple[str, str], int] = {}
        with self._lock:
            for node in {self._fabric.links[link][0].node for link in links}:
                queues = _queues(self._socket(node))
                for index, name in self._names[node].items():
                    queued_bytes[node, name] = queues.get(index, [0] * 3)[1]
        ports = [self._fabric.links[link][0] for link in links]
        return [queued_bytes[port.node, port.name] for port in ports]

    def marked(self) -> dict[str, dict[int, int]]:
        """Return the number of packets marked CE by switches so far, by link, then by DSCP.

        A packet counts at the first port that marks it. The result is empty if no traffic class marks.
        """
        if not any(traffic_class.mark_percent for traffic_class in self._fabric.settings.classes):
            return {}
        leaving = {(sender.node, sender.name): link for link, (sender, _) in self._fabric.links.items()}
        table: dict[str, dict[int, int]] = {}
        for node in self._fabric.plan.nodes.values():
            if node.kind != "host":
                for (port, dscp), packets in self._fabric.open_in(node.name, read_marked).items():
                    table.setdefault(leaving[node.name, port], {})[dscp] = packets
        return table

    def record(self, interval_s: float = 0.1) -> None:
        """Store a sample of all links every `interval_s` (at least 1 ms) until `stop`; the last 100,000 are
        kept.
        """
        if not 0.001 <= interval_s <= 3600:
            raise ValueError(f"interval_s {interval_s}: expected 0.001 to 3600")
        self.stop()
        ended = threading.Event()

        def body() -> None:
            due = time.monotonic()
            while not ended.wait(max(0.0, due - time.monotonic())):
                with suppress(OSError):  # the fabric closes under us
                    self._samples.append(self.sample())
                due = max(due + interval_s, time.monotonic())

        self._recording = ended
        self._thread = threading.Thread(target=body, name="truth", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop recording; the recorded samples are kept."""
        if self._recording is not None and self._thread is not None:
            self._recording.set()
            self._thread.join()
            self._recording = self._thread = None

    def sample(self) -> TruthSample:
        """Return a sample of all links' present counters."""
        begin = time.time_ns()
        links = self.links()
        return TruthSample(begin, time.time_ns(), links)

    def samples(self) -> list[TruthSample]:
        """Return the recorded samples, oldest first."""
        return list(self._samples)

    def faults(self) -> list[FaultEvent]:
        """Return the log entries of all faults, past and in force."""
        return [] if self._faults is None else self._faults.log()

    def clocks(self) -> dict[str, ClockTruth | None]:
        """Return the true behaviour of each NIC's clock, by NIC; None for a clock without error."""
        return {nic.nic: nic.clock for nic in self._fabric.nics()}

    def snapshot(self) -> dict[str, Any]:
        """Return links, faults and clocks as a JSON-ready dict."""
        sample = self.sample()
        return {
            "at_ns": sample.at_ns,
            "links": {link: asdict(truth) for link, truth in sample.links.items()},
            "marked": self.marked(),
            "faults": [asdict(event) | {"text": str(event.spec)} for event in self.faults()],
            "clocks": {nic: None if clock is None else asdict(clock) for nic, clock in self.clocks().items()},
        }

    def path_of(
        self, source: str, destination: str, sport: int, dport: int, protocol: Protocol = "udp"
    ) -> list[str]:
        """Return the directed links that a 5-tuple takes, as proven by a burst whose packets the links count.

        The burst has a wrong checksum, so the far host drops it. Despite other traffic, the burst grows until
        one link per hop stands out. Raises PathUnclear, and ValueError for an invalid protocol or port.
        """
        start, end = self._ends(source, destination, sport, dport, protocol)
        packets = _BURST_PACKETS
        while True:
            before = self.links()
            self._fabric.open_in(start.host, partial(_burst, start, end, sport, dport, protocol, packets))
            try:
                return self._follow(start, end, before, packets)
            except PathUnclear:
                packets *= 2
                if packets > _BURST_PACKETS_MAX:
                    raise

    def likely_path_of(
        self, source: str, destination: str, sport: int, dport: int, protocol: Protocol = "udp"
    ) -> list[str]:
        """Return a 5-tuple's path by route lookup in the kernel, without packets; cached until a fault
        changes it.
        """
        start, end = self._ends(source, destination, sport, dport, protocol)
        key = (start.nic, end.nic, sport, dport, protocol)
        with self._lock:
            if self._generation != self._fabric.generation:
                self._paths.clear()
                self._generation = self._fabric.generation
            if key in self._paths:
                return list(self._paths[key])
        leaving = {(sender.node, sender.name): link for link, (sender, _) in self._fabric.links.items()}
        question = (start.address, end.address, _NUMBER[protocol], sport, dport)
        path = [leaving[start.host, start.device]]
        while (came_in := self._fabric.links[path[-1]][1]).node != end.host:
            if len(path) > _HOPS_MAX:
                raise PathUnclear(
                    f"path from {start.nic} to {end.nic}: still under way after {' '.join(path)}"
                )
            with self._lock:
                sock = self._socket(came_in.node)
                names = self._names[came_in.node]
                index = next(index for index, name in names.items() if name == came_in.name)
                path.append(leaving[came_in.node, names[_next_port(sock, index, question)]])
        with self._lock:
            self._paths[key] = path
        return list(path)

    def _ends(
        self, source: str, destination: str, sport: int, dport: int, protocol: str
    ) -> tuple[FabricNic, FabricNic]:
        if protocol not in _NUMBER:
            raise ValueError(f"protocol {protocol!r}: expected udp or tcp")
        for name, port in (("sport", sport), ("dport", dport)):
            if not 1 <= port <= 65535:
                raise ValueError(f"{name} {port}: expected 1 to 65535")
        start, end = self._fabric.nic(source), self._fabric.nic(destination)
        if start.host == end.host:
            raise ValueError(f"path {source} to {destination}: expected two hosts")
        return start, end

    def _follow(
        self, start: FabricNic, end: FabricNic, before: dict[str, LinkTruth], packets: int
    ) -> list[str]:
        """Wait until the burst has arrived, then return the links that carried all of it."""
        last = next(
            link
            for link, (sender, receiver) in self._fabric.links.items()
            if receiver.node == end.host and receiver.name == end.device and sender.node == end.leaf
        )
        deadline = time.monotonic() + _BURST_TIMEOUT_S
        moved = self._carriers(before, packets)
        while last not in moved and time.monotonic() <= deadline:
            time.sleep(0.001)
            moved = self._carriers(before, packets)
        return self._walk(start, end, moved, packets)

    def _walk(self, start: FabricNic, end: FabricNic, moved: list[str], packets: int) -> list[str]:
        """Return the hop-by-hop path formed by `moved`, the links that carried the burst."""
        path: list[str] = []
        at = start.host
        while at != end.host:
            ahead = [link for link in moved if self._leaves(link, at, start) and self._leads(link, end)]
            if len(ahead) != 1:
                link_count = "no link" if not ahead else f"{len(ahead)} links"
                raise PathUnclear(
                    f"path from {start.nic} to {end.nic}: {link_count} out of {at} carried {packets} "
                    f"packets; before it: {' '.join(path) or 'nothing'}"
                )
            path.append(ahead[0])
            at = self._fabric.links[ahead[0]][1].node
        return path

    def _carriers(self, before: Mapping[str, LinkTruth], packets: int) -> list[str]:
        """Return the links that have received a whole burst since `before`."""
        return [
            link
            for link, truth in self.links().items()
            if truth.received_packets - before[link].received_packets >= packets
            and truth.received_bytes - before[link].received_bytes >= packets * _BURST_BYTES
        ]

    def _leaves(self, link: str, node: str, start: FabricNic) -> bool:
        """Return whether a link begins at a node; at the first host, only the link of its NIC counts."""
        sender = self._fabric.links[link][0]
        return sender.node == node and (node != start.host or sender.name == start.device)

    def _leads(self, link: str, end: FabricNic) -> bool:
        """Return whether a flow to `end` could take a link: up to a switch, or down to its leaf or NIC."""
        sender, receiver = self._fabric.links[link]
        kinds = (self._fabric.plan.nodes[sender.node].kind, self._fabric.plan.nodes[receiver.node].kind)
        if kinds == ("leaf", "spine"):
            return sender.node != end.leaf
        if kinds == ("spine", "leaf"):
            return receiver.node == end.leaf
        if kinds == ("leaf", "host"):
            return receiver.node == end.host and receiver.name == end.device
        return True

    def _socket(self, node: str) -> socket.socket:
        """Return the netlink socket in a node's namespace; it is opened on first use."""
        if self._layout != self._fabric.layout:
            for sock in self._sockets.values():
                sock.close()
            self._sockets.clear()
            self._layout = self._fabric.layout
        if node not in self._sockets:

            def open_there() -> tuple[socket.socket, dict[int, str]]:
                sock = open_netlink(timeout_s=5)
                names = {socket.if_nametoindex(p.name): p.name for p in self._fabric.plan.nodes[node].ports}
                return sock, names

            self._sockets[node], self._names[node] = self._fabric.open_in(node, open_there)
        return self._sockets[node]


def _stats(sock: socket.socket) -> dict[int, list[int]]:
    """Return packets and bytes in and out, and further counters of rtnl_link_stats64, by interface index."""
    table = {}
    for body in dump(sock, _RTM_GETSTATS, struct.pack("=BBHII", 0, 0, 0, 0, 1 << (_IFLA_STATS_LINK_64 - 1))):
        (index,) = struct.unpack_from("=I", body, 4)
        for kind, value in attributes(body, 12):
            if kind == _IFLA_STATS_LINK_64:
                table[index] = list(struct.unpack_from("=8Q", value))
    return table


def _queues(sock: socket.socket) -> dict[int, list[int]]:
    """Return (waiting packets, waiting bytes, dropped packets) of each root queue, by interface index."""
    table = {}
    for body in dump(sock, _RTM_GETQDISC, bytes(20)):
        index, _, parent = struct.unpack_from("=iII", body, 4)
        if parent != _TC_H_ROOT:
            continue
        for kind, value in attributes(body, 20):
            if kind == _TCA_STATS2:
                for inner, queue in attributes(value):
                    if inner == _TCA_STATS_QUEUE:
                        table[index] = list(struct.unpack_from("=3I", queue))
    return table


def _burst(
    start: FabricNic, end: FabricNic, sport: int, dport: int, protocol: Protocol, packets: int
) -> None:
    """Send packets of a 5-tuple with a wrong checksum, which hosts drop, from the sender's namespace."""
    if protocol == "udp":
        head = struct.pack("!HHHH", sport, dport, _BURST_BYTES - 20, 0xDEAD)
    else:
        head = struct.pack("!HHIIBBHHH", sport, dport, 0, 0, 5 << 4, 0x10, 0, 0xDEAD, 0)
    payload = head + bytes(_BURST_BYTES - 20 - len(head))
    addresses = socket.inet_aton(start.address) + socket.inet_aton(end.address)
    header = struct.pack("!BBHHHBBH", 0x45, 0, _BURST_BYTES, 0, 0, 64, _NUMBER[protocol], 0) + addresses
    with socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sock.bind((start.address, 0))  # of several NICs, the one with this address sends
        for _ in range(packets):
            sock.sendto(header + payload, (end.address, 0))


def _next_port(sock: socket.socket, came_in: int, key: tuple[str, str, int, int, int]) -> int:
    """Return the index of the interface to which the kernel at `sock` would forward a 5-tuple.

    `came_in` is the index of the interface at which the packet arrived.
    """
    source, destination, protocol, sport, dport = key
    body = struct.pack("=8BI", socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0)
    for kind, value in (
        (_RTA_DST, socket.inet_aton(destination)),
        (_RTA_SRC, socket.inet_aton(source)),
        (_RTA_IIF, struct.pack("=I", came_in)),
        (_RTA_IP_PROTO, bytes((protocol,))),
        (_RTA_SPORT, struct.pack("!H", sport)),
        (_RTA_DPORT, struct.pack("!H", dport)),
    ):
        body += attribute(kind, value)
    try:
        route = dict(attributes(ask(sock, _RTM_GETROUTE, body), 12))
    except OSError as error:
        raise PathUnclear(f"route to {destination}: {error.strerror or error}") from error
    if _RTA_OIF not in route:
        raise PathUnclear(f"route to {destination}: the kernel names no interface")
    return int.from_bytes(route[_RTA_OIF], sys.byteorder)
