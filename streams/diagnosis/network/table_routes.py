"""Holds routes of a job's flows: recorded routes of flows, and routes of probes from a global table."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from streams.diagnosis.network.view import Links, RecordedRoutes
from streams.runtime.route_table import RouteTable

PAIRS_KEPT: Final = 16_384
"""Largest number of pairs whose routes are kept from one evaluation to the next."""


class TableRoutes:
    """Routes in a worker that keeps `fabric.paths` as a global table."""

    def __init__(self, recorded: RecordedRoutes, probes: RouteTable) -> None:
        self._recorded, self._probes = recorded, probes
        self._versions = recorded.version, probes.version
        self._of_pair = lru_cache(maxsize=PAIRS_KEPT)(self._routes_of)

    def of_flow(self, nic: str, peer: str, path: int, peer_port: int) -> Links:
        """Return the links of a flow, in order; empty if unknown."""
        return self._recorded.of_flow(nic, peer, path, peer_port) or self._probes.forward(nic, peer, path)

    def of_pair(self, nic: str, peer: str) -> frozenset[Links]:
        """Return the known routes from one NIC to another, cached until a route changes."""
        versions = self._recorded.version, self._probes.version
        if versions != self._versions:
            self._versions = versions
            self._of_pair.cache_clear()
        return self._of_pair(nic, peer)

    def _routes_of(self, nic: str, peer: str) -> frozenset[Links]:
        probes = self._probes.paths(nic, peer).items()
        complete = {route.links for (leg, _), route in probes if leg == "REQUEST" and route.complete}
        return self._recorded.of_pair(nic, peer) | complete

    def of_probe(self, nic: str, peer: str, path: int) -> tuple[Links, Links]:
        """Return the links of a probe's requests and of its answers; each is empty if not all are known."""
        return self._probes.forward(nic, peer, path), self._probes.reverse(nic, peer, path)
