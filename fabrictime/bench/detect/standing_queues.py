"""Measures contention on shared queues: standing collisions and incasts, with and without flow reports.

The truth is `_truth`. Every half second a queue of 250 kB stands for 300 ms, at a link between switches or at
one into a host. One worker infers queues in its own time; contention is detected once with the flow reports
of all hosts and once without any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._truth import LeafSpine, Standing, Traffic
from fabrictime.bench.detect._shared_worker import Worker
from fabrictime.bench.detect.contention import GATHER_NS, HOPS, log_hop_ns
from fabrictime.bench.detect.shared_fabric import EPOCH_NS, MS, SHARD, SLOT_NS, Scene, draw
from schemas import codec
from schemas.ids import host_of
from schemas.records import ContentionKind, ContentionWindow, Flow, FlowReports, FlowState, LinkQueues
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.runtime.flow_table import FlowTable
from streams.runtime.pipeline_constants import FLOW_LAG_NS

RATES_PPS: Final = (4_000, 2_000, 1_000)

NICS: Final = 16
FIRST_NS, EVERY_NS, LASTS_NS = 1_600 * MS, 500 * MS, 300 * MS
DEPTH_BYTES: Final = 250e3
PRESENT_BYTES: Final = 25e3
"""Mean depth over 50 ms from which a queue counts as present even if no standing queue was drawn there."""
PRESENT_SLOTS: Final = 50 * MS // SLOT_NS
SLACK_NS: Final = 150 * MS
REPORT_NS: Final = 100 * MS
SENDERS: Final = {ContentionKind.INCAST: 4, ContentionKind.COLLISION: 2}


@dataclass(frozen=True, slots=True)
class Event:
    """A standing queue that the bench drew, with its link and times."""

    standing: Standing
    kind: ContentionKind
    link: str

    @property
    def begin_ns(self) -> int:
        """Begin, ns of fabric time."""
        return EPOCH_NS + round(self.standing.begin_ns)

    @property
    def end_ns(self) -> int:
        """End, ns of fabric time."""
        return EPOCH_NS + round(self.standing.end_ns)


def draw_events(fabric: LeafSpine, seconds: float, rng: np.random.Generator) -> list[Event]:
    """Draw standing queues one by one, alternately at links between switches and at links into hosts."""
    names = fabric.names()
    events: list[Event] = []
    inner = fabric.nics, fabric.links - fabric.nics
    begin_ns = FIRST_NS
    while begin_ns + LASTS_NS + SLACK_NS < seconds * 1e9:
        kind = (ContentionKind.COLLISION, ContentionKind.INCAST)[len(events) % 2]
        low, high = inner if kind == ContentionKind.COLLISION else (inner[1], fabric.links)
        standing = Standing(int(rng.integers(low, high)), begin_ns, begin_ns + LASTS_NS, DEPTH_BYTES)
        events.append(Event(standing, kind, names[standing.link]))
        begin_ns += EVERY_NS
    return events


class Reports:
    """The flow reports of all hosts, for flows of standing queues and one flow of other traffic per link."""

    def __init__(self, scene: Scene, events: list[Event], rng: np.random.Generator) -> None:
        self._nics, self._links = scene.fabric.nic_names(), scene.fabric.names()
        self._rate_bps = scene.fabric.rate_bps
        self._load, self.events = scene.load, events
        self._ends = [tuple(rng.choice(self._nics, 8, replace=False).tolist()) for _ in self._links]
        """The NICs whose flows cross each link."""

    def at(self, end_ns: int) -> Iterator[FlowReports]:
        """Yield the flow reports for the `REPORT_NS` that end at `end_ns`."""
        flows: dict[str, list[Flow]] = {host_of(nic): [] for nic in self._nics}
        for number, load in enumerate(self._load.tolist()):
            event = self._event_at(number, end_ns)
            if event is not None:
                covered = min(1.0, (end_ns - event.begin_ns) / REPORT_NS)
                senders = SENDERS[event.kind]
                for sender in range(senders):
                    self._add(flows, number, sender, covered * self._rate_bps / senders)
            elif load > 0:
                self._add(flows, number, 7, load * self._rate_bps)
        for host, own in flows.items():
            yield _report(host, end_ns, own, is_complete=True)

    def begun(self, event: Event) -> Iterator[FlowReports]:
        """Yield the first reports of a standing queue's flows, since agents publish new flows at once."""
        flows: dict[str, list[Flow]] = {host_of(nic): [] for nic in self._nics}
        for sender in range(SENDERS[event.kind]):
            self._add(flows, event.standing.link, sender, 0.0)
        for host, own in flows.items():
            if own:
                yield _report(host, event.begin_ns, own, is_complete=False)

    def _event_at(self, link: int, end_ns: int) -> Event | None:
        return next(
            (
                event
                for event in self.events
                if event.standing.link == link and event.begin_ns < end_ns <= event.end_ns + REPORT_NS
            ),
            None,
        )

    def _add(self, flows: dict[str, list[Flow]], link: int, sender: int, rate_bps: float) -> None:
        own, ends = self._links[link], self._ends[link]
        into = own.partition(">")[2].replace(":", "/")
        peer = into if into in self._nics else ends[6]
        nic = ends[sender] if ends[sender] != peer else ends[5]
        flow = {
            "flow_id": f"{host_of(nic)}/boot/sock:{8 * link + sender}",
            "state": FlowState.OPEN,
            "nic": nic,
            "peer": peer,
            "source_address": "",
            "peer_address": "",
            "source_port": 1,
            "peer_port": 2,
            "protocol": "UDP",
            "bytes_total": 0,
            "interval_ns": REPORT_NS,
            "bytes": round(rate_bps * REPORT_NS / 8e9),
            "rate_bps": rate_bps,
            "links": [own],
        }
        alone = _report(
            "h", MS, [cast("Flow", flow)], is_complete=True
        )  # the codec fills in the other fields
        decoded = codec.decode(codec.encode("FlowReports", alone), "FlowReports")
        flows[host_of(nic)].append(decoded["flows"][0])


