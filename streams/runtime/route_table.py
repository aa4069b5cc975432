"""A global table of probe routes: the links of requests and answers.

Filled from the compacted topic `fabric.paths`: one `PathMaps` per directed pair of NICs. Each end traces the
direction in which it sends, so the reverse links are in the peer's record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from schemas import codec
from schemas.ids import end_parts
from schemas.messages import decode_message
from schemas.records import PathMap
from schemas.topics import PATHS
from schemas.topology import Topology
from schemas.validation import MAX_NS

__all__ = ["NO_ROUTE", "Route", "RouteTable", "link_rate_bps", "pair_key", "split_pair"]

Links = tuple[str, ...]

REQUEST: Final = "REQUEST"
ANSWER: Final = "ANSWER"


class Route(NamedTuple):
    """The known links of one path, in order, and how reliable they are."""

    links: Links
    complete: bool
    found: str
    since_ns: int
    changes: int
    contradiction: str | None


CHANGES_KEPT: Final = 4096
NAMES_KEPT: Final = 16_384
"""Unused names and routes that may be kept, in addition to twice those in use."""

NO_ROUTE: Final = Route((), False, "UNKNOWN", 0, 0, None)
"""The route of an unknown path."""


def is_link(name: str) -> bool:
    """Return whether a name has the form of a directed link's id."""
    return name.count(">") == 1 and not name.startswith(">") and not name.endswith(">")


def pair_key(nic: str, peer: str) -> str:
    """Return the key of a directed pair in `fabric.paths`."""
    return f"{nic}>{peer}"


def split_pair(key: str) -> tuple[str, str]:
    """Return (nic, peer) of a key. Raises ValueError for an invalid key."""
    nic, mark, peer = key.partition(">")
    if not nic or not mark or not peer or ">" in peer:
        raise ValueError(f"key {key!r}: expected nic>peer")
    return nic, peer


def link_rate_bps(link: str, topology: Topology, speeds_bps: Mapping[str, int]) -> int:
    """Return bit/s of a directed link: from the topology file, else from the NIC at its end; 0: unknown.

    `speeds_bps` is `Inventory.speeds_bps`.
    """
    rate_bps = topology.rate_bps(link)
    if rate_bps:
        return rate_bps
    for end in link.split(">"):
        node, port = end_parts(end)
        speed_bps = speeds_bps.get(f"{node}/{port}")
        if speed_bps:
            return speed_bps
    return 0


