"""A closed loop of policy: a simulated fleet of 64 NICs, whose decisions are applied and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from actuators.applier import Applier, read_decision
from actuators.effectors.base import Answer
from actuators.flow_state import key_of
from producers.sim.settings import SimSettings
from producers.sim.simulation import Simulation
from schemas import codec
from schemas.ids import cable_id
from schemas.topics import ACTIONS, CONTENTION, DECISIONS, FALLBACKS, FLOWS, LINK_HEALTH, LINKS, PATHS
from streams.links.health import ShardHealth
from streams.policy.policy import Policy
from streams.policy.rules import Rules
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import FlowTable, LiveFlow
from streams.runtime.route_table import RouteTable

MS = 1_000_000
S = 1_000 * MS
DETECTION_TICKS = 2
"""Ticks of 10 ms from a fault to its health record, if records are made from the truth."""
PORTS = range(50_000, 50_064)


def config(mode: str = "ACT", **more: Any) -> dict[str, dict[str, Any]]:
    record = {"host": "*", "version": 1, "at_ns": 0, "by": "test", "mode": mode, "max_moved_share": 1.0}
    name = "ActuatorConfig"
    return {"*": codec.decode(codec.encode(name, record | more), name)}


class TracedRoutes:
    """The routes that hosts would have traced before any fault: of each flow, from 64 other source ports."""

    def __init__(self, run: Simulation) -> None:
        self.fleet = run.fleet
        self.found: dict[tuple[str, str], dict[int, FlowRoute]] = {}

    def of(self, flow: LiveFlow) -> Mapping[int, FlowRoute]:
        pair = (flow.nic, flow.peer)
        if pair not in self.found:
            self.found[pair] = self.trace(pair, list(PORTS))
        if flow.path not in self.found[pair]:
            self.found[pair] = self.found[pair] | self.trace(pair, [flow.path])
        return self.found[pair]

    def trace(self, pair: tuple[str, str], ports: list[int]) -> dict[int, FlowRoute]:
        nic, peer = (self.fleet.nic_index[name] for name in pair)
        found = self.fleet.paths([nic] * len(ports), [peer] * len(ports), ports, 4791)
        return {
            port: FlowRoute(tuple(self.fleet.link_ids[link] for link in found.of(i)))
            for i, port in enumerate(ports)
        }


class SimulatedHost:
    """One host's `Applier`. Its flows are those of the simulation, and it applies commands at once."""

    def __init__(self, host: str, run: Simulation) -> None:
        self.host, self.run = host, run
        self.reports: list[dict[str, Any]] = []
        self.applier = Applier(host, self, self.report, lambda: run.now_ns, lambda: run.now_ns)

    def flow(self, key: str) -> Any:
        ours = (f for f in self.run.flows() if f.flow_id.startswith(f"{self.host}/"))
        return next((flow for flow in ours if key_of(flow.flow_id) == key), None)

    def path_of(self, key: str) -> int | None:
        flow = self.flow(key)
        return None if flow is None else flow.port

    def can(self, key: str) -> frozenset[str]:
        return frozenset({"MOVE", "PACE"})

    def execute(self, key: str, verb: str, value: int, answer: Any) -> None:
        flow_id = self.flow(key).flow_id
        if verb == "MOVE":
            self.run.set_flow_path(flow_id, value)
        else:
            self.run.set_flow_rate(flow_id, value or None)
        answer(Answer(value, "SIMULATED"))

    def report(self, record: dict[str, Any], token: Any) -> None:
        self.reports.append(codec.decode(codec.encode(ACTIONS.record, record), ACTIONS.record))

    def take(self, key: bytes, value: bytes) -> list[dict[str, Any]]:
        self.reports.clear()
        self.applier.take(read_decision(key, value))
        return list(self.reports)


