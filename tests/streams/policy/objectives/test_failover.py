"""Failover: flows leave dead and lossy paths."""

from __future__ import annotations

from itertools import pairwise

import pytest

from schemas.ids import cable_id
from streams.policy.inputs import PolicyInputs
from tests.streams.policy.closed_loop import Loop, S, advance_until_decided, open_random_flows
from tests.streams.policy.log_fabric import EPOCH, HOSTS, PARTITIONS, Log
from tests.streams.policy.records import health
from tests.streams.policy.small_fabric import SPINES, World


@pytest.mark.parametrize("real", [False, True], ids=["truth", "detector"])
def test_flows_leave_a_blackhole_in_one_cycle_for_living_paths(real: bool) -> None:
    loop = Loop(real=real)
    open_random_flows(loop)
    for n in range(3):
        loop.open(n, 20 + 8 * n, loop.port_over(n, 20 + 8 * n, loop.link("leaf1", "spine2")), 1e10)
    loop.advance(2.5)
    assert loop.decisions == []
    dead = loop.link("leaf1", "spine2")
    hit = loop.flows_over({dead})
    assert len(hit) >= 2
    loop.run.fault("blackhole leaf1>spine2")
    made = advance_until_decided(loop)
    assert {d["flow_id"] for d in made} == hit
    loop.advance(0.05)
    assert not loop.flows_over(loop.dead_links())
    assert {d["reason"]["kind"] for d in made} == {"DOWN"}
    assert {d["reason"]["subject"] for d in made} == {cable_id(dead)}
    assert [d["seq"] for d in made] == list(range(len(made)))
    assert {r["outcome"] for r in loop.pipeline.reports} == {"APPLIED"}
    assert all(d["expires_at_ns"] == d["at_ns"] + S for d in made)
    loop.advance(3)
    assert len(loop.decisions) == len(hit), "a moved flow stays"


def test_flows_survive_successive_failures_while_one_path_lives() -> None:
    loop = Loop()
    open_random_flows(loop)
    loop.advance(1.2)
    over = {flow.flow_id for flow in loop.run.flows() if any("leaf1:" in hop for hop in flow.hops[:1])}
    for spine in range(1, 8):
        loop.run.fault(f"blackhole leaf1>spine{spine}")
        loop.advance(0.1)
        assert not loop.flows_over(loop.dead_links()), f"after spine{spine}"
    last = {loop.link("leaf1", "spine8")}
    assert over & loop.flows_over(last) == {f for f in over if loop.run.book.flows[f].destination >= 8}
    before = len(loop.decisions)
    loop.run.fault("blackhole leaf1>spine8")
    loop.advance(0.5)
    assert len(loop.decisions) == before, "no living path is left"
    assert {h["flow_id"] for h in loop.suppressed if h["cause"] == "NO_LIVING_PATH"} == loop.flows_over(last)


def test_a_flow_moves_again_if_its_new_path_dies_before_any_report() -> None:
    loop = Loop()
    flow, port = loop.open(0, 63, 50_000, 1e10), 50_000
    loop.advance(1.2)
    for seq in range(3):
        (link,) = [hop for hop in loop.links_of(0, 63, port) if hop.startswith("leaf1:")]
        loop.give_health(health(link, "DOWN", 9 + seq, loop.run.now_ns))
        (made,) = loop.step()
        assert made["flow_id"] == flow.flow_id
        port = made["to_path"]
    assert flow.port == 50_000, "no decision is in force yet"
    assert len({d["to_path"] for d in loop.decisions}) == 3


