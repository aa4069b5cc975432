"""Runs queue inference over the fabric of shared queues in `_truth`: probes, batches and slots.

`_truth` draws queues and stamps. This module plays the agents: schedules, batches, routes. It compares the
records of the pipeline's pure parts with the truth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fabrictime.bench._truth import Clocks, LeafSpine, LinkQueueing, Probes, Slots, Stamps, Traffic, probe
from fabrictime.bench.detect._batches import EPOCH_NS, FLUSH_NS, batches_of
from native.core import ClockLine, ProbeColumns
from producers.sim.traces import KnownPath, path_records
from schemas import codec
from schemas.ids import host_of
from schemas.records import LinkQueues, PathMaps
from streams.delays.queueing import SourceQueueing
from streams.links.schedule.probe_schedule import plan_shard
from streams.queues.inference import ShardQueues
from streams.runtime.pipeline_constants import SUB_SLOTS
from streams.runtime.route_table import RouteTable, pair_key
from streams.runtime.tables import Member

__all__ = [
    "CLOCK_BOUND_NS",
    "EPOCH_NS",
    "MS",
    "SHARD",
    "SLOT_NS",
    "Costs",
    "Scene",
    "draw",
    "infer",
    "link_numbers",
    "route_table",
    "table_of",
]

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
MS: Final = 1_000_000
SHARD: Final = "fabric"
SLOT_NS: Final = MS
STRETCH_NS: Final = 250 * MS
PEERS: Final = 10
CLOCK_BOUND_NS: Final = 10.0


@dataclass(slots=True)
class Costs:
    """Processor time, s, of each part of the pipeline."""

    map_s: float = 0.0
    solve_s: list[float] = field(default_factory=list)
    """Time of each solved block."""


@dataclass(slots=True)
class Scene:
    """A stretch of time of the true fabric, with the probes sent in it."""

    fabric: LeafSpine
    stamps: Stamps
    slots: Slots
    load: Float64s
    routes: RouteTable
    rng: np.random.Generator
    slot_ns: int = SLOT_NS
    clocks: Clocks | None = None

    @property
    def crossed(self) -> NDArray[np.bool_]:
        """Links that lie after a send stamp: all but the links out of hosts."""
        return np.arange(self.fabric.links) >= self.fabric.nics

    def batches(self) -> list[tuple[int, ProbeColumns]]:
        """Return (flush time, batch) of all NICs, in the order of time."""
        s, probes = self.stamps, self.stamps.probes
        read = s.read(self.clocks, EPOCH_NS, self.rng)
        return batches_of(self.fabric.nic_names(), (probes.nic, probes.peer, probes.path), (s.t1, s.t4), read)

    def rates_bps(self) -> list[dict[str, float]]:
        """Return, for each complete second, the rate, bit/s, at which each link sends, by link."""
        slots = round(1e9 / self.slot_ns)
        seconds = len(self.slots.busy) // slots
        busy = self.slots.busy[: seconds * slots].reshape(seconds, slots, -1).mean(axis=1)
        names = self.fabric.names()
        return [dict(zip(names, (row * self.fabric.rate_bps).tolist(), strict=True)) for row in busy]

    def infer(
        self, costs: Costs | None = None, flow_bps: Sequence[Mapping[str, float]] = ()
    ) -> Iterator[tuple[int, LinkQueues]]:
        """Yield (log time, record) as the pipeline publishes them, in order.

        `flow_bps` has the rates of reported flows over each link, for each second.
        """
        rate_bps = round(self.fabric.rate_bps)
        yield from infer(
            self.batches(),
            self.fabric.nic_names(),
            self.routes,
            lambda link: rate_bps,
            self.slot_ns,
            costs,
            flow_bps,
        )


def infer(
    batches: Iterable[tuple[int, ProbeColumns]],
    names: Iterable[str],
    routes: RouteTable,
    rate_of: Callable[[str], int],
    slot_ns: int,
    costs: Costs | None = None,
    flow_bps: Sequence[Mapping[str, float]] = (),
) -> Iterator[tuple[int, LinkQueues]]:
    """Yield (log time, record) of the queues inferred from the batches of NICs whose clocks are right.

    `rate_of` returns the rate, bit/s, of a link.
    """
    costs = costs or Costs()
    source = SourceQueueing("bench/0", slot_ns // SUB_SLOTS)
    shard = ShardQueues(SHARD, rate_of)
    lines = dict.fromkeys(names, ClockLine(EPOCH_NS, 0, 0.0, CLOCK_BOUND_NS))
    members = {nic: Member(nic, host_of(nic), SHARD, nic) for nic in lines}
    now = 0
    for offset, (when, batch) in enumerate(batches):
        if when != now:
            began = time.process_time()
            for record in source.take(members):
                shard.take(record, routes)
            costs.map_s += time.process_time() - began
            second = int(when - EPOCH_NS - 3 * FLUSH_NS) // 1_000_000_000
            if 0 <= second < len(flow_bps):
                shard.set_flow_rates(flow_bps[second])
            while shard.ready():
                began = time.process_time()
                records = shard.solve(0)
                costs.solve_s.append(time.process_time() - began)
                for queues in records:
                    yield now, queues
            now = when
        began = time.process_time()
        source.add(batch, when, offset, lines)
        costs.map_s += time.process_time() - began


def draw(
    fabric: LeafSpine, traffic: Traffic, seed: int, seconds: float, rate_pps: float, *, even: bool = True
) -> Scene:
    """Draw an interval of the fabric in which each NIC sends `rate_pps` probes per second.

    With `even`, probes follow a schedule, otherwise they have exponential gaps.
    """
    rng = np.random.default_rng(seed)
    nic, peer, path, there, back = _paths(fabric, rng)
    routes = route_table(fabric, nic, peer, path, there, back)
    queues = LinkQueueing(fabric, traffic, rng)
    pick, sent_ns = _sent(fabric, routes, (nic, peer, path), rate_pps, seconds * 1e9, rng, even=even)
    stamps, slots = [], []
    for begin in np.arange(0, seconds * 1e9, STRETCH_NS):
        queues.advance(begin + STRETCH_NS)
        now = (sent_ns >= begin) & (sent_ns < begin + STRETCH_NS)
        row = pick[now]
        probes = Probes(nic[row], peer[row], path[row], sent_ns[now], there[row], back[row])
        stamps.append(probe(queues, probes, rng))
        slots.append(queues.slots(SLOT_NS))
    joined = Slots(
        *(np.concatenate([getattr(part, name) for part in slots]) for name in ("depth_bytes", "busy"))
    )
    return Scene(fabric, Stamps.joined(stamps), joined, queues.load, routes, rng)


def _paths(fabric: LeafSpine, rng: np.random.Generator) -> tuple[Int64s, ...]:
    """Return NIC, peer, entropy value and the links in both directions of each probed path."""
    peers = min(PEERS, fabric.nics - 1)
    choice = [
        rng.permutation(np.delete(np.arange(fabric.nics), prober))[:peers] for prober in range(fabric.nics)
    ]
    nic = np.repeat(np.arange(fabric.nics), peers * fabric.spines)
    peer = np.repeat(np.concatenate(choice), fabric.spines)
    path = 9_320 + np.tile(np.arange(fabric.spines), fabric.nics * peers)
    out = rng.integers(0, fabric.spines, fabric.nics * peers)
    other = rng.integers(0, fabric.spines, fabric.nics * peers)
    spine = np.tile(np.arange(fabric.spines), fabric.nics * peers)
    there = fabric.routes(nic, peer, (spine + np.repeat(out, fabric.spines)) % fabric.spines)
    back = fabric.routes(peer, nic, (spine + np.repeat(other, fabric.spines)) % fabric.spines)
    return nic, peer, path, there, back


def _sent(
    fabric: LeafSpine,
    routes: RouteTable,
    paths: tuple[Int64s, Int64s, Int64s],
    rate_pps: float,
    span_ns: float,
    rng: np.random.Generator,
    *,
    even: bool,
) -> tuple[Int64s, Float64s]:
    """Return the path and the time of each probe, in order of time."""
    gap_ns = 1e9 / rate_pps
    count = int(span_ns / gap_ns)
    rows: list[Int64s] = []
    times: list[Float64s] = []
    if even:
        names = fabric.nic_names()
        nic, peer, path = paths
        number = {
            (names[n], names[p], port): row
            for row, (n, p, port) in enumerate(zip(nic.tolist(), peer.tolist(), path.tolist(), strict=True))
        }
        for name, plan in plan_shard(dict.fromkeys(names, (round(gap_ns), 1)), routes).items():
            cycle = np.array([number[(name, *key)] for key in plan.paths])
            rows.append(cycle[np.arange(count) % len(cycle)])
            times.append((np.arange(count) + plan.phase + rng.random(count) / 2) * gap_ns)
    else:
        for prober in range(fabric.nics):
            own_paths = np.flatnonzero(paths[0] == prober)
            at = np.cumsum(rng.exponential(gap_ns, int(1.2 * count) + 50))
            times.append(at[at < span_ns])
            rows.append(rng.choice(own_paths, len(times[-1])))
    row, sent = np.concatenate(rows), np.concatenate(times)
    order = np.argsort(sent)
    return row[order], sent[order]


def route_table(
    fabric: LeafSpine, nic: Int64s, peer: Int64s, path: Int64s, there: Int64s, back: Int64s
) -> RouteTable:
    """Return the route table that tracing of these paths would produce."""
    ids, names = fabric.names(), fabric.nic_names()
    links = [[[ids[link] for link in row if link >= 0] for row in leg.tolist()] for leg in (there, back)]
    ends = zip(nic.tolist(), peer.tolist(), path.tolist(), *links, strict=True)
    return table_of(KnownPath(names[a], names[b], *rest) for a, b, *rest in ends)


def table_of(paths: Iterable[KnownPath]) -> RouteTable:
    """Return the route table of known paths."""
    table = RouteTable()
    for record in path_records(paths):
        table.take(pair_key(record["nic"], record["peer"]).encode(), codec.encode(PathMaps, record))
    return table


def link_numbers(fabric: LeafSpine) -> Mapping[str, int]:
    """Return the number of each link by its id."""
    return {name: number for number, name in enumerate(fabric.names())}
