"""Steering of flows that take turns: an all-to-all in steps on two leaves, by itself and on a small simulated
fleet in a closed loop."""

from __future__ import annotations

from collections import Counter

from fabrictime.bench._act_sim import Loop, Scenario
from producers.sim.simulation import Simulation
from producers.sim.topology import Fleet, Shape
from schemas import codec
from schemas.topics import CONFIG
from streams.policy.policy import Policy
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow
from tests.streams.policy.test_loop import health, window

MS = 1_000_000
S = 1_000 * MS
T = 1_800_000_000 * S
LINE = 10**9
SPINES = NICS = 4
"""NICs of a leaf, each as fast as a link of the fabric: exactly non-blocking."""


class Turns:
    """Every NIC of leaf 1 sends to one of leaf 2 after the other, over `connections` flows, and where `local`
    to one of its own leaf. What is reported: all flows send as much, in so short a time as their NIC
    lets them where no other NIC's flows share their spine, else at `slowed` of that speed."""

    def __init__(self, connections: int = 1, slowed: float = 0.5, local: bool = True, **config) -> None:
        self.paths: dict[str, int] = {}
        self.ends: dict[str, tuple[int, int]] = {}
        self.slowed, self.connections, self.now_ns = slowed, connections, T
        for a in range(NICS):
            for b in range(NICS):
                for c in range(connections):
                    name = f"h{a}/b/qp:eth1:{b}:{c}"
                    self.ends[name] = (a, b)
                    self.paths[name] = 100 + (3 * a + 3 * b + c // 2 + a * b) % SPINES
        for a in range(NICS if local else 0):
            self.ends[f"h{a}/b/qp:eth1:local"], self.paths[f"h{a}/b/qp:eth1:local"] = (a, -1), 100
        self.decisions: list[dict] = []
        self.held: list = []
        self.policy = Policy("sim", 1, self, self, lambda link: LINE)
        record = {"host": "*", "version": 1, "at_ns": 0, "by": "t", "mode": "ACT", "max_moved_share": 1.0}
        record = codec.decode(codec.encode(CONFIG.record, record | config), CONFIG.record)
        self.policy.take_config({"*": record})

    def links(self, name: str, path: int) -> tuple[str, ...]:
        (a, b), s = self.ends[name], path % SPINES
        if b < 0:
            return (f"h{a}:eth1>leaf1:p{a}", f"leaf1:p9{a}>l{a}:eth1")
        return (f"h{a}:eth1>leaf1:p{a}", f"leaf1:u{s}>spine{s}:p1", f"spine{s}:p2>leaf2:u{s}",
                f"leaf2:p{b}>g{b}:eth1")  # fmt: skip

    def open_flows(self) -> list[LiveFlow]:
        users, found = self.users(), []
        for name, path in sorted(self.paths.items()):
            a, b = self.ends[name]
            speed = self.slowed if b >= 0 and len(users[path % SPINES]) > 1 else 1.0
            rate_bps = 0.1 * LINE / (self.connections if b >= 0 else 1)
            found.append(LiveFlow(
                name, f"h{a}/eth1", f"g{b}/eth1" if b >= 0 else f"l{a}/eth1", "moe", None, rate_bps, False,
                False, self.links(name, path), path, 10_000, can=("MOVE",), busy_share=0.1 / speed,
                system_ns=self.now_ns,
            ))  # fmt: skip
        return found

    def of(self, flow: LiveFlow) -> dict[int, FlowRoute]:
        return {path: FlowRoute(self.links(flow.flow_id, path)) for path in range(100, 100 + 2 * SPINES)}

    def advance(self, seconds: float) -> list[dict]:
        made = []
        for _ in range(round(seconds * 10)):
            self.now_ns += 100 * MS
            found = self.policy.decide(self.now_ns)
            self.held = found.suppressed
            for said in found.decisions:
                self.paths[said.record["flow_id"]] = said.record["to_path"]
                made.append(said.record)
        self.decisions += made
        return made

    def users(self) -> list[set[int]]:
        """Which NICs send over each spine."""
        return [
            {self.ends[n][0] for n, path in self.paths.items() if path % SPINES == s and self.ends[n][1] >= 0}
            for s in range(SPINES)
        ]


def test_flows_that_meet_end_on_a_spine_of_their_nics_own_and_stay():
    t = Turns()
    assert max(map(len, t.users())) > 1
    t.advance(0.9)
    assert t.decisions == [], "reports of all hosts come first"
    made = t.advance(3)
    assert [len(users) for users in t.users()] == [1] * SPINES
    assert max(Counter(d["flow_id"] for d in made).values()) == 1, "each moves once"
    assert {d["reason"]["kind"] for d in made} == {"COLLISION"}
    assert t.advance(30) == []


def test_with_a_flow_for_each_spine_an_even_spread_needs_fewer_moves():
    t = Turns(connections=SPINES)
    made = t.advance(4)
    for ends in set(t.ends.values()):
        spines = [path % SPINES for name, path in t.paths.items() if t.ends[name] == ends]
        assert ends[1] < 0 or sorted(spines) == list(range(SPINES))
    assert len(made) < len(t.paths) / 2
    assert t.advance(30) == []


def test_where_all_are_slowed_alike_a_standing_queue_tells():
    t = Turns(local=False)
    assert min(map(len, t.users())) > 1, "none is faster than any other"
    t.policy.take_contention(window("leaf1:u3>spine3:p1", "OPENED", "COLLISION", 0, T, T))
    t.advance(3)
    assert [len(users) for users in t.users()] == [1] * SPINES


def test_flows_that_nothing_slows_stay_where_they_are():
    t = Turns(slowed=1.0)
    assert max(map(len, t.users())) > 1
    assert t.advance(10) == []


def test_those_that_are_on_their_lane_do_not_move():
    t = Turns()
    for name, (a, b) in t.ends.items():
        t.paths[name] = 100 + a if b >= 0 else 100
    astray = next(name for name in sorted(t.paths) if t.ends[name] == (1, 2))
    t.paths[astray] = 100 + (t.ends[astray][0] + 1) % SPINES
    made = t.advance(3)
    assert [d["flow_id"] for d in made] == [astray]
    assert made[0]["to_path"] % SPINES == t.ends[astray][0]


def test_no_lane_leads_over_what_is_not_well():
    t = Turns()
    dead = "leaf1:u2>spine2:p1"
    record = health(dead, "DOWN", 1, t.now_ns, 1.0)
    t.policy.take_health(record["subject"], record)
    t.advance(4)
    assert not t.users()[2]
    assert all(d["to_path"] % SPINES != 2 for d in t.decisions)


def test_limits_hold_for_lanes_as_for_all():
    t = Turns(max_actions_per_s=1)
    made = t.advance(2.05)
    per_host = Counter(d["host"] for d in made)
    assert per_host
    assert max(per_host.values()) <= 2
    assert "ACTIONS_PER_S" in {held.cause for held in t.held}


def small(seed: int, *, act: bool) -> Loop:
    """16 NICs on two leaves with 8 spines, two all-to-alls of 8 each, scattered."""
    fleet = Fleet(
        Shape(hosts=16, hosts_per_rack=8, spines=8, host_rate_bps=10**11, fabric_rate_bps=10**11), seed
    )
    settings = Scenario(nics=16, bytes_each=200e6).settings(seed)
    return Loop(Simulation(settings, fleet=fleet, tell=Loop.TOPICS), act)


def test_on_a_small_fleet_all_go_at_nearly_line_rate_once_decided():
    for seed in (1, 2):
        loop = small(seed, act=True)
        before = loop.advance(0.9)
        assert loop.decisions == []
        loop.advance(3.1)
        after = loop.advance(1)
        assert after.share >= 0.92
        assert after.share >= 1.29 * before.share
        assert after.delay_us_p99 <= 50
        assert loop.moved() == len(loop.decisions), "none moves twice"
        made = len(loop.decisions)
        loop.advance(1)
        assert len(loop.decisions) == made


def test_observe_decides_and_changes_nothing():
    acts, watches = small(3, act=True), small(3, act=False)
    first = {}
    for name, loop in (("act", acts), ("observe", watches)):
        while not loop.decisions:
            loop.advance(0.1)
        first[name] = loop.decisions
    assert first["act"] == first["observe"]
    paths = {flow.flow_id: flow.port for flow in watches.run.flows()}
    watches.advance(1)
    assert paths == {flow.flow_id: flow.port for flow in watches.run.flows()}
