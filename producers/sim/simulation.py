"""The simulated fleet as one object: the messages that all of its agents would publish, in order of time.

It knows no Kafka. The same settings, faults and actuator calls give the same messages, byte for byte.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from native.core import ProbeColumns, decode_probe_batch
from native.sim.fluid import Fluid
from producers.probe.peers import choose_peers, hashes_of
from producers.probe.schedule import fabric_time_ns, schedule_error, schedule_paths
from producers.settings import flush_ms_of
from producers.sim.fault_grammar import FaultSpec, parse_fault
from producers.sim.faults import Target, link_states, resolve
from producers.sim.flow_routes import SimFlowRoutes
from producers.sim.settings import JobSettings, SimSettings
from producers.sim.topology import PROBE_PORT, Fleet, LinkKind, Paths
from producers.sim.workload import SimFlow, SimFlowTable, address_of, job_members, job_phases
from schemas import codec
from schemas.ids import clock_id, nic_parts
from schemas.topics import FLOW_ROUTES, FLOWS, INVENTORY, LINKS, MAX_ELEMENTS, PATHS, PROBES, TRUTH, Topic
from schemas.topology import CableEntry, NodeEntry, TopologyFile

__all__ = [
    "EVERYTHING",
    "TICK_NS",
    "SimFault",
    "SimMessage",
    "Simulation",
    "draw_clocks",
    "fleet_of",
    "topology_file",
]

TICK_NS: Final = 10_000_000
"""Messages are collected at this interval; times within it are exact to the kernel's step."""
EPOCH_NS: Final = 1_800_000_000_000_000_000
EVERYTHING: Final = (INVENTORY, PATHS, PROBES, LINKS, FLOWS, FLOW_ROUTES, TRUTH)

_SECOND_NS: Final = 1_000_000_000
_FLOW_TICKS: Final = 10
"""Ticks between two readings of a host's flows: 100 ms."""
_ROUTES_TICKS: Final = 25
_ROUTES_PER_TICK: Final = 4
_OPEN_SHARE: Final = 0.5
_CLOSE_SHARE: Final = 0.125
_OPEN_TICKS: Final = 2
_CLOSE_TICKS: Final = 10
"""True contention: a fluid queue with a mean of at least half of Kmin in each of two ticks, until it has been
below an eighth of Kmin for ten."""
_PROBE_KIND: Final = [
    symbol
    for f in codec.raw_schema("LinkEvent")["fields"]
    if f["name"] == "kind"
    for symbol in f["type"]["symbols"]
].index("PROBE")

Record = dict[str, Any]
Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SimMessage:
    """One message. `at_ns` is fabric time, ns since the Unix epoch. It has a record or an Avro body; with
    `gone` it is a tombstone."""

    topic: Topic
    key: str
    at_ns: int
    made: Record | None = None
    body: bytes | None = None
    gone: bool = False

    def value(self, registry: codec.Registry | None = None) -> bytes | None:
        """Return the message's value on the wire; None for a tombstone."""
        if self.gone:
            return None
        if self.body is not None:
            return codec.header(self.topic.record, registry) + self.body
        return codec.encode(self.topic.record, self.made or {}, registry)

    def record(self) -> Record:
        """Return the record; a body is decoded and checked."""
        return self.made if self.made is not None else codec.decode(self.value() or b"", self.topic.record)

    def columns(self) -> ProbeColumns:
        """Return a `ProbeBatch` as columns. Raises ValueError for any other message."""
        if self.topic is not PROBES or self.body is None:
            raise ValueError(f"{self.topic.name}: expected a ProbeBatch")
        return decode_probe_batch(self.body)


@dataclass(slots=True)
class SimFault:
    """An injected fault. Times are fabric time, ns since the Unix epoch."""

    number: int
    spec: FaultSpec
    target: Target
    begin_ns: int
    end_ns: int | None = None
    """None: in force, or waiting for `begin_ns`."""
    on: bool = False
    """True while it is in force; a flap alternates."""
    flows: list[SimFlow] = field(default_factory=list)
    downs: list[tuple[int, int]] = field(default_factory=list)
    """Of a flap: (went down, came back)."""


