"""Generates records of a simulated fabric with planted faults, for tests and benchmarks of the evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from producers.inventory.nics import nic_record
from producers.settings import NicSettings
from producers.sim.setup import topology_file
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from producers.sim.traces import KnownPath, path_records
from producers.sim.workload import address_of
from schemas.ids import nic_parts
from schemas.records import ClockSync, Nic, PathDelays, PathMaps
from schemas.topology import Topology, nic_end, split_end
from streams.audit.fabric.records import FabricRecords

T0 = 1_760_000_000_000_000_000


@dataclass
class Simulated:
    """The records of a fleet as its agents publish them, with planted faults.

    `swaps` has pairs of NICs with swapped cables, `extra_ns` the additional delay of links, and `offset_ns`
    the error of NICs' clocks. NICs in `dead` answer nothing; `dead_pairs` are directed pairs without answers.
    """

    fleet: Fleet
    seed: int = 1
    peers: int = 6
    paths: int = 4
    noise_ns: float = 20.0
    bound_ns: float = 60.0
    swaps: list[tuple[str, str]] = field(default_factory=list)
    extra_ns: dict[str, float] = field(default_factory=dict)
    offset_ns: dict[str, float] = field(default_factory=dict)
    dead: frozenset[str] = frozenset()
    dead_pairs: frozenset[tuple[str, str]] = frozenset()
    lost_links: frozenset[str] = frozenset()
    """Links of the plan that no route takes."""

    def __post_init__(self) -> None:
        fleet, rng = self.fleet, np.random.default_rng(self.seed)
        at = np.arange(fleet.nics)
        for a, b in self.swaps:
            i, j = fleet.nic_index[a], fleet.nic_index[b]
            at[[i, j]] = at[[j, i]]
        if self.peers >= fleet.nics - 1:
            src, dst = (grid.ravel() for grid in np.meshgrid(range(fleet.nics), range(fleet.nics)))
            src, dst = src[src != dst], dst[src != dst]
        else:
            src = np.repeat(np.arange(fleet.nics), self.peers)
            dst = (src + rng.integers(1, fleet.nics, len(src))) % fleet.nics
        pairs = np.unique(src * fleet.nics + dst)
        self.src, self.dst = (np.repeat(end, self.paths) for end in (pairs // fleet.nics, pairs % fleet.nics))
        self.port = 9320 + np.tile(np.arange(self.paths), len(pairs))
        alive = None
        if self.lost_links:
            alive = np.ones(fleet.links, bool)
            alive[[fleet.link_index[link] for link in self.lost_links]] = False
        self.there, self.back = fleet.round_trips(at[self.src], at[self.dst], self.port, alive, True)
        self.rng = rng

    def links(self, row: int, answer: bool) -> list[str]:
        """Return the links of probed pair `row`, as traces name them: of its requests, or of its answers."""
        route = (self.back if answer else self.there).of(row).tolist()
        links = [self.fleet.link_ids[link] for link in route]
        first, last = (self.dst, self.src) if answer else (self.src, self.dst)
        ends = [[split_end(end) for end in link.split(">")] for link in links]
        ends[0][0] = nic_end(self.fleet.nic_ids[first[row]])
        ends[-1][1] = nic_end(self.fleet.nic_ids[last[row]])
        return ["{}:{}>{}:{}".format(*a, *b) for a, b in ends]

    def nics(self) -> list[Nic]:
        """Return the announcements of all NICs."""
        rails = self.fleet.shape.rails > 1
        return [
            nic_record(
                NicSettings(
                    host=nic_parts(name).host,
                    device=nic_parts(name).device,
                    address=address_of(k),
                    shard="fabric",
                    rail=int(self.fleet.nic_rail[k]) if rails else None,
                    rack=f"rack{self.fleet.nic_rack[k] + 1}",
                ),
                run=1,
                probe_port=9319,
                phc_index=int(self.fleet.nic_device[k]),
                speed_bps=None,
                mtu_bytes=None,
                since_ns=T0,
                announced_ns=T0,
            )
            for k, name in enumerate(self.fleet.nic_ids)
        ]

    def path_maps(self) -> list[PathMaps]:
        """Return the traced routes of all NICs."""
        ids = self.fleet.nic_ids
        paths = (
            KnownPath(ids[a], ids[b], port, self.links(row, False), self.links(row, True))
            for row, (a, b, port) in enumerate(
                zip(self.src.tolist(), self.dst.tolist(), self.port.tolist(), strict=True)
            )
        )
        return list(path_records(paths, traced_ns=T0))

    def delays(self) -> list[PathDelays]:
        """Return the delays of every NIC in one window."""
        fleet, ids = self.fleet, self.fleet.nic_ids
        extra = np.zeros(fleet.links)
        for link, ns in self.extra_ns.items():
            extra[fleet.link_index[link]] = ns
        both = []
        for paths in (self.there, self.back):
            total = np.concatenate([[0.0], np.cumsum(extra[paths.link])])
            noise = self.rng.exponential(self.noise_ns, len(self.src))
            added = total[paths.start[1:]] - total[paths.start[:-1]]
            both.append(fleet.base_delay_ns(paths, 100) + added + noise)
        forward, reverse = both
        error = np.array([self.offset_ns.get(name, 0.0) for name in ids])
        shift = error[self.dst] - error[self.src]
        rows: dict[int, list[Any]] = {}
        for k, (a, b) in enumerate(zip(self.src.tolist(), self.dst.tolist(), strict=True)):
            there, back = float(forward[k] + shift[k]), float(reverse[k] - shift[k])
            lost = ids[a] in self.dead or ids[b] in self.dead or (ids[a], ids[b]) in self.dead_pairs
            rows.setdefault(a, []).append(_row(ids[b], int(self.port[k]), there, back, self.bound_ns, lost))
        return [
            {
                "nic": ids[a],
                "shard": "fabric",
                "window": 1,
                "part": 0,
                "parts": 1,
                "window_start_ns": T0,
                "window_end_ns": T0 + 10**9,
                "state": ClockSync.SYNCED,
                "paths": paths,
            }
            for a, paths in rows.items()
            if ids[a] not in self.dead
        ]

    def records(self, plan: bool = True, **fields: Any) -> FabricRecords:
        """Return the announcements, routes and delays as one object, with or without the topology file."""
        topology = Topology(topology_file(self.fleet)) if plan else Topology()
        defaults: dict[str, Any] = {"nics": self.nics(), "topology": topology}
        if "paths" not in fields:
            fields["paths"] = self.path_maps()
        if "delays" not in fields:
            fields["delays"] = self.delays()
        return FabricRecords(**(defaults | fields))


def _row(peer: str, path: int, forward: float, reverse: float, bound: float, lost: bool) -> Any:
    row: dict[str, Any] = {"peer": peer, "path": path, "no_t3": 0, "bound_ns": None if lost else bound}
    row |= dict.fromkeys(("dscp", "ecn", "forward_ce", "reverse_ce"), 0)
    row |= {"count": 0 if lost else 20, "lost": 20 if lost else 0}
    for name, value in (("forward", forward), ("reverse", reverse), ("rtt", forward + reverse)):
        row |= {f"{name}_{figure}_ns": None if lost else value for figure in ("min", "p50", "p99")}
    empty = ("forward_bucket", "forward_bucket_count", "reverse_bucket", "reverse_bucket_count")
    return row | {name: [] for name in empty}


def railed(nics: int = 64, rails: int = 8) -> Fleet:
    """Return a fleet with rails and two tiers of switches."""
    hosts = nics // rails
    return Fleet(
        Shape(hosts=hosts, hosts_per_rack=max(2, hosts // 2), spines=4, nics_per_host=rails, rails=rails), 1
    )


def drawn_swaps(fleet: Fleet, count: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Draw `count` random cable swaps between two rails of one rack, with each NIC in at most one swap."""
    used: set[int] = set()

    def draw() -> Iterator[tuple[int, int]]:
        while True:
            a, b = rng.integers(fleet.nics, size=2).tolist()
            same_rack = fleet.nic_rack[a] == fleet.nic_rack[b]
            if same_rack and fleet.nic_rail[a] != fleet.nic_rail[b] and not {a, b} & used:
                used.update((a, b))
                yield a, b

    drawn = draw()
    return [(fleet.nic_ids[a], fleet.nic_ids[b]) for a, b in (next(drawn) for _ in range(count))]
