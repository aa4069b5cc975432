"""Policy in a closed loop: a simulated fleet of 64 NICs whose truth is known, decisions carried out, effects
seen in the next flow reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

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
"""Ticks of 10 ms from a fault to the health record that tells it, where truth makes the records."""
PORTS = range(50_000, 50_064)


def config(mode: str = "ACT", **more: Any) -> dict[str, dict[str, Any]]:
    record = {"host": "*", "version": 1, "at_ns": 0, "by": "test", "mode": mode, "max_moved_share": 1.0}
    name = "ActuatorConfig"
    return {"*": codec.decode(codec.encode(name, record | more), name)}


class TracedWays:
    """What hosts would have traced before anything broke: each flow's ways from 64 other source ports."""

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
    """One host's `Applier`, its flows those of the simulation itself, done at once."""

    def __init__(self, host: str, run: Simulation) -> None:
        self.host, self.run = host, run
        self.reports: list[dict[str, Any]] = []
        self.it = Applier(host, self, self.report, lambda: run.now_ns, lambda: run.now_ns)

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
        self.it.take(read_decision(key, value))
        return list(self.reports)


class Loop:
    """The fleet, one policy and every host's actuator. `real`: `ShardHealth` judges links by probes."""

    def __init__(
        self, *, mode: str = "ACT", seed: int = 1, real: bool = False, rules: Rules | None = None,
        every: int = 1, **sim: Any,
    ) -> None:  # fmt: skip
        tell = (FLOWS, LINKS, PATHS) if real else (FLOWS,)
        quiet = {"nics": 64, "load": 0.0, "flow_s": 80_000, "step_us": 1000, "seed": seed,
                 "rate_pps": 1000 if real else 0}  # fmt: skip
        self.run = Simulation(SimSettings(**{**quiet, **sim}), tell=tell)
        self.fleet = self.run.fleet
        self.rate = dict(zip(self.fleet.link_ids, self.fleet.rate_bps.tolist(), strict=True))
        self.ways = TracedWays(self.run)
        self.rules = rules or Rules()
        self.records = config(mode)
        self.appliers = {
            host: SimulatedHost(host, self.run) for host in self.fleet.node_ids[: self.fleet.shape.hosts]
        }
        for applier in self.appliers.values():
            applier.it.take_config(self.records)
        self.policy, self.live, self.tail = self.new_policy()
        self.book = RouteTable()
        self.health = ShardHealth("sim") if real else None
        self.offset = 0
        self.every = every
        """Ticks from one round of the policy to the next."""
        self.states: list[dict[str, tuple[str, float]]] = [{}]
        self.told: dict[str, dict[str, Any]] = {}
        self.windows: dict[str, dict[str, Any]] = {}
        self.inputs: list[tuple[str, Any]] = []
        self.decisions: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.held: list[Any] = []
        self.said: list[tuple[str, str, bytes]] = []
        self.fallbacks: dict[str, dict[str, Any]] = {}
        self.contended: Counter[str] = Counter()

    def new_policy(self):
        tail = FlowTable(RouteTable(), lambda nic: nic in self.fleet.nic_index)
        live = tail.of("sim")
        policy = Policy("sim", 1, live, self.ways, self.rate.__getitem__, rules=self.rules)
        policy.take_config(self.records)
        return policy, live, tail

    # --- the fleet ---

    def open(self, source: int, destination: int, port: int = 50_000, demand_bps: float | None = None):
        flow = self.run.book.open(source, destination, port, demand_bps=demand_bps)
        self.run._note(flow)
        return flow

    def link(self, near: str, far: str) -> str:
        return next(
            name for name in self.fleet.link_ids if name.startswith(f"{near}:") and f">{far}:" in name
        )

    def port_over(self, source: int, destination: int, link: str) -> int:
        ways = self.ways.trace((self.fleet.nic_ids[source], self.fleet.nic_ids[destination]), list(PORTS))
        return next(port for port, way in ways.items() if link in way.links)

    def dead_links(self) -> set[str]:
        states = self.run._states
        return {self.fleet.link_ids[i] for i in np.flatnonzero(~states.up | (states.loss >= 1)).tolist()}

    def flows_over(self, links: set[str]) -> set[str]:
        return {flow.flow_id for flow in self.run.flows() if links & set(flow.hops)}

    # --- the loop ---

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * 100)):
            self.step()

    def step(self) -> list[dict[str, Any]]:
        """10 ms: what is published, what is judged, what is decided and done. Returns the decisions."""
        for out in self.run.tick():
            if out.topic is FLOWS:
                self.give("flows", (out.key.encode(), out.value(), out.at_ns))
            elif out.topic is PATHS:
                self.book.take(out.key.encode(), out.value())
            elif self.health is not None:
                self.judged(self.health.ingest(out.record(), out.at_ns, self.book, self.offset))
                self.offset += 1
        if self.health is not None:
            self.judged(self.health.evaluate(self.run.now_ns))
        else:
            self.tell_health()
        self.tell_contention()
        return self.decide() if self.run._tick % self.every == 0 else []

    def give(self, kind: str, what: Any) -> None:
        self.inputs.append((kind, what))
        feed(self.policy, self.live, self.tail, kind, what)

    def judged(self, changes: Any) -> None:
        for subject, record in changes:
            self.give("health", (subject, record))

    def decide(self) -> list[dict[str, Any]]:
        now_ns = self.run.now_ns
        self.inputs.append(("decide", now_ns))
        self.live.advance(now_ns)
        found = self.policy.decide(now_ns)
        self.held = found.suppressed
        made = []
        for said in (*found.decisions, *found.fallbacks):
            value = codec.encode(said.topic.record, said.record)
            self.said.append((said.topic.name, said.key, value))
            if said.topic is FALLBACKS:
                self.fallbacks[said.key] = said.record
                continue
            made.append(said.record)
            assert said.topic is DECISIONS
            self.reports += self.appliers[said.key].take(said.key.encode(), value)
        self.decisions += made
        return made

    def tell_health(self) -> None:
        """Make `LinkHealth` of the truth, some ticks late, as the detector would word it."""
        states = self.run._states
        now: dict[str, tuple[str, float]] = {}
        for i in np.flatnonzero(~states.up | (states.loss > 0)).tolist():
            loss = float(states.loss[i]) if states.up[i] else 1.0
            now[self.fleet.link_ids[i]] = ("DOWN" if loss >= 1 else "GREY", loss)
        self.states.append(now)
        then = self.states.pop(0) if len(self.states) > DETECTION_TICKS else {}
        for link in sorted(then.keys() | {told["links"][0] for told in self.told.values()}):
            state, loss = then.get(link, ("UP", 0.0))
            known = self.told.get(cable_id(link))
            if state != (known["state"] if known else "UP"):
                self.told[cable_id(link)] = record = health(
                    link, state, 1 if known is None else known["seq"] + 1, self.run.now_ns, loss
                )
                self.give("health", (record["subject"], record))

    def tell_contention(self) -> None:
        """Make `ContentionWindow`s of the truth: opened, told again each second, closed."""
        now_ns = self.run.now_ns
        standing = {row["link"]: row for row in self.run.contention()}
        for link in sorted(standing.keys() | self.windows.keys()):
            known = self.windows.get(link)
            if known is None:
                state, update, opened_ns = "OPENED", 0, now_ns
                self.contended[link] += 1
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


