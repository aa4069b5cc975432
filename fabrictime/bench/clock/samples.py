"""Simulates the samples of a probe mesh whose clocks are known exactly.

`simulate` takes a `Scenario` and a seed and yields windows, each with the `ProbeColumns` of every prober, its
flushes, and the true clocks. numpy draws a prober's window at once: 2 to 5 million samples a second on one
core. The models are described at `_Fleet` (paths and queues), `coded_queue` and `Clocks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fabrictime.bench._truth.clocks import KNOT_NS, Clocks, walk
from fabrictime.bench.clock.scenarios import (
    UPTIME_NS,
    Apart,
    BadStamps,
    Dark,
    Falseticker,
    Incast,
    Load,
    Redraw,
    Restart,
    Scenario,
    Step,
    Temperature,
)
from native.core import ProbeColumns

Float64s = NDArray[np.float64]
Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]

EPOCH_NS: Final = 1_764_000_000_000_000_000
"""The log's clock at a scenario's start; a multiple of both the window and the stamp step."""
FLUSH_NS: Final = 100_000_000
FIRST_PORT: Final = 40_000
TURNAROUND_NS: Final = (5_000.0, 15_000.0)
"""Range of the time from t2 to t3; both probes of a coded pair have the same, up to TURN_JITTER_NS."""
TURNAROUND_JITTER_NS: Final = 500.0
SPACING_JITTER_NS: Final = 500.0
APPEND_NS: Final = 1_000_000
"""Time from a flush to its append to the log."""
TABLE: Final = 1 << 18
"""Number of runs of a queue from which a window's probes draw; each hop of each probe draws separately."""
LOAD_LEVELS: Final = 20
"""Loads are rounded to multiples of 1/20, so that few queue tables are needed."""


@dataclass(frozen=True, slots=True)
class Flush:
    """A prober's flush: its clock readings, and the time of its append to the log, ns."""

    run: int
    batch: int
    clock_ns: int
    system_ns: int
    append_ns: int