class Loop:
    """The fleet, one policy and every host's actuator. `real`: `ShardHealth` evaluates links by probes."""

    def __init__(
        self,
        *,
        mode: str = "ACT",
        seed: int = 1,
        real: bool = False,
        rules: Rules | None = None,
        every: int = 1,
        **sim: Any,
    ) -> None:
        published_topics = (FLOWS, LINKS, PATHS) if real else (FLOWS,)
        defaults = {
            "nics": 64,
            "load": 0.0,
            "flow_s": 80_000,
            "step_us": 1000,
            "seed": seed,
            "rate_pps": 1000 if real else 0,
        }
        self.run = Simulation(SimSettings(**{**defaults, **sim}), topics=published_topics)
        self.fleet = self.run.fleet
        self.rate = dict(zip(self.fleet.link_ids, self.fleet.rate_bps.tolist(), strict=True))
        self.routes = TracedRoutes(self.run)
        self.rules = rules or Rules()
        self.records = config(mode)
        self.appliers = {
            host: SimulatedHost(host, self.run) for host in self.fleet.node_ids[: self.fleet.shape.hosts]
        }
        for applier in self.appliers.values():
            applier.applier.take_config(self.records)
        self.policy, self.live, self.flow_table = self.new_policy()
        self.book = RouteTable()
        self.health = ShardHealth("sim") if real else None
        self.offset = 0
        self.every = every
        """Ticks from one cycle of the policy to the next."""
        self.states: list[dict[str, tuple[str, float]]] = [{}]
        self.published: dict[str, dict[str, Any]] = {}
        self.windows: dict[str, dict[str, Any]] = {}
        self.inputs: list[tuple[str, Any]] = []
        self.decisions: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.suppressed: list[Any] = []
        self.outgoing: list[tuple[str, str, bytes]] = []
        self.fallbacks: dict[str, dict[str, Any]] = {}
        self.contention_opened: Counter[str] = Counter()

    def new_policy(self):
        flow_table = FlowTable(RouteTable(), lambda nic: nic in self.fleet.nic_index)
        live = flow_table.of("sim")
        policy = Policy("sim", 1, live, self.routes, self.rate.__getitem__, rules=self.rules)
        policy.take_config(self.records)
        return policy, live, flow_table

    # --- the fleet ---

    def open(self, source: int, destination: int, port: int = 50_000, demand_bps: float | None = None):
        flow = self.run.book.open(source, destination, port, demand_bps=demand_bps)
        self.run.note_flow(flow)
        return flow

    def link(self, near: str, far: str) -> str:
        return next(
            name for name in self.fleet.link_ids if name.startswith(f"{near}:") and f">{far}:" in name
        )

    def port_over(self, source: int, destination: int, link: str) -> int:
        routes = self.routes.trace((self.fleet.nic_ids[source], self.fleet.nic_ids[destination]), list(PORTS))
        return next(port for port, route in routes.items() if link in route.links)

    def dead_links(self) -> set[str]:
        states = self.run.states
        return {self.fleet.link_ids[i] for i in np.flatnonzero(~states.up | (states.loss >= 1)).tolist()}

    def flows_over(self, links: set[str]) -> set[str]:
        return {flow.flow_id for flow in self.run.flows() if links & set(flow.hops)}

    # --- the loop ---

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * 100)):
            self.step()

    def step(self) -> list[dict[str, Any]]:
        """Simulate 10 ms: publish, evaluate, decide and apply. Return the decisions."""
        for out in self.run.tick():
            if out.topic is FLOWS:
                self.give("flows", (out.key.encode(), out.value(), out.at_ns))
            elif out.topic is PATHS:
                self.book.take(out.key.encode(), out.value())
            elif self.health is not None:
                self.take_health_changes(self.health.ingest(out.record(), out.at_ns, self.book, self.offset))
                self.offset += 1
        if self.health is not None:
            self.take_health_changes(self.health.evaluate(self.run.now_ns))
        else:
            self.publish_health()
        self.publish_contention()
        return self.decide() if self.run.ticks % self.every == 0 else []

    def give(self, kind: str, value: Any) -> None:
        self.inputs.append((kind, value))
        apply_input(self.policy, self.live, self.flow_table, kind, value)

    def take_health_changes(self, changes: Any) -> None:
        for subject, record in changes:
            self.give("health", (subject, record))

    def decide(self) -> list[dict[str, Any]]:
        now_ns = self.run.now_ns
        self.inputs.append(("decide", now_ns))
        self.live.advance(now_ns)
        found = self.policy.decide(now_ns)
        self.suppressed = found.suppressed
        made = []
        for outgoing in (*found.decisions, *found.fallbacks):
            value = codec.encode(outgoing.topic.record, outgoing.record)
            self.outgoing.append((outgoing.topic.name, outgoing.key, value))
            if outgoing.topic is FALLBACKS:
                self.fallbacks[outgoing.key] = outgoing.record
                continue
            made.append(outgoing.record)
            assert outgoing.topic is DECISIONS
            self.reports += self.appliers[outgoing.key].take(outgoing.key.encode(), value)
        self.decisions += made
        return made

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
                self.give("health", (record["subject"], record))

    def publish_contention(self) -> None:
        """Make `ContentionWindow`s from the truth: opened, updated each second, closed."""
        now_ns = self.run.now_ns
        standing = {row["link"]: row for row in self.run.contention()}
        for link in sorted(standing.keys() | self.windows.keys()):
            known = self.windows.get(link)
            if known is None:
                state, update, opened_ns = "OPENED", 0, now_ns
                self.contention_opened[link] += 1
            elif link in standing and now_ns < known["updated_ns"] + S:
                continue
            else:
                state = "UPDATED" if link in standing else "CLOSED"
                update, opened_ns = known["update"] + 1, known["opened_ns"]
            kind = standing[link]["kind"] if link in standing else known["kind"]
            self.windows[link] = record = window(link, state, kind, update, opened_ns, now_ns)
            self.give("contention", record)
            if state == "CLOSED":
                del self.windows[link]


