"""Measures contention windows against the simulated fleet's contention, whose link, kind and times are known.

Probes and flow reports of the simulation pass the pipeline's pure parts, at the times of a running system's
agents and stages. By hand: `python -m fabrictime.bench.detect.contention [--quick] [--each]`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

import numpy as np
from confluent_kafka import Producer

from fabrictime.bench import Figure, Progress, Target, Value
from fabrictime.bench._pipeline import embedded_log
from native.core import ClockLine
from producers.sim.settings import SimSettings
from producers.sim.shape import Shape
from producers.sim.simulation import Simulation
from producers.sim.topology import Fleet
from schemas.ids import host_of
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.records import ContentionState, ContentionWindow, FabricTruth, TrueContention
from schemas.topics import CONTENTION, FLOWS, INVENTORY, PATHS, PROBES, TRUTH
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.delays.queueing import SourceQueueing
from streams.links.probe_schedule import plan_shard, records_of
from streams.queues.inference import ShardQueues
from streams.runtime.flow_table import FlowTable
from streams.runtime.pipeline_constants import FLOW_LAG_NS, SUB_SLOTS, slot_ns_of
from streams.runtime.route_table import RouteTable
from streams.runtime.tables import Member

__all__ = ["GATHER_NS", "HOPS", "TARGETS", "log_hop_ns", "measure"]

TARGETS: Final = {
    "contention_open_ms_p95": Target("ms", "<=", 150),
    "contention_close_ms_p95": Target("ms", "<=", 1_000),
    "contention_link_right": Target("1", ">=", 0.98),
    "contention_kind_right": Target("1", ">=", 0.95),
    "contention_kind_right_without_reports": Target("1", ">=", 0.9),
}

MS: Final = 1_000_000
SHARD: Final = "sim"
NICS: Final = 64
RATE_BPS: Final = 10_000_000_000
PROBES_PPS: Final = 2_000.0
SOURCES: Final = 4
SECONDS: Final = 12.0
QUICK_SECONDS: Final = 4.0
RUNS: Final = 4
WARM_UP_S: Final = 1.0
"""Time for floors and clocks to settle; contention that begins before is not scored."""
MAP_NS: Final = 10 * MS
"""Between two `PathQueueing` of a source, as in streams/delays/stage.py."""
GATHER_NS: Final = 10 * MS
"""Additional wait of a worker's fetch, at each of the hops, as in streams/app.py."""
HOPS: Final = 3
"""Times that a message passes the log: probes, path queueing, queues, to where windows are sent from."""
SHORT_NS: Final = 150 * MS
"""True contention that is over sooner need not be seen: it may be over before its window has to open."""
SLACK_NS: Final = 150 * MS
"""Tolerance of a match in time."""
REPORTED, UNREPORTED = "with flow reports", "without flow reports"
GREY: Final = 0.4
"""Share of the true contention depth from which a detected queue counts as present."""


@dataclass(slots=True)
class Detected:
    """One published window: its time in the simulation, and the pipeline's cost."""

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
        return {self.link, *self.others}