def _report(host: str, at_ns: int, flows: list[Flow], *, is_complete: bool) -> FlowReports:
    return {
        "host": host,
        "boot": "boot",
        "report": at_ns // MS,
        "shard": SHARD,
        "system_ns": at_ns,
        "whole": is_complete,
        "flows": flows,
    }


@dataclass(slots=True)
class Published:
    """A contention window as published."""

    links: set[str]
    opened_ns: int
    first_at_ns: float
    kind: ContentionKind
    closed_ns: int | None = None


class Watch:
    """Detects contention in the worker's records, with flow reports or, if `reports` is None, without."""

    def __init__(self, scene: Scene, reports: Reports | None) -> None:
        nics, rate_bps = set(scene.fabric.nic_names()), round(scene.fabric.rate_bps)
        self.windows: dict[str, Published] = {}
        self._reports, self._next_ns = reports, EPOCH_NS + REPORT_NS
        self._begun_ns = EPOCH_NS
        self._table = FlowTable(scene.routes, nics.__contains__)
        self._detector = ContentionDetector(
            SHARD, self._table.of(SHARD), nics.__contains__, lambda: len(nics), lambda _: rate_bps
        )

    def take(self, now_ns: int, record: LinkQueues, late_ns: float) -> None:
        """Process a queue record at the worker's time `now_ns`; windows are published `late_ns` later."""
        if self._reports is not None:
            self._take_reports(self._reports, now_ns)
        self._detector.flows.advance(now_ns - FLOW_LAG_NS)
        for window in self._detector.ingest(record, ContentionRules()):
            self._note(window, now_ns + late_ns)

    def _take_reports(self, reports: Reports, now_ns: int) -> None:
        """Process the flow reports up to a time, in their order."""
        while True:
            begins = [event for event in reports.events if self._begun_ns < event.begin_ns <= now_ns]
            first = min(begins, key=lambda event: event.begin_ns, default=None)
            if first is not None and first.begin_ns < self._next_ns:
                self._begun_ns = at_ns = first.begin_ns
                new_reports = reports.begun(first)
            elif self._next_ns <= now_ns:
                at_ns, self._next_ns = self._next_ns, self._next_ns + REPORT_NS
                new_reports = reports.at(at_ns)
            else:
                return
            for report in new_reports:
                value = codec.encode(FlowReports, report)
                self._table.take(report["host"].encode(), value, None, at_ns)

    def _note(self, window: ContentionWindow, at_ns: float) -> None:
        published = self.windows.setdefault(
            window["window_id"], Published(set(), window["opened_ns"], at_ns, window["kind"])
        )
        published.links |= {window["link"], *window["candidates"]}
        published.kind, published.closed_ns = window["kind"], window["closed_ns"]


