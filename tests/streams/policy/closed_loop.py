"""A closed loop of policy: a simulated fleet of 64 NICs under the operators of the pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fabrictime.bench._sim_pipeline import SimPipeline
from fabrictime.bench._true_queues import TrueQueues
from producers.sim.settings import SimSettings
from producers.sim.simulation import Simulation
from schemas.ids import cable_id
from schemas.kafka.message import Message
from schemas.topics import (
    CONTENTION,
    DECISIONS,
    FALLBACKS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    LINKS,
    PATHS,
    POLICY_CYCLES,
    QUEUES,
)
from streams.contention.stage import ContentionStage
from streams.links.stage import LinksStage
from streams.policy.stage import PolicyStage
from streams.runtime.flow_table import LiveFlow
from streams.runtime.operator import Output
from streams.runtime.pipeline_constants import HOP_NS
from tests.streams.policy.records import health

MS = 1_000_000
S = 1_000 * MS
DETECTION_TICKS = 2
"""Ticks of 10 ms from a fault to its health record, if records are made from the truth."""
PORTS = range(50_000, 50_064)
ALL_PAIRS = 1_000_000


class Loop:
    """The fleet under contention and policy, with true queues. `real`: the links stage evaluates links by
    probes; otherwise health records are made from the truth. `keeps`: all messages are kept."""

    def __init__(
        self, *, mode: str = "ACT", seed: int = 1, real: bool = False, keeps: bool = False, **sim: Any
    ) -> None:
        topics = (INVENTORY, FLOWS, FLOW_ROUTES, *((LINKS, PATHS) if real else ()))
        defaults = {
            "nics": 64,
            "load": 0.0,
            "flow_s": 80_000,
            "step_us": 1000,
            "seed": seed,
            "rate_pps": 1000 if real else 0,
            "candidate_ports": len(PORTS),
            "route_pairs": ALL_PAIRS,
        }
        settings = SimSettings(**{**defaults, **sim})
        self.run = Simulation(settings, topics=topics, route_pairs_at_once=ALL_PAIRS)
        self.fleet = self.run.fleet
        self.real = real
        stages = [ContentionStage(), PolicyStage(), *((LinksStage(),) if real else ())]
        config = {"max_moved_share": 1.0}
        self.pipeline = SimPipeline(self.run, stages, partitions=1, acts=mode == "ACT", config=config)
        self._live = self.pipeline.runner.tables.flows.of("sim")
        self._queues = TrueQueues(self.run)
        self.states: list[dict[str, tuple[str, float]]] = [{}]
        self.published: dict[str, dict[str, Any]] = {}
        self.decisions: list[dict[str, Any]] = []
        self.suppressed: list[Mapping[str, Any]] = []
        self.outgoing: list[tuple[str, str, bytes | None]] = []
        """Decisions and fallbacks."""
        self.fallbacks: dict[str, dict[str, Any]] = {}
        self.cycles: list[dict[str, Any]] = []
        self.contention_opened: Counter[str] = Counter()
        self.messages: list[Message] = []
        if keeps:
            append = self.pipeline.runner.append

            def keep(message: Message) -> None:
                self.messages.append(message)
                append(message)

            self.pipeline.runner.append = keep  # type: ignore[method-assign]
            self.pipeline.configure()  # again: the first configuration was not kept

    # --- the fleet ---

    def open(self, source: int, destination: int, port: int = 50_000, demand_bps: float | None = None):
        flow = self.run.book.open(source, destination, port, demand_bps=demand_bps)
        self.run.note_flow(flow)
        return flow

    def link(self, near: str, far: str) -> str:
        return next(
            name for name in self.fleet.link_ids if name.startswith(f"{near}:") and f">{far}:" in name
        )

    def links_of(self, source: int, destination: int, port: int, peer_port: int = 4791) -> tuple[str, ...]:
        """Return the links of a route, as traced before any fault."""
        path = self.fleet.paths([source], [destination], [port], [peer_port]).of(0)
        return tuple(self.fleet.link_ids[link] for link in path)

    def port_over(self, source: int, destination: int, link: str) -> int:
        return next(port for port in PORTS if link in self.links_of(source, destination, port))

    def dead_links(self) -> set[str]:
        states = self.run.states
        return {self.fleet.link_ids[i] for i in np.flatnonzero(~states.up | (states.loss >= 1)).tolist()}

    def flows_over(self, links: set[str]) -> set[str]:
        """Return the flows whose data or answers cross one of the links."""
        return {
            flow.flow_id
            for flow in self.run.flows()
            if links & {*flow.hops, *self.links_of(flow.destination, flow.source, 4791, flow.port)}
        }

    def live_flows(self) -> dict[str, LiveFlow]:
        """Return the flows as last reported."""
        self._live.advance(self.run.now_ns)
        return {flow.flow_id: flow for flow in self._live.open_flows()}

    # --- the loop ---

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * 100)):
            self.step()

    def step(self) -> list[dict[str, Any]]:
        """Simulate 10 ms. Return the decisions."""
        outputs = [each.output for each in self.pipeline.tick()]
        if not self.real:
            self.publish_health()
        queues = self._queues.tick()
        if queues is not None:
            self.pipeline.runner.publish(Output(QUEUES, "sim", queues), self.run.now_ns + HOP_NS)
        for output in outputs:
            self.take(output)
        made = [output.record for output in outputs if output.topic is DECISIONS]
        self.decisions += made
        return made

    def take(self, output: Output) -> None:
        record = output.record
        if output.topic in (DECISIONS, FALLBACKS):
            self.outgoing.append((output.topic.name, output.key, output.value()))
        if output.topic is FALLBACKS:
            self.fallbacks[output.key] = record
        elif output.topic is CONTENTION:
            self.contention_opened[output.key] += record["state"] == "OPENED"
        elif output.topic is POLICY_CYCLES:
            self.cycles.append(record)
            for cycle in record["cycles"]:
                if cycle["suppressed"] is not None:
                    self.suppressed = cycle["suppressed"]

    def give_health(self, record: Mapping[str, Any]) -> None:
        self.pipeline.runner.publish(Output(LINK_HEALTH, record["subject"], record), self.run.now_ns)

    def publish_health(self) -> None:
        """Make `LinkHealth` records from the truth, some ticks late."""
        states = self.run.states
        now: dict[str, tuple[str, float]] = {}
        for i in np.flatnonzero(~states.up | (states.loss > 0)).tolist():
            loss = float(states.loss[i]) if states.up[i] else 1.0
            now[self.fleet.link_ids[i]] = ("DOWN" if loss >= 1 else "GREY", loss)
        self.states.append(now)
        then = self.states.pop(0) if len(self.states) > DETECTION_TICKS else {}
        for link in sorted(then.keys() | {published["links"][0] for published in self.published.values()}):
            state, loss = then.get(link, ("UP", 0.0))
            known = self.published.get(cable_id(link))
            if state != (known["state"] if known else "UP"):
                self.published[cable_id(link)] = record = health(
                    link, state, 1 if known is None else known["seq"] + 1, self.run.now_ns, loss
                )
                self.give_health(record)


def open_random_flows(loop: Loop, seed: int = 1, share: float = 0.1) -> None:
    """Open two flows per NIC to random peers, each with a share of the NIC's rate."""
    rng = np.random.default_rng(seed)
    for nic in range(64):
        for _ in range(2):
            peer = (nic + int(rng.integers(8, 56))) % 64
            loop.open(nic, peer, int(rng.choice(PORTS)), share * loop.fleet.rate_bps[0])


def advance_until_decided(loop: Loop, max_s: float = 2.0) -> list[dict[str, Any]]:
    for _ in range(round(max_s * 100)):
        made = loop.step()
        if made:
            return made
    raise AssertionError("no decision was made")


def open_colliding(loop: Loop, count: int = 2) -> list[Any]:
    """Open flows at line rate that overlap between leaf1 and spine1."""
    link = loop.link("leaf1", "spine1")
    return [loop.open(n, 20 + 8 * n, loop.port_over(n, 20 + 8 * n, link)) for n in range(count)]