@dataclass(slots=True)
class Score:
    """The results of one or several runs."""

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
    """One simulated stretch with its events, seen through the pipeline."""

    def __init__(self, seed: int, seconds: float, hop_ns: float) -> None:
        self.seconds, self._hop_ns = seconds, hop_ns
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
        fleet = self.sim.fleet
        self.rate = dict(zip(fleet.link_ids, fleet.rate_bps.tolist(), strict=True))
        self.members = {nic: Member(nic, host_of(nic), SHARD, nic) for nic in fleet.nic_ids}
        slot_ns = slot_ns_of(min(self.rate.values()))
        self.paths = RouteTable()
        self.flows = FlowTable(self.paths, self.members.__contains__)
        self.sources = [SourceQueueing(f"bench/{n}", slot_ns // SUB_SLOTS) for n in range(SOURCES)]
        self.queues = ShardQueues(SHARD, lambda link: int(self.rate.get(link, 0)))
        no_flows = FlowTable(self.paths, self.members.__contains__)
        self.watches = {
            name: ContentionDetector(
                SHARD,
                flows.of(SHARD),
                self.members.__contains__,
                lambda: len(self.members),
                lambda link: int(self.rate.get(link, 0)),
            )
            for name, flows in ((REPORTED, self.flows), (UNREPORTED, no_flows))
        }
        self.published: dict[str, dict[str, Detected]] = {name: {} for name in self.watches}
        self.truth: dict[tuple[str, int], TrueContention] = {}
        self.deep: dict[str, list[tuple[int, float]]] = {}
        self.busy_s = 0.0

    def go(self) -> None:
        """Run it to its end, and half a second on."""
        line = ClockLine(self.sim.start_ns, 0, 0.0, 10.0)
        lines = dict.fromkeys(self.members, line)
        nics = sorted(self.members)
        source_of = {nic: self.sources[n % SOURCES] for n, nic in enumerate(nics)}
        offsets: Counter[str] = Counter()
        next_map_ns = 0
        depth = self.sim.kernel.link_sums()[0].copy()
        laid = False
        for _ in range(round((self.seconds + 0.5) * 100)):
            for out in self.sim.tick():
                if out.topic is PROBES:
                    source = source_of[out.key]
                    offsets[source.source] += 1
                    source.add(out.columns(), out.at_ns, offsets[source.source], lines)
                elif out.topic is PATHS:
                    self.paths.take(out.key.encode(), out.value(), None, out.at_ns)
                elif out.topic is FLOWS:
                    append_ns = out.at_ns + round(self._hop_ns)
                    self.flows.take(out.key.encode(), out.value(), None, append_ns)
                elif out.topic is TRUTH:
                    self._note_truth(cast(FabricTruth, out.record())["contention"])
            now_ns = self.sim.now_ns
            if len(self.paths) and not laid:  # all are traced at once
                laid = True
                plans = plan_shard(dict.fromkeys(nics, self.sim.probes.pace), self.paths)
                for record in records_of(plans, SHARD, lines, now_ns).values():
                    self.sim.probes.follow_schedule(record)
            sums = self.sim.kernel.link_sums()[0]
            mean = (sums - depth) / (10 * MS / (1000 * (self.sim.settings.step_us or 100)))
            depth = sums.copy()
            for link in np.flatnonzero(mean > 0).tolist():
                self.deep.setdefault(self.sim.fleet.link_ids[link], []).append((now_ns, float(mean[link])))
            if now_ns >= next_map_ns:
                next_map_ns = now_ns + MAP_NS
                self._map(now_ns)
        self._note_truth(self.sim.contention())

    def _note_truth(self, rows: list[TrueContention]) -> None:
        for row in rows:
            self.truth[row["link"], row["begin_ns"]] = row

    def _map(self, now_ns: int) -> None:
        """Run the stages over the messages so far."""
        began = time.process_time()
        for source in self.sources:
            for queueing in source.take(self.members):
                self.queues.take(queueing, self.paths)
        rules = ContentionRules()
        while self.queues.ready():
            for record in self.queues.solve(now_ns):
                append_ns = now_ns + round(HOPS * self._hop_ns)
                for name, watch in self.watches.items():
                    watch.flows.advance(append_ns - FLOW_LAG_NS)
                    for made in watch.ingest(record, rules):
                        took_ns = 1e9 * (time.process_time() - began)
                        gathered_ns = float(self._rng.uniform(0, GATHER_NS, HOPS).sum())
                        at_ns = now_ns + HOPS * self._hop_ns + gathered_ns + took_ns
                        self._note(self.published[name], made, at_ns)
        self.busy_s += time.process_time() - began

    def _note(self, windows: dict[str, Detected], made: ContentionWindow, at_ns: float) -> None:
        published = windows.get(made["window_id"])
        if published is None:
            published = windows[made["window_id"]] = Detected(
                made["link"], made["candidates"], made["kind"], made["opened_ns"], at_ns, made["kind"]
            )
        published.kind, published.others = made["kind"], made["candidates"]
        if made["state"] == ContentionState.CLOSED:
            published.closed_ns, published.close_at_ns = made["closed_ns"], at_ns

    def score(self, into: Score, reports: str, each: bool = False) -> None:
        """Compare the contention detected with or without `reports` with the truth."""
        first_ns = self.sim.start_ns + round(WARM_UP_S * 1e9)
        last_ns = self.sim.start_ns + round(self.seconds * 1e9)
        matched: set[int] = set()
        windows = list(self.published[reports].values())
        for true in sorted(self.truth.values(), key=lambda row: row["begin_ns"]):
            end_ns = true["end_ns"]
            lasted_ns = (last_ns if end_ns is None else end_ns) - true["begin_ns"]
            mine = [
                n
                for n, published in enumerate(windows)
                if true["link"] in published.links and _meet(published, true)
            ]
            matched.update(mine)
            if true["begin_ns"] < first_ns or lasted_ns < SHORT_NS:
                continue
            if not mine:
                into.missed += 1
                into.missing[true["kind"]] += 1
                if each:
                    print(f"  missed {true['link']} {true['kind']} {lasted_ns / MS:.0f} ms")
                continue
            into.found += 1
            published, ended = windows[mine[0]], windows[mine[-1]]
            into.open_ms.append((published.open_at_ns - true["begin_ns"]) / MS)
            if end_ns is not None and ended.close_at_ns is not None:
                into.close_ms.append((ended.close_at_ns - end_ns) / MS)
            into.right += ended.kind == true["kind"]
            into.right_at_once += published.first_kind == true["kind"]
            into.confused[true["kind"], ended.kind] += 1
            if each:
                print(
                    f"  {true['link']} {true['kind']} published as {published.first_kind}, {ended.kind}, "
                    f"opened after {into.open_ms[-1]:.0f} ms"
                )
        for n, published in enumerate(windows):
            if n not in matched and published.opened_ns >= first_ns and not self._there(published):
                into.false += 1
                into.invented[published.kind] += 1
                if each:
                    at_ms = (published.opened_ns - first_ns) / MS
                    print(f"  false {published.link} {published.kind} at {at_ms:.0f} ms")

    def _there(self, published: Detected) -> bool:
        """Return whether a queue was present that is only a little too small to count as contention."""
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
    """Draw faults of every kind one after the other, each for 600 to 1,500 ms; jobs collide by themselves."""
    at_s = 1.2
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
    """Return the 95th percentile of the time from a message's sending to its being read, over an embedded
    log here."""
    progress("one message through the log")
    taken = []
    with TemporaryDirectory() as directory, embedded_log(Path(directory), 1) as bootstrap:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        with TopicReader.open(bootstrap, {CONTENTION: BEGINNING}, fetch_wait_ms=100) as reader:
            for number in range(120):
                began = time.perf_counter()
                producer.produce(CONTENTION.name, b"x" * 2000, b"bench")
                producer.flush(5)
                while not reader.poll(5, at_once=True):
                    continue
                if number >= 20:
                    taken.append(1e9 * (time.perf_counter() - began))
    return float(np.percentile(taken, 95))


def measure(progress: Progress, quick: bool = False, *, each: bool = False) -> dict[str, Value]:
    """Measure for about four minutes, or one with `quick`."""
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
            run.score(score, name, each)
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
    for key, value in measure(print, "--quick" in sys.argv, each="--each" in sys.argv).items():
        print(key, value)
