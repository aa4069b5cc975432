"""Measures two all-to-alls on the simulated fleet: ECMP, flowlet switching and steering, seed by seed.

All times are simulated. The simulation makes flow reports, queues and probes. The pipeline's pure parts (live
flows, contention, policy) receive them with production delays, and decisions take effect with an actuator's
delay. By hand: `fabrictime bench control sim [--quick]`.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._parts import side_by_side
from producers.sim.settings import SimSettings
from producers.sim.simulation import TICK_NS, Simulation
from producers.sim.workload import FLOW_PORT, address_of
from producers.trace.candidate_ports import flow_candidate_ports
from schemas import codec
from schemas.records import (
    ActionReport,
    ActMode,
    Decision,
    FlowReports,
    LinkQueue,
    LinkQueues,
)
from schemas.topics import CONFIG, FLOWS, PROBES
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.policy.policy import Policy
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow, LiveFlows, report_of
from streams.runtime.pipeline_constants import FLOW_LAG_NS, HOP_NS
from streams.runtime.route_table import RouteTable

__all__ = ["KEYS", "Loop", "Scenario", "measure"]


MS: Final = 1_000_000
SHARD: Final = "sim"
NICS: Final = 256
RATE_BPS: Final = 100_000_000_000
SEEDS, QUICK_SEEDS = 10, 2
MORE_CONNECTIONS: Final = 2
PORTS: Final = 128
"""Source ports whose routes hosts trace for a pair: eight times the spines, as the setting advises."""
FLOWLET_US: Final = 64.0
"""As switches have it that spread flowlets: some round trips."""
QUEUES_TICKS, QUEUES_LAG_NS = 5, 75 * MS
"""Ticks in a window of queues, and its delay: batches of 25 ms, map of 25 ms, inference, three times through
the log."""
ROUND_TICKS: Final = 10
APPLY_NS: Final = 20 * MS
"""From a decision to the flow that goes another way, through the log: the target of
`decision_to_applied_ms_p99`."""
WARM_S, STEER_S, MEASURE_S = 1.0, 6.0, 1.5
OBSERVE_S: Final = 1.5
PROBES_PPS: Final = 100.0
KEYS: Final = (
    "sim_two_alltoall_vs_ecmp",
    "sim_two_alltoall_vs_flowlet",
    "sim_contended_share_of_line_rate",
    "sim_contended_delay_us_p99",
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The load of the fleet. Jobs are all-to-alls within rails, in pairwise steps, each on hosts of its own
    that are drawn over the fleet; together they take all NICs."""

    jobs: int = 2
    connections: int = 1
    bytes_each: float = 750e6
    """Bytes that a NIC sends in an iteration."""
    nics: int = NICS

    def settings(self, seed: int, *, flowlet_us: float = 0.0) -> SimSettings:
        """Return the fleet with its jobs."""
        return SimSettings.model_validate(
            {
                "nics": self.nics,
                "seed": seed,
                "shard": SHARD,
                "rate_bps": RATE_BPS,
                "load": 0.0,
                "rate_pps": PROBES_PPS,
                "flush_ms": 100,
                "flowlet_us": flowlet_us,
                "clock_offset_max_ns": 0,
                "clock_drift_max_ppb": 0,
                "clock_wander_ppb_per_sqrt_s": 0,
                "jobs": [
                    {
                        "name": f"moe-{n + 1}",
                        "kind": "rail-alltoall",
                        "nics": self.nics // self.jobs,
                        "placed": "apart",
                        "bytes": self.bytes_each,
                        "compute_ms": 0,
                        "connections": self.connections,
                    }
                    for n in range(self.jobs)
                ],
            }
        )


class _Routes:
    """The traces of hosts: the routes of each pair's flows from the ports that a reporter tries."""

    def __init__(self, run: Simulation) -> None:
        self._fleet = run.fleet
        self._found: dict[tuple[str, str], dict[int, FlowRoute]] = {}
        self._names: dict[bytes, tuple[str, ...]] = {}
        ports: dict[tuple[str, str], set[int]] = {}
        for flow in run.flows():
            pair = (self._fleet.nic_ids[flow.source], self._fleet.nic_ids[flow.destination])
            ports.setdefault(pair, set(self._tried(pair))).add(flow.port)
        for pair, tried in ports.items():
            self._found[pair] = self._trace(pair, sorted(tried))

    def of(self, flow: LiveFlow) -> Mapping[int, FlowRoute]:
        """Return entropy value to way of a flow."""
        pair = (flow.nic, flow.peer)
        found = self._found.get(pair)
        if found is None or flow.path not in found:
            ports = sorted({flow.path, *(found or self._tried(pair))})
            found = self._found[pair] = self._trace(pair, ports)
        return found

    def _tried(self, pair: tuple[str, str]) -> list[int]:
        nic, peer = (address_of(self._fleet.nic_index[name]) for name in pair)
        return list(flow_candidate_ports(nic, peer, FLOW_PORT, PORTS, 61_000))

    def _trace(self, pair: tuple[str, str], ports: list[int]) -> dict[int, FlowRoute]:
        nic, peer = (self._fleet.nic_index[name] for name in pair)
        there = self._fleet.paths(nic, peer, ports, FLOW_PORT)
        back = self._fleet.paths(peer, nic, FLOW_PORT, ports)
        return {
            port: FlowRoute(self._links(there.of(at)), self._links(back.of(at)))
            for at, port in enumerate(ports)
        }

    def _links(self, links: NDArray[np.int32]) -> tuple[str, ...]:
        key = links.tobytes()
        known = self._names.get(key)
        if known is None:
            known = self._names[key] = tuple(self._fleet.link_ids[link] for link in links.tolist())
        return known