def feed(policy: Policy, live: Any, tail: FlowTable, kind: str, what: Any) -> None:
    if kind == "flows":
        tail.take(what[0], what[1], append_ns=what[2])
    elif kind == "health":
        policy.take_health(*what)
    else:
        policy.take_contention(what)


def health(link: str, state: str, seq: int, at_ns: int, loss: float = 0.0, **more: Any) -> dict[str, Any]:
    record = {
        "subject": cable_id(link), "kind": "LINK", "shard": "sim", "seq": seq, "state": state, "before": "UP",
        "links": [link], "since_ns": at_ns, "evaluated_ns": at_ns, "loss_rate": loss or None, "flaps_hour": 0,
        "flaps_total": 0, "detected_by": "PROBES", "text": "", **more,
    }  # fmt: skip
    return codec.decode(codec.encode(LINK_HEALTH.record, record), LINK_HEALTH.record)


def window(
    link: str, state: str, kind: str, update: int, opened_ns: int, now_ns: int, **more: Any
) -> dict[str, Any]:
    record = {
        "window_id": f"sim/{link}/{opened_ns}", "link": link, "shard": "sim", "update": update,
        "state": state, "kind": kind, "confidence": 1.0, "opened_ns": opened_ns, "updated_ns": now_ns,
        "closed_ns": now_ns if state == "CLOSED" else None, "depth_bytes": 0.0, "depth_peak_bytes": 0.0,
        "delay_ns": 0.0, "utilisation": None, "over_ns": 0, "over_byte_s": 0.0, "rate_bps": 0, "flows": [],
        "flows_total": 0, "jobs": [], "links": [], "text": "", **more,
    }  # fmt: skip
    return codec.decode(codec.encode(CONTENTION.record, record), CONTENTION.record)


