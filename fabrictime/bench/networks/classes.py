"""Measures whether two traffic classes are separated, the count of CE marks, and what marks add.

A link of known rate serves two classes by strict priority. A load in the lower class builds a queue there,
which a switch marks from a threshold on. Probes of both classes cross all links. They pass the pipeline's
pure parts: batches on the wire, delays by path and class, slots above the floor, the shard's solver,
contention. The recorder is the model of the queue itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from native.core import ClockLine, NicWindow, ProbeColumns, decode_probe_batch, encode_probe_batch
from schemas import codec
from schemas.ids import host_of
from schemas.records import Leg, LinkQueues, PathMap, PathMaps, PathSource
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.delays.queueing import SourceQueueing
from streams.queues.inference import ShardQueues
from streams.runtime.flow_table import FlowTable
from streams.runtime.pipeline_constants import SUB_SLOTS
from streams.runtime.route_table import RouteTable, pair_key
from streams.runtime.tables import Member

MS: Final = 1_000_000
EPOCH_NS: Final = 1_800_000_000 * 1_000_000_000
RATE_BPS: Final = 10_000_000_000
SLOT_NS: Final = MS
FLUSH_NS: Final = 50 * MS
HOSTS: Final = 6
SPINES: Final = 2
DSCPS: Final = (0, 26)
PROBES_PPS: Final = 2_000
HOP_NS: Final = 1_000.0
NOISE_NS: Final = 10.0
LOADED: Final = "leaf1:swp9>spine1:swp1"


@dataclass(frozen=True, slots=True)
class Load:
    """A queue of the second class at one link, from `from_s` to `until_s` of the run."""

    depth_bytes: float
    mark_bytes: float
    """Depth from which every packet is marked."""
    from_s: float = 0.4
    until_s: float = 0.9
    rise_s: float = 0.02

    def delay_ns(self, at_ns: np.ndarray) -> np.ndarray:
        """Return how long a packet of the second class that arrives at each time waits at the link, ns."""
        s = at_ns * 1e-9
        share = np.clip((s - self.from_s) / self.rise_s, 0, 1) * (s < self.until_s)
        return np.asarray(share * self.depth_bytes * 8e9 / RATE_BPS)

    def marks(self, at_ns: np.ndarray) -> np.ndarray:
        """Return whether the queue marks a packet of the second class that arrives at each time."""
        return np.asarray(self.delay_ns(at_ns) * RATE_BPS / 8e9 > self.mark_bytes)


def links_of(source: int, target: int, port: int) -> list[str]:
    """Return the links of a path: hosts 1 to 3 are on leaf 1, the others on leaf 2."""
    leaf = [1 if host <= HOSTS // 2 else 2 for host in (source, target)]
    first, last = f"h{source}:eth1>leaf{leaf[0]}:swp{source}", f"leaf{leaf[1]}:swp{target}>h{target}:eth1"
    if leaf[0] == leaf[1]:
        return [first, last]
    spine = 1 + port % SPINES
    up = f"leaf{leaf[0]}:swp{8 + spine}>spine{spine}:swp{leaf[0]}"
    return [first, up, f"spine{spine}:swp{leaf[1]}>leaf{leaf[1]}:swp{8 + spine}", last]


def routes() -> RouteTable:
    """Return the route table of all pairs, as tracing would fill it."""
    pairs = [(a, b) for a in range(1, HOSTS + 1) for b in range(1, HOSTS + 1) if a != b]
    return route_table(
        {
            (f"h{a}/eth1", f"h{b}/eth1"): [
                (9320 + port, leg, links_of(a, b, port))
                for port in range(SPINES)
                for leg in (Leg.REQUEST, Leg.ANSWER)
            ]
            for a, b in pairs
        }
    )


def route_table(routes_of: Mapping[tuple[str, str], Sequence[tuple[int, Leg, list[str]]]]) -> RouteTable:
    """Return a route table from the (path, leg, links) by (NIC, peer); all its links count as known."""
    table = RouteTable()
    for (nic, peer), entries in routes_of.items():
        maps: list[PathMap] = [
            {
                "path": path,
                "leg": leg,
                "links": links,
                "found": PathSource.TRACED,
                "complete": True,
                "since_ns": 0,
                "changes": 0,
                "contradiction": None,
            }
            for path, leg, links in entries
        ]
        record: PathMaps = {
            "nic": nic,
            "peer": peer,
            "shard": "fabric",
            "run": 1,
            "traced_ns": 0,
            "paths": maps,
        }
        table.take(pair_key(nic, peer).encode(), codec.encode(PathMaps, record))
    return table


@dataclass(slots=True)
class Probes:
    """The probes of a run with their classes, their true waits, and their true marks."""

    load: Load
    seconds: float
    seed: int
    true_marks: dict[tuple[str, str, int, int], list[int]] = field(default_factory=dict)
    """Numbers of marked requests and of marked replies, by (prober, peer, path, DSCP)."""

    def batches(self, marking: bool = True) -> list[tuple[int, ProbeColumns]]:
        """Return (flush time, batch) of all NICs in the log's order; without `marking`, nothing is marked."""
        timed_batches = [
            timed_batch for nic in range(1, HOSTS + 1) for timed_batch in self._of_nic(nic, marking)
        ]
        return sorted(timed_batches, key=lambda timed_batch: (timed_batch[0], timed_batch[1].nic))

    def _of_nic(self, nic: int, marking: bool) -> list[tuple[int, ProbeColumns]]:
        rng = np.random.default_rng([self.seed, nic])
        count = int(PROBES_PPS * self.seconds)
        sent = np.sort(rng.uniform(0, self.seconds * 1e9, count))
        peers = np.array([host for host in range(1, HOSTS + 1) if host != nic])
        peer, port = rng.choice(peers, count), rng.integers(0, SPINES, count)
        cls = rng.integers(0, len(DSCPS), count)
        out, back = np.zeros((2, count)), np.zeros((2, count))
        for number in range(count):
            there = links_of(nic, int(peer[number]), int(port[number]))
            home = links_of(int(peer[number]), nic, int(port[number]))
            for delays, hops in ((out, there), (back, home)):
                delays[0, number] = HOP_NS * len(hops)
                delays[1, number] = LOADED in hops and cls[number] == 1
        wait = self.load.delay_ns(sent) * out[1]
        marked = self.load.marks(sent) & (out[1] > 0)
        forward = out[0] + wait
        answered = sent + forward + 5_000
        reverse = back[0] + self.load.delay_ns(answered) * back[1]
        home_marked = self.load.marks(answered) & (back[1] > 0)
        noise = rng.normal(0, NOISE_NS, (2, count))
        flush = ((answered + 20 * MS) // FLUSH_NS).astype(np.int64) + 1
        order = np.lexsort((sent, cls, port, peer, flush))
        batches = []
        for at in np.split(order, np.flatnonzero(np.diff(flush[order])) + 1):
            key = np.stack([peer[at], port[at], cls[at]])
            begin = np.concatenate([[0], np.flatnonzero(np.any(np.diff(key, axis=1) != 0, axis=0)) + 1])
            ends = np.append(begin, len(at)).astype(np.int64)
            when = EPOCH_NS + int(flush[at[0]]) * FLUSH_NS
            none = np.zeros(len(begin), np.int32)
            batches.append(
                (
                    when,
                    ProbeColumns(
                        nic=f"h{nic}/eth1",
                        run=1,
                        batch=int(flush[at[0]]),
                        clock_ns=when,
                        system_ns=when,
                        peers=[f"h{host}/eth1" for host in peer[at[begin]]],
                        path=(9320 + port[at[begin]]).astype(np.int32),
                        spacing_ns=none,
                        lost=none,
                        no_t3=none,
                        start=ends,
                        sent=EPOCH_NS + np.round(sent[at]).astype(np.int64),
                        forward=np.round((forward + noise[0])[at]).astype(np.int64),
                        turnaround=np.full(len(at), 5_000),
                        reverse=np.round((reverse + noise[1])[at]).astype(np.int64),
                        dscp=np.array(DSCPS, np.int32)[cls[at[begin]]],
                        ecn=np.diff(ends).astype(np.int32),
                        forward_ce=np.flatnonzero(marked[at] & marking),
                        reverse_ce=np.flatnonzero(home_marked[at] & marking),
                    ),
                )
            )
        for number in np.flatnonzero(marked | home_marked).tolist():
            name = (f"h{nic}/eth1", f"h{peer[number]}/eth1", 9320 + int(port[number]), DSCPS[cls[number]])
            counts = self.true_marks.setdefault(name, [0, 0])
            counts[0] += int(marked[number])
            counts[1] += int(home_marked[number])
        return batches


def inferred(
    batches: list[tuple[int, ProbeColumns]],
    table: RouteTable | None = None,
    rate_of: Callable[[str], int] = lambda _: RATE_BPS,
    slot_ns: int = SLOT_NS,
) -> list[LinkQueues]:
    """Return the `LinkQueues` that the pipeline infers from the batches. `table` None: the bench's routes."""
    source, table = SourceQueueing("bench/0", slot_ns // SUB_SLOTS), table or routes()
    shard = ShardQueues("fabric", rate_of)
    names = sorted({batch.nic for _, batch in batches})
    lines = dict.fromkeys(names, ClockLine(EPOCH_NS, 0, 0.0, 10.0))
    members = {nic: Member(nic, host_of(nic), "fabric", nic) for nic in names}
    records: list[LinkQueues] = []
    now = 0
    for offset, (when, batch) in enumerate(batches):
        if when != now:
            for record in source.take(members):
                shard.take(record, table)
            while shard.ready():
                records += shard.solve(0)
            now = when
        source.add(batch, when, offset, lines)
    return records


def opened_ns(
    records: list[LinkQueues], rate_of: Callable[[str], int] = lambda _: RATE_BPS, nics: int = HOSTS
) -> dict[str, int]:
    """Return for each link the end of the data, ns, with which its first contention window opened."""
    flows = FlowTable(RouteTable(), lambda _: True).of("fabric")
    detector = ContentionDetector("fabric", flows, lambda _: False, lambda: nics, rate_of)
    times_ns: dict[str, int] = {}
    for record in records:
        for window in detector.ingest(record, ContentionRules()):
            times_ns.setdefault(window["link"], window["updated_ns"])
    return times_ns


def delays(
    batches: list[tuple[int, ProbeColumns]],
) -> dict[tuple[str, str, int, int], tuple[float, int, int]]:
    """Return the p99 of the forward delay, and marked requests and replies, by (prober, peer, path, DSCP).

    The batches are encoded and decoded as on the wire, and one window holds them all.
    """
    windows: dict[str, NicWindow] = {}
    for _, batch in batches:
        window = windows.setdefault(batch.nic, NicWindow(batch.nic))
        window.add(decode_probe_batch(encode_probe_batch(batch)))
    line = ClockLine(EPOCH_NS, 0, 0.0, 10.0)
    peers = dict.fromkeys(windows, line)
    by_path: dict[tuple[str, str, int, int], tuple[float, int, int]] = {}
    for nic, window in windows.items():
        columns: Any = window.delays(line, peers)
        rows = zip(
            columns.peers,
            columns.path.tolist(),
            columns.dscp.tolist(),
            columns.forward_p99_ns.tolist(),
            columns.forward_ce.tolist(),
            columns.reverse_ce.tolist(),
            strict=True,
        )
        by_path |= {(nic, peer, path, dscp): (p99, out, back) for peer, path, dscp, p99, out, back in rows}
    return by_path


def _right_share(probes: Probes, by_path: dict[tuple[str, str, int, int], tuple[float, int, int]]) -> float:
    """Return the share of right paths and classes : p99 shows the load exactly if they meet it."""
    depth_ns = probes.load.depth_bytes * 8e9 / RATE_BPS
    right = 0
    for (nic, peer, path, dscp), (p99_ns, _, _) in by_path.items():
        hops = links_of(int(nic[1:].split("/")[0]), int(peer[1:].split("/")[0]), path - 9320)
        waits = dscp == DSCPS[1] and LOADED in hops
        expected_ns = HOP_NS * len(hops) + depth_ns * waits
        right += abs(p99_ns - expected_ns) < max(5 * NOISE_NS, 0.02 * depth_ns * waits)
    return right / len(by_path)


def _count_error(probes: Probes, by_path: dict[tuple[str, str, int, int], tuple[float, int, int]]) -> float:
    """Return the sum of differences to the recorder's mark counts, as a share of all its marks."""
    wrong = total = 0
    for name, (_, out, back) in by_path.items():
        true = probes.true_marks.get(name, [0, 0])
        wrong += abs(out - true[0]) + abs(back - true[1])
        total += sum(true)
    return wrong / max(total, 1)


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure queues of several depths and marking thresholds, or a single one with `quick`."""
    depths = (200_000.0,) if quick else (60_000.0, 200_000.0, 500_000.0)
    apart, error, later, named = [], [], [], []
    for seed, depth in enumerate(depths):
        progress(f"classes: a queue of {depth / 1e3:.0f} kB in DSCP {DSCPS[1]} at {LOADED}")
        probes = Probes(Load(depth, depth / 4), 1.2, seed)
        batches = probes.batches()
        by_path = delays(batches)
        apart.append(_right_share(probes, by_path))
        error.append(_count_error(probes, by_path))
        by_both = opened_ns(inferred(batches))
        alone = opened_ns(inferred(Probes(probes.load, 1.2, seed).batches(marking=False)))
        named.append(set(by_both) <= {LOADED, _ALIAS} and bool(by_both))
        if by_both and alone:
            later.append((min(by_both.values()) - min(alone.values())) / MS)
    return {
        "classes_told_apart": Figure(float(min(apart)), "1", "paths and classes with the right delay"),
        "ce_count_error": Figure(float(max(error)), "1", "against the model of the queue"),
        "contention_open_by_ce_ms": Figure(float(max(later, default=np.nan)), "ms", "over by delay alone"),
        "contention_link_named": Figure(float(np.mean(named)), "1", "the link, or that aliased with it"),
    }


_ALIAS: Final = "spine1:swp2>leaf2:swp9"
"""Another link, which all paths over the loaded link cross."""
