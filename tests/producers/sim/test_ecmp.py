"""ECMP: the same flow takes the same links, dead links get none, and living ones even shares."""

from __future__ import annotations

import numpy as np

from producers.sim.ecmp import EcmpChoice, Position, UsableRoutes, mix

FLOWS = 20_000
WIDTH = 4


def choose(alive: list[bool] | None = None, seed: int = 1, flows: int = FLOWS) -> EcmpChoice:
    """Choose one of four uplinks at one leaf for each flow."""
    links = None if alive is None else np.repeat(alive, 2)
    choice = EcmpChoice(mix(np.arange(flows, dtype=np.uint64)), np.array([seed], np.uint64), links)
    zeros = np.zeros(flows, np.int64)
    choice.choose(Position.LEAF_UP, np.arange(flows), zeros, zeros, WIDTH)
    return choice


def test_shares_are_even_and_another_seed_gives_other_links() -> None:
    cables = choose().cables(Position.LEAF_UP)
    shares = np.bincount(cables, minlength=WIDTH) / FLOWS
    assert np.abs(shares - 1 / WIDTH).max() < 0.02
    assert (cables == choose().cables(Position.LEAF_UP)).all()
    same = (cables == choose(seed=2).cables(Position.LEAF_UP)).mean()
    assert abs(same - 1 / WIDTH) < 0.02, "switches hash independently"


def test_no_flow_takes_a_dead_cable_and_the_others_share() -> None:
    cables = choose([True, False, True, True]).cables(Position.LEAF_UP)
    shares = np.bincount(cables, minlength=WIDTH) / FLOWS
    assert shares[1] == 0
    assert np.abs(shares[[0, 2, 3]] - 1 / 3).max() < 0.02


def test_a_flow_without_a_living_port_is_not_reached_and_ends_there() -> None:
    choice = choose([False] * WIDTH, flows=3)
    at, zeros = np.arange(3), np.zeros(3, np.int64)
    choice.choose(Position.SPINE_DOWN, at, zeros, zeros, WIDTH)
    paths = choice.paths()
    assert not paths.reached.any()
    assert paths.hops.tolist() == [0, 0, 0]


def test_links_are_in_the_order_of_the_route_and_go_up_then_down() -> None:
    choice = choose(flows=2)
    at, zeros = np.arange(2), np.zeros(2, np.int64)
    choice.choose(Position.SPINE_DOWN, at, zeros, zeros + 8, 1)
    up, down = choice.paths().of(0).tolist()
    assert (up % 2, down) == (0, 17)


def test_uplinks_to_a_spine_that_cannot_reach_the_leaf_are_not_usable() -> None:
    routes = UsableRoutes(
        up=np.array([[True, True, True, False]]),
        below=np.array([[True, False]]),
        to_core=np.ones((1, 2, 1), np.bool_),
        from_core=np.ones((1, 2, 1), np.bool_),
        joined=np.ones((1, 1, 2), np.bool_),
    )
    zero = np.zeros(1, np.int64)
    assert routes.uplinks(zero, zero, zero, zero).tolist() == [[True, True, False, False]]


def test_mix_is_a_permutation() -> None:
    values = np.arange(100_000, dtype=np.uint64)
    assert len(np.unique(mix(values))) == len(values)
