"""Selects the source ports from which a NIC probes.

The regular paths' ports are chosen so that together they use every route. Spare paths get ports that take the
routes of live flows. `port_search.py` traces the candidates.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Final, Protocol

from native.core.probe import Engine
from producers.probe.flow_targets import PathKey, PeerRoute, choose_spare_ports
from producers.settings import ProbeSettings
from producers.trace.port_search import PortSearch
from producers.trace.source_ports import choose_ports
from producers.trace.tracer import Trace

_log = logging.getLogger(__name__)

Hops = tuple[str | None, ...]
Links = tuple[str, ...]
OpenCandidates = Callable[[Sequence[int]], list[socket.socket]]
"""Opens sockets on those of the given ports that are free; port 0 means any port."""

SEARCH_AFTER_S: Final = 1.0
"""Delay between a change of peers or routes and a search."""
SEARCH_REST_S: Final = 60.0
FLOW_SEARCH_REST_S: Final = 10.0
"""Minimum time between two searches for ports that take flows' routes."""
SPARE_KEEP_S: Final = 60.0
"""A spare path is traced for this long after the last flow on its route."""


class KnownProbeRoutes(Protocol):
    """The traced routes of the NIC's probes, as the port selection needs them."""

    def request_hops(self, peer: str) -> dict[int, Hops]:
        """Return, by source port, the hops of requests that reach the peer."""

    def peers_with_routes(self) -> Iterable[str]:
        """Return the peers to which routes are known."""

    def name_hops(self, peer: str, port: int, hops: Hops) -> Links:
        """Return the links of a path to `peer` by its `hops`; empty if any link is unknown."""

    def accept_trace(self, peer: str, port: int, trace: Trace, now_s: float) -> None:
        """Replace a path's known route by the route in `trace`."""

    def refresh_soon(self) -> None:
        """Update the set of traced paths from the engine's paths at the next tick."""


