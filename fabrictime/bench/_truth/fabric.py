"""Lays out a leaf-spine fabric: the directed links by number and name, and the links of a route."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

HOPS: Final = 4
"""Links of a route between two leaves. A route within a leaf has two links; the other two entries are -1."""


@dataclass(frozen=True, slots=True)
class LeafSpine:
    """A fabric of `nics`, one per host, spread over `leaves`; a cable connects each leaf to each spine.

    Links are numbered in four tiers: out of hosts, up from leaves, down from spines, into hosts.
    """

    nics: int = 16
    leaves: int = 4
    spines: int = 4
    rate_bps: float = 10e9
    delay_ns: float = 1_000.0
    """One-way delay of a link, cable and switch, without its queue."""

    @property
    def links(self) -> int:
        """The number of directed links."""
        return 2 * self.nics + 2 * self.leaves * self.spines

    def leaf_of(self, nic: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each NIC's leaf."""
        return nic * self.leaves // self.nics

    def names(self) -> list[str]:
        """Return the ids of the links, in the order of their numbers."""
        nics, pairs = range(self.nics), list(product(range(self.leaves), range(self.spines)))
        leaf = self.leaf_of(np.arange(self.nics)).tolist()
        hosts = [f"host{n:02d}:eth0" for n in nics]
        ports = [f"leaf{leaf[n]}:h{n}" for n in nics]
        up = [f"leaf{at}:s{by}>spine{by}:l{at}" for at, by in pairs]
        down = [f"spine{by}:l{at}>leaf{at}:s{by}" for at, by in pairs]
        out = [f"{host}>{port}" for host, port in zip(hosts, ports, strict=True)]
        into = [f"{port}>{host}" for host, port in zip(hosts, ports, strict=True)]
        return [*out, *up, *down, *into]

    def nic_names(self) -> list[str]:
        """Return the names of the NICs, in the order of their numbers."""
        return [f"host{n:02d}/eth0" for n in range(self.nics)]

    def into_hosts(self) -> NDArray[np.int64]:
        """Return the numbers of the links into hosts."""
        return np.arange(self.links - self.nics, self.links)

    def up(self, leaf: int, spine: int) -> int:
        """Return the number of the link from a leaf up to a spine."""
        return self.nics + leaf * self.spines + spine

    def routes(
        self, source: NDArray[np.int64], target: NDArray[np.int64], spine: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return each route's links from `source` to `target` via `spine`, [routes, HOPS]; -1 for no link."""
        inner = self.leaves * self.spines
        from_leaf, to_leaf = self.leaf_of(source), self.leaf_of(target)
        route = np.empty((len(source), HOPS), np.int64)
        route[:, 0] = source
        route[:, 1] = self.nics + from_leaf * self.spines + spine
        route[:, 2] = self.nics + inner + to_leaf * self.spines + spine
        route[:, 3] = self.links - self.nics + target
        route[from_leaf == to_leaf, 1:3] = -1
        return route
