"""Uplink pinning: an all-to-all in steps on two leaves, alone and on a small simulated fleet."""

from __future__ import annotations

from collections import Counter

from fabrictime.bench.control.sim import Loop, Scenario, simulation
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas import codec
from schemas.topics import CONFIG
from streams.policy.policy import Policy
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow
from tests.streams.policy.records import health, window

MS = 1_000_000
S = 1_000 * MS
T = 1_800_000_000 * S
LINE = 10**9
SPINES = NICS = 4
"""NICs per leaf, each as fast as a fabric link: exactly non-blocking."""


class AlternatingWorld:
    """Each NIC of leaf 1 sends to one NIC of leaf 2 after the other, over `connections` flows.

    With `local`, it also sends to a NIC of its own leaf. Reports show equal rates for all flows. The busy
    share shows line rate if no other NIC uses the same spine, otherwise `slowed` of it.
    """

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
        self.suppressed: list = []
        self.policy = Policy("sim", 1, self, self, lambda link: LINE)
        record = {"host": "*", "version": 1, "at_ns": 0, "by": "t", "mode": "ACT", "max_moved_share": 1.0}
        record = codec.decode(codec.encode(CONFIG.record, record | config), CONFIG.record)
        self.policy.take_config({"*": record})

    def links(self, name: str, path: int) -> tuple[str, ...]:
        (a, b), s = self.ends[name], path % SPINES
        if b < 0:
            return (f"h{a}:eth1>leaf1:p{a}", f"leaf1:p9{a}>l{a}:eth1")
        return (
            f"h{a}:eth1>leaf1:p{a}",
            f"leaf1:u{s}>spine{s}:p1",
            f"spine{s}:p2>leaf2:u{s}",
            f"leaf2:p{b}>g{b}:eth1",
        )

    def open_flows(self) -> list[LiveFlow]:
        users, found = self.users(), []
        for name, path in sorted(self.paths.items()):
            a, b = self.ends[name]
            speed = self.slowed if b >= 0 and len(users[path % SPINES]) > 1 else 1.0
            rate_bps = 0.1 * LINE / (self.connections if b >= 0 else 1)
            found.append(
                LiveFlow(
                    name,
                    f"h{a}/eth1",
                    f"g{b}/eth1" if b >= 0 else f"l{a}/eth1",
                    "moe",
                    None,
                    rate_bps,
                    False,
                    False,
                    self.links(name, path),
                    path,
                    10_000,
                    can=("MOVE",),
                    busy_share=0.1 / speed,
                    system_ns=self.now_ns,
                )
            )
        return found

    def of(self, flow: LiveFlow) -> dict[int, FlowRoute]:
        return {path: FlowRoute(self.links(flow.flow_id, path)) for path in range(100, 100 + 2 * SPINES)}

    def advance(self, seconds: float) -> list[dict]:
        made = []
        for _ in range(round(seconds * 10)):
            self.now_ns += 100 * MS
            found = self.policy.decide(self.now_ns)
            self.suppressed = found.suppressed
            for outgoing in found.decisions:
                self.paths[outgoing.record["flow_id"]] = outgoing.record["to_path"]
                made.append(outgoing.record)
        self.decisions += made
        return made

    def users(self) -> list[set[int]]:
        """Return the NICs that send over each spine."""
        return [
            {self.ends[n][0] for n, path in self.paths.items() if path % SPINES == s and self.ends[n][1] >= 0}
            for s in range(SPINES)
        ]


def test_overlapping_flows_move_to_their_nics_own_spine_and_stay():
    t = AlternatingWorld()
    assert max(map(len, t.users())) > 1
    t.advance(0.9)
    assert t.decisions == [], "all hosts report first"
    made = t.advance(3)
    assert [len(users) for users in t.users()] == [1] * SPINES
    assert max(Counter(d["flow_id"] for d in made).values()) == 1, "each flow moves once"
    assert {d["reason"]["kind"] for d in made} == {"COLLISION"}
    assert t.advance(30) == []


def test_with_a_flow_for_each_spine_an_even_spread_needs_fewer_moves():
    t = AlternatingWorld(connections=SPINES)
    made = t.advance(4)
    for ends in set(t.ends.values()):
        spines = [path % SPINES for name, path in t.paths.items() if t.ends[name] == ends]
        assert ends[1] < 0 or sorted(spines) == list(range(SPINES))
    assert len(made) < len(t.paths) / 2
    assert t.advance(30) == []


def test_a_persistent_queue_is_evidence_if_all_flows_are_slowed_equally():
    t = AlternatingWorld(local=False)
    assert min(map(len, t.users())) > 1, "all are slowed equally"
    t.policy.take_contention(window("leaf1:u3>spine3:p1", "OPENED", "COLLISION", 0, T, T))
    t.advance(3)
    assert [len(users) for users in t.users()] == [1] * SPINES


def test_flows_that_are_not_slowed_stay():
    t = AlternatingWorld(slowed=1.0)
    assert max(map(len, t.users())) > 1
    assert t.advance(10) == []


def test_flows_on_their_uplink_do_not_move():
    t = AlternatingWorld()
    for name, (a, b) in t.ends.items():
        t.paths[name] = 100 + a if b >= 0 else 100
    misplaced = next(name for name in sorted(t.paths) if t.ends[name] == (1, 2))
    t.paths[misplaced] = 100 + (t.ends[misplaced][0] + 1) % SPINES
    made = t.advance(3)
    assert [d["flow_id"] for d in made] == [misplaced]
    assert made[0]["to_path"] % SPINES == t.ends[misplaced][0]


def test_no_uplink_on_an_unhealthy_path_is_assigned():
    t = AlternatingWorld()
    dead = "leaf1:u2>spine2:p1"
    record = health(dead, "DOWN", 1, t.now_ns, 1.0)
    t.policy.take_health(record["subject"], record)
    t.advance(4)
    assert not t.users()[2]
    assert all(d["to_path"] % SPINES != 2 for d in t.decisions)


def test_limits_apply_to_pinning():
    t = AlternatingWorld(max_actions_per_s=1)
    made = t.advance(2.05)
    per_host = Counter(d["host"] for d in made)
    assert per_host
    assert max(per_host.values()) <= 2
    assert "ACTIONS_PER_S" in {suppressed.cause for suppressed in t.suppressed}


def small(seed: int, *, act: bool) -> Loop:
    """Return a loop of 16 NICs on two leaves and 8 spines, with two scattered all-to-alls of 8 NICs each."""
    fleet = Fleet(
        Shape(hosts=16, hosts_per_rack=8, spines=8, host_rate_bps=10**11, fabric_rate_bps=10**11), seed
    )
    settings = Scenario(nics=16, bytes_each=200e6).settings(seed)
    return Loop(simulation(settings, fleet), act)


def test_a_small_fleet_reaches_nearly_line_rate():
    for seed in (1, 2):
        loop = small(seed, act=True)
        before = loop.advance(0.9)
        assert loop.decisions == []
        loop.advance(3.1)
        after = loop.advance(1)
        assert after.share >= 0.92
        assert after.share >= 1.29 * before.share
        assert after.delay_us_p99 <= 50
        assert loop.moved() == len(loop.decisions), "no flow moves twice"
        made = len(loop.decisions)
        loop.advance(1)
        assert len(loop.decisions) == made


def test_observe_decides_and_moves_no_flow():
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
