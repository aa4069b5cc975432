"""Measures clocks at a load of 80 % in queues that the fleet's probes share: `_truth` at 10 Gbit/s.

Batches of eight packets arrive at every link, sources turn on and off, and incasts come in. All stamps lie
before four queues between leaves, so that 0.16 % of the samples meet none of them. Beside it stand the same
queues, read by every coded pair at times of its own: independent from probe to probe, as most estimators
assume. Command: `python -m fabrictime.bench.clock.bursty [--quick]`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._truth import Clocks, LeafSpine, LinkQueueing, Probes, Stamps, Traffic, probe
from fabrictime.bench._truth.clocks import KNOT_NS, walk
from fabrictime.bench.clock.samples import EPOCH_NS, FLUSH_NS, Flush, WindowInput, flushes_of
from fabrictime.bench.clock.scenarios import SCENARIOS
from fabrictime.bench.clock.score import EstimatorRun, Fabrictime, Score
from native.core import ProbeColumns

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

WINDOW_NS: Final = 2_000_000_000
STRETCHES: Final = 8
"""Number of parts of a window that are drawn one by one, to save memory."""
PAIRS_PER_S: Final = 250.0
"""Coded pairs per second of a directed pair of NICs, which are 500 samples per second."""
SPACING_NS: Final = 20_000
PORT: Final = 40_000
ASYMMETRY_NS: Final = 10.0
OFFSET_NS: Final = 1e9
DRIFT_PPB: Final = 5_000.0
WANDER_PPB_PER_SQRT_S: Final = 1.0
SETTLED: Final = 5
"""Number of first windows that the accuracy leaves out."""
GOOD_NS: Final = 100.0
TRAFFIC: Final = Traffic(load=(0.8, 0.8), idle=0.0, swing=0.2)


class BurstyFleet:
    """A fabric with its queues, its clocks and its probed pairs of NICs."""

    def __init__(self, nics: int, peers: int, windows: int, seed: int, traffic: Traffic = TRAFFIC) -> None:
        self._rng = rng = np.random.default_rng(seed)
        self._fabric = fabric = LeafSpine(nics)
        self._queues = LinkQueueing(fabric, traffic, rng)
        self._windows = windows
        knots = (windows + 1) * WINDOW_NS // KNOT_NS + 3
        ppb = walk(rng.uniform(-DRIFT_PPB, DRIFT_PPB, nics), knots, WANDER_PPB_PER_SQRT_S, rng)
        begin_ns = rng.uniform(-OFFSET_NS, OFFSET_NS, nics)
        self._truth = Clocks(begin_ns, ppb, fabric.nic_names(), [EPOCH_NS] * nics)
        choice = [
            np.sort(rng.permutation(np.delete(np.arange(nics), prober))[:peers]) for prober in range(nics)
        ]
        self._nic, self._peer = np.repeat(np.arange(nics), peers), np.concatenate(choice)
        pairs = len(self._nic)
        spine = rng.integers(0, fabric.spines, (2, pairs))
        self._there = fabric.routes(self._nic, self._peer, spine[0])
        self._back = fabric.routes(self._peer, self._nic, spine[1])
        half = np.triu(rng.normal(0, ASYMMETRY_NS, (nics, nics)), 1)
        self._half = (half - half.T)[self._nic, self._peer]

    def windows(self) -> Iterator[tuple[WindowInput, WindowInput]]:
        """Yield each window's samples twice: read in shared queues, and at independent times."""
        for index in range(self._windows):
            begin, stretch = float(index * WINDOW_NS), WINDOW_NS / STRETCHES
            shared: list[Stamps] = []
            apart: list[Stamps] = []
            pairs: list[Int64s] = []
            for part in range(STRETCHES):
                self._queues.advance(begin + (part + 1) * stretch)
                row, probes = self._probes(begin + part * stretch, stretch)
                # both probes of a coded pair read the queues with the same shift, each hop with another
                shift = np.repeat(self._rng.uniform(0, stretch, len(row) // 2), 2)
                for series, shifts in ((shared, None), (apart, shift)):
                    series.append(
                        probe(
                            self._queues,
                            probes,
                            self._rng,
                            asymmetry_ns=self._half[row],
                            apart_ns=shifts,
                            sees_first=True,
                        )
                    )
                pairs.append(row)
            row = np.concatenate(pairs)
            yield (
                self._window(index, row, Stamps.joined(shared)),
                self._window(index, row, Stamps.joined(apart)),
            )

    def _probes(self, begin_ns: float, span_ns: float) -> tuple[Int64s, Probes]:
        """Draw the coded pairs of a stretch, in order of time."""
        count = self._rng.poisson(PAIRS_PER_S * span_ns * 1e-9, len(self._nic))
        row = np.repeat(np.arange(len(self._nic)), count)
        sent = begin_ns + self._rng.uniform(0, span_ns, len(row))
        order = np.argsort(sent)
        row, sent = np.repeat(row[order], 2), np.repeat(sent[order], 2)
        sent[1::2] += SPACING_NS
        port = np.full(len(row), PORT)
        return row, Probes(self._nic[row], self._peer[row], port, sent, self._there[row], self._back[row])

    def _window(self, index: int, row: Int64s, stamps: Stamps) -> WindowInput:
        """Return the samples of a window by prober, with one group per pair of NICs."""
        read = stamps.read(self._truth, EPOCH_NS, self._rng)
        names = self._truth.names
        order = np.argsort(row, kind="stable")
        begin = index * WINDOW_NS
        columns: dict[str, ProbeColumns] = {}
        flushes: dict[str, list[Flush]] = {}
        for nic, name in enumerate(names):
            pair_numbers = np.flatnonzero(self._nic == nic)
            edges = np.searchsorted(row[order], np.arange(pair_numbers[0], pair_numbers[-1] + 2))
            at = order[edges[0] : edges[-1]]
            none = np.zeros(len(pair_numbers), np.int32)
            span_ns = index * WINDOW_NS, (index + 1) * WINDOW_NS
            flushes[name] = flushes_of(self._truth, nic, span_ns, 1, index * WINDOW_NS // FLUSH_NS)
            last = flushes[name][-1]
            columns[name] = ProbeColumns(
                nic=name,
                run=1,
                batch=last.batch,
                clock_ns=last.clock_ns,
                system_ns=last.system_ns,
                peers=[names[peer] for peer in self._peer[pair_numbers]],
                path=np.full(len(pair_numbers), PORT, np.int32),
                spacing_ns=np.full(len(pair_numbers), SPACING_NS, np.int32),
                lost=none,
                no_t3=none,
                start=(edges - edges[0]).astype(np.int64),
                sent=read[0][at],
                forward=read[1][at] - read[0][at],
                turnaround=read[2][at] - read[1][at],
                reverse=read[3][at] - read[2][at],
            )
        there = np.ones(len(names), np.bool_)
        scenario = replace(SCENARIOS["load80_500pps_asymmetry10"], nics=len(names), windows=self._windows)
        return WindowInput(
            scenario,
            EPOCH_NS // WINDOW_NS + index,
            index,
            float(begin),
            WINDOW_NS,
            columns,
            flushes,
            there,
            there,
            self._truth,
        )


def scores(nics: int, peers: int, windows: int, seed: int, progress: Progress) -> tuple[Score, Score]:
    """Return the scores of our estimator: first in shared queues, then in independent queues."""
    shared, apart = EstimatorRun(Fabrictime()), EstimatorRun(Fabrictime())
    scenario = SCENARIOS["load80_500pps_asymmetry10"]
    for window, other in BurstyFleet(nics, peers, windows, seed).windows():
        shared.take(window)
        apart.take(other)
        so_far = [run.score(scenario).p99_of_window_ns(window.index) for run in (shared, apart)]
        progress(f"window {window.index + 1}: p99 {so_far[0]:.1f} ns shared, {so_far[1]:.1f} ns independent")
    return shared.score(scenario), apart.score(scenario)


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about three minutes, or a quarter of one with `quick`."""
    nics, peers, windows = (16, 4, 6) if quick else (32, 10, 16)
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    progress(f"clocks in shared queues at 80 %: {nics} NICs, {windows} windows, seed {seed}")
    shared, apart = scores(nics, peers, windows, seed, progress)
    settled = slice(SETTLED, None)
    p99_ns, other_ns = (
        float(np.percentile(score.pair_errors_ns(settled), 99, method="inverted_cdf"))
        for score in (shared, apart)
    )
    each_ns = [shared.p99_of_window_ns(window) for window in range(windows)]
    good = [window + 1 for window, p99 in enumerate(each_ns) if p99 <= GOOD_NS]
    covered, stated = shared.covered()
    note = f"windows {SETTLED + 1} to {windows}, {nics} NICs, seed {seed}"
    return {
        "p99_ns_load80_bursty": Figure(p99_ns, note=note),
        "p99_ns_load80_bursty_independent": Figure(other_ns, "ns", note),
        "p99_load80_bursty_over_independent": Figure(p99_ns / other_ns, note=note),
        "windows_to_100ns_load80_bursty": Figure(float(good[0]), note=note)
        if good
        else Missing(f"not within {windows} windows; the best p99 is {min(each_ns):.0f} ns"),
        "bound_coverage_load80_bursty": Figure(covered / max(1, stated), "1", f"{stated} bounds"),
    }


if __name__ == "__main__":
    for key, value in measure(lambda line: print(line, file=sys.stderr), "--quick" in sys.argv).items():
        print(key, value)
