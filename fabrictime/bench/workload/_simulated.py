"""Runs the simulated fleet through the pure stages of the pipeline up to the diagnosis of its jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

from native.core import ClockLine
from producers.sim.messages import SimMessage
from producers.sim.simulation import TICK_NS, Simulation
from schemas import codec
from schemas.ids import host_of
from schemas.kafka.message import Message
from schemas.records import (
    ClockSync,
    CollectiveBatch,
    Diagnosis,
    FlowReports,
    FlowRoutes,
    LinkEvent,
    LinkHealth,
    Nic,
    PathDelays,
    PathMaps,
)
from schemas.topics import (
    COLLECTIVES,
    DECISIONS,
    DELAYS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINKS,
    PATHS,
    PROBES,
    Topic,
)
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.delays.messages import decode_messages
from streams.delays.queueing import SourceQueueing
from streams.delays.records import fit_window, path_delays
from streams.delays.source_partition import ClosedWindow, Source
from streams.diagnosis.diagnose import evaluate
from streams.diagnosis.job_view import JobView
from streams.diagnosis.network_view import NetworkView
from streams.links.health import ShardHealth
from streams.links.probe_schedule import plan_shard, records_of
from streams.queues.inference import ShardQueues
from streams.runtime.flow_table import FlowTable
from streams.runtime.pipeline_constants import (
    DIAGNOSIS_INTERVAL_NS,
    FLOW_LAG_NS,
    FLOWS_NS,
    HOP_NS,
    INPUT_DELAY_NS,
    SILENCE_NS,
    SUB_SLOTS,
    WINDOW_NS,
    slot_ns_of,
)
from streams.runtime.route_table import RouteTable
from streams.runtime.tables import Member

__all__ = ["TOPICS", "Pipeline"]

MS: Final = 1_000_000
TOPICS: Final[tuple[Topic[Any], ...]] = (
    *(INVENTORY, PATHS, PROBES, LINKS, FLOWS, FLOW_ROUTES, DECISIONS, COLLECTIVES),
)
MAP_TICKS: Final = 5
"""Ticks between two `PathQueueing` records: 50 ms."""
FLOWS_TICKS: Final = FLOWS_NS // TICK_NS
EVALUATE_TICKS: Final = 100
BOUND_NS: Final = 100.0


class Pipeline:
    """The stages of one fleet and the diagnosis of one of its jobs.

    Clocks are those that the fleet was made with: `fabrictime bench clock` measures their estimate.
    """

    def __init__(self, sim: Simulation, job: str) -> None:
        self.sim, shard, fleet = sim, sim.settings.shard, sim.fleet
        self.job, self.network = JobView(job), NetworkView()
        rate = dict(zip(fleet.link_ids, fleet.rate_bps.tolist(), strict=True))
        self._members = {nic: Member(nic, host_of(nic), shard, nic) for nic in fleet.nic_ids}
        self._lines = {
            nic: ClockLine(
                sim.start_ns + clock["offset_ns"], -clock["offset_ns"], -clock["drift_ppb"], BOUND_NS
            )
            for nic, clock in zip(fleet.nic_ids, sim.clocks, strict=True)
        }
        self._routes = RouteTable()
        self._flows = FlowTable(self._routes, self._members.__contains__)
        self._health = ShardHealth(shard, source="bench")
        self._health.evidence.clock_models = self._lines
        self._source = Source("bench", WINDOW_NS, SILENCE_NS)
        self._queueing = SourceQueueing("bench", slot_ns_of(max(rate.values())) // SUB_SLOTS)
        self._queues = ShardQueues(shard, lambda link: int(rate.get(link, 0)))
        hosts = fleet.shape.hosts
        self._contention = ContentionDetector(
            shard,
            self._flows.of(shard),
            self._members.__contains__,
            lambda: hosts,
            lambda link: int(rate.get(link, 0)),
        )
        self._offset = 0
        self._is_scheduled = False
        self._takers: dict[Topic[Any], Callable[[SimMessage], None]] = {
            INVENTORY: self._take_nic,
            PATHS: self._take_paths,
            PROBES: self._take_probes,
            LINKS: self._take_links,
            FLOWS: self._take_flows,
            FLOW_ROUTES: self._take_routes,
            DECISIONS: lambda out: self.network.take_decision(out.record()),
            COLLECTIVES: self._take_collectives,
        }
        self.busy_s = 0.0
        """Processor time of the diagnosis."""

    def advance(self, seconds: float) -> Iterator[tuple[int, Diagnosis]]:
        """Let simulated time pass; yield each evaluation with the time of its publication."""
        for _ in range(round(seconds * 1e9 / TICK_NS)):
            for out in self.sim.tick():
                self._offset += 1
                self._takers[out.topic](out)
            self._schedule()
            now_ns = self.sim.now_ns
            if self.sim.ticks % MAP_TICKS == 0:
                self._infer(now_ns)
            if self._health.due_ns <= now_ns:
                self._take_health(self._health.evaluate(now_ns))
            if self.sim.ticks % EVALUATE_TICKS == 0:
                began = time.process_time()
                found = self._evaluate(now_ns)
                self.busy_s += time.process_time() - began
                if found is not None:
                    yield now_ns + INPUT_DELAY_NS + HOP_NS, found

    def _evaluate(self, now_ns: int) -> Diagnosis | None:
        self.job.forget(now_ns)
        self.network.forget(now_ns)
        end_ns = self.job.newest_ns
        if end_ns is None:
            return None
        end_ns = min(end_ns, now_ns)
        return evaluate(self.job, self.network, end_ns - DIAGNOSIS_INTERVAL_NS, end_ns)

    # --- messages ---

    def _take_nic(self, out: SimMessage) -> None:
        self.network.take_nic(cast(Nic, out.record()))

    def _take_collectives(self, out: SimMessage) -> None:
        if out.key == self.job.job:
            self.job.take(cast(CollectiveBatch, out.record()), out.at_ns + HOP_NS)

    def _take_paths(self, out: SimMessage) -> None:
        self._routes.take(out.key.encode(), out.value(), None, out.at_ns)
        self.network.take_paths(cast(PathMaps, out.record()))

    def _take_routes(self, out: SimMessage) -> None:
        if not out.gone:
            self.network.take_routes(cast(FlowRoutes, out.record()))

    def _take_flows(self, out: SimMessage) -> None:
        self._flows.take(out.key.encode(), out.value(), None, out.at_ns + HOP_NS)
        self.network.take_flows(cast(FlowReports, out.record()))

    def _take_links(self, out: SimMessage) -> None:
        now_ns = out.at_ns // MS * MS + HOP_NS
        event = cast(LinkEvent, out.record())
        self._take_health(self._health.ingest(event, now_ns, self._routes, self._offset))

    def _take_health(self, found: Iterable[tuple[str, LinkHealth | None]]) -> None:
        for _, record in found:
            if record is not None:
                self.network.take_health(record)

    def _take_probes(self, out: SimMessage) -> None:
        messages = [Message(out.at_ns, PROBES.name, 0, self._offset, out.key, out.value())]
        batches, _ = decode_messages(messages)
        self._queueing.add_messages(messages, batches, self._lines)
        for window in self._source.add_messages(messages, batches):
            self._take_window(window)

    def _take_window(self, window: ClosedWindow) -> None:
        self._queueing.learn(fit_window(window).fits)
        for nic, found in sorted(window.nics.items()):
            bodies = path_delays(
                found.samples,
                self._members[nic],
                window.cut.window,
                WINDOW_NS,
                self._lines,
                ClockSync.SYNCED,
                0,
            )
            for body in bodies:
                record = codec.decode(codec.header(DELAYS.record) + body, DELAYS.record)
                self.network.take_delays(cast(PathDelays, record))

    def _schedule(self) -> None:
        """Plan the probes as the pipeline does, once their paths are traced."""
        if self._is_scheduled or not len(self._routes):
            return
        self._is_scheduled = True
        plans = plan_shard(dict.fromkeys(sorted(self._members), self.sim.probes.pace), self._routes)
        for record in records_of(plans, self.sim.settings.shard, self._lines, self.sim.now_ns).values():
            self.sim.probes.follow_schedule(record)

    def _infer(self, now_ns: int) -> None:
        """Infer queues and contention from the probes so far."""
        flows = self._contention.flows
        if self.sim.ticks % FLOWS_TICKS == 0:
            flows.advance(now_ns)
            self._queues.set_flow_rates(flows.rates_bps())
        for queueing in self._queueing.take(self._members):
            self._queues.take(queueing, self._routes)
        while self._queues.ready():
            for record in self._queues.solve(now_ns):
                self.network.take_queues(record)
                flows.advance(now_ns - FLOW_LAG_NS)
                for made in self._contention.ingest(record, ContentionRules()):
                    self.network.take_contention(made)
