"""Uplink pinning: an all-to-all in steps on two leaves, alone and on a small simulated fleet."""

from __future__ import annotations

from collections import Counter
from itertools import product

from fabrictime.bench.control.sim import Loop, Scenario, simulation
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from streams.runtime.flow_table import LiveFlow
from tests.streams.policy.small_fabric import MS, RATE, SPINES, World

NICS = 4
"""NICs per leaf, each as fast as a fabric link: exactly non-blocking."""


class AlternatingWorld(World):
    """Each NIC of leaf 1 sends to one NIC of leaf 2 after the other, over `connections` flows.

    With `local`, it also sends to a NIC of its own leaf. Reports show equal rates for all flows. The busy
    share shows line rate if no other NIC uses the same spine, otherwise `slowed` of it.
    """

    def __init__(self, connections: int = 1, slowed: float = 0.5, local: bool = True, **config) -> None:
        super().__init__(0, **{"max_moved_share": 1.0, **config})
        self.slowed, self.connections = slowed, connections
        for a, b, c in product(range(NICS), range(NICS), range(connections)):
            self.open(1 + a, 5 + b, f"{b}:{c}", 100 + (3 * a + 3 * b + c // 2 + a * b) % SPINES, "moe")
        for a in range(NICS if local else 0):
            self.open(1 + a, 1 + (a + 1) % NICS, "local", 100, "moe")

    def spine(self, name: str) -> int | None:
        """Return the spine that a flow crosses; None within a leaf."""
        return None if name.endswith("local") else self.paths[name] % SPINES

    def open_flows(self) -> list[LiveFlow]:
        users, flows = self.users(), []
        for flow in super().open_flows():
            spine = self.spine(flow.flow_id)
            share = 0.1 if spine is None or len(users[spine]) == 1 else 0.1 / self.slowed
            rate_bps = 0.1 * RATE / (1 if spine is None else self.connections)
            flows.append(flow._replace(rate_bps=rate_bps, busy_share=share, system_ns=self.now_ns))
        return flows

    def advance(self, seconds: float) -> list[dict]:
        return [decision for _ in range(round(seconds * 10)) for decision in self.decide(100 * MS)]

    def users(self) -> list[set[str]]:
        """Return the NICs that send over each spine."""
        return [{self.ends[n][0] for n in self.paths if self.spine(n) == s} for s in range(SPINES)]


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
        spines = [t.spine(name) for name in t.paths if t.ends[name] == ends]
        assert spines == [None] or sorted(spines) == list(range(SPINES))
    assert len(made) < len(t.paths) / 2
    assert t.advance(30) == []


def test_a_persistent_queue_is_evidence_if_all_flows_are_slowed_equally():
    t = AlternatingWorld(local=False)
    assert min(map(len, t.users())) > 1, "all are slowed equally"
    t.window("leaf1:u3>spine3:p1")
    t.advance(3)
    assert [len(users) for users in t.users()] == [1] * SPINES


def test_flows_that_are_not_slowed_stay():
    t = AlternatingWorld(slowed=1.0)
    assert max(map(len, t.users())) > 1
    assert t.advance(10) == []


def test_flows_on_their_uplink_do_not_move():
    t = AlternatingWorld()
    for name in t.paths:
        t.paths[name] = 100 if name.endswith("local") else 99 + int(name[1])
    misplaced = "h2/b/qp:eth1:2:0"
    own = t.paths[misplaced]
    t.paths[misplaced] = own + 1
    made = t.advance(3)
    assert [d["flow_id"] for d in made] == [misplaced]
    assert made[0]["to_path"] % SPINES == own % SPINES


def test_no_uplink_on_an_unhealthy_path_is_assigned():
    t = AlternatingWorld()
    t.health("leaf1:u2>spine2:p1", "DOWN")
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
