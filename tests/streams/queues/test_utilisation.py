"""Utilisation: busy shares of links from probes that met no queue."""

from __future__ import annotations

import numpy as np
import pytest

from streams.queues.routes import ROUND_TRIP
from streams.queues.utilisation import USE_NS, IdleProbes, busy_shares, end_nodes, exchange_errors
from streams.runtime.units import NS_PER_S

SECONDS = USE_NS // NS_PER_S


def add(
    probes: IdleProbes, second: int, routes: int, route: list[int], singles: int, idle: list[int]
) -> None:
    direction = np.ones(len(route), np.int64)
    probes.add(
        second, routes, np.array(route, np.int32), np.full(len(route), singles), array(*idle), direction
    )


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_routes_of_one_link_show_its_share_directly() -> None:
    share, sigma = busy_shares(
        array(0, 1, 2), array(0, 1).astype(np.int32), array(1000, 1000), array(700, 1000), 3
    )
    assert share[0] == pytest.approx(0.3, abs=1e-3)
    assert share[1] == pytest.approx(0, abs=1e-3)
    assert sigma[0] == pytest.approx(np.sqrt(0.3 * 0.7 / 1000), rel=0.02)


def test_a_link_without_probes_is_idle_with_an_infinite_error() -> None:
    share, sigma = busy_shares(array(0, 1), array(0).astype(np.int32), array(100), array(50), 2)
    assert share[1] == 0
    assert np.isinf(sigma[1])


def test_links_of_shared_routes_are_separated() -> None:
    rho = np.array([0.4, 0.1, 0.25])
    routes = [(0, 1), (1, 2), (0, 2), (0,)]
    idle = [round(100_000 * np.prod(1 - rho[list(route)])) for route in routes]
    start = np.cumsum([0, *(len(route) for route in routes)]).astype(np.int64)
    links = np.array([link for route in routes for link in route], np.int32)
    share, _ = busy_shares(start, links, array(*[100_000] * 4), array(*idle), 3, iterations=500)
    assert share == pytest.approx(rho, abs=0.01)


def test_probes_older_than_the_window_do_not_count() -> None:
    probes = IdleProbes()
    add(probes, 0, 1, [0], 1000, [0])
    assert probes.shares(array(1), array(0), 1)[0][0] > 0.9
    add(probes, SECONDS, 1, [0], 1000, [1000])
    probes.restart()
    assert probes.shares(array(1), array(0), 1)[0][0] < 0.05


def test_a_new_route_joins_a_second_that_has_begun() -> None:
    probes = IdleProbes()
    add(probes, 0, 1, [0], 100, [100])
    add(probes, 0, 2, [1, 1], 100, [50, 50])
    share, _ = probes.shares(array(1, 1), array(0, 1), 2)
    assert share[1] == pytest.approx(0.5, abs=0.01)
    probes.clear()
    assert probes.shares(array(1, 1), array(0, 1), 2)[0].tolist() == [0, 0]


def test_links_into_a_spine_may_trade_against_those_out_of_it() -> None:
    """All routes by the spine have one link up and one down: the least of each side may move to the other."""
    names = ["a:1>s:1", "b:1>s:2", "s:1>a:1", "s:2>b:1", "a:2>h:1"]
    routes = [(0, 3), (1, 2, 4), (4,)]
    lengths = np.array([len(route) for route in routes])
    flat = np.array([link for route in routes for link in route])
    shares = np.array([0.1, 0.3, 0.4, 0.2, 0.5])
    error = exchange_errors(lengths, flat, end_nodes(names), shares)
    assert error[0] == pytest.approx(max(0.9 * (1 / 0.9 - 1), 0.9 * 0.2))
    assert error[3] == pytest.approx(0.8 * (1 / 0.8 - 1))
    assert error[4] == 0


def test_rows_without_a_route_and_round_trips_show_no_share() -> None:
    probes = IdleProbes()
    route, direction = np.array([0, -1, 0], np.int32), array(1, 1, ROUND_TRIP)
    probes.add(0, 1, route, array(100, 100, 100), array(80, 0, 0), direction)
    assert probes.shares(array(1), array(0), 1)[0][0] == pytest.approx(0.2, abs=0.01)
