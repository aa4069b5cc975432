"""Measures contention windows against the simulated fleet's contention, whose link, kind and times are known.

Probes and flow reports of the simulation pass the pipeline's operators, with the delays of a real system's
agents and stages. Command: `python -m fabrictime.bench.detect.contention [--quick] [--each]`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._pipeline import embedded_log
from fabrictime.bench._sim_pipeline import PARTITIONS, SimPipeline
from producers.sim.settings import SimSettings
from producers.sim.shape import Shape
from producers.sim.simulation import Simulation
from producers.sim.topology import Fleet
from schemas.kafka.producer import load_producer
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.records import ContentionState, ContentionWindow, FabricTruth, TrueContention
from schemas.topics import CONTENTION, FLOWS, INVENTORY, PATHS, PROBES, QUEUES, TRUTH
from streams.clock.stage import ClockStage
from streams.contention.stage import ContentionStage
from streams.delays.stage import DelayStage
from streams.queues.stage import QueuesStage
from streams.runtime.operator import Output
from streams.runtime.sim_runner import SimOutput, SimRunner

MS: Final = 1_000_000
SHARD: Final = "sim"
NICS: Final = 64
RATE_BPS: Final = 10_000_000_000
PROBES_PPS: Final = 2_000.0
SECONDS: Final = 14.0
QUICK_SECONDS: Final = 6.0
RUNS: Final = 4
WARM_UP_S: Final = 3.0
"""Time for floors and clocks to settle; contention that begins before is not scored."""
GATHER_NS: Final = 10 * MS
"""Additional wait of a worker's fetch at each hop through the log, like in streams/app.py."""
HOPS: Final = 3
"""Passes through the log until windows can be published: probes, path queueing, queues."""
SHORT_NS: Final = 150 * MS
"""True contention that is shorter than this need not be detected: it may end before its window opens."""
SLACK_NS: Final = 150 * MS
"""Tolerance for the times when a window is matched with true contention."""
REPORTED, UNREPORTED = "with flow reports", "without flow reports"
GREY: Final = 0.4
"""A detected queue counts as present if its true depth is at least this share of the contention depth."""


@dataclass(slots=True)
class Detected:
    """One published window: its times in the simulation, and the processor time of the pipeline."""

    link: str
    others: list[str]
    kind: str
    opened_ns: int
    open_at_ns: float
    first_kind: str
    closed_ns: int | None = None
    close_at_ns: float | None = None

    @property
    def links(self) -> set[str]:
        """Return the window's link together with the links that share its queue."""
        return {self.link, *self.others}


@dataclass(slots=True)
class Score:
    """The counts and delays of one or several runs."""

    open_ms: list[float] = field(default_factory=list)
    close_ms: list[float] = field(default_factory=list)
    found: int = 0
    missed: int = 0
    false: int = 0
    right: int = 0
    right_at_once: int = 0
    confused: Counter[tuple[str, str]] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    invented: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, Value]:
        """Return the figures by key, over all windows."""
        kinds = ", ".join(
            f"{true} published as {published} {n}"
            for (true, published), n in self.confused.most_common()
            if true != published
        )
        missing = ", ".join(f"{kind} {n}" for kind, n in self.missing.most_common())
        invented = ", ".join(f"{kind} {n}" for kind, n in self.invented.most_common())
        return {
            "contention_open_ms_p95": Figure(_p95(self.open_ms), "ms", f"{len(self.open_ms)} windows"),
            "contention_open_ms_p50": Figure(float(np.median(self.open_ms or [np.nan])), "ms"),
            "contention_close_ms_p95": Figure(_p95(self.close_ms), "ms", f"{len(self.close_ms)} windows"),
            "contention_link_right": Figure(
                self.found / max(1, self.found + self.missed + self.false),
                "1",
                f"{self.found} found, {self.missed} missed ({missing}), {self.false} false ({invented})",
            ),
            "contention_kind_right": Figure(self.right / max(1, self.found), "1", kinds or "none confused"),
            "contention_kind_right_at_once": Figure(
                self.right_at_once / max(1, self.found), "1", "as first published"
            ),
        }


def _p95(values: list[float]) -> float:
    return float(np.percentile(values or [np.nan], 95))


