"""A global table of flow routes: the links of each flow, including those of other source ports.

It is filled from the compacted topic `fabric.flow-routes`. Each host traces the direction in which its NICs
send: the data of its flows, and the acknowledgements of flows that it receives. The table combines both
directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from schemas import codec
from schemas.records import FlowRoutes
from schemas.topics import FLOW_ROUTES
from streams.runtime.route_table import is_link, split_pair
from streams.runtime.tables import GlobalTable

Links = tuple[str, ...]
Ends = tuple[str, str]
DATA: Final = "DATA"
ACK: Final = "ACK"


class FlowRoute(NamedTuple):
    """The links of a flow's data and of its acknowledgements, in order. `reverse` is empty if unknown."""

    links: Links
    reverse: Links = ()

    @property
    def all_links(self) -> Links:
        """All links that the flow's data or its acknowledgements cross."""
        return self.links + self.reverse


NO_ROUTES: Final[Mapping[int, FlowRoute]] = {}


class FlowRouteTable(GlobalTable):
    """Maps a directed NIC pair and destination port to the route of each source port; from `FlowRoutes`."""

    topic = FLOW_ROUTES

    def __init__(self) -> None:
        self.version = 0
        """Grows when any route changes."""
        self._traced: dict[Ends, dict[tuple[str, int, int], Links]] = {}
        """Complete traced routes: (sender, receiver) to (leg, flow's peer port, flow's port) to links."""
        self._routes: dict[tuple[str, str, int], dict[int, FlowRoute]] = {}
        self._names: dict[Links, Links] = {}

    def remove(self, key: str) -> None:
        """Remove the routes of a NIC pair. Raises BadRecord if the key names no pair."""
        self._put(*_ends(key), {})

    def apply(self, record: FlowRoutes, append_ns: int) -> None:
        """Replace the routes of a NIC pair by those of a record. Raises BadRecord if it is invalid."""
        traced: dict[tuple[str, int, int], Links] = {}
        for route in record["routes"]:
            if route["complete"] and route["links"]:
                links = tuple(route["links"])
                for link in links:
                    if not is_link(link):
                        raise codec.BadRecord(
                            "OUT_OF_RANGE", f"FlowRoutes.hops: {link!r}, expected node:port>node:port"
                        )
                traced[route["leg"], route["peer_port"], route["path"]] = self._names.setdefault(links, links)
        self._put(record["nic"], record["peer"], traced)

    def _put(self, nic: str, peer: str, traced: dict[tuple[str, int, int], Links]) -> None:
        if self._traced.get((nic, peer), {}) == traced:
            return
        before = self._traced.pop((nic, peer), {})
        if traced:
            self._traced[nic, peer] = traced
        self.version += 1
        for leg, peer_port, _ in before.keys() | traced.keys():
            ends = (nic, peer) if leg == DATA else (peer, nic)
            self._routes.pop((*ends, peer_port), None)

    def of(self, nic: str, peer: str, peer_port: int) -> Mapping[int, FlowRoute]:
        """Return, by source port, the route of flows from `nic` to port `peer_port` of `peer`; or {}."""
        routes = self._routes.get((nic, peer, peer_port))
        if routes is None:
            there = self._traced.get((nic, peer))
            if there is None:
                return NO_ROUTES
            reverse = self._traced.get((peer, nic), {})
            routes = self._routes[nic, peer, peer_port] = {
                port: FlowRoute(links, reverse.get((ACK, peer_port, port), ()))
                for (leg, to, port), links in sorted(there.items())
                if leg == DATA and to == peer_port
            }
        return routes


def _ends(key: str) -> Ends:
    try:
        return split_pair(key)
    except ValueError as error:
        raise codec.BadRecord("WRONG_KEY", str(error)) from None
