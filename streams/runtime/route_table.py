"""A global table of probe routes: the links of requests and answers.

It is filled from the compacted topic `fabric.paths`: one `PathMaps` per directed pair of NICs. Each end
traces the direction in which it sends, so the reverse links are in the peer's record. A cable that only one
NIC names and several others contradict is left out: see cable_votes.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Set
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from schemas import codec
from schemas.ids import cable_id, end_parts
from schemas.records import PathMap, PathMaps
from schemas.topics import PATHS
from schemas.topology import Topology
from streams.runtime.cable_votes import CableVotes
from streams.runtime.tables import GlobalTable
from streams.runtime.units import NS_PER_S

Links = tuple[str, ...]
Pair = tuple[str, str]

REQUEST: Final = "REQUEST"
ANSWER: Final = "ANSWER"


class Route(NamedTuple):
    """The known links of one path, in order, whether they are all, and the time of the trace."""

    links: Links
    complete: bool
    found: str
    since_ns: int
    changes: int
    contradiction: str | None


CHANGES_KEPT: Final = 4096
VOTE_KEPT_NS: Final = 3600 * NS_PER_S
"""Time after which a record no longer counts as naming its cables. A NIC that traces publishes each record
again within 19 minutes."""
NAMES_KEPT: Final = 16_384
"""Number of unused names and routes that may be kept, in addition to twice those in use."""

NO_ROUTE: Final = Route((), False, "UNKNOWN", 0, 0, None)
"""The route of an unknown path."""
Routes = dict[tuple[str, int], Route]
"""Maps (leg, entropy value) to route."""


@lru_cache(maxsize=65_536)
def is_link(name: str) -> bool:
    """Return whether a name has the format of a directed link's id."""
    near, _, far = name.partition(">")
    return ">" not in far and all(all(end_parts(end)) for end in (near, far))


def pair_key(nic: str, peer: str) -> str:
    """Return the key of a directed NIC pair in `fabric.paths`."""
    return f"{nic}>{peer}"


def split_pair(key: str) -> tuple[str, str]:
    """Return (nic, peer) for a key of `fabric.paths`. Raises ValueError for an invalid key."""
    nic, mark, peer = key.partition(">")
    if not nic or not mark or not peer or ">" in peer:
        raise ValueError(f"key {key!r}: expected nic>peer")
    return nic, peer


