"""The simulated fleet as one object: the messages that all of its agents would publish, in order of time.

It knows no Kafka. The same settings, faults and actuator calls give the same messages, byte for byte.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from native.sim.fluid import Fluid
from producers.settings import flush_ms_of
from producers.sim.announcements import nic_announcements
from producers.sim.collectives import SimCollectives
from producers.sim.fault_grammar import FaultSpec
from producers.sim.fault_injection import FaultInjector, SimFault
from producers.sim.faults import link_states
from producers.sim.flow_reporting import SimFlowReporter
from producers.sim.flow_routes import SimFlowRoutes
from producers.sim.jobs import JobState, SimJobs
from producers.sim.messages import SimMessage
from producers.sim.probes import SimProbes
from producers.sim.settings import SimSettings
from producers.sim.setup import draw_clocks, fleet_of
from producers.sim.topology import Fleet
from producers.sim.truth import TruthRecorder
from producers.sim.workload import SimFlow, SimFlowTable
from schemas.records import (
    EvidenceKind,
    LinkEvent,
    TrueContention,
    TrueJob,
)
from schemas.topics import COLLECTIVES, FLOW_ROUTES, FLOWS, INVENTORY, LINKS, PATHS, PROBES, TRUTH, R, Topic

TICK_NS: Final = 10_000_000
"""Interval at which messages are collected. Times within it are exact to the kernel's step."""
EPOCH_NS: Final = 1_800_000_000_000_000_000
EVERYTHING: Final = (INVENTORY, PATHS, PROBES, LINKS, FLOWS, FLOW_ROUTES, TRUTH, COLLECTIVES)

_SECOND_NS: Final = 1_000_000_000
_FOLLOW_TICKS: Final = 25
_ROUTES_TICKS: Final = 5
_ROUTES_AT_ONCE: Final = 20
"""Maximum number of pairs whose routes are published every `_ROUTES_TICKS` ticks. Flows are followed every
`_FOLLOW_TICKS` ticks. Pairs that are traced together share the cost."""
_NO_MORE_FIELDS: Final = b"\0\0\0"
"""Two empty Avro arrays and a null, for the last fields of `LinkEvent`, which the kernel omits."""
_PROBE_KIND: Final = list(EvidenceKind).index(EvidenceKind.PROBE)

Float64s = NDArray[np.float64]


