"""Which links a flow takes, and would take from other source ports, as a read-only view.

In: the whole compacted topic `fabric.flow-routes`: each host traces what its own NICs send, data of its flows and
what it answers to others'. Out: `FlowRouteTable`, which joins the two directions. Knows no Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from schemas import codec
from schemas.sanity import MAX_NS
from schemas.topics import FLOW_ROUTES
from streams.runtime.route_table import split_pair

__all__ = ["NO_ROUTES", "FlowRoute", "FlowRouteTable"]

Links = tuple[str, ...]
Ends = tuple[str, str]
DATA: Final = "DATA"
ACK: Final = "ACK"


class FlowRoute(NamedTuple):
    """The links of a flow's data, in order, and of what answers it; `reverse` empty: not known."""

    links: Links
    reverse: Links = ()

    @property
    def all_links(self) -> Links:
        """All links that the flow needs."""
        return self.links + self.reverse


NO_ROUTES: Final[Mapping[int, FlowRoute]] = {}


class FlowRouteTable:
    """Directed pair and destination port to source port to way, from `FlowRoutes` records."""

    topic: Final = FLOW_ROUTES.name

    def __init__(self) -> None:
        self.version = 0
        """Grows when any way is another than before."""
        self._traced: dict[Ends, dict[tuple[str, int, int], Links]] = {}
        """(nic, peer) that traced to (leg, flow's peer port, flow's port) to links, where all are known."""
        self._ways: dict[tuple[str, str, int], dict[int, FlowRoute]] = {}
        self._names: dict[Links, Links] = {}

    def take(
        self,
        key: bytes | None,
        value: bytes | None,
        registry: codec.Registry | None = None,
        append_ns: int = MAX_NS,
    ) -> None:
        """Take one message. Raises BadRecord."""
        if value is None:
            if key is not None:
                self._put(*_ends(key.decode("utf-8", "replace")), {})
            return
        record = codec.decode(value, FLOW_ROUTES.record, registry)
        traced = {}
        for way in record["routes"]:
            if way["complete"] and way["links"]:
                links = tuple(way["links"])
                for link in links:
                    if link.count(">") != 1 or link.startswith(">") or link.endswith(">"):
                        raise codec.BadRecord(
                            "OUT_OF_RANGE", f"FlowRoutes.hops: {link!r}, expected node:port>node:port"
                        )
                traced[way["leg"], way["peer_port"], way["path"]] = self._names.setdefault(links, links)
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
            self._ways.pop((*ends, peer_port), None)

    def of(self, nic: str, peer: str, peer_port: int) -> Mapping[int, FlowRoute]:
        """Return source port to way of flows from `nic` to that port of `peer`; empty where none is known."""
        found = self._ways.get((nic, peer, peer_port))
        if found is None:
            there = self._traced.get((nic, peer))
            if there is None:
                return NO_ROUTES
            reverse = self._traced.get((peer, nic), {})
            found = self._ways[nic, peer, peer_port] = {
                port: FlowRoute(links, reverse.get((ACK, peer_port, port), ()))
                for (leg, to, port), links in sorted(there.items())
                if leg == DATA and to == peer_port
            }
        return found


def _ends(key: str) -> Ends:
    try:
        return split_pair(key)
    except ValueError as error:
        raise codec.BadRecord("WRONG_KEY", str(error)) from None