def link_rate_bps(link: str, topology: Topology, speeds_bps: Mapping[str, int]) -> int:
    """Return the rate of a directed link, bit/s; 0 if unknown.

    The rate comes from the topology file, else from the NIC at the link's end. `speeds_bps` is
    `Inventory.speeds_bps`.
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


class RouteTable(GlobalTable):
    """Maps directed NIC pair, leg and entropy value to route; filled from `PathMaps` records."""

    topic = PATHS

    def __init__(self) -> None:
        self.version = 0
        """Grows when any route changes; a repeated record does not change it."""
        self._pairs: dict[Pair, Routes] = {}
        self._recorded: dict[Pair, Routes] = {}
        """Routes as recorded, for the pairs whose records name a doubted cable."""
        self._peers: dict[str, set[str]] = {}
        self._votes = CableVotes()
        self._voted_ns: dict[Pair, int] = {}
        """Append time of each pair's record, for records whose cables count; the oldest comes first."""
        self._whole: dict[Pair, dict[tuple[str, int], Links]] = {}
        self._names: dict[Any, Any] = {}
        self._max_names = NAMES_KEPT
        self._changed: deque[Pair] = deque(maxlen=CHANGES_KEPT)
        """The pairs that the latest versions changed, in order."""

    def apply(self, record: PathMaps, append_ns: int) -> None:
        """Replace the routes of a NIC pair by those of a record. Raises BadRecord if it is invalid."""
        if len(self._names) > self._max_names:
            self._forget_names()
        pair = (self._one(record["nic"]), self._one(record["peer"]))
        routes = {(self._one(p["leg"]), p["path"]): self._route(p) for p in record["paths"]}
        self._peers.setdefault(pair[0], set()).add(pair[1])
        changed = self._vote(pair, routes, append_ns)
        self._believe(pair, routes)
        self._refresh_pairs(changed - {pair})

    def __len__(self) -> int:
        """Return the number of directed NIC pairs."""
        return len(self._pairs)

    def snapshot(self) -> RouteTable:
        """Return a copy of the present routes for another thread; the copy takes no messages."""
        copy = RouteTable()
        copy.version, copy._pairs, copy._whole = self.version, dict(self._pairs), dict(self._whole)
        return copy

    def _vote(self, pair: Pair, routes: Routes | None, append_ns: int) -> set[Pair]:
        """Count the cables of a pair's new record instead of its last; return pairs affected by doubts."""
        before = _cables(self._record_of(pair)) if pair in self._voted_ns else set()
        self._voted_ns.pop(pair, None)
        if routes is not None:
            self._voted_ns[pair] = append_ns
        cables = self._votes.replace(pair[0], before, set() if routes is None else _cables(routes))
        return self._pairs_over(cables) | self._end_old_votes(append_ns)

    def _end_old_votes(self, append_ns: int) -> set[Pair]:
        ended: set[Pair] = set()
        while self._voted_ns:
            pair, voted_ns = next(iter(self._voted_ns.items()))
            if append_ns - voted_ns <= VOTE_KEPT_NS:
                break
            del self._voted_ns[pair]
            cables = self._votes.replace(pair[0], _cables(self._record_of(pair)), ())
            ended |= {pair} | self._pairs_over(cables)
        return ended

    def _record_of(self, pair: Pair) -> Routes:
        """Return a pair's recorded routes, including doubted cables."""
        return self._recorded.get(pair) or self._pairs.get(pair, {})

    def _refresh_pairs(self, pairs: Iterable[Pair]) -> None:
        for pair in sorted(pairs):
            if pair in self._pairs:
                self._believe(pair, self._record_of(pair))

    def _believe(self, pair: Pair, recorded: Routes) -> None:
        """Store a pair's routes without their doubted cables."""
        doubted = self._votes.doubted
        routes = recorded
        if doubted and not doubted.isdisjoint(_cables(recorded)):
            routes = {at: _without(route, doubted) for at, route in recorded.items()}
            self._recorded[pair] = recorded
        else:
            self._recorded.pop(pair, None)
        routes_before = self._pairs.get(pair)
        self._pairs[pair] = routes
        if routes_before is None or _comparable(routes_before) != _comparable(routes):
            self._whole[pair] = {at: route.links for at, route in routes.items() if route.complete}
            self._note(pair)

    def _pairs_over(self, cables: Collection[str]) -> set[Pair]:
        """Return the NIC pairs whose records name any of these cables."""
        nics = {nic for cable in cables for nic in self._votes.nics_of(cable)}
        pairs = [(nic, peer) for nic in nics for peer in self._peers.get(nic, ())]
        return {pair for pair in pairs if not _cables(self._record_of(pair)).isdisjoint(cables)}

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
        """Return one shared object for all equal values, because many routes have the same links."""
        return self._names.setdefault(value, value)

    def _forget_names(self) -> None:
        """Drop link names that no route uses: flows come and go, and each may have its own route."""
        self._names = {}
        for pair, routes in chain(self._pairs.items(), self._recorded.items()):
            for at, route in routes.items():
                for value in (*pair, at[0], route.found, route.links, *route.links):
                    self._one(value)
        self._max_names = NAMES_KEPT + 2 * len(self._names)

    def remove(self, key: str) -> None:
        """Remove the routes of a NIC pair."""
        try:
            pair = split_pair(key)
        except ValueError:
            return
        if pair not in self._pairs:
            return
        changed = self._vote(pair, None, 0)
        del self._pairs[pair], self._whole[pair]
        self._recorded.pop(pair, None)
        self._refresh_pairs(changed)
        self._peers[pair[0]].discard(pair[1])
        if not self._peers[pair[0]]:
            del self._peers[pair[0]]
        self._note(pair)

    def _note(self, pair: tuple[str, str]) -> None:
        self.version += 1
        self._changed.append(pair)

    def changed(self, since: int) -> Collection[tuple[str, str]] | None:
        """Return the directed pairs whose routes changed since a version; None if the version is too old."""
        count = self.version - since
        if not 0 <= count <= len(self._changed):
            return None
        return {self._changed[-n] for n in range(1, count + 1)}

    def forward(self, nic: str, peer: str, path: int) -> Links:
        """Return the links of requests from `nic` to `peer`, in order; empty if any link is unknown."""
        of_pair = self._whole.get((nic, peer))
        return of_pair.get((REQUEST, path), ()) if of_pair is not None else ()

    def reverse(self, nic: str, peer: str, path: int) -> Links:
        """Return the links of `peer`'s answers to `nic`, in order; empty if any link is unknown."""
        of_pair = self._whole.get((peer, nic))
        return of_pair.get((ANSWER, path), ()) if of_pair is not None else ()

    def known(self, nic: str, peer: str, path: int) -> tuple[Links, Links]:
        """Return the known links of the requests, and of the answers; either may have gaps."""
        return self.route(nic, peer, path).links, self.route(peer, nic, path, ANSWER).links

    def route(self, nic: str, peer: str, path: int, leg: str = REQUEST) -> Route:
        """Return the route of packets from `nic` to `peer`, possibly with gaps.

        With leg REQUEST the packets are probes that `nic` sends from port `path`; with leg ANSWER they are
        its answers to the peer's port `path`.
        """
        of_pair = self._pairs.get((nic, peer))
        return of_pair.get((leg, path), NO_ROUTE) if of_pair is not None else NO_ROUTE

    def pairs(self) -> list[tuple[str, str]]:
        """Return every directed NIC pair with a known route."""
        return list(self._pairs)

    def paths(self, nic: str, peer: str) -> dict[tuple[str, int], Route]:
        """Return the routes of one directed pair, by (leg, entropy value)."""
        return dict(self._pairs.get((nic, peer), {}))

    def links(self) -> set[str]:
        """Return every directed link that any route crosses."""
        return {
            link for of_pair in self._pairs.values() for route in of_pair.values() for link in route.links
        }


def _cables(routes: Routes) -> set[str]:
    return {cable_id(link) for route in routes.values() for link in route.links}


def _without(route: Route, doubted: Set[str]) -> Route:
    """Return a route without its doubted cables; if one was removed, the route is marked as incomplete."""
    links = tuple(link for link in route.links if cable_id(link) not in doubted)
    return route if links == route.links else route._replace(links=links, complete=False)


def _comparable(routes: Mapping[tuple[str, int], Route]) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Return the parts of routes that count as a change if they differ.

    Times are omitted, because a restarted prober resets them.
    """
    return {
        at: (route.links, route.complete, route.found, route.contradiction) for at, route in routes.items()
    }
