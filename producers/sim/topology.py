"""The network of the simulated fleet: leaf-spine in two or three tiers, with rails and ECMP. Pure.

A `Fleet` is built from a `Shape` or a number of NICs. Its NICs and directed links are integer indices into
arrays. Names follow the testbed: hosts h1 with eth1, leaf1, spine1, core1 with swp1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from schemas.ids import link_id, nic_id

__all__ = ["PROBE_PORT", "Fleet", "LinkKind", "Paths", "Shape"]

Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Float64s: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
_Uint64s: TypeAlias = NDArray[np.uint64]

PROBE_PORT: Final = 9319
"""UDP port that answers probes; with the entropy value as the other port it determines their paths."""
_MAX_LINKS: Final = 6


class LinkKind(IntEnum):
    """Kind of a directed link: the sending node and the direction."""

    HOST_UP = 0
    LEAF_DOWN = 1
    LEAF_UP = 2
    SPINE_DOWN = 3
    SPINE_UP = 4
    CORE_DOWN = 5


class Paths(NamedTuple):
    """Links of N flows: those of flow f are, in order, [start[f], start[f + 1]) of `link`."""

    start: Int64s
    """[N + 1]"""
    link: Int32s
    reached: Bools
    """[N]: False if a switch had no living port; `link` then ends before that switch's."""

    def of(self, flow: int) -> Int32s:
        """Return the links of one flow."""
        return self.link[self.start[flow] : self.start[flow + 1]]

    @property
    def hops(self) -> Int64s:
        """[N]: number of links of each flow."""
        return np.diff(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a fleet. Raises ValueError if the numbers do not fit together.

    A rack has one leaf per rail, and NIC k of each of its hosts connects to the leaf of rail k % rails. With
    as many rails as NICs per host this is a rail-optimised fabric, with one rail a plain Clos. Each leaf has
    `cables` cables to each spine of its pod. With `cores` above 0 there are three tiers: spine s of each pod
    has one cable to each of the `cores` cores of plane s, and pods connect only there.
    """

    hosts: int
    hosts_per_rack: int
    spines: int
    """Spines of a pod."""
    nics_per_host: int = 1
    rails: int = 1
    cables: int = 1
    """Parallel cables between a leaf and a spine."""
    racks_per_pod: int = 0
    """0: one pod holds all racks."""
    cores: int = 0
    """Cores that each spine has a cable to; 0: two tiers."""
    host_rate_bps: int = 400_000_000_000
    fabric_rate_bps: int = 400_000_000_000
    """Between leaf and spine."""
    core_rate_bps: int = 400_000_000_000
    switching_ns: int = 600
    """Delay in a receiving switch, from the last bit in to the queue of the output port."""
    host_cable_ns: int = 15
    """Propagation, 5 ns per metre: 3 m from host to leaf, 20 m to a spine, 100 m to a core."""
    fabric_cable_ns: int = 100
    core_cable_ns: int = 500
    buffer_bytes: int = 1_000_000
    """Capacity of each output queue of a switch, including the packet in service."""
    host_buffer_bytes: int = 16_000_000
    """Capacity of a NIC's own queue."""

    def __post_init__(self) -> None:
        for name in (
            "hosts",
            "hosts_per_rack",
            "spines",
            "nics_per_host",
            "rails",
            "cables",
            "host_rate_bps",
            "fabric_rate_bps",
            "core_rate_bps",
            "buffer_bytes",
            "host_buffer_bytes",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected at least 1")
        for name in (
            "racks_per_pod",
            "cores",
            "switching_ns",
            "host_cable_ns",
            "fabric_cable_ns",
            "core_cable_ns",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)}: expected 0 or more")
        if self.nics_per_host % self.rails:
            raise ValueError(f"rails {self.rails}: expected a divisor of {self.nics_per_host} NICs a host")
        if self.pods > 1 and not self.cores:
            raise ValueError(f"cores 0: expected at least 1 to join {self.pods} pods")
        cables = self.hosts * self.nics_per_host + self.leaves * self.spines * self.cables
        if 2 * (cables + self.pods * self.spines * self.cores) > 1 << 30:
            raise ValueError(
                f"{self.hosts} hosts, {self.leaves} leaves: expected at most 2^30 directed links"
            )

    @property
    def racks(self) -> int:
        """All racks; the last one may be partly filled."""
        return -(-self.hosts // self.hosts_per_rack)

    @property
    def pods(self) -> int:
        """All pods; the last one may have fewer racks."""
        return -(-self.racks // self.racks_per_pod) if self.racks_per_pod else 1

    @property
    def leaves(self) -> int:
        """All leaves, rack by rack, a rail each."""
        return self.racks * self.rails

    @property
    def ports_down(self) -> int:
        """Ports of a leaf towards hosts."""
        return self.hosts_per_rack * (self.nics_per_host // self.rails)


class Fleet:
    """A built `Shape`: read-only arrays over NICs [N], directed links [L] and nodes, in a fixed order.

    Cable c has link 2c upwards and link 2c + 1 downwards, so `link ^ 1` is the other direction; NIC n has
    cable n. Nodes are hosts, leaves, spines and cores in this order. `seed` determines every switch's hash.
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
        self.nic_pod: Int32s = (rack // racks_per_pod).astype(np.int32)
        self.nic_leaf: Int32s = leaf.astype(np.int32)
        """Leaf number from 0; the node is `first_leaf` further."""

        self._uplinks = s.spines * s.cables
        up = np.arange(s.leaves * self._uplinks)
        up_leaf, up_port = up // self._uplinks, up % self._uplinks
        up_pod, up_leaf_of_pod = up_leaf // leaves_per_pod, up_leaf % leaves_per_pod
        up_spine = up_pod * s.spines + up_port // s.cables
        top = np.arange(s.pods * s.spines * s.cores)
        top_spine, top_core = top // max(s.cores, 1), top % max(s.cores, 1)
        self._first_up = n
        """The first cable between leaf and spine; then the first between spine and core."""
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
        """[L]: the sending node."""
        self.link_to: Int32s = both(upper, lower, np.int32)
        self.port_from: Int32s = both(lower_port, upper_port, np.int32)
        """[L]: the number of its port, from 1 on."""
        self.port_to: Int32s = both(upper_port, lower_port, np.int32)
        self.kind: NDArray[np.int8] = both(2 * tier, 2 * tier + 1, np.int8)
        """[L]: `LinkKind`"""
        self.rate_bps: Int64s = both(rate, rate, np.int64)
        self.delay_ns: Int64s = both(
            cable_ns + s.switching_ns, cable_ns + np.where(tier == 0, 0, s.switching_ns), np.int64
        )
        """[L]: propagation and the receiving switch's delay, without serialisation."""
        self.buffer_bytes: Int64s = both(queue_bytes, np.full(len(tier), s.buffer_bytes), np.int64)
        self.links = len(self.rate_bps)
        numbers = np.arange(self.nodes, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._node_seed = _mix(numbers + _mix(np.array([seed % 2**64], np.uint64)))
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @classmethod
    def of(
        cls,
        nics: int,
        *,
        nics_per_host: int | None = None,
        rails: int | None = None,
        tiers: int | None = None,
        oversubscription: float = 1.0,
        rate_bps: int = 400_000_000_000,
        fabric_rate_bps: int | None = None,
        seed: int = 1,
    ) -> Fleet:
        """Return a fleet of `nics` NICs in a usual shape. Raises ValueError if none fits.

        Hosts have one NIC below 256 NICs and 8 from there on (if 8 divides the number), and as many rails as
        NICs. A leaf has about sqrt(nics) ports down, a power of two and at most 32. It has as many cables up,
        divided by `oversubscription` and by fabric_rate_bps / rate_bps, one to each spine of its pod. From
        2,049 NICs on there are three tiers, because a spine's 64 ports reach no further: pods of 32 leaves,
        and each spine with as many ports up as down. Above 65,536 NICs leaves and pods are twice as wide.

        64 NICs: 8 leaves of 8 hosts, 8 spines. 1,024 NICs: 128 hosts of 8 NICs, 4 racks of 8 rails, 32
        leaves, 32 spines. 10,000 NICs: 10 pods of up to 32 leaves and 32 spines, 1,024 cores.
        """
        if nics < 2:
            raise ValueError(f"nics {nics}: expected at least 2")
        if not oversubscription > 0 or not math.isfinite(oversubscription):
            raise ValueError(f"oversubscription {oversubscription}: expected a number above 0")
        if tiers not in (None, 2, 3):
            raise ValueError(f"tiers {tiers}: expected 2 or 3")
        if nics_per_host is None:
            nics_per_host = 8 if nics >= 256 and nics % 8 == 0 else 1
        if nics_per_host < 1 or nics % nics_per_host:
            raise ValueError(f"nics_per_host {nics_per_host}: expected a divisor of {nics} NICs")
        rails = nics_per_host if rails is None else rails
        if rails < 1 or nics_per_host % rails:
            raise ValueError(f"rails {rails}: expected a divisor of {nics_per_host} NICs a host")
        fabric_rate_bps = rate_bps if fabric_rate_bps is None else fabric_rate_bps
        if rate_bps < 1 or fabric_rate_bps < 1:
            raise ValueError(f"rate_bps {rate_bps}, fabric_rate_bps {fabric_rate_bps}: expected above 0")
        widest = 32 if nics <= 65_536 else 64
        down = min(widest, 2 ** round(math.log2(math.sqrt(nics))))
        per_leaf = nics_per_host // rails  # ports of one host on one leaf
        hosts_per_rack = max(1, down // per_leaf)
        down = hosts_per_rack * per_leaf
        spines = max(1, math.ceil(down * rate_bps / (oversubscription * fabric_rate_bps) - 1e-9))
        if spines > 4_096:
            raise ValueError(f"oversubscription {oversubscription}: {spines} spines, expected at most 4096")
        racks = -(-nics // (nics_per_host * hosts_per_rack))
        if tiers is None:
            tiers = 2 if racks * rails <= 2 * widest else 3
        racks_per_pod = max(1, widest // rails) if tiers == 3 else 0
        cores = 0
        if tiers == 3:
            pod_leaves = min(racks_per_pod, racks) * rails
            cores = max(1, math.ceil(pod_leaves / oversubscription - 1e-9))
        return cls(
            Shape(
                hosts=nics // nics_per_host,
                hosts_per_rack=hosts_per_rack,
                spines=spines,
                nics_per_host=nics_per_host,
                rails=rails,
                racks_per_pod=racks_per_pod,
                cores=cores,
                host_rate_bps=rate_bps,
                fabric_rate_bps=fabric_rate_bps,
                core_rate_bps=fabric_rate_bps,
            ),
            seed,
        )

    def paths(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        src_port: ArrayLike,
        dst_port: ArrayLike = PROBE_PORT,
        living: ArrayLike | None = None,
        converged: bool = False,
    ) -> Paths:
        """Return the links from NIC `src` to NIC `dst` of packets with these UDP ports; all [N] or scalar.

        Each switch hashes NICs and ports with its own seed, so tiers do not polarise. It chooses among its
        equal-cost ports, without those that are down by `living` ([L] booleans). It knows only the carrier of
        its own ports, so neither a far link that is down nor a silent blackhole changes its choice. With
        `converged`, as after a routing protocol has converged, switches also leave out ports without a
        shortest route to the destination's leaf. Raises ValueError if NICs, ports or shapes do not fit.
        """
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
        up = down = None
        if living is not None:
            alive = np.asarray(living, np.bool_)
            if alive.shape != (self.links,):
                raise ValueError(f"living: shape {alive.shape}, expected ({self.links},), one a link")
            up, down = _Living(alive[0::2]), _Living(alive[1::2])

        s = self.shape
        routes = self._usable_routes(alive) if living is not None and converged else None
        flow = _mix(_mix((a << 32 | b).astype(np.uint64)) ^ (sport << 16 | dport).astype(np.uint64))
        hops = np.full((len(a), _MAX_LINKS), -1, np.int64)
        """One column per tier's link; -1 if a flow does not need it or could not get it."""
        on = np.ones(len(a), np.bool_)
        """Flows that still have a route."""

        def choose(
            at: Int64s,
            column: int,
            node: Int64s,
            first: Int64s,
            width: int,
            direction: int,
            usable: Callable[[Int64s], Bools] | None = None,
        ) -> None:
            """For flows `at`, choose one of `width` cables from `first` on by the hash of `node`."""
            state = down if direction else up
            at, node, first = at[on[at]], node[on[at]], first[on[at]]
            draw = _mix(flow[at] ^ self._node_seed[node]) >> np.uint64(32)
            if usable is not None:
                cable, some = _pick(usable(at), first, draw)
                on[at[~some]] = False
                at, cable = at[some], cable[some]
            elif state is None:
                cable = first + ((draw * np.uint64(width)) >> np.uint64(32)).astype(np.int64)
            else:
                cable, some = state.pick(first, width, draw)
                on[at[~some]] = False
                at, cable = at[some], cable[some]
            hops[at, column] = 2 * cable + direction

        leaf_a, leaf_b = self.nic_leaf[a].astype(np.int64), self.nic_leaf[b].astype(np.int64)
        every = np.arange(len(a))
        choose(every, 0, self.nic_host[a].astype(np.int64), a, 1, 0)
        far = np.flatnonzero(leaf_a != leaf_b)
        pod_a, pod_b = self._leaf_pod[leaf_a], self._leaf_pod[leaf_b]
        choose(
            far,
            1,
            self.first_leaf + leaf_a[far],
            self._first_up + leaf_a[far] * self._uplinks,
            self._uplinks,
            0,
            (lambda at: routes.uplinks(leaf_a[at], pod_a[at], leaf_b[at], pod_b[at])) if routes else None,
        )
        plane = np.maximum(hops[:, 1] // 2 - self._first_up, 0) % self._uplinks // s.cables
        if s.cores:
            over = far[pod_a[far] != pod_b[far]]
            spine = pod_a[over] * s.spines + plane[over]
            choose(
                over,
                2,
                self.first_spine + spine,
                self._first_top + spine * s.cores,
                s.cores,
                0,
                (lambda at: routes.cores(pod_a[at], pod_b[at], plane[at])) if routes else None,
            )
            core = np.maximum(hops[over, 2] // 2 - self._first_top, 0) % s.cores
            below = pod_b[over] * s.spines + plane[over]
            choose(
                over,
                3,
                self.first_core + plane[over] * s.cores + core,
                self._first_top + below * s.cores + core,
                1,
                1,
            )
        choose(
            far,
            4,
            self.first_spine + pod_b[far] * s.spines + plane[far],
            self._first_up + leaf_b[far] * self._uplinks + plane[far] * s.cables,
            s.cables,
            1,
        )
        choose(every, 5, self.first_leaf + leaf_b, b, 1, 1)
        taken = hops >= 0
        start = np.concatenate([[0], np.cumsum(taken.sum(axis=1))])
        return Paths(start, hops[taken].astype(np.int32), on)

    def _usable_routes(self, alive: Bools) -> _UsableRoutes:
        """Return the usable parts of the fleet if all switches know `alive` [L]."""
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
        return _UsableRoutes(
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
        found = [np.array([2 * src, *each, 2 * dst + 1], np.int32) for each in inner]
        return [links for links in found if living is None or living[links].all()]

    def round_trips(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        entropy: ArrayLike,
        living: ArrayLike | None = None,
        converged: bool = False,
    ) -> tuple[Paths, Paths]:
        """Return the links of probes from `src` to `dst` with source port `entropy`, and of their answers.

        An answer has the ports swapped, so it takes a route of its own. Raises ValueError as `paths` does.
        """
        return (
            self.paths(src, dst, entropy, PROBE_PORT, living, converged),
            self.paths(dst, src, PROBE_PORT, entropy, living, converged),
        )

    def base_delay_ns(self, paths: Paths, packet_bytes: int) -> Float64s:
        """Return [N] the delay of a packet without queues: each link's serialisation and `delay_ns`."""
        each = self.delay_ns + packet_bytes * 8e9 / self.rate_bps
        total = np.concatenate([[0.0], np.cumsum(each[paths.link])])
        whole: Float64s = total[paths.start[1:]] - total[paths.start[:-1]]
        return whole

    @cached_property
    def node_ids(self) -> list[str]:
        """Names of all nodes."""
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
        """[N]: `host/device`."""
        names = self.node_ids
        return [
            nic_id(names[host], f"eth{device + 1}")
            for host, device in zip(self.nic_host.tolist(), self.nic_device.tolist(), strict=True)
        ]

    @cached_property
    def link_ids(self) -> list[str]:
        """[L]: `node:port>node:port`."""
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
        """NIC id -> index."""
        return {name: i for i, name in enumerate(self.nic_ids)}

    @cached_property
    def link_index(self) -> dict[str, int]:
        """Link id -> index."""
        return {name: i for i, name in enumerate(self.link_ids)}

    def document(self) -> dict[str, Any]:
        """Return the content of a topology file in plain values.

        `nodes`: name to kind (host, leaf, spine, core). `nics`: id to host, device, rack, rail (null without
        rails), leaf, pod. `links`: every directed link with its id, rate_bps and delay_ns.
        """
        s, names = self.shape, self.node_ids
        ends = (
            (self.first_leaf, "host"),
            (self.first_spine, "leaf"),
            (self.first_core, "spine"),
            (self.nodes, "core"),
        )
        kinds: dict[str, str] = {}
        begin = 0
        for end, kind in ends:
            kinds |= dict.fromkeys(names[begin:end], kind)
            begin = end
        return {
            "nodes": {name: {"kind": kind} for name, kind in kinds.items()},
            "nics": {
                name: {
                    "host": names[int(self.nic_host[i])],
                    "device": f"eth{int(self.nic_device[i]) + 1}",
                    "rack": f"rack{int(self.nic_rack[i]) + 1}",
                    "rail": int(self.nic_rail[i]) if s.rails > 1 else None,
                    "leaf": names[self.first_leaf + int(self.nic_leaf[i])],
                    "pod": f"pod{int(self.nic_pod[i]) + 1}",
                }
                for i, name in enumerate(self.nic_ids)
            },
            "links": [
                {"link": name, "rate_bps": rate, "delay_ns": delay}
                for name, rate, delay in zip(
                    self.link_ids, self.rate_bps.tolist(), self.delay_ns.tolist(), strict=True
                )
            ],
        }


class _UsableRoutes(NamedTuple):
    """The usable parts of a fleet whose switches know every dead link."""

    up: Bools
    """[leaf, uplink]: living."""
    below: Bools
    """[leaf, spine of its pod]: True if a living cable leads down to the leaf."""
    to_core: Bools
    """[pod, spine, core]"""
    from_core: Bools
    """[pod, spine, core]"""
    joined: Bools
    """[pod, other pod, spine]: True if a core connects them; always for a pod with itself."""

    def uplinks(self, leaf: Int64s, pod: Int64s, to_leaf: Int64s, to_pod: Int64s) -> Bools:
        """Return [n, uplink]: the uplinks of `leaf` that lead to `to_leaf`."""
        spines = self.below[to_leaf] & self.joined[pod, to_pod]
        usable: Bools = self.up[leaf] & np.repeat(spines, self.up.shape[1] // spines.shape[1], axis=1)
        return usable

    def cores(self, pod: Int64s, to_pod: Int64s, plane: Int64s) -> Bools:
        """Return [n, core]: the cores that connect spine `plane` of two pods."""
        usable: Bools = self.to_core[pod, plane] & self.from_core[to_pod, plane]
        return usable


class _Living:
    """Picks among the living cables of a range, in one direction."""

    def __init__(self, alive: Bools) -> None:
        self._before = np.concatenate([[0], np.cumsum(alive)])
        self._alive = np.flatnonzero(alive)

    def pick(self, first: Int64s, width: int, draw: _Uint64s) -> tuple[Int64s, Bools]:
        """Return (cable, whether there is one): by `draw` of 32 bits, one of [first, first + width)."""
        begin = self._before[first]
        count = self._before[first + width] - begin
        some = count > 0
        rank = ((draw * count.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
        if not len(self._alive):
            return first, some
        return self._alive[np.minimum(begin + rank, len(self._alive) - 1)], some


def _pick(usable: Bools, first: Int64s, draw: _Uint64s) -> tuple[Int64s, Bools]:
    """Return (cable, whether there is one): by `draw` of 32 bits, one of the `usable` [n, width]."""
    count = usable.sum(axis=1)
    rank = ((draw * count.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
    place = (np.cumsum(usable, axis=1, dtype=np.int32) > rank[:, None]).argmax(axis=1)
    return first + place, count > 0


def _mix(values: _Uint64s) -> _Uint64s:
    """Permute 64-bit values: fold the high bits down and multiply by odd constants."""
    mixed = values.copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    result: _Uint64s = mixed ^ (mixed >> np.uint64(31))
    return result
