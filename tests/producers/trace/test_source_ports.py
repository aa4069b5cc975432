"""Source ports: few ports that together use every route."""

from __future__ import annotations

import random

import pytest

from producers.trace.source_ports import choose_ports, coverage_of


def routes_of(seed: int, ports: int, peers: int, spines: int) -> dict[int, dict[str, int]]:
    rng = random.Random(seed)
    return {
        port: {f"p{n}": rng.randrange(spines) for n in range(peers)} for port in range(1000, 1000 + ports)
    }


def test_the_chosen_ports_cover_every_route_that_the_candidates_cover() -> None:
    for seed in range(20):
        routes = routes_of(seed, 40, 3, 4)
        chosen = choose_ports(routes, 8)
        assert len(set(chosen)) == 8
        assert coverage_of(chosen, routes).routes == coverage_of(list(routes), routes).routes


def test_current_ports_stay_unless_others_cover_more() -> None:
    routes = {1: {"p": "a"}, 2: {"p": "b"}, 3: {"p": "a"}, 4: {"p": "c"}}
    assert choose_ports(routes, 2, current=[3, 2]) == [3, 2]
    chosen = choose_ports(routes, 3, current=[1, 2, 3])
    assert 4 in chosen, "the only port with a route that the current ones miss"
    assert chosen[1] == 2, "a port that stays keeps its position"


def test_current_ports_stay_with_too_few_candidates() -> None:
    assert choose_ports({1: {"p": "a"}, 2: {}}, 2, current=[8, 9]) == [8, 9]


def test_the_coverage_counts_routes_of_known_ports_alone() -> None:
    routes = {1: {"p": "a", "q": "b"}, 2: {"p": "a"}}
    assert coverage_of([1, 2, 99], routes) == (2, 2, -5)
    assert coverage_of([99], routes) == (0, 0, 0)


def lots(ports: int, peers: int, spines: int, seed: int) -> dict[int, dict[str, int]]:
    rng = random.Random(seed)
    return {
        9320 + port: {f"p{peer}": rng.randrange(spines) for peer in range(peers)} for port in range(ports)
    }


@pytest.mark.parametrize("seed", range(5))
def test_few_ports_cover_every_spine_better_than_any_would(seed: int) -> None:
    routes = lots(64, 10, 4, seed)
    chosen = choose_ports(routes, 4)
    best, first = coverage_of(chosen, routes), coverage_of(list(routes)[:4], routes)
    assert best.routes == 4
    assert best.distinct >= first.distinct
    assert best.distinct >= 32, "of 40; 27 by lot"


def test_ports_stay_unless_others_are_clearly_better() -> None:
    routes = lots(64, 10, 4, 1)
    chosen = choose_ports(routes, 4)
    assert choose_ports(routes, 4, chosen) == chosen
    routes[9320 + 64] = {f"p{peer}": 0 for peer in range(10)}
    assert choose_ports(routes, 4, chosen) == chosen
    blind = [9320 + 64, *chosen[1:]]
    changed = choose_ports(routes, 4, blind)
    assert coverage_of(changed, routes).distinct >= coverage_of(blind, routes).distinct
    assert choose_ports({}, 4, chosen) == chosen


def test_a_port_that_stays_keeps_its_place() -> None:
    routes = {1: {"p": "x"}, 2: {"p": "x"}, 3: {"p": "y"}}
    assert choose_ports(routes, 2, [2, 1]) in ([2, 3], [3, 1])