def clocks_of(scenario: Scenario, rng: np.random.Generator) -> Clocks:
    """Draw the clocks of a scenario; events change their rates and make them step."""
    n = scenario.nics
    span_ns = (scenario.windows + 1) * scenario.window_s * 1e9
    knots = int(span_ns // KNOT_NS) + 2
    begin = 10 ** rng.uniform(6, max(6.0, np.log10(scenario.offset_ns)), n) * rng.choice([-1, 1], n)
    rate = rng.uniform(-scenario.drift_ppb, scenario.drift_ppb, n)
    ppb = walk(rate, knots, scenario.wander_ppb_per_sqrt_s, rng)
    steps: list[tuple[int, float, float]] = []
    seconds = np.arange(knots) * (KNOT_NS * 1e-9)
    for event in scenario.events:
        if isinstance(event, Temperature):
            since = np.maximum(seconds - event.at_s, 0)
            for nic in scenario.members(event.nics):
                ppb[nic] += event.ppb * (1 - np.exp(-since / event.settle_s))
        elif isinstance(event, Restart):
            nic, later = scenario.member(event.nic), seconds >= event.at_s
            ppb[nic, later] += event.drift_ppb - ppb[nic, later][0]
            steps.append((nic, event.at_s * 1e9, event.offset_ns))
        elif isinstance(event, Step):
            steps.append((scenario.member(event.nic), event.at_s * 1e9, event.step_ns))
    epoch_ns = [(i + 1) * UPTIME_NS if scenario.power_on else EPOCH_NS for i in range(n)]
    clocks = Clocks(begin, ppb, [f"host{i:03d}/eth0" for i in range(n)], epoch_ns)
    for step in steps:
        clocks.step(*step)
    return clocks


@dataclass(slots=True)
class WindowInput:
    """The samples of all probers in one window, with the true clocks."""

    scenario: Scenario
    number: int
    """Number of the window, like `ClockFits.window`."""
    index: int
    """Index of the window in the scenario, from 0."""
    start_ns: float
    """Start of the window since the scenario's start; it lasts `window_ns`."""
    window_ns: int
    columns: dict[str, ProbeColumns]
    """All samples of each prober, by prober; the groups are in the order of its peers."""
    flushes: dict[str, list[Flush]]
    alive: NDArray[np.bool_]
    """Whether each of the n NICs is present, so that its agent sends flushes, during the whole window."""
    probed: NDArray[np.bool_]
    """Whether any probe reached or left each of the n NICs in this window."""
    truth: Clocks

    @property
    def samples(self) -> int:
        """The number of samples of all probers."""
        return sum(len(columns.sent) for columns in self.columns.values())


def flushes_of(
    truth: Clocks, nic: int, span_ns: tuple[int, int], run: int, first: int = 0, system_ahead_ns: int = 0
) -> list[Flush]:
    """Return a prober's flushes of a window, whose batches are numbered from `first` on."""
    at = np.arange(span_ns[0] + FLUSH_NS, span_ns[1] + 1, FLUSH_NS) - 2 * APPEND_NS
    ahead = np.rint(truth.ahead_ns(nic, at.astype(np.float64))).astype(np.int64)
    times = (truth.epoch_ns[nic] + at + ahead, EPOCH_NS + at + system_ahead_ns, EPOCH_NS + at + APPEND_NS)
    rows = zip(*(time.tolist() for time in times), strict=True)
    return [Flush(run, number, *row) for number, row in enumerate(rows, first)]


def simulate(scenario: Scenario, windows: int | None = None, seed: int = 1) -> Iterator[WindowInput]:
    """Yield the first `windows` windows of a scenario, or all of them if None."""
    fleet = _Fleet(scenario, seed)
    for index in range(scenario.windows if windows is None else min(windows, scenario.windows)):
        yield fleet.window(index)


@lru_cache(maxsize=64)
def coded_queue(load: float, frame_ns: float, spacing_ns: float, size: int = TABLE) -> Float32s:
    """Return the delays of two probes sent spacing_ns apart into one M/M/1 queue, [size, 2], in ns of work.

    The first is stationary: 0 with probability 1 - load, else exponential with mean frame / (1 - load). The
    second follows by Lindley's recursion over the frames that arrive in between (Poisson at load / frame,
    each with exponential work of mean `frame_ns`).
    """
    if load <= 0:
        return np.zeros((size, 2), np.float32)
    rng = np.random.Generator(np.random.SFC64([int(load * 1e6), int(frame_ns), int(spacing_ns)]))
    work = rng.standard_exponential(size) * (frame_ns / (1 - load)) * (rng.random(size) < load)
    delays = np.empty((size, 2), np.float32)
    delays[:, 0] = work
    left = np.full(size, spacing_ns)
    which = np.arange(size)
    while which.size:
        gap = rng.standard_exponential(which.size) * (frame_ns / load)
        last = gap >= left
        delays[which[last], 1] = np.maximum(work[last] - left[last], 0.0)
        on = ~last
        gap, left, work, which = gap[on], left[on], work[on], which[on]
        work = np.maximum(work - gap, 0.0) + rng.standard_exponential(which.size) * frame_ns
        left = left - gap
    return delays


class _Fleet:
    """The state of a scenario's fleet from window to window.

    A direction of a path has a fixed delay plus the work in `hops` queues. The second probe of a coded pair
    meets what remains of the same queues, see `coded_queue`; at each hop their spacing is that at sending.
    Hops, directions and coded pairs are independent. Coded pairs can be, as a queue forgets within some 30 us
    (at load 0.8) and pairs are 0.5 to 4 ms apart. Fixed delays belong to two NICs and a path, whichever NIC
    probes. A timestamp is the clock's reading plus normal noise, rounded to the clock's step.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = s = scenario
        self.rng = rng = np.random.Generator(np.random.SFC64([scenario.number, seed]))
        n = s.nics
        self.truth = clocks_of(s, rng)
        self.window_ns = int(s.window_s * 1e9)
        shape = (s.paths, n, n)
        delay = np.triu(rng.uniform(*s.delay_ns, shape), 1)
        half = np.triu(rng.normal(0, s.asymmetry_ns, shape), 1)
        self.peers = self._draw_peers()
        pairs = sorted({(min(a, b), max(a, b)) for a in range(n) for b in self.peers[a]})
        for k in rng.permutation(len(pairs))[: s.asymmetric_pairs]:
            half[(slice(None), *pairs[k])] += s.asymmetric_ns * rng.choice([-1, 1])
        self.delay = delay + delay.transpose(0, 2, 1) + half - half.transpose(0, 2, 1)
        """Fixed delay, ns, [paths, from, to]."""
        self.lies = rng.normal(0, 1, (n, n))
        self.system_ahead_ns = rng.normal(0, s.system_error_ns, n)
        self.runs = rng.integers(1, 2**62, n)
        self.batches = np.zeros(n, np.int64)
        spread = rng.uniform(-s.load_spread, s.load_spread, (n, 2))
        self.link_load = np.clip(s.load + spread, 0.0, 0.95)
        """Load of each NIC's outgoing and incoming link, [n, 2]."""
        self.load = s.load
        self.restarted: set[int] = set()
        self.drawn = 0
        self.table = TABLE if n >= 32 else TABLE >> 3

    def _draw_peers(self) -> list[list[int]]:
        s, n = self.scenario, self.scenario.nics
        if not s.one_direction:
            return [
                sorted(int(p + (p >= a)) for p in self.rng.permutation(n - 1)[: s.peers]) for a in range(n)
            ]
        # from a NIC to those after it on a ring of random order: never in both directions if 2 * peers < n
        order = self.rng.permutation(n)
        after = [1, *sorted(self.rng.permutation(np.arange(2, (n - 1) // 2 + 1))[: s.peers - 1].tolist())]
        peers: list[list[int]] = [[] for _ in range(n)]
        for at, a in enumerate(order):
            peers[a] = sorted(int(order[(at + step) % n]) for step in after)
        return peers

    def window(self, index: int) -> WindowInput:
        s, n = self.scenario, self.scenario.nics
        start, end = index * self.window_ns, (index + 1) * self.window_ns
        alive, open_, redraws = np.ones(n, np.bool_), np.ones((n, n), np.bool_), 0
        lie = np.zeros((n, n))
        bad_share = 0.0
        for event in s.events:
            at_ns = getattr(event, "at_s", 0.0) * 1e9
            if at_ns >= end:
                continue
            lasting = getattr(event, "until_s", np.inf) * 1e9 > start
            if isinstance(event, Dark) and lasting:
                nics = s.members(event.nics)
                open_[nics] = open_[:, nics] = False
                if event.is_silent:
                    alive[nics] = False
            elif isinstance(event, Apart) and lasting:
                inside = np.zeros(n, np.bool_)
                inside[s.members(event.nics)] = True
                open_ &= inside[:, None] == inside[None]
            elif isinstance(event, Falseticker) and lasting:
                lie[:, s.member(event.nic)] = event.rms_ns * self.lies[:, s.member(event.nic)]
            elif isinstance(event, Redraw):
                redraws += 1
            elif isinstance(event, Load):
                self.link_load += event.load - self.load
                self.load = event.load
            elif isinstance(event, BadStamps):
                bad_share = event.share
            elif isinstance(event, Restart) and s.member(event.nic) not in self.restarted:
                nic = s.member(event.nic)
                self.restarted.add(nic)
                self.runs[nic] += 1
                self.batches[nic] = 0
        while self.drawn < redraws:
            self.peers, self.drawn = self._draw_peers(), self.drawn + 1
        columns: dict[str, ProbeColumns] = {}
        flushes: dict[str, list[Flush]] = {}
        probed = np.zeros(n, np.bool_)
        for nic in np.flatnonzero(alive).tolist():
            name = self.truth.names[nic]
            system_ahead_ns = round(float(self.system_ahead_ns[nic]))
            batches = int(self.runs[nic]), int(self.batches[nic])
            flushes[name] = flushes_of(self.truth, nic, (start, end), *batches, system_ahead_ns)
            self.batches[nic] += len(flushes[name])
            batch = self._samples(nic, start, open_[nic], lie[nic], flushes[name][-1])
            columns[name] = _spoiled(batch, bad_share, self.rng) if bad_share else batch
            reached = [self.truth.index[peer] for peer in batch.peers]
            probed[reached] = True
            probed[nic] |= bool(reached)
        return WindowInput(
            s,
            EPOCH_NS // self.window_ns + index,
            index,
            float(start),
            self.window_ns,
            columns,
            flushes,
            alive,
            probed,
            self.truth,
        )

    def _samples(
        self, nic: int, start: int, reach: NDArray[np.bool_], lie: Float64s, flush: Flush
    ) -> ProbeColumns:
        """Return the samples that `nic` sent in a window to those peers that it reaches."""
        s, rng, truth = self.scenario, self.rng, self.truth
        peers = [peer for peer in self.peers[nic] if reach[peer]]
        unreached = [peer for peer in self.peers[nic] if not reach[peer]]
        groups = len(peers) * s.paths
        halves = 2 if s.spacing_ns else 1
        mean = s.rate_pps * s.window_s / halves / s.paths
        count = rng.poisson(mean, groups)
        to = np.repeat(np.array(peers, np.intp), s.paths)
        path = np.tile(np.arange(s.paths), len(peers))
        group = np.repeat(np.arange(groups), count)
        edges = np.concatenate([[0], np.cumsum(count)])
        probes = len(group)
        sent = np.empty((halves, probes))
        sent[0] = self._poisson(count, group) + start
        if halves == 2:
            sent[1] = sent[0] + s.spacing_ns + rng.random(probes) * SPACING_JITTER_NS
        out = self._queues(self.link_load[nic, 0], self.link_load[to, 1], edges, halves)
        back = self._queues(self.link_load[to, 0], self.link_load[nic, 1], edges, halves)
        out += np.repeat(self.delay[path, nic, to], count)
        back += np.repeat(self.delay[path, to, nic], count)
        for event in s.events:
            if isinstance(event, Incast):
                into = s.member(event.nic)
                stands = (sent >= event.at_s * 1e9) & (sent < event.until_s * 1e9)
                wait = event.delay_ns * (0.5 + 0.5 * rng.random(sent.shape)) * stands
                out += wait * (np.repeat(to, count) == into)
                back += wait * (nic == into)
        turnaround = TURNAROUND_NS[0] + (TURNAROUND_NS[1] - TURNAROUND_NS[0]) * rng.random(probes)
        turnaround = turnaround + TURNAROUND_JITTER_NS * rng.random((halves, probes))
        if s.stamp_late_ns:
            out += s.stamp_late_ns * rng.standard_gamma(2.0, out.shape)
            back += s.stamp_late_ns * rng.standard_gamma(2.0, back.shape)
        at2 = sent + out
        at3 = at2 + turnaround
        at4 = at3 + back
        t1, t4 = sent + truth.ahead_ns(nic, sent), at4 + truth.ahead_ns(nic, at4)
        t2, t3 = np.empty_like(t1), np.empty_like(t1)
        for g in range(groups):
            rows = np.s_[:, edges[g] : edges[g + 1]]
            ahead = truth.ahead_ns(int(to[g]), at2[rows]) + lie[to[g]]
            t2[rows] = at2[rows] + ahead
            # the peer's rate changes by a tenth of a ppb at most within the turnaround's 10 us
            t3[rows] = at3[rows] + ahead
        stamps = [self._stamped(t) for t in (t1, t2, t3, t4)]
        own_epoch_ns = truth.epoch_ns[nic]
        peer_epoch_ns = np.repeat([truth.epoch_ns[peer] for peer in to.tolist()], count * halves).astype(
            np.int64
        )
        stamps = [
            stamps[0] + own_epoch_ns,
            stamps[1] + peer_epoch_ns,
            stamps[2] + peer_epoch_ns,
            stamps[3] + own_epoch_ns,
        ]
        spacing = np.full(groups, s.spacing_ns)
        lost = np.zeros(groups, np.int64)
        begin = edges * halves
        names = [truth.names[peer] for peer in to.tolist()]
        ports = path + FIRST_PORT
        if s.loss:
            arrived, count_of, lost = _lose(s.loss, group, groups, halves, rng)
            stamps = [t[arrived] for t in stamps]
            begin = np.concatenate([[0], np.cumsum(count_of)])
            names, ports = [*names, *names], np.tile(ports, 2)
            spacing = np.concatenate([spacing, np.zeros(groups, np.int64)])
        if unreached:
            names.extend(truth.names[peer] for peer in unreached for _ in range(s.paths))
            more = len(unreached) * s.paths
            ports = np.concatenate([ports, np.tile(np.arange(s.paths) + FIRST_PORT, len(unreached))])
            spacing = np.concatenate([spacing, np.full(more, s.spacing_ns)])
            lost = np.concatenate([lost, np.full(more, round(mean * halves))])
            begin = np.concatenate([begin, np.full(more, begin[-1])])
        return ProbeColumns(
            truth.names[nic],
            flush.run,
            flush.batch,
            flush.clock_ns,
            flush.system_ns,
            names,
            ports.astype(np.int32),
            spacing.astype(np.int32),
            lost.astype(np.int32),
            np.zeros(len(names), np.int32),
            begin.astype(np.int64),
            stamps[0],
            stamps[1] - stamps[0],
            stamps[2] - stamps[1],
            stamps[3] - stamps[2],
        )

    def _poisson(self, count: Int64s, group: NDArray[np.intp]) -> Float64s:
        """Draw Poisson processes in a window: `count` points of each group, ascending in the group.

        Given their number n, the points are partial sums of n + 1 exponential gaps, divided by their sum.
        """
        gaps = np.cumsum(self.rng.standard_exponential(len(group) + len(count)))
        if not len(count):
            return np.empty(0)
        ends = np.cumsum(count + 1) - 1
        begins = np.concatenate([[0.0], gaps[ends[:-1]]])
        inner = np.ones(len(gaps), np.bool_)
        inner[ends] = False
        scale = self.window_ns / (gaps[ends] - begins)
        points: Float64s = (gaps[inner] - np.repeat(begins, count)) * np.repeat(scale, count)
        return points

    def _queues(self, sender: Float64s, receiver: Float64s, edges: Int64s, halves: int) -> Float64s:
        """Return the queueing time, ns, in all hops of one direction, [halves, probes].

        `sender` and `receiver` (scalar or [groups]) are the loads of the first and the last hop.
        """
        s = self.scenario
        total = np.zeros((int(edges[-1]), halves), np.float32)
        middle = np.array(self.load)
        for load in [sender, *[middle] * (s.hops - 2), receiver][: s.hops]:
            for level, rows in _by_level(np.rint(load * LOAD_LEVELS), edges):
                queue = coded_queue(level / LOAD_LEVELS, s.frame_ns, float(s.spacing_ns or 1), self.table)
                draw = self.rng.integers(0, len(queue), rows.stop - rows.start, dtype=np.int32)
                total[rows] += queue.take(draw, axis=0)[:, :halves]
        return total.T.astype(np.float64)

    def _stamped(self, t: Float64s) -> Int64s:
        """Return noisy timestamps of `t`, rounded to the clock's step and relative to the clock's epoch.

        `t` is [halves, probes]; the result is flat, and the halves of a coded pair alternate in it.
        """
        s = self.scenario
        step = round(max(1.0, s.stamp_step_ns))
        noise = self.rng.standard_normal(t.shape, np.float32)
        noise *= np.float32(s.stamp_noise_ns / step)
        steps = t * (1 / step)
        steps += noise
        rounded = np.rint(steps, out=steps).T.reshape(-1).astype(np.int64)
        rounded *= step
        return rounded


def _by_level(levels: Float64s, edges: Int64s) -> Iterator[tuple[float, slice]]:
    """Yield each load level above 0 with the rows of neighbouring groups that have it.

    `levels` has one value for all groups, or one per group.
    """
    if levels.ndim == 0 or len(levels) == 0:
        cuts, levels = np.array([0, len(edges) - 1]), np.atleast_1d(levels)
    else:
        cuts = np.concatenate([[0], np.flatnonzero(np.diff(levels)) + 1, [len(levels)]])
    for first, end in pairwise(cuts.tolist()):
        if end > first and levels[first]:
            yield float(levels[first]), slice(int(edges[first]), int(edges[end]))


def _lose(
    loss: float, group: NDArray[np.intp], groups: int, halves: int, rng: np.random.Generator
) -> tuple[NDArray[np.intp], Int64s, Int64s]:
    """Return the indices of kept samples, their counts, and the lost requests; the last two are [2 * groups].

    Whole probes come first, by group, then single halves, by group.
    """
    there = np.asarray(rng.random((len(group), halves)) >= loss)
    both = np.asarray(there.all(axis=1))
    number = np.arange(there.size).reshape(there.shape)
    lone = there & ~both[:, None]
    arrived = np.concatenate([number[both].reshape(-1), number[lone]])
    count = np.concatenate(
        [
            np.bincount(group[both], minlength=groups) * halves,
            np.bincount(group, lone.sum(axis=1), groups).astype(np.int64),
        ]
    )
    lost = np.bincount(group, (~there).sum(axis=1), groups).astype(np.int64)
    return arrived, count, np.concatenate([lost, np.zeros(groups, np.int64)])


def _spoiled(batch: ProbeColumns, share: float, rng: np.random.Generator) -> ProbeColumns:
    """Return the batch with a share of its samples made invalid, as known devices do."""
    n = len(batch.sent)
    which = np.flatnonzero(rng.random(n) < share)
    kind = rng.integers(0, 5, len(which))
    t1 = batch.sent.copy()
    t2 = t1 + batch.forward
    t3 = t2 + batch.turnaround
    t4 = t3 + batch.reverse
    t2[which[kind == 0]] = 0
    t3[which[kind == 1]] -= rng.integers(1, 10**17, int((kind == 1).sum()))
    early = which[kind == 2]
    t2[early] = t1[early] - rng.integers(1, 10**9, len(early))
    t4[which[kind == 3]] += rng.integers(10**6, 10**10, int((kind == 3).sum()))
    twice = which[(kind == 4) & (which > 0)]
    for t in (t1, t2, t3, t4):
        t[twice] = t[twice - 1]
    with np.errstate(over="ignore"):
        batch.sent, batch.forward, batch.turnaround, batch.reverse = t1, t2 - t1, t3 - t2, t4 - t3
    return batch