class Simulation:
    """A fleet of `settings.nics` NICs that starts at `start_ns`. Only messages of `topics` are made."""

    def __init__(
        self,
        settings: SimSettings,
        *,
        start_ns: int = EPOCH_NS,
        topics: Collection[Topic] = EVERYTHING,
        fleet: Fleet | None = None,
        traces_per_tick: int | None = None,
        route_pairs_at_once: int = _ROUTES_AT_ONCE,
    ) -> None:
        self.settings = s = settings
        self.fleet = fleet or fleet_of(s)
        self.start_ns = start_ns
        self.topic_names = {topic.name for topic in topics}
        self._rng = np.random.Generator(np.random.SFC64([s.seed, 4]))
        f, n = self.fleet, self.fleet.nics
        step_ns = s.step_ns
        self.step_ns = step_ns
        self.kernel = Fluid(
            rate_bps=f.rate_bps,
            delay_ns=f.delay_ns,
            buffer_bytes=f.buffer_bytes,
            kind=f.kind,
            nics=n,
            start_ns=start_ns,
            step_ns=step_ns,
            packet_bytes=s.packet_bytes,
            probe_bytes=s.probe_bytes,
            lossless=s.lossless,
            rate_pps=s.rate_pps,
            spacing_ns=s.spacing_ns,
            timeout_ns=s.timeout_ms * 1e6,
            noise_ns=s.stamp_noise_ns,
            quantum_ns=s.stamp_step_ns,
            seed=s.seed,
            flowlet_ns=1e3 * s.flowlet_us,
        )
        self.runs = self._rng.integers(1, 2**62, n).tolist()
        self.clocks = draw_clocks(s, n, start_ns)
        """Parameters of each NIC's clock, as for `ClockSettings` and `TestClock`."""
        for nic, name in enumerate(f.nic_ids):
            self.kernel.set_nic_name(nic, name)
            self.kernel.set_clock(nic, **self.clocks[nic])
        boots = [f"{a:08x}{b:08x}" for a, b in self._rng.integers(0, 2**32, (f.shape.hosts, 2)).tolist()]
        self.boots = dict(zip(f.node_ids, boots, strict=False))
        """Boot id of each host. Hosts are the first nodes."""
        self.book = SimFlowTable(f, self.kernel, boots, step_ns, flowlets=s.flowlet_us > 0)
        self._route_pairs_at_once = route_pairs_at_once
        self._flow_routes = SimFlowRoutes(f, s.shard, s.candidate_ports, s.route_pairs)
        self._flow_news: dict[str, SimFlow] | None = None
        self.states = link_states(f, [])
        self.probes = SimProbes(self, traces_per_tick)
        self._batches, self._events = [0] * n, [0] * n
        self.ticks = 0
        self.pace = 1.0
        """Simulated seconds per second of real time, for announcements; the service sets it."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._queued = 0
        self._now_out: list[SimMessage] = []
        self.changed_flows: dict[int, dict[str, SimFlow]] = defaultdict(dict)
        self.truth = TruthRecorder(self, TICK_NS)
        self._flow_reporter = SimFlowReporter(self, TICK_NS)
        self._injector = FaultInjector(self)
        self._iterations: list[TrueJob] = []
        self.jobs = SimJobs(self, self._rng)
        self._collectives = SimCollectives(self, TICK_NS)
        self._open_background(np.repeat(np.arange(n), s.flows_per_nic) if s.load else np.empty(0, np.int64))
        for line in s.faults:
            self.fault(line)

    # --- time ---

    @property
    def now_ns(self) -> int:
        """Fabric time before which no further message will be made, ns since the Unix epoch."""
        return self.start_ns + self.ticks * TICK_NS

    def advance(self, seconds: float) -> Iterator[SimMessage]:
        """Yield the messages of the next `seconds`, in order of time within each tick of 10 ms.

        `FabricTruth` is published at whole seconds since the start, losses at once.
        """
        for _ in range(max(1, round(seconds * 1e9 / TICK_NS))):
            yield from self.tick()

    def tick(self) -> list[SimMessage]:
        """Return the messages of the next 10 ms, in order of time."""
        begin, until = self.ticks * TICK_NS, (self.ticks + 1) * TICK_NS
        if self.ticks == 0:
            self._all_flows_changed()
        self._announce()
        self.probes.publish_traces()
        while self._queue and self._queue[0][0] < until:
            at, _, act = heapq.heappop(self._queue)
            self.kernel.advance(max(begin, math.floor(at / self.step_ns) * self.step_ns))
            act()
        self.kernel.advance(until)
        self.ticks += 1
        self._evidence()
        self._iterations += self.jobs.collect()
        self._flush()
        self.truth.watch_queues()
        self._flow_reporter.publish()
        self._collectives.publish()
        self._publish_routes()
        if until % _SECOND_NS == 0:
            self.truth.publish(self._take_iterations())
        messages, self._now_out = self._now_out, []
        messages.sort(key=lambda out: out.at_ns)
        return messages

    def at(self, after_s: float, act: Callable[[], None]) -> None:
        """Call `act` after `after_s` seconds of simulated time, at the boundary of a simulation step."""
        self.schedule_ns(self.kernel.now_ns + after_s * 1e9, act)

    def schedule_ns(self, at_ns: float, act: Callable[[], None]) -> None:
        """Call `act` when the kernel's clock reaches `at_ns`."""
        self._queued += 1
        heapq.heappush(self._queue, (at_ns, self._queued, act))

    def system_ns(self) -> int:
        """Return the fabric time of the kernel's present step, ns since the Unix epoch."""
        return self.start_ns + round(self.kernel.now_ns)

    def publish(
        self, topic: Topic[R], key: str, at_ns: int, record: R | None = None, body: bytes | None = None
    ) -> None:
        """Queue a message with a record or an encoded body, if its topic is selected."""
        if topic.name in self.topic_names:
            self._now_out.append(SimMessage(topic, key, at_ns, record, body))

    # --- NICs, paths, probes ---

    def retrace(self) -> None:
        """Trace probes and flows again. Their changed routes are published from the next tick on."""
        self.probes.retrace()
        self._flow_routes.retrace()

    def _announce(self) -> None:
        every = max(1, round(self.settings.announce_s * 1e9 / TICK_NS))
        if self.ticks % every == 0 and INVENTORY.name in self.topic_names:
            for record in nic_announcements(self):
                self.publish(INVENTORY, record["nic"], record["announced_ns"], record)

    def announce_pace(self) -> None:
        """Publish one NIC's announcement with the next tick: readers take the pace from the newest one."""
        if INVENTORY.name in self.topic_names:
            for record in itertools.islice(nic_announcements(self), 1):
                self.publish(INVENTORY, record["nic"], record["announced_ns"], record)

    def _flush(self) -> None:
        """Publish the probe batches that are due: one of each NIC per `flush_ms`, spread over the ticks."""
        every = flush_ms_of(self.settings.flush_ms, self.fleet.nics) * 1_000_000 // TICK_NS
        if PROBES.name not in self.topic_names:
            every = 100  # empties the kernel's buffers
        at_ns, names = self.system_ns(), self.fleet.nic_ids
        for nic in range((self.ticks - 1) % every, self.fleet.nics, every):
            if self.states.dead.get(nic):
                continue
            body, _ = self.kernel.flush(nic, self.runs[nic], self._batches[nic])
            self._batches[nic] += 1
            self.publish(PROBES, names[nic], at_ns, None, body)

    def _evidence(self) -> None:
        for _, at, _, body in self.kernel.evidence(self.settings.shard, self.runs, self._events, _PROBE_KIND):
            self.publish(LINKS, self.settings.shard, self.start_ns + round(at), None, body + _NO_MORE_FIELDS)

    def publish_carrier(self, nic: int, carrier: bool) -> None:
        """Publish that a NIC's port gained or lost its carrier."""
        now_ns = self.system_ns()
        event: LinkEvent = {
            "nic": self.fleet.nic_ids[nic],
            "shard": self.settings.shard,
            "run": self.runs[nic],
            "event": self._events[nic],
            "kind": EvidenceKind.CARRIER,
            "clock_ns": self.kernel.clock_ns(nic, self.kernel.now_ns),
            "system_ns": now_ns,
            "interval_ns": 0,
            "trouble": [],
            "late_ns": 0,
            "paths": [],
            "carrier": carrier,
            "speed_bps": None,
            "counters": [],
            "verbs": None,
            "hosts": [],
            "sizes": [],
            "port_enabled": None,
        }
        self.publish(LINKS, self.settings.shard, now_ns, event)
        self._events[nic] += 1

    # --- flows and jobs ---

    def _port(self) -> int:
        return int(self._rng.integers(49_152, 65_536))

    def _open_background(self, sources: NDArray[Any]) -> None:
        """Open a background flow from each of these NICs, and schedule its end."""
        s, n = self.settings, self.fleet.nics
        for source in sources.tolist():
            destination = (source + int(self._rng.integers(1, n))) % n
            demand_bps = s.load * s.rate_bps / s.flows_per_nic
            flow = self.book.open(
                source, destination, self._port(), demand_bps=demand_bps, living=self.living()
            )
            self.note_flow(flow)
            self.at(float(self._rng.exponential(s.flow_s)), partial(self._replace, flow))

    def _replace(self, flow: SimFlow) -> None:
        self.book.close(flow)
        self.note_flow(flow)
        self._open_background(np.array([flow.source]))

    def living(self) -> NDArray[np.bool_] | None:
        """Return [L]: True for links with a carrier. None if all links have one."""
        return None if self.states.carrier.all() else self.states.carrier

    def flow_news(self) -> list[SimFlow]:
        """Return the flows that opened, ended or moved since the last call; the first call returns none."""
        news, self._flow_news = self._flow_news or {}, {}
        return list(news.values())

    def flow_of(self, host: str, key: str) -> SimFlow:
        """Return a host's open flow by `key`, the part of its id after host and boot. Raises ValueError."""
        return self._flow(f"{host}/{self.boots.get(host, '')}/{key}")

    def note_flow(self, flow: SimFlow) -> None:
        """Record that a flow opened, ended or moved."""
        if self._flow_news is not None:
            self._flow_news[flow.flow_id] = flow
        self.changed_flows[int(self.fleet.nic_host[flow.source])][flow.flow_id] = flow

    def _all_flows_changed(self) -> None:
        for flow in self.book.flows.values():
            self.note_flow(flow)

    def flows(self) -> list[SimFlow]:
        """Return all open flows."""
        return list(self.book.flows.values())

    def set_flow_path(self, flow_id: str, port: int) -> None:
        """Move a flow to another source port, as REROUTE does. Raises ValueError."""
        flow = self._flow(flow_id)
        if not 0 < port < 65_536:
            raise ValueError(f"flow {flow_id}: port {port}, expected 1 to 65535")
        flow.port = port
        self.book.lead(flow, self.living())
        self.note_flow(flow)

    def set_flow_rate(self, flow_id: str, rate_bps: float | None) -> None:
        """Limit a flow's rate, or remove the limit, as PACE and UNPACE do. Raises ValueError."""
        flow = self._flow(flow_id)
        if rate_bps is not None and not 0 < rate_bps < math.inf:
            raise ValueError(f"flow {flow_id}: {rate_bps} bit/s, expected above 0")
        flow.limit_bps = rate_bps
        self.kernel.set_flow_limits(flow.number, flow.demand_bps, rate_bps)
        self.note_flow(flow)

    def _flow(self, flow_id: str) -> SimFlow:
        if flow_id not in self.book.flows:
            raise ValueError(f"flow {flow_id!r}: no such open flow")
        return self.book.flows[flow_id]

    def _publish_routes(self) -> None:
        """Publish the routes that flows could take, some pairs at a time."""
        if FLOW_ROUTES.name not in self.topic_names:
            return
        if self.ticks % _FOLLOW_TICKS == 1:
            self._flow_routes.follow(self.book.flows.values())
        if self.ticks % _ROUTES_TICKS != 1:
            return
        system_ns = self.system_ns()
        for key, record in self._flow_routes.take(
            self._route_pairs_at_once, self.living(), system_ns, self.states.dead
        ):
            self._now_out.append(SimMessage(FLOW_ROUTES, key, system_ns, record, is_tombstone=record is None))

    # --- faults and truth ---

    @property
    def faults(self) -> list[SimFault]:
        """All faults that were injected, including cleared ones."""
        return self._injector.faults

    def fault(self, line: str | FaultSpec) -> SimFault:
        """Inject a fault now, or after the delay in its line; return it. Raises ValueError for a bad line."""
        return self._injector.fault(line)

    def clear(self, which: int | str | None = None) -> list[SimFault]:
        """Clear the faults with a number or line, or all if None; return them. Raises ValueError if none."""
        return self._injector.clear(which)

    def contention(self) -> list[TrueContention]:
        """Return the links with contention now, as `TrueContention` rows."""
        return self.truth.contention()

    def _take_iterations(self) -> list[TrueJob]:
        iterations, self._iterations = self._iterations, []
        return iterations

    def job_state(self) -> list[JobState]:
        """Return the completed iterations and last duration of each job."""
        return self.jobs.state()
