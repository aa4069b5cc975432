"""Simulates how the switches of a fleet answer traces, and names the links as its agents would.

The true links of every path are known, so each name is compared with the cables that it stands for. For
benches and tests: no packet is sent.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fabrictime.bench.detect.link_evidence import ProbedFleet
from fabrictime.bench.networks.names import CableNames
from producers.sim.setup import topology_file
from producers.trace.addressing import LinkPrefix
from producers.trace.known_route import KnownRoute
from producers.trace.route_names import RouteNames
from producers.trace.tracer import Hops, Trace, TracedFlow
from schemas import codec
from schemas.ids import cable_id, end_parts, natural
from schemas.records import Leg, PathMap, PathMaps
from schemas.topics import PATHS
from schemas.topology import Topology
from streams.runtime.route_table import RouteTable

GATEWAY: Final = "10.99.0.1"
RATE_LIMITED_SHARE: Final = 0.5
RATE_LIMITED_TRACES: Final = 12


class Form(StrEnum):
    """The kinds of addresses with which switches answer traces."""

    PORTS = "ports"
    """Each switch answers from the port at which the packet came in; cables have /31 prefixes."""
    TRANSIT_30 = "transit_30"
    TRANSIT_24 = "transit_24"
    LOOPBACK = "loopback"
    """Each switch answers from its loopback address, as with unnumbered BGP."""
    ANYCAST = "anycast"
    """All leaves have the same gateway address for hosts; other ports have their own addresses."""
    ANYCAST_LOOPBACK = "anycast_loopback"
    """All leaves have the same gateway address for hosts; other answers come from loopback addresses."""
    RATE_LIMITED = "rate_limited"
    """Like PORTS, but half of the answers are missing."""
    SILENT_SPINES = "silent_spines"
    SILENT = "silent"
    """No switch answers."""
    TUNNEL = "tunnel"
    """Spines are hidden, as leaves tunnel through them; leaves answer from their loopback addresses."""
    FLAT = "flat"
    """All hosts are in one subnet, without routers."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The addresses from which switches answer, by the ingress link of a packet."""

    form: Form
    cable_number: dict[str, int]

    def of(self, link: str, rng: random.Random) -> str | None:
        """Return the address that answers one packet that came in over `link`, or None without an answer."""
        if self.form is Form.RATE_LIMITED and rng.random() < RATE_LIMITED_SHARE:
            return None
        return self.address(link)

    def address(self, link: str) -> str | None:
        """Return the address that answers packets that came in over `link`, or None without an answer."""
        form, far = self.form, end_parts(link.partition(">")[2]).node
        from_host = not link.startswith(("leaf", "spine"))
        number = int("".join(c for c in far if c.isdigit()))
        if form is Form.SILENT or (form is Form.SILENT_SPINES and far.startswith("spine")):
            return None
        if form in (Form.ANYCAST, Form.ANYCAST_LOOPBACK) and from_host:
            return GATEWAY
        if form in (Form.LOOPBACK, Form.ANYCAST_LOOPBACK, Form.TUNNEL):
            return f"10.255.0.{number if far.startswith('leaf') else 10 + number}"
        return self._of_port(link)

    def _of_port(self, link: str) -> str:
        cable = cable_id(link)
        at, upper = self.cable_number[cable], int(not cable.startswith(link.partition(">")[2]))
        if self.form is Form.TRANSIT_24:
            return f"10.{130 + at // 256}.{at % 256}.{254 if upper else 1}"
        size = 4 if self.form is Form.TRANSIT_30 else 2
        first = at * size + (size == 4) + upper
        return f"10.128.{first // 256}.{first % 256}"