class Run:
    """One simulated stretch of time with its events, as the pipeline sees it."""

    def __init__(self, seed: int, seconds: float, hop_ns: float) -> None:
        self.seconds = seconds
        rng = self._rng = np.random.default_rng(seed)
        settings = SimSettings.model_validate(
            {
                "nics": NICS,
                "seed": seed,
                "shard": SHARD,
                "rate_bps": RATE_BPS,
                "load": 0.2,
                "rate_pps": PROBES_PPS,
                "peers": 10,
                "paths": 4,
                "clock_offset_max_ns": 0,
                "clock_drift_max_ppb": 0,
                "clock_wander_ppb_per_sqrt_s": 0,
                "jobs": [
                    {"name": "train", "kind": "allreduce", "nics": 16, "bytes": 500e6},
                    {"name": "serve", "kind": "alltoall", "nics": 8, "bytes": 300e6},
                ],
                "faults": list(_events(rng, seconds)),
            }
        )
        self.sim = Simulation(settings, topics=(INVENTORY, PATHS, PROBES, FLOWS, TRUTH))
        stages = [DelayStage(), ClockStage(), QueuesStage(), ContentionStage()]
        self._pipeline = SimPipeline(self.sim, stages, hop_ns=round(hop_ns), clock=time.process_time_ns)
        self._runners = {
            REPORTED: self._pipeline.runner,
            # the same queues without flows
            UNREPORTED: SimRunner(
                [ContentionStage()],
                self.sim.start_ns,
                partition_count=PARTITIONS,
                settings=self._pipeline.runner.settings,
                topology=self._pipeline.runner.tables.topology,
                hop_ns=None,
                clock=time.process_time_ns,
            ),
        }
        self.published: dict[str, dict[str, Detected]] = {name: {} for name in self._runners}
        self.truth: dict[tuple[str, int], TrueContention] = {}
        self.deep: dict[str, list[tuple[int, float]]] = {}

    @property
    def busy_s(self) -> float:
        """The processor time, s, of queue inference and windows."""
        busy_ns = self._pipeline.runner.busy_ns
        return (busy_ns[QueuesStage.name] + busy_ns[ContentionStage.name]) / 1e9

    def go(self) -> None:
        """Run the simulation to its end, and half a second longer."""
        depth = self.sim.kernel.link_sums()[0].copy()
        without = self._runners[UNREPORTED]
        for _ in range(round((self.seconds + 0.5) * 100)):
            outputs = self._timed(REPORTED, self._pipeline.tick)
            for message in self._pipeline.messages:
                if message.topic is TRUTH:
                    self._note_truth(cast(FabricTruth, message.record())["contention"])
                elif message.topic is INVENTORY:
                    without.publish(Output(INVENTORY, message.key, body=message.value()), message.at_ns)
            for at_ns, output in outputs:
                if output.topic is QUEUES:
                    without.publish(output, at_ns + self._pipeline.hop_ns)
            now_ns = self.sim.now_ns
            self._timed(UNREPORTED, partial(without.advance, now_ns))
            sums = self.sim.kernel.link_sums()[0]
            mean = (sums - depth) / (10 * MS / (1000 * (self.sim.settings.step_us or 100)))
            depth = sums.copy()
            for link in np.flatnonzero(mean > 0).tolist():
                self.deep.setdefault(self.sim.fleet.link_ids[link], []).append((now_ns, float(mean[link])))
        self._note_truth(self.sim.contention())

    def _timed(self, name: str, work: Callable[[], list[SimOutput]]) -> list[SimOutput]:
        """Run `work`, record its windows, delayed by its processor time, and return all its outputs."""
        busy_ns = self._runners[name].busy_ns
        before_ns = busy_ns.total()
        outputs = work()
        took_ns = busy_ns.total() - before_ns
        for log_ns, output in outputs:
            if output.topic is CONTENTION:
                gathered_ns = float(self._rng.uniform(0, GATHER_NS, HOPS).sum())
                self._note(self.published[name], output.record, log_ns + gathered_ns + took_ns)
        return outputs

    def _note_truth(self, rows: list[TrueContention]) -> None:
        for row in rows:
            self.truth[row["link"], row["begin_ns"]] = row

    def _note(self, windows: dict[str, Detected], window: ContentionWindow, at_ns: float) -> None:
        published = windows.get(window["window_id"])
        if published is None:
            published = windows[window["window_id"]] = Detected(
                window["link"],
                window["candidates"],
                window["kind"],
                window["opened_ns"],
                at_ns,
                window["kind"],
            )
        published.kind, published.others = window["kind"], window["candidates"]
        if window["state"] == ContentionState.CLOSED:
            published.closed_ns, published.close_at_ns = window["closed_ns"], at_ns

    def score(self, into: Score, reports: str, verbose: bool = False) -> None:
        """Add to `into` how detected contention, with or without `reports`, compares with the truth."""
        first_ns = self.sim.start_ns + round(WARM_UP_S * 1e9)
        last_ns = self.sim.start_ns + round(self.seconds * 1e9)
        matched: set[int] = set()
        windows = list(self.published[reports].values())
        for true in sorted(self.truth.values(), key=lambda row: row["begin_ns"]):
            end_ns = true["end_ns"]
            lasted_ns = (last_ns if end_ns is None else end_ns) - true["begin_ns"]
            numbers = [
                n
                for n, published in enumerate(windows)
                if true["link"] in published.links and _meet(published, true)
            ]
            matched.update(numbers)
            if true["begin_ns"] < first_ns or lasted_ns < SHORT_NS:
                continue
            if not numbers:
                into.missed += 1
                into.missing[true["kind"]] += 1
                if verbose:
                    print(f"  missed {true['link']} {true['kind']} {lasted_ns / MS:.0f} ms")
                continue
            into.found += 1
            published, ended = windows[numbers[0]], windows[numbers[-1]]
            into.open_ms.append((published.open_at_ns - true["begin_ns"]) / MS)
            if end_ns is not None and ended.close_at_ns is not None:
                into.close_ms.append((ended.close_at_ns - end_ns) / MS)
            into.right += ended.kind == true["kind"]
            into.right_at_once += published.first_kind == true["kind"]
            into.confused[true["kind"], ended.kind] += 1
            if verbose:
                print(
                    f"  {true['link']} {true['kind']} published as {published.first_kind}, {ended.kind}, "
                    f"opened after {into.open_ms[-1]:.0f} ms"
                )
        for n, published in enumerate(windows):
            if n not in matched and published.opened_ns >= first_ns and not self._there(published):
                into.false += 1
                into.invented[published.kind] += 1
                if verbose:
                    at_ms = (published.opened_ns - first_ns) / MS
                    print(f"  false {published.link} {published.kind} at {at_ms:.0f} ms")

    def _there(self, published: Detected) -> bool:
        """Return whether the link had a queue that was slightly too small to count as contention."""
        mark = GREY * 0.5 * 0.1 * self.sim.fleet.shape.buffer_bytes
        end_ns = published.closed_ns or self.sim.now_ns
        return any(
            published.opened_ns - SLACK_NS <= at_ns <= end_ns + SLACK_NS and depth >= mark
            for link in published.links
            for at_ns, depth in self.deep.get(link, ())
        )


