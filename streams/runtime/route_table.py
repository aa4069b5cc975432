"""Which links a probe takes, out and back, as a read-only view for every stage.

In: the whole compacted topic `fabric.paths`, one `PathMaps` of each directed pair of NICs. Out: `RouteTable`,
which tells the links of a prober's requests and of the answers to them. Each end traces the direction in
which it sends: the way back stands in the peer's own record. Knows no Kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from schemas import codec
from schemas.sanity import MAX_NS
from schemas.topics import PATHS
from schemas.topology import Topology

__all__ = ["NO_ROUTE", "Route", "RouteTable", "link_rate_bps", "pair_key", "split_pair"]

Links = tuple[str, ...]

REQUEST: Final = "REQUEST"
ANSWER: Final = "ANSWER"


class Route(NamedTuple):
    """What is known of one path: its directed links in order, and how far they can be relied on."""

    links: Links
    complete: bool
    found: str
    since_ns: int
    changes: int
    contradiction: str | None


CHANGES_KEPT: Final = 4096
NAMES_KEPT: Final = 16_384
"""Names and ways that may be kept though no path has them any more, or as many as are in use."""

NO_ROUTE: Final = Route((), False, "UNKNOWN", 0, 0, None)
"""A path of which nothing is known."""


def pair_key(nic: str, peer: str) -> str:
    """Return the key of a directed pair in `fabric.paths`."""
    return f"{nic}>{peer}"


def split_pair(key: str) -> tuple[str, str]:
    """Return (nic, peer) of a key. Raises ValueError where it is none."""
    nic, mark, peer = key.partition(">")
    if not nic or not mark or not peer or ">" in peer:
        raise ValueError(f"key {key!r}: expected nic>peer")
    return nic, peer


def link_rate_bps(link: str, topology: Topology, speeds_bps: Mapping[str, int]) -> int:
    """Return bit/s of a directed link: as the topology file says, else of a NIC's own cable what the NIC says
    of its port (`Inventory.speeds_bps`); 0 where neither does."""
    rate_bps = topology.rate_bps(link)
    if rate_bps:
        return rate_bps
    for end in link.split(">"):
        node, _, port = end.rpartition(":")
        speed_bps = speeds_bps.get(f"{node}/{port}")
        if speed_bps:
            return speed_bps
    return 0


class RouteTable:
    """Directed pair, leg and entropy value to links, from `PathMaps` records."""

    topic: Final = PATHS.name

    def __init__(self) -> None:
        self.version = 0
        """Grows when any path is another than before; a repeated record changes nothing."""
        self._pairs: dict[tuple[str, str], dict[tuple[str, int], Route]] = {}
        self._whole: dict[tuple[str, str], dict[tuple[str, int], Links]] = {}
        self._names: dict[Any, Any] = {}
        self._names_most = NAMES_KEPT
        self._changed: deque[tuple[str, str]] = deque(maxlen=CHANGES_KEPT)
        """Pairs in the order of the versions that they made."""

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
                self._forget(key.decode("utf-8", "replace"))
            return
        record = codec.decode(value, "PathMaps", registry)
        if len(self._names) > self._names_most:
            self._forget_names()
        pair = (self._one(record["nic"]), self._one(record["peer"]))
        routes = {(self._one(p["leg"]), p["path"]): self._route(p) for p in record["paths"]}
        known = self._pairs.get(pair)
        self._pairs[pair] = routes
        if known is None or _comparable(known) != _comparable(routes):
            self._whole[pair] = {at: route.links for at, route in routes.items() if route.complete}
            self._note(pair)

    def __len__(self) -> int:
        """Return how many directed pairs there is a record of."""
        return len(self._pairs)

    def _route(self, path: codec.Record) -> Route:
        hops = tuple(path["links"])
        links = self._names.get(hops)
        if links is None:
            for link in hops:
                if link.count(">") != 1 or link.startswith(">") or link.endswith(">"):
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
            links, path["complete"] and bool(links), self._one(path["found"]), path["since_ns"],
            path["changes"], path["contradiction"],
        )  # fmt: skip

    def _one(self, value: Any) -> Any:
        """Return the one object that stands for all equal values: a fleet's paths name few links, often."""
        return self._names.setdefault(value, value)

    def _forget_names(self) -> None:
        """Keep what paths have now: flows come and go, and take ways that no others took."""
        self._names = {}
        for pair, routes in self._pairs.items():
            for at, route in routes.items():
                for value in (*pair, at[0], route.found, route.links, *route.links):
                    self._one(value)
        self._names_most = NAMES_KEPT + 2 * len(self._names)

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
        """Return the directed pairs whose paths are others than at version `since`; None: it is too old to
        tell."""
        count = self.version - since
        if not 0 <= count <= len(self._changed):
            return None
        return {self._changed[-n] for n in range(1, count + 1)}

    def forward(self, nic: str, peer: str, path: int) -> Links:
        """Return the links of the requests of `nic` to `peer`, in order; empty where they are not all
        known."""
        of_pair = self._whole.get((nic, peer))
        return of_pair.get((REQUEST, path), ()) if of_pair is not None else ()

    def reverse(self, nic: str, peer: str, path: int) -> Links:
        """Return the links of the answers that `peer` sends to those requests, in order from `peer` to `nic`;
        empty where they are not all known."""
        of_pair = self._whole.get((peer, nic))
        return of_pair.get((ANSWER, path), ()) if of_pair is not None else ()

    def route(self, nic: str, peer: str, path: int, leg: str = REQUEST) -> Route:
        """Return all that is known of the packets that `nic` sends to `peer`, gaps or not: leg REQUEST, its
        own probes from port `path`; leg ANSWER, its answers to the peer's port `path`."""
        of_pair = self._pairs.get((nic, peer))
        return of_pair.get((leg, path), NO_ROUTE) if of_pair is not None else NO_ROUTE

    def pairs(self) -> list[tuple[str, str]]:
        """Return every directed pair of which there is a record."""
        return list(self._pairs)

    def paths(self, nic: str, peer: str) -> dict[tuple[str, int], Route]:
        """Return (leg, entropy value) to path of one directed pair."""
        return dict(self._pairs.get((nic, peer), {}))

    def links(self) -> set[str]:
        """Return every directed link that any path names."""
        return {
            link for of_pair in self._pairs.values() for route in of_pair.values() for link in route.links
        }


def _comparable(routes: Mapping[tuple[str, int], Route]) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Return what makes paths others than before: not since when, for a prober that starts anew counts
    anew."""
    return {
        at: (route.links, route.complete, route.found, route.contradiction) for at, route in routes.items()
    }