class NamedFleet:
    """The paths of a probed fleet, with links named as its agents would name them.

    The table replaces the probes' own `book`. `names` has the true cables of each name.
    """

    def __init__(
        self,
        probes: ProbedFleet,
        form: Form,
        *,
        with_file: bool = False,
        prefix: LinkPrefix = "auto",
        seed: int = 1,
    ) -> None:
        self.form, self.fleet = form, probes.fleet
        self.book = RouteTable()
        self._rng = random.Random(seed)  # noqa: S311  # a draw that can be drawn again, no secret
        cables = sorted({cable_id(link) for link in self.fleet.link_ids}, key=natural)
        self._answers = Answers(form, {cable: at for at, cable in enumerate(cables)})
        self.names = CableNames(cables, self._at_switch())
        self.topology = self._file() if with_file else Topology()
        routes: dict[str, list[_Path]] = defaultdict(list)
        for (nic, peer, path), links in probes.book.requests():
            routes[nic].append(_Path(peer, path, Leg.REQUEST, links))
        for (nic, peer, path), links in probes.book.answers():
            routes[peer].append(_Path(nic, path, Leg.ANSWER, links))
        self._routes = routes
        for nic, paths in routes.items():
            self._name(nic, paths, prefix)

    def _file(self) -> Topology:
        """Return the topology file, including the addresses that answer."""
        file = topology_file(self.fleet)
        ports: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for link in self.fleet.link_ids:
            end = end_parts(link.partition(">")[2])
            if not end.node.startswith("h") and self.form not in (Form.SILENT, Form.FLAT):
                address = self._answers.address(link)
                if address is not None:
                    ports[end.node][end.port].add(address)
        nodes = [
            node.model_copy(update={"ports": {p: tuple(a) for p, a in ports[node.name].items()}})
            for node in file.nodes
        ]
        return Topology(file.model_copy(update={"nodes": tuple(nodes)}))

    def _hops(self, links: Sequence[str]) -> Hops:
        """Return the hops that one trace over these links shows."""
        switches = links[:-1]
        if self.form is Form.FLAT:
            return ()
        if self.form is Form.TUNNEL:
            switches = [link for link in switches if ">leaf" in link]
        return tuple(self._answers.of(link, self._rng) for link in switches)

    def _known(self, path: _Path) -> Hops:
        """Return the hops of a path as an agent knows them after several traces."""
        first = self._hops(path.links)
        if self.form is not Form.RATE_LIMITED:
            return first
        flow = TracedFlow(path.leg, path.peer, path.path, ("", 0), 0)
        route = KnownRoute(first, True, 0)
        for _ in range(RATE_LIMITED_TRACES):
            route.update(Trace(flow, self._hops(path.links), True), 0)
        return route.hops

    def _first_hop(self, nic: str) -> str | None:
        links = self._routes[nic][0].links
        if self.form is Form.FLAT or len(links) < 2:
            return None
        return self._answers.address(links[0]) if self.form is not Form.SILENT else None

    def _name(self, nic: str, paths: Sequence[_Path], prefix: LinkPrefix) -> None:
        """Publish the routes of one NIC as its agent would."""
        names = RouteNames(nic, prefix)
        names.set_topology(self.topology)
        path_hops = [(path, self._known(path), self._first_hop(path.peer)) for path in paths]
        for path, hops, first_hop in path_hops:
            names.observe(path.peer, hops, True, first_hop)
        rows: dict[str, list[PathMap]] = defaultdict(list)
        for path, hops, first_hop in path_hops:
            named = names.name(path.peer, path.path, hops, True, first_hop)
            rows[path.peer].append(named.row(path.path, path.leg))
            if named.complete:
                self.names.note(named.links, path.links, layer_2=self.form is Form.FLAT)
        for peer, path_maps in rows.items():
            record: PathMaps = {
                "nic": nic,
                "peer": peer,
                "shard": "fabric",
                "run": 1,
                "traced_ns": 0,
                "paths": path_maps,
            }
            key = f"{nic}>{peer}"
            self.book.take(key.encode(), codec.encode(PATHS.type, record))

    def _at_switch(self) -> dict[str, set[str]]:
        """Return, by switch name, address and attached NIC, the true cables of the switch."""
        cables_at: dict[str, set[str]] = defaultdict(set)
        for link in self.fleet.link_ids:
            near, _, far = link.partition(">")
            node = end_parts(far).node
            if node.startswith("h"):
                continue
            at = {
                cable
                for cable in self._answers.cable_number
                if node in {end_parts(e).node for e in cable.split("<>")}
            }
            names = {node, self._answers.address(link)}
            host, port = end_parts(near)
            names |= {f"{host}/{port}", f"{GATEWAY}@{host}.{port}"} if host.startswith("h") else set()
            for name in names - {None, GATEWAY}:
                cables_at[str(name)] |= at
        return cables_at


@dataclass(frozen=True, slots=True)
class _Path:
    """A path as its source agent traces it, with its true links."""

    peer: str
    path: int
    leg: Leg
    links: tuple[str, ...]
