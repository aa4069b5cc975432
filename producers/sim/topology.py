"""The network of the simulated fleet: leaf-spine in two or three tiers, with rails and ECMP. Pure.

A `Fleet` is built from a `Shape`. Its NICs and directed links are integer indices into arrays. Names follow
the testbed: hosts h1, h2 ... with ports eth1 ..., and switches leaf1, spine1, core1 ... with ports swp1 ...
"""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from producers.sim.ecmp import EcmpChoice, Paths, Position, UsableRoutes, mix
from producers.sim.shape import Shape
from schemas.ids import link_id, nic_id

NodeKind: TypeAlias = Literal["host", "leaf", "spine", "core"]
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Float64s: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

PROBE_PORT: Final = 9319
"""UDP port that answers probes; with the entropy value as the other port it determines their paths."""


class LinkKind(IntEnum):
    """Kind of a directed link: its tier and its direction."""

    HOST_UP = 0
    LEAF_DOWN = 1
    LEAF_UP = 2
    SPINE_DOWN = 3
    SPINE_UP = 4
    CORE_DOWN = 5


class Fleet:
    """The network of a `Shape`: read-only arrays over NICs [N], directed links [L] and nodes.

    Cable c has link 2c upwards and link 2c + 1 downwards, so `link ^ 1` is the other direction. NIC n has
    cable n. Nodes are numbered in the order hosts, leaves, spines, cores. `seed` determines every switch's
    hash.
    """

    def __init__(self, shape: Shape, seed: int = 1) -> None:
        self.shape = shape
        self.seed = seed
        s = shape
        n, per_host = s.hosts * s.nics_per_host, s.nics_per_host
        nic = np.arange(n)
        host, device = nic // per_host, nic % per_host
        rack, rail = host // s.hosts_per_rack, device % s.rails
        leaf = rack * s.rails + rail
        slot = host % s.hosts_per_rack * (per_host // s.rails) + device // s.rails

        self.nics = n
        self.first_leaf = s.hosts
        self.first_spine = s.hosts + s.leaves
        self.first_core = self.first_spine + s.pods * s.spines
        self.nodes = self.first_core + s.spines * s.cores
        racks_per_pod = s.racks_per_pod or s.racks
        leaves_per_pod = racks_per_pod * s.rails
        self.nic_host: Int32s = host.astype(np.int32)
        self.nic_device: Int32s = device.astype(np.int32)
        self.nic_rail: Int32s = rail.astype(np.int32)
        self.nic_rack: Int32s = rack.astype(np.int32)
        self.nic_leaf: Int32s = leaf.astype(np.int32)
        """[N] number of each NIC's leaf, from 0 on; its node number is larger by `first_leaf`."""

        self._uplinks = s.spines * s.cables
        up = np.arange(s.leaves * self._uplinks)
        up_leaf, up_port = up // self._uplinks, up % self._uplinks
        up_pod, up_leaf_of_pod = up_leaf // leaves_per_pod, up_leaf % leaves_per_pod
        up_spine = up_pod * s.spines + up_port // s.cables
        top = np.arange(s.pods * s.spines * s.cores)
        top_spine, top_core = top // max(s.cores, 1), top % max(s.cores, 1)
        self._first_up = n
        """Number of the first cable between leaf and spine; `_first_top`: of that between spine and core."""
        self._first_top = n + len(up)
        self._leaf_pod = np.arange(s.leaves) // leaves_per_pod

        lower = np.concatenate([host, self.first_leaf + up_leaf, self.first_spine + top_spine])
        upper = np.concatenate(
            [
                self.first_leaf + leaf,
                self.first_spine + up_spine,
                self.first_core + top_spine % s.spines * s.cores + top_core,
            ]
        )
        lower_port = np.concatenate(
            [device + 1, s.ports_down + 1 + up_port, leaves_per_pod * s.cables + 1 + top_core]
        )
        upper_port = np.concatenate(
            [slot + 1, up_leaf_of_pod * s.cables + up_port % s.cables + 1, top_spine // s.spines + 1]
        )
        tier = np.repeat([0, 1, 2], [n, len(up), len(top)])

        def both(upwards: NDArray[Any], downwards: NDArray[Any], kind: type) -> NDArray[Any]:
            return np.stack([upwards, downwards], axis=1).reshape(-1).astype(kind)

        cable_ns = np.array([s.host_cable_ns, s.fabric_cable_ns, s.core_cable_ns])[tier]
        rate = np.array([s.host_rate_bps, s.fabric_rate_bps, s.core_rate_bps], np.int64)[tier]
        queue_bytes = np.where(tier == 0, s.host_buffer_bytes, s.buffer_bytes)
        self.link_from: Int32s = both(lower, upper, np.int32)
        """[L] number of the sending node."""
        self.link_to: Int32s = both(upper, lower, np.int32)
        self.port_from: Int32s = both(lower_port, upper_port, np.int32)
        """[L] number of the sending node's port, from 1 on."""
        self.port_to: Int32s = both(upper_port, lower_port, np.int32)
        self.kind: NDArray[np.int8] = both(2 * tier, 2 * tier + 1, np.int8)
        """[L] `LinkKind` of each link."""
        self.rate_bps: Int64s = both(rate, rate, np.int64)
        self.delay_ns: Int64s = both(
            cable_ns + s.switching_ns, cable_ns + np.where(tier == 0, 0, s.switching_ns), np.int64
        )
        """[L] propagation delay and delay of the receiving switch, without serialisation."""
        self.buffer_bytes: Int64s = both(queue_bytes, np.full(len(tier), s.buffer_bytes), np.int64)
        self.links = len(self.rate_bps)
        numbers = np.arange(self.nodes, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._node_seed = mix(numbers + mix(np.array([seed % 2**64], np.uint64)))
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def paths(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        src_port: ArrayLike,
        dst_port: ArrayLike = PROBE_PORT,
        living: ArrayLike | None = None,
        converged: bool = False,
    ) -> Paths:
        """Return the links from NIC `src` to NIC `dst` of packets with these UDP ports, all [N] or scalar.

        Each switch hashes NICs and ports with its own seed, so tiers do not polarise. It chooses among its
        equal-cost ports, without those that are down by `living` ([L] booleans). It knows only the carrier of
        its own ports, so neither a dead link further on nor a silent blackhole changes its choice. With
        `converged`, as after a routing protocol has converged, switches also leave out ports without a
        shortest route to the destination's leaf. Raises ValueError if NICs, ports or shapes do not fit.
        """
        a, b, sport, dport = self._flows(src, dst, src_port, dst_port)
        alive = None if living is None else self._link_states(living)
        usable = self._usable_routes(alive) if alive is not None and converged else None
        s = self.shape
        pair = (a << 32 | b).astype(np.uint64)
        ports = (sport << 16 | dport).astype(np.uint64)
        choice = EcmpChoice(mix(mix(pair) ^ ports), self._node_seed, alive)
        leaf_a, leaf_b = self.nic_leaf[a].astype(np.int64), self.nic_leaf[b].astype(np.int64)
        pod_a, pod_b = self._leaf_pod[leaf_a], self._leaf_pod[leaf_b]
        every = np.arange(len(a))
        choice.choose(Position.HOST_UP, every, self.nic_host[a].astype(np.int64), a, 1)
        far = np.flatnonzero(leaf_a != leaf_b)
        choice.choose(
            Position.LEAF_UP,
            far,
            self.first_leaf + leaf_a[far],
            self._first_up + leaf_a[far] * self._uplinks,
            self._uplinks,
            (lambda at: usable.uplinks(leaf_a[at], pod_a[at], leaf_b[at], pod_b[at])) if usable else None,
        )
        plane = np.maximum(choice.cables(Position.LEAF_UP) - self._first_up, 0) % self._uplinks // s.cables
        if s.cores:
            over = far[pod_a[far] != pod_b[far]]
            spine = pod_a[over] * s.spines + plane[over]
            choice.choose(
                Position.SPINE_UP,
                over,
                self.first_spine + spine,
                self._first_top + spine * s.cores,
                s.cores,
                (lambda at: usable.cores(pod_a[at], pod_b[at], plane[at])) if usable else None,
            )
            core = np.maximum(choice.cables(Position.SPINE_UP)[over] - self._first_top, 0) % s.cores
            below = pod_b[over] * s.spines + plane[over]
            choice.choose(
                Position.CORE_DOWN,
                over,
                self.first_core + plane[over] * s.cores + core,
                self._first_top + below * s.cores + core,
                1,
            )
        choice.choose(
            Position.SPINE_DOWN,
            far,
            self.first_spine + pod_b[far] * s.spines + plane[far],
            self._first_up + leaf_b[far] * self._uplinks + plane[far] * s.cables,
            s.cables,
        )
        choice.choose(Position.LEAF_DOWN, every, self.first_leaf + leaf_b, b, 1)
        return choice.paths()

    def _flows(
        self, src: ArrayLike, dst: ArrayLike, src_port: ArrayLike, dst_port: ArrayLike
    ) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return NICs and ports as arrays, each [N]. Raises ValueError if they do not fit together."""
        try:
            a, b, sport, dport = np.broadcast_arrays(
                *(np.atleast_1d(np.asarray(part, np.int64)) for part in (src, dst, src_port, dst_port))
            )
        except ValueError as error:
            raise ValueError(f"src, dst and ports: {error}") from None
        if a.ndim != 1:
            raise ValueError(f"src, dst and ports: {a.ndim} dimensions, expected 1")
        for name, part, end in (
            ("src", a, self.nics),
            ("dst", b, self.nics),
            ("src_port", sport, 1 << 16),
            ("dst_port", dport, 1 << 16),
        ):
            wrong = (part < 0) | (part >= end)
            if wrong.any():
                raise ValueError(f"{name} {part[wrong][0]}: expected 0 to {end - 1}")
        if (a == b).any():
            raise ValueError(f"src and dst are both NIC {a[a == b][0]}: expected two different ones")
        return a, b, sport, dport

    def _link_states(self, living: ArrayLike) -> Bools:
        """Return [L]: True for links that are up. Raises ValueError if the shape is wrong."""
        alive = np.asarray(living, np.bool_)
        if alive.shape != (self.links,):
            raise ValueError(f"living: shape {alive.shape}, expected ({self.links},), one a link")
        return alive

    def _usable_routes(self, alive: Bools) -> UsableRoutes:
        """Return the usable parts of the fleet if all switches have learnt which links are `alive` [L]."""
        s = self.shape
        up, down = alive[0::2], alive[1::2]
        between = slice(self._first_up, self._first_top)
        to_core, from_core = (
            direction[self._first_top :].reshape(s.pods, s.spines, s.cores) for direction in (up, down)
        )
        joined = np.zeros((s.pods, s.pods, s.spines), np.bool_)
        for pod in range(s.pods):
            joined[pod] = (to_core[pod] & from_core).any(axis=2)
            joined[pod, pod] = True
        return UsableRoutes(
            up=up[between].reshape(s.leaves, self._uplinks),
            below=np.asarray(down[between].reshape(s.leaves, s.spines, s.cables).any(axis=2)),
            to_core=to_core,
            from_core=from_core,
            joined=joined,
        )

    def routes(self, src: int, dst: int, living: NDArray[np.bool_] | None = None) -> list[Int32s]:
        """Return every shortest route from NIC `src` to NIC `dst` over `living` links."""
        s = self.shape
        leaf_a, leaf_b = int(self.nic_leaf[src]), int(self.nic_leaf[dst])
        if leaf_a == leaf_b:
            inner: list[list[int]] = [[]]
        else:
            pod_a, pod_b = int(self._leaf_pod[leaf_a]), int(self._leaf_pod[leaf_b])
            inner = []
            for port in range(self._uplinks):
                plane = port // s.cables
                up = 2 * (self._first_up + leaf_a * self._uplinks + port)
                over: list[list[int]] = [[]]
                if pod_a != pod_b:
                    first, last = (
                        self._first_top + (pod * s.spines + plane) * s.cores for pod in (pod_a, pod_b)
                    )
                    over = [[2 * (first + core), 2 * (last + core) + 1] for core in range(s.cores)]
                below = self._first_up + leaf_b * self._uplinks + plane * s.cables
                inner += [[up, *core, 2 * (below + cable) + 1] for core in over for cable in range(s.cables)]
        routes = [np.array([2 * src, *inner_links, 2 * dst + 1], np.int32) for inner_links in inner]
        return [links for links in routes if living is None or living[links].all()]

    def round_trips(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        entropy: ArrayLike,
        living: ArrayLike | None = None,
        converged: bool = False,
    ) -> tuple[Paths, Paths]:
        """Return the links of probes from `src` to `dst` with source port `entropy`, and of their answers.

        An answer has swapped ports, so its route may differ from the probe's. Raises ValueError like `paths`.
        """
        return (
            self.paths(src, dst, entropy, PROBE_PORT, living, converged),
            self.paths(dst, src, PROBE_PORT, entropy, living, converged),
        )

    def base_delay_ns(self, paths: Paths, packet_bytes: int) -> Float64s:
        """Return [N]: delay of a packet without queues, ns: serialisation and `delay_ns` of all links."""
        link_ns = self.delay_ns + packet_bytes * 8e9 / self.rate_bps
        total = np.concatenate([[0.0], np.cumsum(link_ns[paths.link])])
        path_ns: Float64s = total[paths.start[1:]] - total[paths.start[:-1]]
        return path_ns

    @cached_property
    def node_ids(self) -> list[str]:
        """Names of all nodes, in their order."""
        s = self.shape
        counts = (
            ("h", s.hosts),
            ("leaf", s.leaves),
            ("spine", s.pods * s.spines),
            ("core", s.spines * s.cores),
        )
        return [f"{kind}{i + 1}" for kind, count in counts for i in range(count)]

    @cached_property
    def nic_ids(self) -> list[str]:
        """[N] id of each NIC, `host/device`."""
        names = self.node_ids
        return [
            nic_id(names[host], f"eth{device + 1}")
            for host, device in zip(self.nic_host.tolist(), self.nic_device.tolist(), strict=True)
        ]

    @cached_property
    def link_ids(self) -> list[str]:
        """[L] id of each link, `node:port>node:port`."""
        names, host_ends = self.node_ids, self.shape.hosts
        ends = zip(
            self.link_from.tolist(),
            self.port_from.tolist(),
            self.link_to.tolist(),
            self.port_to.tolist(),
            strict=True,
        )
        return [
            link_id(
                names[a],
                f"{'eth' if a < host_ends else 'swp'}{p}",
                names[b],
                f"{'eth' if b < host_ends else 'swp'}{q}",
            )
            for a, p, b, q in ends
        ]

    @cached_property
    def nic_index(self) -> dict[str, int]:
        """Index of each NIC by its id."""
        return {name: i for i, name in enumerate(self.nic_ids)}

    @cached_property
    def link_index(self) -> dict[str, int]:
        """Index of each link by its id."""
        return {name: i for i, name in enumerate(self.link_ids)}

    @cached_property
    def node_kinds(self) -> dict[str, NodeKind]:
        """Kind of each node by its name: host, leaf, spine or core."""
        ends: tuple[tuple[int, NodeKind], ...] = (
            (self.first_leaf, "host"),
            (self.first_spine, "leaf"),
            (self.first_core, "spine"),
            (self.nodes, "core"),
        )
        kinds: dict[str, NodeKind] = {}
        begin = 0
        for end, kind in ends:
            kinds |= dict.fromkeys(self.node_ids[begin:end], kind)
            begin = end
        return kinds
