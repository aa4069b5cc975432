"""Loads of links between leaves and spines."""

from __future__ import annotations

import pytest

from streams.diagnosis.case import LinkLoad, case_of
from streams.diagnosis.network.link_loads import link_loads
from streams.diagnosis.rules import DiagnosisRules
from tests.streams.diagnosis.scenario import Job, S, World, nic, route


def loads(world: World) -> dict[str, LinkLoad]:
    world.step()
    end_ns = world.job.at_ns
    case = case_of(world.view, world.network, end_ns - S, end_ns, DiagnosisRules())
    return {each.link: each for each in link_loads(case)}


def test_a_leafs_links_up_and_down_are_compared_with_their_like() -> None:
    world = World(Job())
    world.trace_all_paths(4)
    found = loads(world)
    assert set(found) == {link for rank in (1, 3, 5, 7) for link in route(rank, (rank + 1) % 8, 1)[1:3]}
    up, down = (found[link] for link in route(1, 2, 1)[1:3])
    assert (up.switch, up.is_down, up.times, up.used, up.available, up.flows) == ("leaf0", False, 4, 1, 4, 4)
    assert (down.switch, down.is_down, down.times) == ("leaf1", True, 4)
    assert (up.place, down.place) == ("uplinks of leaf0", "links from spines to leaf1")


def test_the_load_of_a_pair_is_shared_by_its_flows() -> None:
    world = World(Job())
    world.flow_fields = {3: {"peer": nic(2), "nic": nic(1), "links": route(1, 2, 3)}}
    found = loads(world)
    assert found[route(1, 2, 1)[1]].pairs == found[route(1, 2, 3)[1]].pairs == 0.5


@pytest.mark.parametrize(("job", "pairs"), [("train", 2), (None, 1)])
def test_flows_without_a_job_do_not_count_beside_those_of_the_job(job: str | None, pairs: float) -> None:
    world = World(Job())
    world.flow_fields = {0: {"peer": nic(3), "links": route(0, 3, 1), "job": job}}
    assert loads(world)[route(1, 2, 1)[1]].pairs == pairs


def test_flows_without_a_job_count_where_none_has_its_name() -> None:
    world = World(Job())
    world.flow_fields = {rank: {"job": None} for rank in range(8)}
    assert loads(world)[route(1, 2, 1)[1]].pairs == 1


def test_links_count_as_available_as_soon_as_a_route_over_them_is_known() -> None:
    world = World(Job())
    for spines in (2, 2, 4):
        world.trace_all_paths(spines)
        assert loads(world)[route(1, 2, 1)[1]].available == spines