def spread(loop: Loop, seed: int = 1, share: float = 0.1) -> None:
    """Two flows a NIC to others at random, each a part of its rate."""
    rng = np.random.default_rng(seed)
    for nic in range(64):
        for _ in range(2):
            peer = (nic + int(rng.integers(8, 56))) % 64
            loop.open(nic, peer, int(rng.choice(PORTS)), share * loop.fleet.rate_bps[0])


def until_decided(loop: Loop, most_s: float = 2.0) -> list[dict[str, Any]]:
    for _ in range(round(most_s * 100)):
        made = loop.step()
        if made:
            return made
    raise AssertionError("nothing was decided")


@pytest.mark.parametrize("real", [False, True], ids=["truth", "detector"])
def test_flows_leave_a_blackhole_in_one_round_for_living_paths_only(real: bool) -> None:
    loop = Loop(real=real)
    spread(loop)
    for n in range(3):
        loop.open(n, 20 + 8 * n, loop.port_over(n, 20 + 8 * n, loop.link("leaf1", "spine2")), 1e10)
    loop.advance(2.5)
    assert loop.decisions == []
    dead = loop.link("leaf1", "spine2")
    hit = loop.flows_over({dead})
    assert len(hit) >= 2
    loop.run.fault("blackhole leaf1>spine2")
    made = until_decided(loop)
    assert {d["flow_id"] for d in made} == hit
    assert not loop.flows_over(loop.dead_links())
    assert {d["reason"]["kind"] for d in made} == {"DOWN"}
    assert {d["reason"]["id"].rpartition("/")[0] for d in made} == {cable_id(dead)}
    assert [d["seq"] for d in made] == list(range(len(made)))
    assert {r["outcome"] for r in loop.reports} == {"APPLIED"}
    assert all(d["expires_at_ns"] == d["at_ns"] + S for d in made)
    loop.advance(3)
    assert len(loop.decisions) == len(hit), "once moved, a flow stays"


def test_failures_in_a_row_are_survived_while_one_path_lives() -> None:
    loop = Loop()
    spread(loop)
    loop.advance(1.2)
    over = {flow.flow_id for flow in loop.run.flows() if any("leaf1:" in hop for hop in flow.hops[:1])}
    for spine in range(1, 8):
        loop.run.fault(f"blackhole leaf1>spine{spine}")
        loop.advance(0.05)
        assert not loop.flows_over(loop.dead_links()), f"after spine{spine}"
    last = {loop.link("leaf1", "spine8")}
    assert over & loop.flows_over(last) == {f for f in over if loop.run.book.flows[f].destination >= 8}
    before = len(loop.decisions)
    loop.run.fault("blackhole leaf1>spine8")
    loop.advance(0.5)
    assert len(loop.decisions) == before, "with no living path there is nowhere to go"
    assert {h.flow_id for h in loop.held if h.cause == "NO_LIVING_PATH"} == loop.flows_over(last)