@dataclass(slots=True)
class Stretch:
    """The figures of an interval."""

    share: float
    """Mean share of the line rate."""
    delay_us_p99: float
    """One-way delay of probe packets from port to port."""
    iterations: int


class Loop:
    """One fleet under policy. `act`: decisions are carried out; `decides`: there is a policy at all."""

    TOPICS: Final = (FLOWS, PROBES)
    """Messages that the fleet must publish."""

    def __init__(self, run: Simulation, act: bool, *, decides: bool = True) -> None:
        self.run, self.act, self._decides = run, act, decides
        self.decisions: list[Decision] = []
        self.busy_s = 0.0
        """Processor time of flow reports, contention and policy."""
        fleet = self.run.fleet
        self._nics = fleet.nic_index.__contains__
        rate = dict(zip(fleet.link_ids, fleet.rate_bps.tolist(), strict=True))
        self._rate = rate
        self.live = LiveFlows(SHARD, RouteTable())
        self._seen = LiveFlows(SHARD, RouteTable())
        self.policy = Policy(SHARD, 1, self.live, _Routes(run), rate.__getitem__)
        record = {
            "host": "*",
            "version": 1,
            "at_ns": 0,
            "by": "bench",
            "max_moved_share": 1.0,
            "mode": ActMode.ACT if self.act else ActMode.OBSERVE,
        }
        self.policy.take_config({"*": codec.decode(codec.encode(CONFIG.record, record), CONFIG.type)})
        hosts = fleet.shape.hosts
        self.watch = ContentionDetector(SHARD, self._seen, self._nics, lambda: hosts, rate.__getitem__)
        self._depth = self.run.kernel.link_sums()[0]
        self._slots: list[NDArray[np.float64]] = []
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._delays: list[NDArray[np.float64]] = []

    def advance(self, seconds: float) -> Stretch:
        """Run the fleet on; return its figures of that time."""
        self._delays.clear()
        before = self.run.kernel.flow_sums()[0][:, 0].sum()
        done = sum(job["iterations"] for job in self.run.job_state())
        ticks = round(seconds * 1e9 / TICK_NS)
        for _ in range(ticks):
            self._tick()
        fleet = self.run.fleet
        sent = self.run.kernel.flow_sums()[0][:, 0].sum() - before
        delays = np.concatenate(self._delays) if self._delays else np.full(1, np.nan)
        return Stretch(
            float(sent * 8e9 / (ticks * TICK_NS) / fleet.rate_bps[: 2 * fleet.nics : 2].sum()),
            float(np.percentile(delays, 99)) / 1e3,
            sum(job["iterations"] for job in self.run.job_state()) - done,
        )

    def _tick(self) -> None:
        outs = self.run.tick()
        now_ns = self.run.now_ns
        for out in outs:
            if out.topic is PROBES:
                self._delays.append(np.asarray(out.columns().forward, np.float64))
        began = time.process_time()
        for out in outs:
            if out.topic is FLOWS:
                report, _ = report_of(cast(FlowReports, out.record()), self._nics)
                self.live.take(report, out.at_ns + HOP_NS)
                self._seen.take(report, out.at_ns + HOP_NS)
        self.busy_s += time.process_time() - began
        if not self._decides:
            return
        self._see(now_ns)
        while self._later and self._later[0][0] <= now_ns:
            heapq.heappop(self._later)[2]()
        if (now_ns - self.run.start_ns) // TICK_NS % ROUND_TICKS == 0:
            self._decide(now_ns)

    def _at(self, at_ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (at_ns, next(self._order), act))

    def _see(self, now_ns: int) -> None:
        """Publish the true queues as windows of slots of one tick."""
        depth = self.run.kernel.link_sums()[0]
        self._slots.append((depth - self._depth) / (TICK_NS / self.run.settings.step_ns))
        self._depth = depth
        if len(self._slots) < QUEUES_TICKS:
            return
        slots, self._slots = np.array(self._slots), []
        names = self.run.fleet.link_ids
        links: list[LinkQueue] = [
            {
                "link": names[link],
                "rate_bps": self._rate[names[link]],
                "bound_bytes": 0.0,
                "group": 0,
                "depth_mean_bytes": float(slots[:, link].mean()),
                "depth_max_bytes": float(slots[:, link].max()),
                "utilisation": None,
                "utilisation_bound": None,
                "from_flows": False,
                "samples": 0,
                "slot": np.flatnonzero(slots[:, link]).tolist(),
                "depth_bytes": slots[slots[:, link] > 0, link].tolist(),
                "dscp": 0,
                "ce_share": 0.0,
                "ce_slot": [],
                "ce": [],
            }
            for link in np.flatnonzero(slots.any(axis=0)).tolist()
        ]
        start_ns = now_ns - QUEUES_TICKS * TICK_NS
        record: LinkQueues = {
            "shard": SHARD,
            "window": start_ns // (QUEUES_TICKS * TICK_NS),
            "fold": 1,
            "synced": True,
            "paths": 0,
            "solved_ns": now_ns,
            "window_start_ns": start_ns,
            "slot_ns": TICK_NS,
            "slots": QUEUES_TICKS,
            "part": 0,
            "parts": 1,
            "links": links,
        }
        self._at(now_ns + QUEUES_LAG_NS, partial(self._evaluate, record))

    def _evaluate(self, record: LinkQueues) -> None:
        began = time.process_time()
        self._seen.advance(self.run.now_ns - FLOW_LAG_NS)
        for made in self.watch.ingest(record, ContentionRules()):
            self._at(self.run.now_ns + HOP_NS, partial(self.policy.take_contention, made))
        self.busy_s += time.process_time() - began

    def _decide(self, now_ns: int) -> None:
        began = time.process_time()
        self.live.advance(now_ns)
        found = self.policy.decide(now_ns)
        self.busy_s += time.process_time() - began
        for lines in found.decisions:
            self.decisions.append(lines.record)
            self._at(now_ns + APPLY_NS, partial(self._apply, lines.record))

    def _apply(self, decision: Decision) -> None:
        """Do as the fleet's owner does (producers/sim/flow_endpoint.py), and report it."""
        if self.act:
            self.run.set_flow_path(decision["flow_id"], cast(int, decision["to_path"]))
        fields = ("flow_id", "action", "epoch", "seq", "from_path", "to_path")
        action = {
            **{key: value for key, value in decision.items() if key in fields},
            "shard": SHARD,
            "outcome": "APPLIED" if self.act else "OBSERVED",
            "at_ns": self.run.now_ns,
        }
        self._at(self.run.now_ns + HOP_NS, partial(self.policy.take_action, cast(ActionReport, action)))

    def moved(self) -> int:
        """Return how many flows decisions were about."""
        return len({decision["flow_id"] for decision in self.decisions})


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure for about five minutes on two cores, or one with `quick`."""
    seeds = [random.SystemRandom().randrange(2**31) for _ in range(QUICK_SEEDS if quick else SEEDS)]
    asked = [(Scenario(), seed) for seed in seeds]
    if not quick:
        asked += [(Scenario(connections=MORE_CONNECTIONS), seed) for seed in seeds[:QUICK_SEEDS]]
    found: list[_Seed] = []
    others: list[_Seed] = []
    for (scenario, seed), made in zip(asked, side_by_side(_one, asked), strict=True):
        progress(f"sim: {scenario.nics} NICs, {scenario.connections} a pair, seed {seed}: {made.published()}")
        (found if scenario.connections == 1 else others).append(made)
    figures = _figures(found, seeds)
    if others:
        ecmp = float(np.median([each.ecmp.share for each in others]))
        steered = float(np.median([each.steered.share for each in others]))
        figures["sim_more_connections_vs_ecmp"] = _worst_of(
            [each.steered.share / each.ecmp.share for each in others],
            "x",
            f"{MORE_CONNECTIONS} connections a pair; of the line rate ECMP {ecmp:.3f}, steered {steered:.3f}",
        )
    return figures


@dataclass(frozen=True, slots=True)
class _Seed:
    """The results of one seed."""

    ecmp: Stretch
    flowlet: Stretch
    best: Stretch
    steered: Stretch
    moved: float
    """Share of flows."""
    decisions: int
    cpu: float
    """Cost of the loop: share of a core per simulated second."""
    observed: int
    """Decisions in OBSERVE."""
    flows: int

    def published(self) -> str:
        """Return it in words."""
        return (
            f"of the line rate ECMP {self.ecmp.share:.3f} (with policy in OBSERVE), flowlets "
            f"{self.flowlet.share:.3f}, steered {self.steered.share:.3f}, best {self.best.share:.3f}; delay "
            f"p99 {self.ecmp.delay_us_p99:.0f} us, then {self.steered.delay_us_p99:.1f}; {self.decisions} "
            f"decisions on {self.flows} flows, {self.observed} in OBSERVE; loop {self.cpu:.2f} of a core"
        )


def _one(asked: tuple[Scenario, int]) -> _Seed:
    scenario, seed = asked
    watched = Loop(Simulation(scenario.settings(seed), topics=Loop.TOPICS), act=False)
    watched.advance(WARM_S)
    ecmp = watched.advance(OBSERVE_S)
    steered = Loop(Simulation(scenario.settings(seed), topics=Loop.TOPICS), act=True)
    steered.advance(STEER_S)
    after = steered.advance(MEASURE_S)
    flowlet = _alone(Simulation(scenario.settings(seed, flowlet_us=FLOWLET_US), topics=(PROBES,)))
    best = Simulation(scenario.settings(seed), topics=(PROBES,))
    lead_apart(best)
    flows = len(steered.run.flows())
    return _Seed(
        ecmp,
        flowlet,
        _alone(best),
        after,
        steered.moved() / flows,
        len(steered.decisions),
        steered.busy_s / (STEER_S + MEASURE_S),
        len(watched.decisions),
        flows,
    )


def _alone(run: Simulation) -> Stretch:
    """Return the figures of a fleet without policy, once it is steady."""
    loop = Loop(run, act=False, decides=False)
    loop.advance(WARM_S)
    return loop.advance(OBSERVE_S)


def lead_apart(run: Simulation) -> None:
    """Pin the flows of each NIC to a spine of its own: the optimum, because no flows ever meet."""
    fleet = run.fleet
    leaves = fleet.nic_leaf.tolist()
    slot: dict[int, int] = {}
    for nic, leaf in enumerate(leaves):
        slot[nic] = leaves[:nic].count(leaf)
    for flow in run.flows():
        routes = fleet.routes(flow.source, flow.destination)
        run.kernel.set_flow_path(flow.number, routes[slot[flow.source] % len(routes)])


def _worst_of(values: list[float], unit: str, note: str = "", *, maximum: bool = False) -> Figure:
    """Return the median of seeds, the worst and all else in its note."""
    worst = max(values) if maximum else min(values)
    text = f"worst {worst:.3f} of {len(values)} seeds"
    return Figure(float(np.median(values)), unit, f"{text}; {note}" if note else text)


def _figures(found: list[_Seed], seeds: list[int]) -> dict[str, Value]:
    def middle(of: Callable[[_Seed], float]) -> float:
        return float(np.median([of(each) for each in found]))

    ecmp, flowlet = [each.ecmp.share for each in found], [each.flowlet.share for each in found]
    steered = [each.steered.share for each in found]
    note = (
        f"of the line rate: ECMP {np.median(ecmp):.3f}, flowlets {np.median(flowlet):.3f}, steered "
        f"{np.median(steered):.3f}, best {middle(lambda each: each.best.share):.3f}; {NICS} NICs, 100 Gbit/s"
    )
    return {
        "sim_two_alltoall_vs_ecmp": _worst_of(
            [now / then for now, then in zip(steered, ecmp, strict=True)], "x", note
        ),
        "sim_two_alltoall_vs_flowlet": _worst_of(
            [now / then for now, then in zip(steered, flowlet, strict=True)],
            "x",
            f"LetFlow, {FLOWLET_US:g} us",
        ),
        "sim_two_alltoall_vs_best": _worst_of([each.steered.share / each.best.share for each in found], "1"),
        "sim_contended_share_of_line_rate": _worst_of(
            steered, "1", f"ECMP {np.median(ecmp):.3f}; the same in OBSERVE, which is what it was measured in"
        ),
        "sim_contended_delay_us_p99": _worst_of(
            [each.steered.delay_us_p99 for each in found],
            "us",
            f"one way, probes from port to port; ECMP {middle(lambda each: each.ecmp.delay_us_p99):.0f} us",
            maximum=True,
        ),
        "sim_flows_moved_share": _worst_of([each.moved for each in found], "1", maximum=True),
        "sim_decisions": _worst_of(
            [float(each.decisions) for each in found],
            "decisions",
            f"in {STEER_S + MEASURE_S:g} s; {middle(lambda each: each.observed):.0f} in "
            f"{WARM_S + OBSERVE_S:g} s of OBSERVE; seeds {seeds}",
            maximum=True,
        ),
        "sim_loop_cpu": _worst_of(
            [each.cpu for each in found],
            "cores",
            "flow reports read, contention judged and policy, per second of the fleet's time",
            maximum=True,
        ),
    }