class PortSelector:
    """Selects and opens the source ports of the paths of one probe engine."""

    def __init__(
        self,
        engine: Engine,
        settings: ProbeSettings,
        routes: KnownProbeRoutes,
        *,
        nic: str,
        address: str,
        open_candidates: OpenCandidates | None,
        rng: random.Random,
    ) -> None:
        self.engine, self.settings, self.nic, self.address = engine, settings, nic, address
        self.ports_changed = False
        """True if the regular ports have changed; the caller resets it."""
        self._routes, self._open_candidates, self._random = routes, open_candidates, rng
        self._peers: frozenset[str] = frozenset()
        self._search: PortSearch | None = None
        self._search_due_s: float | None = None
        self._searched_s = self._flow_searched_s = float("-inf")
        self._candidates: dict[int, dict[str, Hops]] = {}
        """Hops by port and peer that the last searches found."""
        self._spare_used_s: dict[PathKey, float] = {}
        """Time of the last flow on the route of each spare path."""

    @property
    def is_searching(self) -> bool:
        """Whether a search is tracing candidate ports now."""
        return self._search is not None

    def restore(self, ports: Sequence[int]) -> None:
        """Probe from an earlier run's ports if they are free, so that the paths of that run continue."""
        free_ports = [port for port in ports if port in self._candidate_ports()]
        if len(free_ports) != len(self.engine.path_ports) or self._open_candidates is None:
            return
        new = [port for port in free_ports if port not in self.engine.path_ports]
        free = [at for at, port in enumerate(self.engine.path_ports) if port not in free_ports]
        for at, sock in zip(free, self._open_candidates(new), strict=False):
            self.engine.set_path(at, sock)
            self.ports_changed = True

    # ---- spare ports for flows' routes

    def serve_routes(
        self, peer_routes: Iterable[PeerRoute], links_by_path: Mapping[PathKey, Links], now_s: float
    ) -> None:
        """Provide a spare path for each of `peer_routes` that no path in `links_by_path` takes."""
        spares = self.engine.all_ports[len(self.engine.path_ports) :]
        if not spares or not self.settings.trace or self._search is not None:
            return
        served = {(peer, links) for (peer, _), links in links_by_path.items()}
        missing = sorted(route for route in set(peer_routes) if (route.peer, route.links) not in served)
        if not missing:
            return
        candidates = self._named_candidates({route.peer for route in missing})
        wanted_ports = choose_spare_ports(missing, links_by_path, candidates, spares, self.engine.path_ports)
        spare_ports = [self._move_spare(at, spares[at], port) for at, port in enumerate(wanted_ports)]
        unserved = [route for route in missing if not self._mark_used(route, spare_ports, candidates, now_s)]
        if unserved and now_s - self._flow_searched_s > FLOW_SEARCH_REST_S:
            self._flow_searched_s = now_s
            self._begin_search({route.peer for route in unserved})

    def _move_spare(self, at: int, present: int, port: int) -> int:
        """Move spare path `at` to `port` if it is free; return the path's present port afterwards."""
        if port == present or self._open_spare(len(self.engine.path_ports) + at, port):
            return port
        self._candidates.pop(port, None)
        return present

    def drop_unused_spares(self, now_s: float) -> None:
        """Forget spare paths whose last flow ended long ago, or whose port is closed."""
        for path, last_s in list(self._spare_used_s.items()):
            if now_s - last_s > SPARE_KEEP_S or path[1] not in self.engine.all_ports:
                del self._spare_used_s[path]

    def is_traced(self, peer: str, at: int, port: int) -> bool:
        """Return whether path number `at` of the engine must be traced to the peer from `port`."""
        return at < len(self.engine.path_ports) or (peer, port) in self._spare_used_s

    def _mark_used(
        self,
        route: PeerRoute,
        spare_ports: Sequence[int],
        candidates: Mapping[int, Mapping[str, Links]],
        now_s: float,
    ) -> bool:
        """Mark a spare path that takes `route` as in use; return False if no spare path takes it."""
        ports = [port for port in spare_ports if candidates.get(port, {}).get(route.peer) == route.links]
        if not ports:
            return False
        if (route.peer, ports[0]) not in self._spare_used_s:
            self._routes.refresh_soon()
        self._spare_used_s[route.peer, ports[0]] = now_s
        return True

    def _named_candidates(self, peers: Set[str]) -> dict[int, dict[str, Links]]:
        """Return, by port and then peer, the links of the candidate ports and of the present paths."""
        hops = {port: dict(by_peer) for port, by_peer in self._candidates.items()}
        for name in peers:
            for port, route in self._routes.request_hops(name).items():
                hops.setdefault(port, {})[name] = route
        links_by_port: dict[int, dict[str, Links]] = {}
        for port, by_peer in hops.items():
            for name in peers & by_peer.keys():
                links = self._routes.name_hops(name, port, by_peer[name])
                if links:
                    links_by_port.setdefault(port, {})[name] = links
        return links_by_port

    def _open_spare(self, at: int, port: int) -> bool:
        """Open `port` for path number `at` of the engine; return False if the port is not free."""
        if self._open_candidates is None:
            return False
        try:
            opened = self._open_candidates([port])
        except OSError as error:
            _log.warning("%s: no socket for port %d: %s", self.nic, port, error)
            return False
        if not opened:
            return False
        self.engine.set_path(at, opened[0])
        self._routes.refresh_soon()
        return True

    # ---- regular ports

    def search_later(self, now_s: float) -> None:
        """Plan a port search for later, because a route moved."""
        if self._search_due_s is None:
            self._search_due_s = now_s + SEARCH_AFTER_S

    def search_if_due(self, peers: frozenset[str], now_s: float) -> None:
        """Begin a port search if peers or routes changed and the peers have been stable for a time."""
        settings = self.settings
        if self._open_candidates is None or not settings.trace or settings.path_candidates <= settings.paths:
            return
        if peers != self._peers:
            self._peers = peers
            self._search_due_s = now_s + SEARCH_AFTER_S
        if self._search is not None or self._search_due_s is None or not peers:
            return
        if now_s < max(self._search_due_s, self._searched_s + SEARCH_REST_S):
            return
        self._search_due_s, self._searched_s = None, now_s
        self._candidates.clear()
        self._begin_search()

    def tick(self, now_s: float) -> None:
        """Continue the port search in progress; once it is complete, choose ports by its result."""
        if self._search is None or not self._search.tick(now_s):
            return
        for port, routes in self._search.routes.items():
            self._candidates.setdefault(port, {}).update(routes)
        if self._search.all_peers:
            self._choose(self._search, now_s)
        self.close()

    def close(self) -> None:
        """End the port search in progress, if any, and close its sockets."""
        if self._search is not None:
            self._search.close()
            self._search = None

    def _candidate_ports(self) -> range:
        first = self.settings.first_path_port
        count = max(self.settings.paths, self.settings.path_candidates)
        return range(first, first + count) if first else range(0)

    def _begin_search(self, peers: Set[str] | None = None) -> None:
        """Start tracing the candidate ports to all peers, or to `peers` only, for the routes of flows."""
        settings = self.settings
        if self._open_candidates is None or settings.path_candidates <= settings.paths:
            return
        targets = {
            peer.nic: (peer.address, peer.port)
            for peer in self.engine.peers
            if peers is None or peer.nic in peers
        }
        if settings.first_path_port:
            ports = [port for port in self._candidate_ports() if port not in self.engine.all_ports]
        else:
            ports = [0] * (settings.path_candidates - settings.paths)
        try:
            sockets = self._open_candidates(ports)
        except OSError as error:
            _log.warning("%s: no sockets to search for ports: %s", self.nic, error)
            return
        self._search = PortSearch(
            self.engine, self.address, sockets, targets, settings, self._random, all_peers=peers is None
        )

    def _choose(self, search: PortSearch, now_s: float) -> None:
        current = list(self.engine.path_ports)
        routes = {port: dict(hops_by_peer) for port, hops_by_peer in search.routes.items()}
        for name in self._routes.peers_with_routes():
            for port, hops in self._routes.request_hops(name).items():
                if port in current:
                    routes.setdefault(port, {})[name] = hops
        best_ports = choose_ports(routes, len(current), current)
        if best_ports == current:
            return
        for at, port in enumerate(best_ports):
            if port == current[at]:
                continue
            self.engine.set_path(at, search.take_socket(port))
            for name, trace in search.found[port].items():
                if trace.reached:
                    self._routes.accept_trace(name, port, trace, now_s)
        self.ports_changed = True
        self._routes.refresh_soon()
        _log.info("%s: probes from ports %s now, before %s", self.nic, best_ports, current)
