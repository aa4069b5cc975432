"""Measures whether two traffic classes are separated, the count of CE marks, and the benefit of marks.

A link of known rate serves two classes by strict priority. A load in the lower class builds a queue there,
which a switch marks from a threshold on. Probes of both classes cross all links. They pass the pipeline's
pure parts: batches on the wire, delays by path and class, slots above the floor, the shard's solver,
contention. The truth is the model of the queue itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench.detect._batches import EPOCH_NS, Marks, batches_of
from fabrictime.bench.detect.shared_fabric import infer, table_of
from native.core import ClockLine, NicWindow, ProbeColumns, decode_probe_batch, encode_probe_batch
from producers.sim.traces import KnownPath
from schemas.records import LinkQueues
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.runtime.flow_table import FlowTable
from streams.runtime.route_table import RouteTable

MS: Final = 1_000_000
RATE_BPS: Final = 10_000_000_000
SLOT_NS: Final = MS
HOSTS: Final = 6
SPINES: Final = 2
DSCPS: Final = (0, 26)
PROBES_PPS: Final = 2_000
HOP_NS: Final = 1_000.0
TURNAROUND_NS: Final = 5_000
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
        """Return the wait, ns, of a second-class packet at the link, for each arrival time."""
        s = at_ns * 1e-9
        share = np.clip((s - self.from_s) / self.rise_s, 0, 1) * (s < self.until_s)
        return np.asarray(share * self.depth_bytes * 8e9 / RATE_BPS)

    def marks(self, at_ns: np.ndarray) -> np.ndarray:
        """Return, for each arrival time, whether the queue marks a second-class packet."""
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
    return table_of(
        KnownPath(f"h{a}/eth1", f"h{b}/eth1", 9320 + port, links_of(a, b, port), links_of(b, a, port))
        for a, b in permutations(range(1, HOSTS + 1), 2)
        for port in range(SPINES)
    )


@dataclass(slots=True)
class Probes:
    """The probes of a run with their classes, their true waits, and their true marks."""

    load: Load
    seconds: float
    seed: int
    true_marks: dict[tuple[str, str, int, int], list[int]] = field(default_factory=dict)
    """Numbers of marked requests and of marked replies, by (prober, peer, path, DSCP)."""

    def batches(self, marking: bool = True) -> list[tuple[int, ProbeColumns]]:
        """Return (flush time, batch) of all NICs in the log's order; without `marking`, without marks."""
        names = [f"h{host}/eth1" for host in range(1, HOSTS + 1)]
        columns = zip(*(self._of_nic(nic) for nic in range(1, HOSTS + 1)), strict=True)
        ends, times_ns, stamps, (dscp, *marked) = (np.concatenate(parts, axis=1) for parts in columns)
        forward_ce, reverse_ce = (column.astype(bool) for column in marked)
        for number in np.flatnonzero(forward_ce | reverse_ce).tolist():
            nic, peer, path = ends[:, number].tolist()
            name = (names[nic], names[peer], path, int(dscp[number]))
            counts = self.true_marks.setdefault(name, [0, 0])
            counts[0] += int(forward_ce[number])
            counts[1] += int(reverse_ce[number])
        marks = Marks(dscp, forward_ce & marking, reverse_ce & marking)
        return batches_of(names, tuple(ends), tuple(times_ns), list(stamps), marks)

    def _of_nic(self, nic: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the columns of a NIC's probes: ends and path, times, stamps, and class with marks."""
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
        forward = out[0] + self.load.delay_ns(sent) * out[1]
        answered = sent + forward + TURNAROUND_NS
        reverse = back[0] + self.load.delay_ns(answered) * back[1]
        noise = rng.normal(0, NOISE_NS, (2, count))
        steps = [
            EPOCH_NS + sent.round().astype(np.int64),
            forward + noise[0],
            TURNAROUND_NS,
            reverse + noise[1],
        ]
        return (
            np.stack([np.full(count, nic - 1), peer - 1, 9320 + port]),
            np.stack([sent, answered]),
            np.cumsum([np.broadcast_to(np.round(step), count).astype(np.int64) for step in steps], axis=0),
            np.stack(
                [
                    np.array(DSCPS)[cls],
                    self.load.marks(sent) & (out[1] > 0),
                    self.load.marks(answered) & (back[1] > 0),
                ]
            ),
        )


def inferred(
    batches: list[tuple[int, ProbeColumns]],
    table: RouteTable | None = None,
    rate_of: Callable[[str], int] = lambda _: RATE_BPS,
    slot_ns: int = SLOT_NS,
) -> list[LinkQueues]:
    """Return the `LinkQueues` that the pipeline infers from the batches.

    `table` is the route table; None means the bench's own.
    """
    names = sorted({batch.nic for _, batch in batches})
    return [record for _, record in infer(batches, names, table or routes(), rate_of, slot_ns)]


def opened_ns(
    records: list[LinkQueues], rate_of: Callable[[str], int] = lambda _: RATE_BPS, nics: int = HOSTS
) -> dict[str, int]:
    """Return, by link, the end of the data, ns, at which its first contention window opened."""
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
    """Return the share of paths and classes whose p99 shows the load exactly if they cross it."""
    depth_ns = probes.load.depth_bytes * 8e9 / RATE_BPS
    right = 0
    for (nic, peer, path, dscp), (p99_ns, _, _) in by_path.items():
        hops = links_of(int(nic[1:].split("/")[0]), int(peer[1:].split("/")[0]), path - 9320)
        waits = dscp == DSCPS[1] and LOADED in hops
        expected_ns = HOP_NS * len(hops) + depth_ns * waits
        right += abs(p99_ns - expected_ns) < max(5 * NOISE_NS, 0.02 * depth_ns * waits)
    return right / len(by_path)


def _count_error(probes: Probes, by_path: dict[tuple[str, str, int, int], tuple[float, int, int]]) -> float:
    """Return the absolute differences to the true mark counts, as a share of all true marks."""
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