@dataclass(slots=True)
class Score:
    """The results for one probe rate, with or without flow reports."""

    opened_ms: list[float] = field(default_factory=list)
    missed: int = 0
    false: int = 0
    right: int = 0
    confused: Counter[str] = field(default_factory=Counter)

    def add(self, scene: Scene, events: list[Event], watch: Watch) -> None:
        """Add the windows of one run."""
        windows, matched = list(watch.windows.values()), set()
        for event in events:
            numbers = [
                n for n, window in enumerate(windows) if event.link in window.links and _meet(window, event)
            ]
            matched |= set(numbers)
            if not numbers:
                self.missed += 1
                continue
            self.opened_ms.append((windows[numbers[0]].first_at_ns - event.begin_ns) / MS)
            kind = windows[numbers[-1]].kind
            self.right += kind == event.kind
            self.confused[f"{event.kind} as {kind}"] += kind != event.kind
        present = present_queues(scene)
        for n, window in enumerate(windows):
            is_late = window.opened_ns >= EPOCH_NS + FIRST_NS - SLACK_NS
            self.false += n not in matched and is_late and not is_there(window, scene, present)

    @property
    def found(self) -> int:
        """The number of standing queues for which a window was published."""
        return len(self.opened_ms)

    def figures(self, rate: int, reports: str) -> dict[str, Value]:
        """Return the figures by key; `rate` and `reports` are parts of the keys."""
        events = self.found + self.missed
        note = f"{events} queues, {self.missed} missed, {self.false} false windows"
        return {
            f"standing_queue_found_{rate}pps_{reports}": Figure(self.found / max(1, events), note=note),
            f"standing_queue_link_right_{rate}pps_{reports}": Figure(
                self.found / max(1, events + self.false), note=note
            ),
            f"standing_queue_opened_ms_p95_{rate}pps_{reports}": Figure(
                float(np.percentile(self.opened_ms or [np.nan], 95)), note=f"{self.found} windows"
            ),
        }


def _meet(window: Published, event: Event) -> bool:
    begin_ns, end_ns = event.begin_ns - SLACK_NS, event.end_ns + SLACK_NS
    return (window.closed_ns is None or window.closed_ns >= begin_ns) and window.opened_ns <= end_ns


def present_queues(scene: Scene) -> np.ndarray:
    """Return whether a queue was present in the `PRESENT_SLOTS` around each slot, [slots, links]."""
    sums = np.cumsum(np.pad(scene.slots.depth_bytes, ((1, 0), (0, 0))), axis=0)
    after = np.minimum(np.arange(len(sums) - 1) + PRESENT_SLOTS // 2, len(sums) - 1)
    before = np.maximum(after - PRESENT_SLOTS, 0)
    there: np.ndarray = (sums[after] - sums[before]) / PRESENT_SLOTS > PRESENT_BYTES
    return there


def is_there(window: Published, scene: Scene, present: np.ndarray) -> bool:
    """Return whether any link of a window had a queue while the window was open."""
    number = {name: n for n, name in enumerate(scene.fabric.names())}
    first = max(0, (window.opened_ns - EPOCH_NS) // SLOT_NS)
    last = len(present) if window.closed_ns is None else (window.closed_ns - EPOCH_NS) // SLOT_NS + 1
    return any(bool(present[first:last, number[link]].any()) for link in window.links)


def run(rate: int, seed: int, seconds: float, late: float, scores: dict[str, Score]) -> None:
    """Add one run at a probe rate to the scores; `late` is a message's delay, ns, through the log."""
    rng = np.random.default_rng(seed)
    fabric = LeafSpine(NICS)
    events = draw_events(fabric, seconds, rng)
    scene = draw(fabric, Traffic(standing=tuple(event.standing for event in events)), seed, seconds, rate)
    watches = {
        "with_reports": Watch(scene, Reports(scene, events, rng)),
        "without_reports": Watch(scene, None),
    }
    for now_ns, record in Worker(scene).run():
        late_ns = HOPS * late + float(rng.uniform(0, GATHER_NS, HOPS).sum())
        for watch in watches.values():
            watch.take(now_ns, record, late_ns)
    for name, watch in watches.items():
        scores[name].add(scene, events, watch)


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about two minutes, or half of one with `quick`."""
    late_ns = log_hop_ns(progress)
    figures: dict[str, Value] = {}
    all_scores: dict[str, list[Score]] = {"with_reports": [], "without_reports": []}
    for rate in RATES_PPS:
        scores = {name: Score() for name in all_scores}
        for _ in range(1 if quick else 2):
            seed = int(np.random.SeedSequence().generate_state(1)[0])
            progress(f"standing queues: {NICS} NICs, {rate}/s, seed {seed}")
            run(rate, seed, 3.2 if quick else 5.2, late_ns, scores)
        for name, score in scores.items():
            figures |= score.figures(rate, name)
            all_scores[name].append(score)
    for name, several in all_scores.items():
        detected = sum(score.found for score in several)
        confused = sum((score.confused for score in several), Counter())
        figures[f"standing_kind_right_{name}"] = Figure(
            sum(score.right for score in several) / max(1, detected),
            note=", ".join(f"{kinds} {n}" for kinds, n in confused.most_common() if n) or "none confused",
        )
    return figures