def test_a_flow_that_just_moved_moves_again_when_its_new_path_dies_before_any_report() -> None:
    loop = Loop()
    flow = loop.open(0, 63, 50_000, 1e10)
    loop.advance(1.2)
    for _ in range(3):
        (link,) = [hop for hop in flow.hops if hop.startswith("leaf1:")]
        loop.give("health", (cable_id(link), health(link, "DOWN", 9, loop.run.now_ns)))
        (made,) = loop.decide()
        assert made["flow_id"] == flow.flow_id
    assert len(set(flow.hops) & {d["to_path"] for d in loop.decisions}) == 0
    assert len({d["to_path"] for d in loop.decisions}) == 3


def test_flows_go_back_in_steps_once_the_link_has_stayed_well_and_later_the_more_it_flaps() -> None:
    loop = Loop()
    spread(loop)
    loop.advance(1.2)
    home = {flow.flow_id: flow.port for flow in loop.run.flows()}
    for spell, hold_s in enumerate((10, 20, 40)):
        loop.run.fault("blackhole spine2>leaf3")
        loop.run.fault("blackhole leaf1>spine2")
        made = until_decided(loop)
        loop.advance(1)
        loop.run.clear()
        before = len(loop.decisions)
        loop.advance(hold_s - 0.1)
        assert len(loop.decisions) == before, f"spell {spell}: held down for {hold_s} s"
        loop.advance(1.2)
        back = loop.decisions[before:]
        assert {d["action"] for d in back} == {"RESTORE"}
        assert {d["reason"]["kind"] for d in back} == {"HEALED"}
        assert {flow.flow_id: flow.port for flow in loop.run.flows()} == home
        assert len({d["at_ns"] for d in back}) > 1, "not all at once"
        assert len(back) >= len(made)
        assert back[-1]["at_ns"] - back[0]["at_ns"] <= S


def colliding(loop: Loop, count: int = 2) -> list[Any]:
    """So many flows at line rate that meet between leaf1 and spine1."""
    link = loop.link("leaf1", "spine1")
    return [loop.open(n, 20 + 8 * n, loop.port_over(n, 20 + 8 * n, link)) for n in range(count)]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_collision_is_cleared_by_the_fewest_moves_and_makes_no_other(count: int) -> None:
    loop = Loop()
    for n in range(6, 16):
        loop.open(n, 47 + n, loop.port_over(n, 47 + n, loop.link(f"leaf{1 + n // 8}", "spine2")), 1e10)
    flows = colliding(loop, count)
    loop.advance(2)
    assert len({d["flow_id"] for d in loop.decisions}) == len(loop.decisions) == count - 1
    assert {d["flow_id"] for d in loop.decisions} < {flow.flow_id for flow in flows}, "heavy ones"
    assert {d["reason"]["kind"] for d in loop.decisions} == {"COLLISION"}
    assert dict(loop.contended) == {loop.link("leaf1", "spine1"): 1}
    loop.advance(5)
    assert loop.run.contention() == []
    rates = {flow.flow_id: flow.rate_bps for flow in loop.live.open_flows()}
    assert [rates[flow.flow_id] for flow in flows] == pytest.approx([4e11] * count, rel=0.01)
    assert len(loop.decisions) == count - 1


def test_nothing_oscillates_over_ten_minutes_of_load_and_faults() -> None:
    loop = Loop(every=10, load=0.5, flows_per_nic=1)
    loop.advance(120)
    loop.run.fault("flap 4 leaf2>spine3 every 8s")
    loop.run.fault("blackhole leaf1>spine2 for 30s")
    loop.advance(480)
    steered: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for d in loop.decisions:
        if d["reason"]["kind"] == "COLLISION":
            steered[d["flow_id"]].append((d["from_path"], d["to_path"]))
    assert steered, "collisions were there to be cleared"
    assert max(len(moves) for moves in steered.values()) <= 3
    for moves in steered.values():
        assert len({to for _, to in moves}) == len(moves), "no way is taken twice"
    last_ns = loop.run.now_ns - 300 * S
    assert [d["text"] for d in loop.decisions if d["at_ns"] > last_ns] == []
    assert not loop.flows_over(loop.dead_links())