class RouteTable:
    """Directed pair, leg and entropy value to route, from `PathMaps` records."""

    topic: Final = PATHS.name

    def __init__(self) -> None:
        self.version = 0
        """Grows when any route changes; a repeated record changes nothing."""
        self._pairs: dict[tuple[str, str], dict[tuple[str, int], Route]] = {}
        self._whole: dict[tuple[str, str], dict[tuple[str, int], Links]] = {}
        self._names: dict[Any, Any] = {}
        self._max_names = NAMES_KEPT
        self._changed: deque[tuple[str, str]] = deque(maxlen=CHANGES_KEPT)
        """Pairs in the order of the versions that changed them."""

    def take(
        self,
        key: bytes | None,
        value: bytes | None,
        registry: codec.Registry | None = None,
        append_ns: int = MAX_NS,
    ) -> None:
        """Apply one message. Raises BadRecord."""
        if value is None:
            if key is not None:
                self._forget(key.decode("utf-8", "replace"))
            return
        record = decode_message(PATHS, key, value, registry)
        if len(self._names) > self._max_names:
            self._forget_names()
        pair = (self._one(record["nic"]), self._one(record["peer"]))
        routes = {(self._one(p["leg"]), p["path"]): self._route(p) for p in record["paths"]}
        known = self._pairs.get(pair)
        self._pairs[pair] = routes
        if known is None or _comparable(known) != _comparable(routes):
            self._whole[pair] = {at: route.links for at, route in routes.items() if route.complete}
            self._note(pair)

    def __len__(self) -> int:
        """Return the number of directed pairs."""
        return len(self._pairs)

    def _route(self, path: PathMap) -> Route:
        hops = tuple(path["links"])
        links = self._names.get(hops)
        if links is None:
            for link in hops:
                if not is_link(link):
                    raise codec.BadRecord(
                        "OUT_OF_RANGE", f"PathMaps.hops: {link!r}, expected node:port>node:port"
                    )
            links = self._one(tuple(self._one(link) for link in hops))
        if path["complete"] and len(set(links)) != len(links):
            twice = next(link for link in links if links.count(link) > 1)
            raise codec.BadRecord(
                "OUT_OF_RANGE", f"PathMaps.hops: {twice!r} twice, expected each link of a whole path once"
            )
        return Route(
            links,
            path["complete"] and bool(links),
            self._one(path["found"]),
            path["since_ns"],
            path["changes"],
            path["contradiction"],
        )

    def _one(self, value: Any) -> Any:
        """Return the one object for all equal values: a fleet's routes repeat few links often."""
        return self._names.setdefault(value, value)

    def _forget_names(self) -> None:
        """Keep only names in use: flows come and go, and each may have a route of its own."""
        self._names = {}
        for pair, routes in self._pairs.items():
            for at, route in routes.items():
                for value in (*pair, at[0], route.found, route.links, *route.links):
                    self._one(value)
        self._max_names = NAMES_KEPT + 2 * len(self._names)

    def _forget(self, key: str) -> None:
        try:
            pair = split_pair(key)
        except ValueError:
            return
        if self._pairs.pop(pair, None) is not None:
            del self._whole[pair]
            self._note(pair)

    def _note(self, pair: tuple[str, str]) -> None:
        self.version += 1
        self._changed.append(pair)

    def changed(self, since: int) -> Collection[tuple[str, str]] | None:
        """Return the directed pairs whose routes changed since a version; None: the version is too old."""
        count = self.version - since
        if not 0 <= count <= len(self._changed):
            return None
        return {self._changed[-n] for n in range(1, count + 1)}

    def forward(self, nic: str, peer: str, path: int) -> Links:
        """Return the links of requests from `nic` to `peer`, in order; empty if not all are known."""
        of_pair = self._whole.get((nic, peer))
        return of_pair.get((REQUEST, path), ()) if of_pair is not None else ()

    def reverse(self, nic: str, peer: str, path: int) -> Links:
        """Return the links of the answers to those requests, in order from `peer` to `nic`; empty if not all
        are known."""
        of_pair = self._whole.get((peer, nic))
        return of_pair.get((ANSWER, path), ()) if of_pair is not None else ()

    def known(self, nic: str, peer: str, path: int) -> tuple[Links, Links]:
        """Return the known links of the requests and of the answers, which may have gaps."""
        return self.route(nic, peer, path).links, self.route(peer, nic, path, ANSWER).links

    def route(self, nic: str, peer: str, path: int, leg: str = REQUEST) -> Route:
        """Return the route of packets from `nic` to `peer`, possibly with gaps.

        Leg REQUEST: its own probes from port `path`; leg ANSWER: its answers to the peer's port `path`.
        """
        of_pair = self._pairs.get((nic, peer))
        return of_pair.get((leg, path), NO_ROUTE) if of_pair is not None else NO_ROUTE

    def pairs(self) -> list[tuple[str, str]]:
        """Return every directed pair."""
        return list(self._pairs)

    def paths(self, nic: str, peer: str) -> dict[tuple[str, int], Route]:
        """Return (leg, entropy value) to route of one directed pair."""
        return dict(self._pairs.get((nic, peer), {}))

    def links(self) -> set[str]:
        """Return every directed link of any route."""
        return {
            link for of_pair in self._pairs.values() for route in of_pair.values() for link in route.links
        }


def _comparable(routes: Mapping[tuple[str, int], Route]) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Return the parts of routes that make them differ; times are not among them, because a restarted prober
    resets them."""
    return {
        at: (route.links, route.complete, route.found, route.contradiction) for at, route in routes.items()
    }
