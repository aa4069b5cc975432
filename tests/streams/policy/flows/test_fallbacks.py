"""Fallbacks: ranked paths for local repair."""

from __future__ import annotations

from collections import Counter

from tests.streams.policy.closed_loop import Loop, open_random_flows
from tests.streams.policy.small_fabric import SPINES, World, links_of


def rows_of(world):
    return [row for record in world.fallbacks.values() for row in record["flows"]]


def fallbacks_over(world, link):
    """Return the rows with a fallback path over a link, by the current routes."""
    return [
        row
        for row in rows_of(world)
        for path in row["other_paths"]
        if link in links_of(*world.ends[row["flow_id"]], (path + world.shift) % SPINES)
    ]


def ranked_world(count=1200):
    """Return a world with as many flows as three cycles rank, all ranked; no flow may move."""
    world = World(count, allowed_actions=["PACE"])
    for _ in range(3):
        world.decide()
    assert len(rows_of(world)) == count
    return world


def test_fallbacks_are_living_paths_that_avoid_the_current_route() -> None:
    loop = Loop()
    open_random_flows(loop)
    loop.advance(1.2)
    loop.run.fault("blackhole leaf1>spine2")
    loop.advance(2)
    dead = loop.dead_links()
    flows = loop.run.book.flows
    ranked = {each["flow_id"]: each for record in loop.fallbacks.values() for each in record["flows"]}
    assert ranked.keys() == {name for name, flow in flows.items() if len(flow.hops) > 2}
    for name, each in ranked.items():
        flow = flows[name]
        assert each["path"] == flow.port
        routes = [loop.links_of(flow.source, flow.destination, other) for other in each["other_paths"]]
        for links in routes:
            assert not dead & set(links)
        assert set(routes[0]) & set(flow.hops) == {
            flow.hops[0],
            flow.hops[-1],
        }


def test_a_new_owner_publishes_fallbacks_for_every_host_even_if_there_are_none():
    world = World(job="j7", protected_jobs=["j7"])
    world.decide()
    assert world.fallbacks
    assert all(record["flows"] == [] for record in world.fallbacks.values())


def test_a_newly_protected_job_loses_its_fallbacks():
    world = World(job="j7", mode="ACT")
    world.decide()
    assert all(row["job"] == "j7" for record in world.fallbacks.values() for row in record["flows"])
    assert any(record["flows"] for record in world.fallbacks.values())
    world.configure(version=2, protected_jobs=["j7"])
    world.decide()
    assert all(record["flows"] == [] for record in world.fallbacks.values())


def test_many_flows_are_ranked_over_several_cycles():
    world = World(1200)
    of_host = Counter(name.split("/")[0] for name in world.paths)
    world.health("leaf1:u1>spine1:p1", "DOWN")
    world.decide()
    assert 0 < len(world.fallbacks) < len(of_host)
    for _ in range(2):
        published = {host: len(record["flows"]) for host, record in world.fallbacks.items()}
        assert published.items() <= of_host.items()
        world.decide()
    assert len(rows_of(world)) == 1200


def test_only_flows_that_could_use_a_dying_link_are_ranked_at_once():
    world, link = ranked_world(), "leaf1:u1>spine1:p1"
    hosts = {row["flow_id"].split("/")[0] for row in fallbacks_over(world, link)}
    assert hosts
    before, world.fallbacks = world.fallbacks, {}
    world.health(link, "DOWN")
    world.decide()
    assert set(world.fallbacks) == hosts, "all other hosts keep their ranks"
    world.fallbacks = before | world.fallbacks
    assert len(rows_of(world)) == 1200
    assert not fallbacks_over(world, link)


def test_flows_with_new_routes_over_a_dead_link_are_ranked_at_once():
    world, link = ranked_world(), "leaf1:u1>spine1:p1"
    world.health(link, "DOWN")
    world.decide()
    world.shift = 1
    world.decide()
    assert len(rows_of(world)) == 1200
    assert not fallbacks_over(world, link)


def test_a_moved_flow_is_ranked_at_once():
    world = ranked_world()
    name = next(iter(world.paths))
    world.paths[name] = 101 if world.paths[name] % SPINES != 1 else 102
    world.decide()
    (row,) = [row for row in rows_of(world) if row["flow_id"] == name]
    assert row["path"] == world.paths[name]
    assert world.paths[name] not in row["other_paths"]