class Simulation:
    """A fleet of `settings.nics` NICs from `start_ns` on. `topics` selects the messages that are made."""

    def __init__(
        self,
        settings: SimSettings,
        *,
        start_ns: int = EPOCH_NS,
        topics: Collection[Topic] = EVERYTHING,
        fleet: Fleet | None = None,
        traces_per_tick: int | None = None,
    ) -> None:
        self.settings = s = settings
        self.fleet = fleet or fleet_of(s)
        self.start_ns = start_ns
        self._topic_names = {topic.name for topic in topics}
        self._rng = np.random.Generator(np.random.SFC64([s.seed, 4]))
        f, n = self.fleet, self.fleet.nics
        step_ns = s.step_ns
        self._step_ns = step_ns
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
        self._boots = dict(zip(f.node_ids, boots, strict=False))
        """Boot ids of the hosts, which come first among the nodes."""
        self.book = SimFlowTable(f, self.kernel, boots, step_ns, flowlets=s.flowlet_us > 0)
        self._flow_routes = SimFlowRoutes(f, s.shard, s.candidate_ports, s.route_pairs)
        self._flow_news: dict[str, SimFlow] | None = None
        self._states = link_states(f, [])
        self._base_load = np.zeros(f.links)
        self._set_groups()
        self._batches, self._events = [0] * n, [0] * n
        self._tick = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._queued = 0
        self._now_out: list[SimMessage] = []
        self._changed: dict[int, dict[str, SimFlow]] = defaultdict(dict)
        self.faults: list[SimFault] = []
        self._traces_per_tick = traces_per_tick
        self._to_trace: dict[tuple[int, int], None] = dict.fromkeys(self._pairs)
        self._sums = self._second_sums = self.kernel.link_sums()
        self._second_step = 0
        self._wait_ns = np.zeros(f.links)
        self._hot, self._cool = np.zeros(f.links, np.int64), np.zeros(f.links, np.int64)
        self._contention: dict[int, Record] = {}
        self._contention_past: list[Record] = []
        self._flows_looked: tuple[NDArray[np.float64], float] = (np.zeros((0, 7)), 0.0)
        self._iterations: list[Record] = []
        self._job_done: list[tuple[int, int | None]] = [(0, None)] * len(s.jobs)
        self._taken: set[int] = set()
        """NICs used by jobs."""
        for job in s.jobs:
            self._add_job(job)
        self._background: list[SimFlow] = []
        self._open_background(np.repeat(np.arange(n), s.flows_per_nic) if s.load else np.empty(0, np.int64))
        for line in s.faults:
            self.fault(line)

    # --- time ---

    @property
    def now_ns(self) -> int:
        """Fabric time, ns since the Unix epoch, up to which messages are complete."""
        return self.start_ns + self._tick * TICK_NS

    def advance(self, seconds: float) -> Iterator[SimMessage]:
        """Yield the messages of the next `seconds`, in order of time within each tick of 10 ms.

        Truth is published at whole seconds since the start, losses at once.
        """
        for _ in range(max(1, round(seconds * 1e9 / TICK_NS))):
            yield from self.tick()

    def tick(self) -> list[SimMessage]:
        """Return the messages of the next 10 ms, in order of time."""
        begin, until = self._tick * TICK_NS, (self._tick + 1) * TICK_NS
        self._now_out = []
        if self._tick == 0:
            self._all_flows_changed()
        self._announce()
        self._trace()
        while self._queue and self._queue[0][0] < until:
            at, _, act = heapq.heappop(self._queue)
            self.kernel.advance(max(begin, math.floor(at / self._step_ns) * self._step_ns))
            act()
        self.kernel.advance(until)
        self._tick += 1
        self._evidence()
        for job, number, began, end in self.kernel.iterations():
            self._job_done[job] = (number + 1, round(end - began))
            self._iterations.append(
                {
                    "job": self.settings.jobs[job].name,
                    "iteration": number,
                    "end_ns": self.start_ns + round(end),
                    "time_ns": round(end - began),
                }
            )
        self._flush()
        self._watch_queues()
        self._report_flows()
        self._publish_routes()
        if until % _SECOND_NS == 0:
            self._truth()
        found, self._now_out = self._now_out, []
        found.sort(key=lambda out: out.at_ns)
        return found

    def at(self, after_s: float, act: Callable[[], None]) -> None:
        """Call `act` after this time, at a step's edge."""
        self._at_ns(self.kernel.now_ns + after_s * 1e9, act)

    def _at_ns(self, at_ns: float, act: Callable[[], None]) -> None:
        self._queued += 1
        heapq.heappush(self._queue, (at_ns, self._queued, act))

    def _system_ns(self) -> int:
        return self.start_ns + round(self.kernel.now_ns)

    def _put(
        self, topic: Topic, key: str, at_ns: int, record: Record | None = None, body: bytes | None = None
    ) -> None:
        if topic.name in self._topic_names:
            self._now_out.append(SimMessage(topic, key, at_ns, record, body))

    # --- NICs, paths, probes ---

    def _set_groups(self) -> None:
        """Choose every NIC's peers as its prober would, and compute the routes of all its probes."""
        s, f = self.settings, self.fleet
        names = f.nic_ids
        hashes = hashes_of(names, s.peers_seed)
        first = s.first_path_port or 9320
        self.path_ports = [first + k for k in range(s.paths)]
        chosen = [
            [f.nic_index[peer] for peer in choose_peers(name, names, s.peers, s.peers_seed, hashes)]
            for name in names
        ]
        nic = np.repeat(np.arange(f.nics), [len(peers) * s.paths for peers in chosen])
        peer = np.repeat(np.array([peer for peers in chosen for peer in peers]), s.paths)
        path = np.tile(self.path_ports, len(nic) // s.paths)
        self._group = (nic, peer, path)
        self.kernel.set_groups(nic, peer, path)
        self._pairs: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        """Directed pair to the groups of its requests and the groups of its answers."""
        for g, (a, b) in enumerate(zip(nic.tolist(), peer.tolist(), strict=True)):
            self._pairs.setdefault((a, b), ([], []))[0].append(g)
            self._pairs.setdefault((b, a), ([], []))[1].append(g)
        self._since_ns = np.full((2, len(nic)), self.start_ns, np.int64)
        self._moves = np.zeros((2, len(nic)), np.int64)
        self._legs: tuple[Paths, Paths] = self._find_legs()
        self._traced_legs = self._legs

    def _find_legs(self) -> tuple[Paths, Paths]:
        nic, peer, path = self._group
        living = None if self._states.carrier.all() else self._states.carrier
        there, back = self.fleet.round_trips(nic, peer, path, living)
        self.kernel.set_legs(there.start, there.link, there.reached, back.start, back.link, back.reached)
        return there, back

    def _announce(self) -> None:
        every = max(1, round(self.settings.announce_s * 1e9 / TICK_NS))
        if self._tick % every == 0 and INVENTORY.name in self._topic_names:
            for record in self.announcements():
                self._put(INVENTORY, record["nic"], record["announced_ns"], record)

    def announcements(self) -> Iterator[Record]:
        """Yield the `Nic` of every NIC with a living agent, as of now."""
        f, now_ns = self.fleet, self._system_ns()
        rails = f.shape.rails > 1
        for nic, name in enumerate(f.nic_ids):
            if self._states.dead.get(nic):
                continue
            host, device = nic_parts(name)
            yield {
                "nic": name,
                "host": host,
                "device": device,
                "shard": self.settings.shard,
                "rail": int(f.nic_rail[nic]) if rails else None,
                "rack": f"rack{int(f.nic_rack[nic]) + 1}",
                "addresses": [address_of(nic)],
                "probe_port": PROBE_PORT,
                "clock": clock_id(host, f"ptp{int(f.nic_device[nic])}"),
                "stamp": "HARDWARE",
                "speed_bps": int(f.rate_bps[2 * nic]),
                "mtu_bytes": 4200,
                "run": self.runs[nic],
                "since_ns": self.start_ns,
                "announced_ns": now_ns,
                "capabilities": ["probe.udp"],
                "path_ports": self.path_ports,
                "slot_ns": self.pace[0],
                "slot_probes": self.pace[1],
            }

    @property
    def pace(self) -> tuple[int, int]:
        """Return ns per probe slot and paths per slot, for which schedules are planned."""
        if not self.settings.rate_pps:
            return 0, 0
        probes = 2 if self.settings.spacing_ns else 1
        return round(1e9 * probes / self.settings.rate_pps), 1

    def follow_schedule(self, record: Record) -> None:
        """Have a NIC follow a `ProbeSchedule` on its own clock; other fleets' NICs are ignored.

        Raises ValueError with one line if no prober could follow it.
        """
        nic = self.fleet.nic_index.get(record["nic"])
        if nic is None:
            return
        why = schedule_error(record, self.pace)
        if why:
            raise ValueError(f"probe schedule of {record['nic']}: {why}")
        first, end = np.searchsorted(self._group[0], [nic, nic + 1]).tolist()
        groups = zip(self._group[1][first:end].tolist(), self._group[2][first:end].tolist(), strict=True)
        at = {(self.fleet.nic_ids[peer], port): number for number, (peer, port) in enumerate(groups)}
        now_ns = self.kernel.now_ns
        since_ns = fabric_time_ns(record, self.kernel.clock_ns(nic, now_ns)) - record["begin_ns"]
        paths = [at.get(path, -1) for path in schedule_paths(record)]
        self.kernel.set_schedule(nic, now_ns - since_ns, record["slot_ns"], paths)

    def _trace(self) -> None:
        """Publish the paths that are new or moved."""
        limit = self._traces_per_tick or len(self._to_trace)
        for pair in list(self._to_trace)[:limit]:
            del self._to_trace[pair]
            if PATHS.name in self._topic_names and not self._states.dead.get(pair[0]):
                key = ">".join(self.fleet.nic_ids[nic] for nic in pair)
                self._put(PATHS, key, self._system_ns(), self._path_maps(*pair))

    def _path_maps(self, nic: int, peer: int) -> Record:
        names = self.fleet.link_ids
        rows = []
        for leg, groups in enumerate(self._pairs[nic, peer]):
            paths = self._legs[leg]
            for g in groups:
                rows.append(
                    {
                        "path": int(self._group[2][g]),
                        "leg": ("REQUEST", "ANSWER")[leg],
                        "links": [names[link] for link in paths.of(g).tolist()],
                        "found": "TRACED",
                        "complete": bool(paths.reached[g]),
                        "since_ns": int(self._since_ns[leg, g]),
                        "changes": int(self._moves[leg, g]),
                        "contradiction": None,
                    }
                )
        return {
            "nic": self.fleet.nic_ids[nic],
            "peer": self.fleet.nic_ids[peer],
            "shard": self.settings.shard,
            "run": self.runs[nic],
            "traced_ns": self._system_ns(),
            "paths": rows,
        }

    def _retrace(self) -> None:
        """Note the paths that moved since their last trace; they are published from the next tick on."""
        now_ns = self._system_ns()
        for leg in (0, 1):
            moved = np.flatnonzero(_moved(self._traced_legs[leg], self._legs[leg]))
            self._since_ns[leg, moved] = now_ns
            self._moves[leg, moved] += 1
            nic, peer, _ = self._group
            for g in moved.tolist():
                pair = (int(nic[g]), int(peer[g]))
                self._to_trace[pair if leg == 0 else pair[::-1]] = None
        self._traced_legs = self._legs
        self._flow_routes.retrace()

    def _flush(self) -> None:
        """Publish a batch of each NIC once per `flush_ms`, spread over the ticks."""
        every = flush_ms_of(self.settings.flush_ms, self.fleet.nics) * 1_000_000 // TICK_NS
        if PROBES.name not in self._topic_names:
            every = 100  # empties the kernel's buffers
        at_ns, names = self._system_ns(), self.fleet.nic_ids
        for nic in range((self._tick - 1) % every, self.fleet.nics, every):
            if self._states.dead.get(nic):
                continue
            body, _ = self.kernel.flush(nic, self.runs[nic], self._batches[nic])
            self._batches[nic] += 1
            self._put(PROBES, names[nic], at_ns, None, body)

    def _evidence(self) -> None:
        for _, at, _, body in self.kernel.evidence(self.settings.shard, self.runs, self._events, _PROBE_KIND):
            self._put(LINKS, self.settings.shard, self.start_ns + round(at), None, body)

    def _carrier_event(self, nic: int, carrier: bool) -> None:
        now_ns = self._system_ns()
        self._put(
            LINKS,
            self.settings.shard,
            now_ns,
            {
                "nic": self.fleet.nic_ids[nic],
                "shard": self.settings.shard,
                "run": self.runs[nic],
                "event": self._events[nic],
                "kind": "CARRIER",
                "clock_ns": self.kernel.clock_ns(nic, self.kernel.now_ns),
                "system_ns": now_ns,
                "interval_ns": 0,
                "carrier": carrier,
            },
        )
        self._events[nic] += 1

    # --- flows and jobs ---

    def _add_job(self, job: JobSettings) -> None:
        members = job_members(job, self.fleet, self._rng, self._taken)
        self._taken.update(nic for group in members for nic in group)
        rate_bps = float(self.fleet.rate_bps[0])
        phases = job_phases(job, members, rate_bps, self._step_ns)
        flows: dict[tuple[int, int], list[int]] = {}
        for pair in dict.fromkeys(pair for pairs, _ in phases for pair in pairs):
            flows[pair] = [
                self.book.open(*pair, self._port(), job=job.name, tenant=job.tenant, endless=False).number
                for _ in range(job.connections)
            ]
        ends = None
        if job.kind == "rail-alltoall":
            rank = {nic: at for at, nic in enumerate(nic for group in members for nic in group)}
            ends = [
                [(rank[a], rank[b]) for a, b in pairs for _ in range(job.connections)] for pairs, _ in phases
            ]
        self.kernel.add_job(
            [([n for pair in pairs for n in flows[pair]], size / job.connections) for pairs, size in phases],
            job.compute_ms * 1e6,
            ends=ends,
        )

    def _port(self) -> int:
        return int(self._rng.integers(49_152, 65_536))

    def _open_background(self, sources: NDArray[Any]) -> None:
        """Open a background flow from each of these NICs, until its time is over."""
        s, n = self.settings, self.fleet.nics
        for source in sources.tolist():
            destination = (source + int(self._rng.integers(1, n))) % n
            demand_bps = s.load * s.rate_bps / s.flows_per_nic
            flow = self.book.open(
                source, destination, self._port(), demand_bps=demand_bps, living=self._living()
            )
            self._note(flow)
            self.at(float(self._rng.exponential(s.flow_s)), partial(self._replace, flow))

    def _replace(self, flow: SimFlow) -> None:
        self.book.close(flow)
        self._note(flow)
        self._open_background(np.array([flow.source]))

    def _living(self) -> NDArray[np.bool_] | None:
        return None if self._states.carrier.all() else self._states.carrier

    def flow_news(self) -> list[SimFlow]:
        """Return the flows that opened, ended or moved since the last call; the first call returns none."""
        news, self._flow_news = self._flow_news or {}, {}
        return list(news.values())

    def flow_of(self, host: str, key: str) -> SimFlow:
        """Return a host's open flow by its id without host and boot. Raises ValueError."""
        return self._flow(f"{host}/{self._boots.get(host, '')}/{key}")

    def _note(self, flow: SimFlow) -> None:
        if self._flow_news is not None:
            self._flow_news[flow.flow_id] = flow
        self._changed[int(self.fleet.nic_host[flow.source])][flow.flow_id] = flow

    def _all_flows_changed(self) -> None:
        for flow in self.book.flows.values():
            self._note(flow)

    def flows(self) -> list[SimFlow]:
        """Return the open flows."""
        return list(self.book.flows.values())

    def set_flow_path(self, flow_id: str, port: int) -> None:
        """Move a flow to another source port, as REROUTE does. Raises ValueError."""
        flow = self._flow(flow_id)
        if not 0 < port < 65_536:
            raise ValueError(f"flow {flow_id}: port {port}, expected 1 to 65535")
        flow.port = port
        self.book.lead(flow, self._living())
        self._note(flow)

    def set_flow_rate(self, flow_id: str, rate_bps: float | None) -> None:
        """Limit a flow's rate, or remove the limit, as PACE and UNPACE do. Raises ValueError."""
        flow = self._flow(flow_id)
        if rate_bps is not None and not 0 < rate_bps < math.inf:
            raise ValueError(f"flow {flow_id}: {rate_bps} bit/s, expected above 0")
        flow.limit_bps = rate_bps
        self.kernel.set_flow_limits(flow.number, flow.demand_bps, rate_bps)
        self._note(flow)

    def _flow(self, flow_id: str) -> SimFlow:
        if flow_id not in self.book.flows:
            raise ValueError(f"flow {flow_id!r}: no such open flow")
        return self.book.flows[flow_id]

    def _report_flows(self) -> None:
        """Publish changes at once, and all flows of each host once a second, with hosts spread over the
        ticks."""
        changed, self._changed = self._changed, defaultdict(dict)
        if FLOWS.name not in self._topic_names:
            return
        hosts, per_second = self.fleet.shape.hosts, _SECOND_NS // TICK_NS
        due = range((self._tick - 1) % per_second, hosts, per_second) if self._tick > 1 else range(0)
        is_reading = self._tick % _FLOW_TICKS == 0
        if not changed and not due and not is_reading:
            return
        sums, _ = self.kernel.flow_sums()
        now_ns, system_ns = self.kernel.now_ns, self._system_ns()
        if is_reading:
            self._find_changed_flows(sums, now_ns, system_ns, changed)

        def report(host: int, flows: Sequence[SimFlow], whole: bool) -> None:
            if self._states.dead.get(host * self.fleet.shape.nics_per_host):
                return
            for begin in range(0, max(1, len(flows)), MAX_ELEMENTS):
                self._put(
                    FLOWS,
                    self.fleet.node_ids[host],
                    system_ns,
                    self.book.report(
                        host,
                        flows[begin : begin + MAX_ELEMENTS],
                        whole=whole and len(flows) <= MAX_ELEMENTS,
                        now_ns=now_ns,
                        system_ns=system_ns,
                        shard=self.settings.shard,
                        wait_ns=self._wait_ns,
                        sums=sums,
                    ),
                )

        for host, flows in changed.items():
            report(host, list(flows.values()), False)
        for host in due:
            report(host, list(self.book.of_host[host].values()), True)

    def _publish_routes(self) -> None:
        """Publish, a few at a time, the routes that flows could take."""
        if FLOW_ROUTES.name not in self._topic_names:
            return
        if self._tick % _ROUTES_TICKS == 1:
            self._flow_routes.follow(self.book.flows.values())
        system_ns = self._system_ns()
        for key, record in self._flow_routes.take(
            _ROUTES_PER_TICK, self._living(), system_ns, self._states.dead
        ):
            self._now_out.append(SimMessage(FLOW_ROUTES, key, system_ns, record, gone=record is None))

    def _find_changed_flows(
        self,
        sums: NDArray[np.float64],
        now_ns: float,
        system_ns: int,
        changed: dict[int, dict[str, SimFlow]],
    ) -> None:
        """Find the flows that changed since their last report, as a host's reporter does ten times a second.

        The time before the change goes into reports of its own, so that the change stands alone.
        """
        before, then_ns = self._flows_looked
        self._flows_looked = (sums.copy(), now_ns)
        earlier: dict[int, list[SimFlow]] = defaultdict(list)
        for flow in self.book.moved(before, sums, max(now_ns - then_ns, 1.0)):
            host = int(self.fleet.nic_host[flow.source])
            changed[host][flow.flow_id] = flow
            if flow.reported_ns < then_ns:
                earlier[host].append(flow)
        for host, flows in earlier.items():
            if not self._states.dead.get(host * self.fleet.shape.nics_per_host):
                for begin in range(0, len(flows), MAX_ELEMENTS):
                    self._put(
                        FLOWS,
                        self.fleet.node_ids[host],
                        system_ns,
                        self.book.report(
                            host,
                            flows[begin : begin + MAX_ELEMENTS],
                            whole=False,
                            now_ns=then_ns,
                            system_ns=system_ns,
                            shard=self.settings.shard,
                            wait_ns=self._wait_ns,
                            sums=before,
                        ),
                    )

    # --- faults ---

    def fault(self, line: str | FaultSpec) -> SimFault:
        """Inject a fault now, or after the time in its line. Raises ValueError."""
        spec = parse_fault(line) if isinstance(line, str) else line
        target = resolve(spec, self.fleet)
        begin = self.kernel.now_ns + spec.after_s * 1e9
        fault = SimFault(len(self.faults) + 1, spec, target, self.start_ns + round(begin))
        self.faults.append(fault)
        if spec.after_s:
            self._at_ns(begin, lambda: self._begin(fault))
        else:
            self._begin(fault)
        return fault

    def clear(self, which: int | str | None = None) -> list[SimFault]:
        """Clear one fault by number or line, or all. Raises ValueError if there is no such fault."""
        standing = [fault for fault in self.faults if fault.end_ns is None]
        text = None if which is None else str(which)
        found = [
            fault
            for fault in standing
            if text is None
            or text == str(fault.number)
            or (not text.isdecimal() and str(fault.spec) == str(parse_fault(text)))
        ]
        if not found and which is not None:
            here = ", ".join(str(fault.number) for fault in standing) or "none is"
            raise ValueError(f"fault {which!r}: expected one in force ({here})")
        for fault in found:
            self._end(fault)
        return found

    def _begin(self, fault: SimFault) -> None:
        if fault.end_ns is not None:
            return
        spec = fault.spec
        fault.begin_ns = self._system_ns()
        if spec.kind == "incast":
            self._incast(fault)
        else:
            fault.on = True
            if spec.kind == "flap":
                fault.downs.append((self._system_ns(), 0))
                self.at(spec.every_s / 2, lambda: self._flap_up(fault))
            self._apply()
        if spec.for_s is not None:
            self.at(spec.for_s, lambda: self._end(fault))

    def _end(self, fault: SimFault) -> None:
        if fault.end_ns is not None:
            return
        fault.end_ns = self._system_ns()
        for flow in fault.flows:
            if flow.opened:
                self.book.close(flow)
                self._note(flow)
        if fault.on:
            fault.on = False
            if fault.downs and fault.downs[-1][1] == 0:
                fault.downs[-1] = (fault.downs[-1][0], self._system_ns())
            self._apply()

    def _flap_up(self, fault: SimFault) -> None:
        if fault.end_ns is not None or not fault.on:
            return
        fault.on = False
        fault.downs[-1] = (fault.downs[-1][0], self._system_ns())
        if len(fault.downs) >= fault.spec.times:
            fault.end_ns = self._system_ns()
        else:
            self.at(fault.spec.every_s / 2, lambda: self._flap_down(fault))
        self._apply()

    def _flap_down(self, fault: SimFault) -> None:
        if fault.end_ns is not None:
            return
        fault.on = True
        fault.downs.append((self._system_ns(), 0))
        self.at(fault.spec.every_s / 2, lambda: self._flap_up(fault))
        self._apply()

    def _incast(self, fault: SimFault) -> None:
        receiver = fault.target.nics[0]
        own = self.fleet.nic_host == self.fleet.nic_host[receiver]
        others = np.flatnonzero(
            ~own if (~own).sum() >= fault.spec.times else np.arange(self.fleet.nics) != receiver
        )
        rng = np.random.Generator(np.random.SFC64([self.settings.seed, fault.number, fault.spec.seed]))
        for source in rng.choice(others, fault.spec.times, replace=False).tolist():
            flow = self.book.open(source, receiver, int(rng.integers(49_152, 65_536)), living=self._living())
            fault.flows.append(flow)
            self._note(flow)

    def set_base_load(self, load: ArrayLike) -> None:
        """Add traffic without flow reports: its share of each link's rate ([L], or one value for all)."""
        self._base_load = np.broadcast_to(np.asarray(load, np.float64), (self.fleet.links,)).copy()
        for link in range(self.fleet.links):
            self._set_link(link)

    def _set_link(self, link: int) -> None:
        s = self._states
        self.kernel.set_link(
            link,
            up=bool(s.up[link]),
            loss=float(s.loss[link]),
            share=float(s.share[link]),
            base_load=float(self._base_load[link]),
        )

    def _apply(self) -> None:
        """Apply the faults in force to links and NICs; packets avoid links that their switches see down."""
        before = self._states
        now = self._states = link_states(
            self.fleet, [(fault.spec, fault.target) for fault in self.faults if fault.on]
        )
        differs = (before.up != now.up) | (before.loss != now.loss) | (before.share != now.share)
        for link in np.flatnonzero(differs).tolist():
            self._set_link(link)
        for nic in before.dead.keys() | now.dead.keys():
            if before.dead.get(nic) != now.dead.get(nic):
                self.kernel.set_nic(nic, dead=nic in now.dead, silent=now.dead.get(nic, False))
        moved = np.flatnonzero(before.carrier != now.carrier)
        if not len(moved):
            return
        for nic in (moved[(moved < 2 * self.fleet.nics) & (moved % 2 == 0)] // 2).tolist():
            self._carrier_event(nic, bool(now.carrier[2 * nic]))
        self._legs = self._find_legs()
        self.at(self.settings.retrace_s, self._retrace)
        for flow in self.book.lead_all(self.flows(), self._living()):
            self._note(flow)

    # --- truth ---

    def _watch_queues(self) -> None:
        """Follow the mean depth of every fluid queue per tick; a persistent queue is contention."""
        sums = self.kernel.link_sums()
        steps = TICK_NS / self._step_ns
        depth = (sums[0] - self._sums[0]) / steps
        self._sums = sums
        begin_mark = 0.1 * self.fleet.shape.buffer_bytes
        self._hot = np.where(depth >= _OPEN_SHARE * begin_mark, self._hot + 1, 0)
        self._cool = np.where(depth < _CLOSE_SHARE * begin_mark, self._cool + 1, 0)
        now_ns = self.now_ns
        for link in np.flatnonzero(self._hot == _OPEN_TICKS).tolist():
            if link not in self._contention:
                self._contention[link] = {
                    "link": self.fleet.link_ids[link],
                    "kind": self._kind_of(link),
                    "begin_ns": now_ns - _OPEN_TICKS * TICK_NS,
                    "end_ns": None,
                }
        for link in [link for link in self._contention if self._cool[link] >= _CLOSE_TICKS]:
            ended = self._contention.pop(link)
            self._contention_past.append({**ended, "end_ns": now_ns - _CLOSE_TICKS * TICK_NS})

    def _kind_of(self, link: int) -> str:
        """Return the kind of contention at a link: by its fault, otherwise by the link's place."""
        kinds = {f.spec.kind for f in self.faults if f.on and link in f.target.links}
        for kind in ("pause-storm", "slow-receiver", "slow-sender"):
            if kind in kinds:
                return kind.replace("-", "_").upper()
        if self.fleet.kind[link] == LinkKind.LEAF_DOWN:
            return "INCAST"
        return "SLOW_SENDER" if self.fleet.kind[link] == LinkKind.HOST_UP else "COLLISION"

    def _truth(self) -> None:
        sums, limit = self.kernel.link_sums(), self.kernel.link_max()
        steps = self.kernel.steps - self._second_step
        each = (sums - self._second_sums) / max(1, steps)
        self._second_sums, self._second_step = sums, self.kernel.steps
        depth, packet, busy = each[0], each[1], each[2]
        self._wait_ns = (depth + packet) * 8e9 / self.fleet.rate_bps
        begin_ns, end_ns = self.now_ns - _SECOND_NS, self.now_ns
        past, self._contention_past = self._contention_past, []
        jobs, self._iterations = self._iterations, []
        if TRUTH.name not in self._topic_names:
            return
        s, names = self._states, self.fleet.link_ids
        wanted = np.flatnonzero((busy > 0) | (depth > 0) | ~s.up | (s.loss > 0) | (s.share < 1))
        rows = [
            {
                "link": names[link],
                "up": up,
                "loss_rate": loss,
                "depth_mean_bytes": mean,
                "depth_max_bytes": deepest,
                "utilisation": used,
            }
            for link, up, loss, mean, deepest, used in zip(
                wanted.tolist(),
                s.up[wanted].tolist(),
                s.loss[wanted].tolist(),
                (depth + packet)[wanted].tolist(),
                (limit + packet)[wanted].tolist(),
                busy[wanted].tolist(),
                strict=True,
            )
        ]
        faults = [
            {
                "fault": fault.number,
                "line": str(fault.spec),
                "links": [names[link] for link in fault.target.links],
                "begin_ns": fault.begin_ns,
                "end_ns": fault.end_ns,
            }
            for fault in self.faults
            if fault.begin_ns < end_ns and (fault.end_ns is None or fault.end_ns >= begin_ns)
        ]
        parts = max(1, -(-len(rows) // MAX_ELEMENTS))
        for part in range(parts):
            self._put(
                TRUTH,
                self.settings.shard,
                end_ns,
                {
                    "shard": self.settings.shard,
                    "start_ns": begin_ns,
                    "end_ns": end_ns,
                    "part": part,
                    "parts": parts,
                    "faults": [] if part else faults,
                    "links": rows[part * MAX_ELEMENTS : (part + 1) * MAX_ELEMENTS],
                    "contention": [] if part else [*past, *self._contention.values()],
                    "jobs": [] if part else jobs,
                },
            )

    def job_state(self) -> list[Record]:
        """Return each job's name, NICs, completed iterations and last iteration time (ns; None: none yet)."""
        return [
            {"job": job.name, "kind": job.kind, "nics": job.nics, "iterations": done, "time_ns": time_ns}
            for job, (done, time_ns) in zip(self.settings.jobs, self._job_done, strict=True)
        ]

    def contention(self) -> list[Record]:
        """Return the present contention, as `TrueContention` rows."""
        return list(self._contention.values())


def fleet_of(settings: SimSettings) -> Fleet:
    """Return the network of these settings. Raises ValueError if there is no such shape."""
    s = settings
    return Fleet.of(
        s.nics,
        rate_bps=s.rate_bps,
        fabric_rate_bps=s.fabric_rate_bps,
        oversubscription=s.oversubscription,
        seed=s.seed,
    )


def draw_clocks(settings: SimSettings, nics: int, start_ns: int) -> list[dict[str, Any]]:
    """Return each NIC's clock, as for `ClockSettings` and `TestClock`, drawn from the settings' seed.

    It drifts from the settings' epoch on, or from `start_ns` if they have none.
    """
    s, rng = settings, np.random.Generator(np.random.SFC64([settings.seed, 5]))
    offset = rng.integers(-s.clock_offset_max_ns, s.clock_offset_max_ns + 1, nics).tolist()
    drift = rng.uniform(-s.clock_drift_max_ppb, s.clock_drift_max_ppb, nics).tolist()
    seed = rng.integers(0, 2**62, nics).tolist()
    return [
        {
            "offset_ns": offset[i],
            "drift_ppb": drift[i],
            "epoch_ns": s.clock_epoch_ns or start_ns,
            "seed": seed[i],
            "step_ns": 0,
            "step_at_ns": 0,
            "wander_ppb_per_sqrt_s": s.clock_wander_ppb_per_sqrt_s,
        }
        for i in range(nics)
    ]


def topology_file(fleet: Fleet) -> TopologyFile:
    """Return the fleet's topology file: nodes, cables and their rates."""
    rails = fleet.shape.rails > 1
    ends = [link.split(">") for link in fleet.link_ids[::2]]
    kinds = fleet.document()["nodes"]
    leaves = zip(fleet.nic_leaf.tolist(), fleet.nic_rail.tolist(), strict=True)
    rail_of = {f"leaf{leaf + 1}": rail for leaf, rail in leaves}
    return TopologyFile(
        nodes=tuple(
            NodeEntry(name=name, kind=node["kind"], rail=rail_of.get(name) if rails else None)
            for name, node in kinds.items()
        ),
        links=tuple(
            CableEntry(ends=(near, far), rate_bps=rate)
            for (near, far), rate in zip(ends, fleet.rate_bps[::2].tolist(), strict=True)
        ),
    )


def _moved(before: Paths, now: Paths) -> NDArray[np.bool_]:
    """Return [groups]: True if a path has other links than before."""
    tables = []
    for paths in (before, now):
        table = np.full((len(paths.reached), 6), -1, np.int32)
        link_counts = np.diff(paths.start)
        row = np.repeat(np.arange(len(link_counts)), link_counts)
        table[row, np.arange(len(paths.link)) - np.repeat(paths.start[:-1], link_counts)] = paths.link
        tables.append(table)
    different: NDArray[np.bool_] = (tables[0] != tables[1]).any(axis=1) | (before.reached != now.reached)
    return different
