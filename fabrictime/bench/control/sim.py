"""Measures two all-to-alls on the simulated fleet: ECMP, flowlet switching and steering, seed by seed.

All times are simulated. The simulation makes flow reports, queues and probes. Contention and policy run as in
`bench sim`, with production delays, and actuators carry out decisions. Command: `fabrictime bench control
sim [--quick]`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._parts import side_by_side
from fabrictime.bench._sim_pipeline import SimPipeline
from fabrictime.bench._true_queues import TrueQueues
from producers.sim.settings import SimSettings
from producers.sim.simulation import TICK_NS, Simulation
from producers.sim.topology import Fleet
from schemas.records import Decision
from schemas.topics import FLOW_ROUTES, FLOWS, INVENTORY, PROBES, QUEUES
from streams.contention.stage import ContentionStage
from streams.policy.stage import PolicyStage
from streams.runtime.operator import Output
from streams.runtime.sim_runner import SimOutput

MS: Final = 1_000_000
SHARD: Final = "sim"
NICS: Final = 256
RATE_BPS: Final = 100_000_000_000
SEEDS, QUICK_SEEDS = 10, 2
MORE_CONNECTIONS: Final = 2
PORTS: Final = 128
"""Number of source ports whose routes hosts trace for each pair: eight times the spines, as advised."""
ALL_PAIRS: Final = 1_000_000
FLOWLET_US: Final = 64.0
"""Flowlet gap of some round trips, as in switches that balance flowlets."""
QUEUES_LAG_NS: Final = 75 * MS
"""Delay of a window of queues: 25 ms of batching, 25 ms of map, inference, and three log passes."""
WARM_S, STEER_S, MEASURE_S = 1.0, 6.0, 1.5
OBSERVE_S: Final = 1.5
PROBES_PPS: Final = 100.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """The jobs of the fleet: all-to-alls within rails, in pairwise steps.

    Each job has its own hosts, drawn from the whole fleet; together the jobs use all NICs.
    """

    jobs: int = 2
    connections: int = 1
    bytes_each: float = 750e6
    """Bytes that a NIC sends in an iteration."""
    nics: int = NICS

    def settings(self, seed: int, *, flowlet_us: float = 0.0) -> SimSettings:
        """Return the settings of the simulated fleet with its jobs."""
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


@dataclass(slots=True)
class Stretch:
    """The figures of an interval of simulated time."""

    share: float
    """Mean throughput as a share of the line rate."""
    delay_us_p99: float
    """99th percentile of the one-way delay of probe packets, from port to port."""
    iterations: int


def simulation(settings: SimSettings, fleet: Fleet | None = None) -> Simulation:
    """Return a simulation for `Loop` in which hosts trace the routes of new flows within 250 ms."""
    settings = settings.model_copy(update={"candidate_ports": PORTS, "route_pairs": ALL_PAIRS})
    topics = (INVENTORY, FLOWS, FLOW_ROUTES, PROBES)
    return Simulation(settings, fleet=fleet, topics=topics, route_pairs_at_once=ALL_PAIRS)


class Loop:
    """A simulated fleet under a policy; `decides` runs the policy, `act` also carries out its decisions."""

    def __init__(self, run: Simulation, act: bool, *, decides: bool = True) -> None:
        self.run = run
        stages = [ContentionStage(), PolicyStage()] if decides else []
        self.pipeline = SimPipeline(
            run, stages, acts=act, config={"max_moved_share": 1.0}, clock=time.process_time_ns
        )
        self.busy_s = 0.0
        """Processor time of flow reports, contention, policy and log."""
        self.outputs: list[SimOutput] = []
        """Everything that the stages have published."""
        self._queues = TrueQueues(run)
        self._delays: list[NDArray[np.float64]] = []

    @property
    def decisions(self) -> list[Decision]:
        """All decisions so far."""
        return self.pipeline.decisions

    def advance(self, seconds: float) -> Stretch:
        """Advance the fleet by `seconds`; return its figures over this time."""
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
        pipeline, begin_ns = self.pipeline, time.process_time_ns() - self.pipeline.fleet_ns
        self.outputs += pipeline.tick()
        self.busy_s += (time.process_time_ns() - pipeline.fleet_ns - begin_ns) / 1e9
        self._delays += [
            np.asarray(message.columns().forward, np.float64)
            for message in pipeline.messages
            if message.topic is PROBES
        ]
        queues = self._queues.tick()
        if queues is not None:
            pipeline.runner.publish(Output(QUEUES, SHARD, queues), self.run.now_ns + QUEUES_LAG_NS)

    def moved(self) -> int:
        """Return the number of flows that have at least one decision."""
        return len({decision["flow_id"] for decision in self.decisions})


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about 15 minutes on two cores, or three with `quick`."""
    seeds = [random.SystemRandom().randrange(2**31) for _ in range(QUICK_SEEDS if quick else SEEDS)]
    runs = [(Scenario(), seed) for seed in seeds]
    if not quick:
        runs += [(Scenario(connections=MORE_CONNECTIONS), seed) for seed in seeds[:QUICK_SEEDS]]
    seed_results: list[_Seed] = []
    others: list[_Seed] = []
    for (scenario, seed), seed_result in zip(runs, side_by_side(_one, runs), strict=True):
        progress(
            f"sim: {scenario.nics} NICs, {scenario.connections} a pair, seed {seed}: "
            f"{seed_result.published()}"
        )
        (seed_results if scenario.connections == 1 else others).append(seed_result)
    figures = _figures(seed_results, seeds)
    if others:
        ecmp = float(np.median([result.ecmp.share for result in others]))
        steered = float(np.median([result.steered.share for result in others]))
        figures["sim_more_connections_vs_ecmp"] = _worst_of(
            [result.steered.share / result.ecmp.share for result in others],
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
    """Share of the flows that were moved."""
    decisions: int
    cpu: float
    """Processor time of the loop, in cores per simulated second."""
    observed: int
    """Number of decisions in OBSERVE."""
    flows: int

    def published(self) -> str:
        """Return the seed's results as text."""
        return (
            f"of the line rate ECMP {self.ecmp.share:.3f} (with policy in OBSERVE), flowlets "
            f"{self.flowlet.share:.3f}, steered {self.steered.share:.3f}, best {self.best.share:.3f}; delay "
            f"p99 {self.ecmp.delay_us_p99:.0f} us, then {self.steered.delay_us_p99:.1f}; {self.decisions} "
            f"decisions on {self.flows} flows, {self.observed} in OBSERVE; loop {self.cpu:.2f} of a core"
        )


def _one(run: tuple[Scenario, int]) -> _Seed:
    scenario, seed = run
    watched = Loop(simulation(scenario.settings(seed)), act=False)
    watched.advance(WARM_S)
    ecmp = watched.advance(OBSERVE_S)
    steered = Loop(simulation(scenario.settings(seed)), act=True)
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
    """Return the figures of a fleet without a policy, once its traffic is steady."""
    loop = Loop(run, act=False, decides=False)
    loop.advance(WARM_S)
    return loop.advance(OBSERVE_S)


def lead_apart(run: Simulation) -> None:
    """Pin the flows of each NIC to a spine of their own, which is optimal since flows never share a link."""
    fleet = run.fleet
    leaves = fleet.nic_leaf.tolist()
    slot: dict[int, int] = {}
    for nic, leaf in enumerate(leaves):
        slot[nic] = leaves[:nic].count(leaf)
    for flow in run.flows():
        routes = fleet.routes(flow.source, flow.destination)
        run.kernel.set_flow_path(flow.number, routes[slot[flow.source] % len(routes)])


def _worst_of(values: list[float], unit: str, note: str = "", *, maximum: bool = False) -> Figure:
    """Return the median over seeds as a figure; its note has the worst value and `note`."""
    worst = max(values) if maximum else min(values)
    text = f"worst {worst:.3f} of {len(values)} seeds"
    return Figure(float(np.median(values)), unit, f"{text}; {note}" if note else text)


def _figures(results: list[_Seed], seeds: list[int]) -> dict[str, Value]:
    def middle(of: Callable[[_Seed], float]) -> float:
        return float(np.median([of(result) for result in results]))

    ecmp, flowlet = [result.ecmp.share for result in results], [result.flowlet.share for result in results]
    steered = [result.steered.share for result in results]
    note = (
        f"of the line rate: ECMP {np.median(ecmp):.3f}, flowlets {np.median(flowlet):.3f}, steered "
        f"{np.median(steered):.3f}, "
        f"best {middle(lambda result: result.best.share):.3f}; {NICS} NICs, 100 Gbit/s"
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
        "sim_two_alltoall_vs_best": _worst_of(
            [result.steered.share / result.best.share for result in results], "1"
        ),
        "sim_contended_share_of_line_rate": _worst_of(
            steered, "1", f"ECMP {np.median(ecmp):.3f}; the same in OBSERVE, which is what it was measured in"
        ),
        "sim_contended_delay_us_p99": _worst_of(
            [result.steered.delay_us_p99 for result in results],
            "us",
            "one way, probes from port to port; ECMP "
            f"{middle(lambda result: result.ecmp.delay_us_p99):.0f} us",
            maximum=True,
        ),
        "sim_flows_moved_share": _worst_of([result.moved for result in results], "1", maximum=True),
        "sim_decisions": _worst_of(
            [float(result.decisions) for result in results],
            "decisions",
            f"in {STEER_S + MEASURE_S:g} s; {middle(lambda result: result.observed):.0f} in "
            f"{WARM_S + OBSERVE_S:g} s of OBSERVE; seeds {seeds}",
            maximum=True,
        ),
        "sim_loop_cpu": _worst_of(
            [result.cpu for result in results],
            "cores",
            "log, flow reports, contention and policy, per second of the fleet's time",
            maximum=True,
        ),
    }
