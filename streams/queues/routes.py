"""Numbers the routes of a shard's probes, and the links that they cross."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core.columns import Int64s
from schemas.records import PathQueueing
from streams.runtime.route_table import RouteTable

__all__ = ["LinkKey", "ProbedRoutes"]

LinkKey = tuple[str, int]
"""A link and the traffic class of the queue at its sending port."""

FORWARD, REVERSE, ROUND_TRIP = 1, 2, 3
"""`direction` of a row."""
MAX_NICS: Final = 1 << 15
MIN_ROUTES: Final = 1024
"""Fewer routes are not worth forgetting."""


class ProbedRoutes:
    """The routes that probes take, by number; each route by its sender and its links."""

    def __init__(self) -> None:
        self.unknown_paths = 0
        """Paths without a known route."""
        self.names: list[str] = []
        """Names of the links by number: a link has one for each traffic class, whose queue is another."""
        self.dscps: list[int] = []
        """Traffic class of each."""
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
        """Ascending path keys with a cached route, and the route of each."""
        self._used = 0
        """Number of cached paths since the last route change."""

    @property
    def keys(self) -> list[LinkKey]:
        """Name and class of each link by number."""
        return list(self._link_numbers)

    def refresh(self, record: PathQueueing, table: RouteTable) -> bool:
        """Prepare for a record; return True if all routes were dropped and numbers start again."""
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
        """Return the route of each row of a record, -1 if unknown."""
        nics = record["nics"]
        ids = np.array([self._nics.setdefault(name, len(self._nics)) for name in nics], np.int64)
        nic, peer, path, direction = (
            np.asarray(column, np.int64)
            for column in (record["nic"], record["peer"], record["path"], record["direction"])
        )
        dscp = np.asarray(record["dscp"], np.int64) if len(record["dscp"]) else np.zeros(len(nic), np.int64)
        key = ids[nic] << 48 | ids[peer] << 33 | dscp << 26 | path << 2 | direction if len(nic) else nic
        at = np.searchsorted(self._keys, key)
        found = np.full(len(key), -1, np.int32)
        hit = at < len(self._keys)
        hit[hit] = self._keys[at[hit]] == key[hit]
        found[hit] = self._route_at[at[hit]]
        new = np.flatnonzero(~hit)
        if len(new):
            rows = (column[new].tolist() for column in (nic, peer, path, direction, dscp))
            named = zip(*rows, strict=True)
            found[new] = [self._route(nics[n], nics[p], port, d, c, table) for n, p, port, d, c in named]
            keys, first = np.unique(np.concatenate([self._keys, key[new]]), return_index=True)
            self._route_at = np.concatenate([self._route_at, found[new]])[first]
            self._keys = keys
            self.unknown_paths += int(np.count_nonzero(found[new] < 0))
        return found

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
        """Return the links of a path in a direction; empty if any of its directions is unknown."""
        # t1 and t3 are taken after the sender's own queue, so the first link is not in the delay
        forward = table.forward(nic, peer, path)[1:] if direction in (FORWARD, ROUND_TRIP) else ()
        reverse = table.reverse(nic, peer, path)[1:] if direction in (REVERSE, ROUND_TRIP) else ()
        if direction == ROUND_TRIP and not (forward and reverse):
            return ()
        return tuple(dict.fromkeys(self.link_number(name, dscp) for name in (*forward, *reverse)))

    def link_number(self, name: str, dscp: int = 0) -> int:
        """Return the number of a link in a traffic class, a new one for a new pair."""
        found = self._link_numbers.get((name, dscp))
        if found is None:
            found = self._link_numbers[name, dscp] = len(self.names)
            self.names.append(name)
            self.dscps.append(dscp)
        return found

    def _forget_paths(self) -> None:
        self._keys, self._route_at = np.zeros(0, np.int64), np.zeros(0, np.int32)

    def _forget_routes(self) -> None:
        self.links.clear()
        self.senders.clear()
        self._numbers.clear()
        self.revision += 1
