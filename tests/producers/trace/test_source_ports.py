"""Source ports: few ports that together use every route."""

from __future__ import annotations

import random

from producers.trace.source_ports import candidates_for, choose_ports, coverage_of


def routes_of(seed: int, ports: int, peers: int, spines: int) -> dict[int, dict[str, int]]:
    rng = random.Random(seed)
    return {
        port: {f"p{n}": rng.randrange(spines) for n in range(peers)} for port in range(1000, 1000 + ports)
    }


def test_the_number_of_candidates_misses_a_route_with_the_given_chance() -> None:
    assert candidates_for(1, 0.01) == 1
    count, runs = candidates_for(8, 0.05), 2000
    rng = random.Random(1)
    missed = sum(len({rng.randrange(8) for _ in range(count)}) < 8 for _ in range(runs))
    assert missed / runs <= 0.05 * 1.2


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
