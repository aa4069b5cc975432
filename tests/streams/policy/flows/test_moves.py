"""Moves: retries, failures, and local repairs."""

from __future__ import annotations

from itertools import pairwise

from streams.policy.inputs import PolicyInputs
from tests.streams.policy.log_fabric import EPOCH, PARTITIONS, Log, repair_locally
from tests.streams.policy.small_fabric import MS, S, World, links_of


def waiting_world(link):
    """Return a world whose decisions have not been applied since a link died, so that its flows wait."""
    world = World(obey=False, mode="ACT", max_moved_share=1.0)
    world.decide()
    world.health(link, "DOWN")
    for _ in range(200):
        world.decide(500 * MS)
    assert any(suppressed.cause == "WAITING" for suppressed in world.suppressed)
    return world


def test_an_unconfirmed_move_is_retried_at_growing_intervals():
    w = World(2, obey=False, max_moved_share=1.0)
    w.decide()
    w.health("leaf1:u1>spine1:p1", "DOWN")
    for _ in range(3000):
        w.decide()
    (name,) = w.crossing("leaf1:u1>spine1:p1")
    at = [d["at_ns"] for d in w.decisions]
    gaps_s = [round((b - a) / S, 1) for a, b in pairwise(at)]
    assert gaps_s == [3.5, 5.5, 9.5]
    assert {d["flow_id"] for d in w.decisions} == {name}


def test_failed_tries_for_one_dead_link_do_not_delay_another():
    first = "leaf1:u1>spine1:p1"
    world = waiting_world(first)
    world.health(first, "UP")
    hit = world.crossing(first)
    assert hit
    for end in {world.ends[name][0] for name in hit}:  # another failure on their path
        world.health(links_of(end, "h5/eth1", 0)[0], "GREY")
    world.decide()
    for name in hit:
        assert not any(
            suppressed.flow_id == name and suppressed.cause == "WAITING" for suppressed in world.suppressed
        )


def test_a_new_config_ends_the_wait_for_a_retry():
    link = "leaf1:u1>spine1:p1"
    world = waiting_world(link)
    world.configure(version=2, max_moved_share=1.0)
    assert {each["flow_id"] for each in world.decide()} == world.crossing(link)


def test_a_failed_move_is_retried_at_once_from_another_port() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    flow = log.open(0, 1, 6000)
    for _ in range(3):
        log.report()
        log.run_cycles(inputs, 1.0)
    log.health("leaf1:u0>spine0:leaf1", "DOWN")
    tried = [log.run_cycles(inputs, 0.02, "FAILED")[0]["to_path"] for _ in range(3)]
    assert len(set(tried)) == 3
    assert all(path % 4 != 0 for path in tried)
    assert log.run_cycles(inputs, 0.02) == [], "three tries at once, then a wait"
    for _ in range(80):
        log.report()
        log.run_cycles(inputs, 0.5)
    assert log.ports[flow] % 4 != 0


def test_a_flow_returns_after_a_local_repair_once_the_link_is_healthy() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    flow = log.open(0, 1, 6000)
    for _ in range(3):
        log.report()
        log.run_cycles(inputs, 1.0)
    repair_locally(log, flow, 6000, 6001)
    log.report()
    log.health("leaf1:u0>spine0:leaf1", "DOWN")
    assert log.run_cycles(inputs, 0.02) == [], "the flow has already left the link"
    log.report()
    log.run_cycles(inputs, 1.0)
    log.health("leaf1:u0>spine0:leaf1", "UP")
    for _ in range(30):
        log.report()
        log.run_cycles(inputs, 0.5)
    assert log.ports[flow] == 6000