def apply_input(policy: Policy, live: Any, flow_table: FlowTable, kind: str, value: Any) -> None:
    if kind == "flows":
        flow_table.take(value[0], value[1], append_ns=value[2])
    elif kind == "health":
        policy.take_health(*value)
    else:
        policy.take_contention(value)


def health(link: str, state: str, seq: int, at_ns: int, loss: float = 0.0, **more: Any) -> dict[str, Any]:
    record = {
        "subject": cable_id(link),
        "kind": "LINK",
        "shard": "sim",
        "seq": seq,
        "state": state,
        "before": "UP",
        "links": [link],
        "since_ns": at_ns,
        "evaluated_ns": at_ns,
        "loss_rate": loss or None,
        "classes": [],
        "max_packet_bytes": None,
        "flaps_hour": 0,
        "flaps_total": 0,
        "detected_by": "PROBES",
        "text": "",
        **more,
    }
    return codec.decode(codec.encode(LINK_HEALTH.record, record), LINK_HEALTH.record)


def window(
    link: str, state: str, kind: str, update: int, opened_ns: int, now_ns: int, **more: Any
) -> dict[str, Any]:
    record = {
        "window_id": f"sim/{link}/{opened_ns}",
        "link": link,
        "shard": "sim",
        "update": update,
        "state": state,
        "kind": kind,
        "confidence": 1.0,
        "opened_ns": opened_ns,
        "updated_ns": now_ns,
        "closed_ns": now_ns if state == "CLOSED" else None,
        "depth_bytes": 0.0,
        "depth_peak_bytes": 0.0,
        "delay_ns": 0.0,
        "utilisation": None,
        "over_ns": 0,
        "over_byte_s": 0.0,
        "rate_bps": 0,
        "flows": [],
        "flows_total": 0,
        "jobs": [],
        "links": [],
        "text": "",
        **more,
    }
    return codec.decode(codec.encode(CONTENTION.record, record), CONTENTION.record)


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