def test_a_cable_dies_in_one_direction_only():
    w = World(16, max_moved_share=1.0)
    w.paths = {name: 100 + n // 2 for n, name in enumerate(w.paths)}
    w.decide()
    out, back = "leaf1:u1>spine1:p1", "spine1:p1>leaf1:u1"
    for link in (out, back):
        hit = w.crossing(link)
        w.health(link, "DOWN")
        assert {d["flow_id"] for d in w.decide()} == hit
        assert hit
        w.health(link, "UP")
        for _ in range(15):
            w.decide(10 * S)
        assert w.crossing(link) == hit


def test_dead_paths_come_before_lossy_ones_and_heavy_flows_before_light_ones():
    w = World(8, max_moved_share=1.0)
    for n, name in enumerate(sorted(w.paths)):
        w.rate_bps[name] = 1e6 * (n + 1)
    w.decide()
    dead, grey = "leaf1:u1>spine1:p1", "leaf1:u3>spine3:p1"
    w.health(grey, "GREY")
    w.health(dead, "DOWN")
    hit = {link: w.crossing(link) for link in (dead, grey)}
    made = w.decide()
    assert len(hit[dead]) >= 2
    assert {d["flow_id"] for d in made} == hit[dead] | hit[grey]
    kinds = [d["reason"]["kind"] for d in made]
    assert kinds == sorted(kinds), "DOWN, then GREY"
    for a, b in pairwise(made):
        if a["reason"] == b["reason"]:
            assert w.rate_bps[a["flow_id"]] >= w.rate_bps[b["flow_id"]]


def test_only_flows_on_dead_paths_move_to_lossy_ones():
    w = World(8, max_moved_share=1.0)
    w.decide()
    for spine in range(SPINES):
        w.health(f"leaf1:u{spine}>spine{spine}:p1", "GREY")
    assert w.decide() == []
    assert {h.cause for h in w.suppressed} == {"NO_BETTER_PATH"}
    w.health("leaf1:u1>spine1:p1", "DOWN")
    assert {d["reason"]["kind"] for d in w.decide()} == {"DOWN"}


@pytest.mark.parametrize("routes", [True, False], ids=["traced", "not traced"])
def test_a_dead_receiver_moves_no_flow(routes):
    w = World(8, routes=routes, max_moved_share=1.0)
    w.decide()
    w.health("h5/eth1", "DOWN", kind="NIC")
    assert w.decide() == []
    assert {h.cause for h in w.suppressed} == {"NO_LIVING_PATH"}
    assert {h.flow_id for h in w.suppressed} == {name for name, ends in w.ends.items() if "h5/eth1" in ends}


@pytest.mark.parametrize("link", ["h5:eth1>leaf2:p5", "leaf2:p5>h5:eth1"], ids=["out", "in"])
@pytest.mark.parametrize("state", ["DOWN", "GREY"])
@pytest.mark.parametrize("routes", [True, False], ids=["traced", "not traced"])
def test_no_flow_leaves_the_cable_of_its_own_nic(routes, state, link):
    """Each of its paths crosses that cable: one flow moved 36 times within seconds, from port to port."""
    w = World(8, routes=routes, max_moved_share=1.0)
    w.decide()
    hit = w.crossing(link)
    assert hit
    w.health(link, state)
    for _ in range(5):
        assert w.decide(S) == []
        assert {h.flow_id for h in w.suppressed} == hit
        assert {h.cause for h in w.suppressed} == {"NO_LIVING_PATH" if state == "DOWN" else "NO_BETTER_PATH"}


def test_a_flow_of_unknown_routes_leaves_a_link_within_the_fabric():
    w = World(8, routes=False, max_moved_share=1.0)
    w.decide()
    link = "leaf1:u1>spine1:p1"
    hit = w.crossing(link)
    w.health(link, "DOWN")
    w.health("h5:eth1>leaf2:p5", "GREY")  # no reason to stay on a dead path
    assert {d["flow_id"] for d in w.decide() if d["reason"]["kind"] == "DOWN"} == hit
    assert hit


def test_data_and_answers_leave_a_dead_link_at_once_in_both_directions() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    for source in range(HOSTS):
        log.open(source, (source + 1) % HOSTS, 6000 + source)
    for _ in range(3):
        log.report()
        log.run_cycles(inputs, 1.0)
    assert log.decisions == []
    for link in ("leaf1:u2>spine2:leaf1", "spine3:leaf1>leaf1:u3"):
        hit = log.over(link)
        assert hit, "otherwise the test shows nothing"
        log.health(link, "DOWN")
        made = log.run_cycles(inputs, 0.003)
        assert {decision["flow_id"] for decision in made} == hit
        assert not log.over(link)
    names = {name for record in log.fallbacks for each in record["flows"] for name in each["links"]}
    assert any(name.startswith("leaf2:") and name.endswith("leaf2") for name in names), (
        "links of answers are included"
    )