def test_steering_under_heavy_load_leads_nobody_in_circles_and_carries_more() -> None:
    sent = {}
    for mode in ("ACT", "OBSERVE"):
        loop = Loop(mode=mode, seed=5, every=10, load=0.9, flows_per_nic=2)
        loop.advance(40)
        before = loop.run.kernel.flow_sums()[0][:, 0].sum()
        loop.advance(20)
        sent[mode] = loop.run.kernel.flow_sums()[0][:, 0].sum() - before
        if mode == "ACT":
            left: dict[str, set[tuple[str, ...]]] = defaultdict(set)
            flows = {flow.flow_id: flow for flow in loop.live.open_flows()}
            for d in loop.decisions:
                ways = loop.ways.of(flows[d["flow_id"]])
                assert ways[d["to_path"]] not in left[d["flow_id"]]
                left[d["flow_id"]].add(ways[d["from_path"]])
            assert len(loop.decisions) > 30
    assert sent["ACT"] > 1.05 * sent["OBSERVE"]


def test_observe_decides_the_same_and_moves_nothing() -> None:
    act, observe = Loop(mode="ACT"), Loop(mode="OBSERVE")
    for loop in (act, observe):
        spread(loop)
        loop.advance(1.2)
        loop.run.fault("blackhole leaf1>spine2")
        until_decided(loop)
    assert act.said == observe.said
    before = {flow.flow_id: flow.port for flow in observe.run.flows()}
    observe.advance(20)
    assert {flow.flow_id: flow.port for flow in observe.run.flows()} == before
    assert {r["outcome"] for r in observe.reports} == {"OBSERVED"}
    hit = len(observe.flows_over(observe.dead_links()))
    assert hit * 2 <= len(observe.decisions) <= hit * 5, "said again, ever less often"


def test_the_same_inputs_give_the_same_decisions_byte_for_byte() -> None:
    loop = Loop()
    spread(loop, share=0.3)
    colliding(loop)
    loop.advance(1.5)
    loop.run.fault("blackhole leaf1>spine2 for 2s")
    loop.run.fault("grey 20% leaf3>spine4 for 2s")
    loop.advance(14)
    assert {d["reason"]["kind"] for d in loop.decisions} >= {"DOWN", "GREY", "HEALED", "COLLISION"}
    policy, live, tail = loop.new_policy()
    again = []
    for kind, what in loop.inputs:
        if kind == "decide":
            live.advance(what)
            found = policy.decide(what)
            again += [
                (said.topic.name, said.key, codec.encode(said.topic.record, said.record))
                for said in (*found.decisions, *found.fallbacks)
            ]
        else:
            feed(policy, live, tail, kind, what)
    assert again == loop.said


def test_fallbacks_name_living_ways_that_leave_the_present_one() -> None:
    loop = Loop()
    spread(loop)
    loop.advance(1.2)
    loop.run.fault("blackhole leaf1>spine2")
    loop.advance(2)
    dead = loop.dead_links()
    flows = {flow.flow_id: flow for flow in loop.live.open_flows()}
    ranked = {each["flow_id"]: each for record in loop.fallbacks.values() for each in record["flows"]}
    assert ranked.keys() == {name for name, flow in flows.items() if len(flow.hops) > 2}
    for name, each in ranked.items():
        assert each["path"] == flows[name].path
        ways = loop.ways.of(flows[name])
        for other in each["other_paths"]:
            assert not dead & set(ways[other].links)
        assert set(ways[each["other_paths"][0]].links) & set(flows[name].hops) == {
            flows[name].hops[0],
            flows[name].hops[-1],
        }
