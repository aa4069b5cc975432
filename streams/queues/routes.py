"""Numbers the routes of a shard's probes, and the links that they cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core.columns import Int64s
from native.core.queue_cells import find_routes
from schemas.records import PathQueueing
from streams.runtime.route_table import RouteTable

LinkKey = tuple[str, int]
"""A link and the traffic class of the queue at its sending port."""

FORWARD, REVERSE, ROUND_TRIP = 1, 2, 3
"""Values of `direction` in a row of `PathQueueing`."""
MAX_NICS: Final = 1 << 15
MIN_ROUTES: Final = 1024
"""Unused routes are only dropped if there are more routes than this."""


class ProbedRoutes:
    """Numbers the routes that probes take. A route is identified by its sender and its links."""

    def __init__(self) -> None:
        self.unknown_paths = 0
        """Number of paths without a known route."""
        self.names: list[str] = []
        """Name of each link number; a link has a number for each traffic class, which has its own queue."""
        self.dscps: list[int] = []
        """Traffic class of each link number."""
        self.links: list[tuple[int, ...]] = []
        """Links of each route."""
        self.senders: list[int] = []
        """Sender of each route, -1 for round trips."""
        self.revision = 0
        """Grows whenever a route is new or all are dropped."""
        self._link_numbers: dict[LinkKey, int] = {}
        self._nics: dict[str, int] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._table_version = -1
        self._keys: Int64s = np.zeros(0, np.int64)
        self._route_at: NDArray[np.int32] = np.zeros(0, np.int32)
        """Route of each cached path; `_keys` has the ascending keys of these paths."""
        self._used = 0
        """Number of cached paths since the last route change."""

    @property
    def keys(self) -> list[LinkKey]:
        """Name and traffic class of each link, in the order of the links' numbers."""
        return list(self._link_numbers)

    def refresh(self, record: PathQueueing, table: RouteTable) -> bool:
        """Forget outdated paths and routes; return True if all were dropped and routes get new numbers."""
        routes_before = len(self.links)
        if table.version != self._table_version:
            self._table_version = table.version
            self._forget_paths()
            if len(self.links) > MIN_ROUTES and len(self.links) > 4 * self._used:
                self._forget_routes()  # many belong to paths that have changed
            self._used = 0
        if len(self._nics) + len(record["nics"]) > MAX_NICS:
            self._nics.clear()
            self._forget_routes()  # they identify senders by number
            self._forget_paths()
        return len(self.links) < routes_before

    def of(self, record: PathQueueing, table: RouteTable) -> NDArray[np.int32]:
        """Return the route number of each row of a record, -1 if unknown."""
        nics = record["nics"]
        ids = np.array([self._nics.setdefault(name, len(self._nics)) for name in nics], np.int64)
        nic, peer, path, direction, dscp = (
            np.ascontiguousarray(record[name], np.int64)
            for name in ("nic", "peer", "path", "direction", "dscp")
        )
        key, routes, complete = find_routes(self._keys, self._route_at, ids, nic, peer, path, direction, dscp)
        return (
            routes
            if complete
            else self._with_new(key, routes, nics, (nic, peer, path, direction, dscp), table)
        )

    def _with_new(
        self,
        key: Int64s,
        routes: NDArray[np.int32],
        nics: Sequence[str],
        rows: tuple[Int64s, ...],
        table: RouteTable,
    ) -> NDArray[np.int32]:
        """Find and cache the routes of uncached paths; return the route number of each row."""
        at = np.searchsorted(self._keys, key)
        at[at == len(self._keys)] = 0
        new = np.flatnonzero(self._keys[at] != key) if len(self._keys) else np.arange(len(key))
        nic, peer, path, direction, dscp = rows
        dscp = dscp if len(dscp) else np.zeros(len(key), np.int64)
        named = zip(*(column[new].tolist() for column in (nic, peer, path, direction, dscp)), strict=True)
        routes[new] = [self._route(nics[n], nics[p], port, d, c, table) for n, p, port, d, c in named]
        keys, first = np.unique(np.concatenate([self._keys, key[new]]), return_index=True)
        self._route_at = np.concatenate([self._route_at, routes[new]])[first]
        self._keys = keys
        self.unknown_paths += int(np.count_nonzero(routes[new] < 0))
        return routes

    def _route(self, nic: str, peer: str, path: int, direction: int, dscp: int, table: RouteTable) -> int:
        """Return the number of a path's route, -1 if it is unknown."""
        links = self._path_links(nic, peer, path, direction, dscp, table)
        if not links:
            return -1
        sender = {FORWARD: nic, REVERSE: peer}.get(direction)
        by = -1 if sender is None else self._nics.setdefault(sender, len(self._nics))
        number = self._numbers.setdefault((by, links), len(self.links))
        if number == len(self.links):
            self.links.append(links)
            self.senders.append(by)
            self.revision += 1
        self._used += 1
        return number

    def _path_links(
        self, nic: str, peer: str, path: int, direction: int, dscp: int, table: RouteTable
    ) -> tuple[int, ...]:
        """Return a path's link numbers in a direction, without the sender's first link; () if unknown."""
        # t1 and t3 are taken after the sender's own queue, so the first link is not in the delay
        forward = table.forward(nic, peer, path)[1:] if direction in (FORWARD, ROUND_TRIP) else ()
        reverse = table.reverse(nic, peer, path)[1:] if direction in (REVERSE, ROUND_TRIP) else ()
        if direction == ROUND_TRIP and not (forward and reverse):
            return ()
        return tuple(dict.fromkeys(self.link_number(name, dscp) for name in (*forward, *reverse)))

    def link_number(self, name: str, dscp: int = 0) -> int:
        """Return the number of a link in a traffic class; assign one if the pair is new."""
        number = self._link_numbers.get((name, dscp))
        if number is None:
            number = self._link_numbers[name, dscp] = len(self.names)
            self.names.append(name)
            self.dscps.append(dscp)
        return number

    def _forget_paths(self) -> None:
        self._keys, self._route_at = np.zeros(0, np.int64), np.zeros(0, np.int32)

    def _forget_routes(self) -> None:
        self.links.clear()
        self.senders.clear()
        self._numbers.clear()
        self.revision += 1