def _meet(published: Detected, true: TrueContention) -> bool:
    begin_ns, end_ns = true["begin_ns"] - SLACK_NS, true["end_ns"]
    return (published.closed_ns is None or published.closed_ns >= begin_ns) and (
        end_ns is None or published.opened_ns <= end_ns + SLACK_NS
    )


def _events(rng: np.random.Generator, seconds: float) -> Iterator[str]:
    """Draw faults of every kind, one by one, each for 600 to 1,500 ms; jobs cause collisions."""
    at_s = WARM_UP_S + 0.2
    nics = Fleet(Shape.of(NICS)).nic_ids
    kinds = ["incast", "slow-receiver", "slow-sender", "pause-storm"]
    while at_s < seconds - 1.5:
        for kind in rng.permutation(kinds):
            nic = nics[int(rng.integers(len(nics)))]
            lasts_ms = int(rng.integers(600, 1500))
            text = {
                "incast": f"incast {int(rng.integers(4, 12))} {nic}",
                "slow-receiver": f"slow-receiver {int(rng.integers(3, 10))}% {nic}",
                "slow-sender": f"slow-sender {int(rng.integers(3, 8))}% {nic}",
                "pause-storm": f"pause-storm {nic}",
            }[str(kind)]
            yield f"{text} after {round(at_s * 1000)}ms for {lasts_ms}ms"
            at_s += lasts_ms / 1000 + float(rng.uniform(0.1, 0.6))
            if at_s >= seconds - 1.5:
                return


def log_hop_ns(progress: Progress) -> float:
    """Return the 95th percentile of the time from sending to reading a message, ns, with an embedded log."""
    progress("one message through the log")
    delays_ns = []
    with TemporaryDirectory() as directory, embedded_log(Path(directory), 1) as bootstrap:
        producer = load_producer(bootstrap, {"linger.ms": 0})
        with TopicReader.open(bootstrap, {CONTENTION: BEGINNING}, fetch_wait_ms=100) as reader:
            for number in range(120):
                began = time.perf_counter()
                producer.produce(CONTENTION.name, b"x" * 2000, b"bench")
                producer.flush(5)
                while not reader.poll(5, at_once=True):
                    continue
                if number >= 20:
                    delays_ns.append(1e9 * (time.perf_counter() - began))
    return float(np.percentile(delays_ns, 95))


def measure(progress: Progress, quick: bool = False, *, verbose: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about four minutes, or one with `quick`."""
    hop_ns = log_hop_ns(progress)
    scores = {name: Score() for name in (REPORTED, UNREPORTED)}
    seconds = QUICK_SECONDS if quick else SECONDS
    seeds = np.random.SeedSequence().generate_state(1 if quick else RUNS).tolist()
    busy = 0.0
    for seed in seeds:
        progress(f"contention: {NICS} NICs at 10 Gbit/s, {seconds:g} s, seed {seed}")
        run = Run(int(seed), seconds, hop_ns)
        run.go()
        for name, score in scores.items():
            run.score(score, name, verbose)
        busy += run.busy_s
    figures = scores[REPORTED].figures()
    without = scores[UNREPORTED].figures()
    for key in ("contention_kind_right", "contention_link_right", "contention_open_ms_p95"):
        figures[f"{key}_without_reports"] = without[key]
    figures["contention_hop_ms_p95"] = Figure(
        hop_ns / MS, "ms", f"a message through the log; counted {HOPS} times in each opening and closing"
    )
    figures["contention_pipeline_share"] = Figure(
        busy / (seconds * len(seeds)), "1", f"of one core, inference and windows; seeds {seeds}"
    )
    return figures


if __name__ == "__main__":
    for key, value in measure(print, "--quick" in sys.argv, verbose="--each" in sys.argv).items():
        print(key, value)
