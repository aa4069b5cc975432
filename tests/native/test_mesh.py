"""The mesh solve against numpy's least squares and against simulated truth."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core import solve_mesh


def random_mesh(rng, nodes, peers=10, sigma=(5.0, 50.0)):
    a = np.repeat(np.arange(nodes), peers)
    b = (a + rng.integers(1, nodes, a.size)) % nodes
    truth = rng.normal(0, 1e6, nodes)
    errors = rng.uniform(*sigma, a.size)
    value = truth[b] - truth[a] + rng.normal(0, 1, a.size) * errors
    return a, b, value, errors, truth


def centred(x, a, b, weight, component):
    """x less each part's mean, weighted by the nodes' information."""
    n = len(x)
    diagonal = np.bincount(a, weight, n) + np.bincount(b, weight, n)
    return x - (np.bincount(component, x * diagonal) / np.bincount(component, diagonal))[component]


@pytest.mark.parametrize("nodes", [2, 3, 8, 60, 150, 400])
def test_equals_numpy_least_squares(nodes):
    """Edges without outliers: Huber's weights stay 1 where no residual is large, so plain least squares."""
    rng = np.random.default_rng(nodes)
    a, b, value, sigma, truth = random_mesh(rng, nodes)
    value = truth[b] - truth[a] + rng.uniform(-0.9, 0.9, a.size) * sigma
    got = solve_mesh(nodes, a, b, value, sigma)
    design = np.zeros((a.size, nodes))
    design[np.arange(a.size), a] -= 1
    design[np.arange(a.size), b] += 1
    wanted = np.linalg.lstsq(design / sigma[:, None], value / sigma, rcond=None)[0]
    assert (got.weight == 1).all()
    assert (got.component == 0).all()
    assert got.x == pytest.approx(centred(wanted, a, b, 1 / sigma**2, got.component), abs=1e-3)
    assert got.residual == pytest.approx(value - (got.x[b] - got.x[a]), abs=1e-6)
    gauge = np.eye(nodes) - np.outer(
        np.ones(nodes), np.diag(design.T @ (design / sigma[:, None] ** 2))
    ) / np.trace(design.T @ (design / sigma[:, None] ** 2))
    exact = np.sqrt(np.diag(gauge @ np.linalg.pinv(design.T @ (design / sigma[:, None] ** 2)) @ gauge.T))
    assert got.sigma == pytest.approx(exact, rel=1e-6 if nodes <= 96 else 0.35)


@pytest.mark.parametrize(("nodes", "rounds"), [(8, 150), (300, 6)])
@pytest.mark.parametrize("outliers", [0.0, 0.02])
def test_sigma_covers_the_truth(nodes, rounds, outliers):
    rng = np.random.default_rng(5)
    scaled = []
    for _ in range(rounds):
        a, b, value, sigma, truth = random_mesh(rng, nodes)
        value[rng.random(a.size) < outliers] += 1e6
        got = solve_mesh(nodes, a, b, value, sigma)
        scaled.append((got.x - centred(truth, a, b, got.weight / sigma**2, got.component)) / got.sigma)
    inside = np.abs(np.concatenate(scaled))
    assert 0.6 < (inside < 1).mean() < 0.85
    assert (inside < 3).mean() > 0.985


def test_sigma_grows_where_edges_are_worse_than_they_say():
    rng = np.random.default_rng(6)
    a, b, value, sigma, _ = random_mesh(rng, 100)
    honest = solve_mesh(100, a, b, value, sigma)
    modest = solve_mesh(100, a, b, value, sigma / 10)
    assert np.median(modest.sigma) == pytest.approx(np.median(honest.sigma), rel=0.3)


def test_gross_outliers_hardly_pull_and_are_named():
    rng = np.random.default_rng(7)
    a, b, value, sigma, truth = random_mesh(rng, 200)
    bad = rng.random(a.size) < 0.05
    value[bad] += rng.choice([-1, 1], bad.sum()) * 10.0 ** rng.uniform(4, 12, bad.sum())
    got = solve_mesh(200, a, b, value, sigma)
    off = got.x - centred(truth, a, b, got.weight / sigma**2, got.component)
    assert np.abs(off).max() < 60
    assert (got.weight[bad] < 0.1).all()
    assert (got.weight[~bad] > 0.2).all()


def test_a_clock_far_away_is_no_outlier():
    rng = np.random.default_rng(8)
    a, b, value, sigma, truth = random_mesh(rng, 50)
    far = np.zeros(50)
    far[17] = 1e15
    got = solve_mesh(50, a, b, value + far[b] - far[a], sigma)
    assert np.median(got.weight) == 1
    off = got.x - far - truth
    assert np.ptp(off) < 200


def test_parts_are_found_and_solved_apart():
    a = np.array([0, 1, 4, 5])
    b = np.array([1, 2, 5, 4])
    got = solve_mesh(7, a, b, np.array([10.0, 5.0, 3.0, -3.0]), np.ones(4))
    assert got.component.tolist() == [0, 0, 0, 1, 2, 2, 3]
    assert np.diff(got.x[:3]).tolist() == pytest.approx([10, 5])
    assert got.x[5] - got.x[4] == pytest.approx(3)
    assert got.x[4] + got.x[5] == pytest.approx(0)
    assert got.x[[3, 6]].tolist() == [0, 0]
    assert np.isinf(got.sigma[[3, 6]]).all()
    assert got.sigma[4] == pytest.approx(0.5 / np.sqrt(2))


def test_a_group_that_only_hopeless_edges_hold():
    """Weights 1e16 apart: the tight pair stays tight, and its place is known badly, not infinitely so."""
    a, b = [1, 0, 0, 0, 2], [4, 5, 2, 1, 3]
    sigma = [0.001, 1.5, 107_020.0, 51_856.0, 0.001953125]
    got = solve_mesh(6, a, b, np.zeros(5), sigma)
    assert np.isfinite(got.sigma).all()
    assert got.sigma.max() > 1_000
    assert got.x == pytest.approx(np.zeros(6), abs=1)


def test_empty_inputs():
    none = np.empty(0)
    assert solve_mesh(0, none, none, none, none).x.size == 0
    alone = solve_mesh(2, none, none, none, none)
    assert alone.component.tolist() == [0, 1]
    assert np.isinf(alone.sigma).all()


def test_an_edge_to_itself_says_nothing():
    got = solve_mesh(2, [0, 1, 1], [1, 1, 1], [4.0, 9.0, -9.0], [1.0, 1.0, 1.0])
    assert (got.x[1] - got.x[0]) == pytest.approx(4)
    assert got.residual.tolist() == pytest.approx([0, 9, -9])


def test_a_long_chain():
    """The worst graph for gradients: errors add up along it, and sigma says so."""
    n = 600
    a, b = np.arange(n - 1), np.arange(1, n)
    got = solve_mesh(n, a, b, np.full(n - 1, 2.0), np.ones(n - 1))
    assert np.diff(got.x) == pytest.approx(np.full(n - 1, 2.0), abs=1e-3)
    exact = np.sqrt(n / 3)  # end of a chain against its mean
    assert got.sigma[0] == pytest.approx(exact, rel=0.6)
    assert got.sigma[0] > 1.3 * got.sigma[n // 2]


def test_many_parts_of_all_sizes():
    rng = np.random.default_rng(4)
    a_parts, b_parts, at = [], [], 0
    for size in (150, 2, 5, 97, 96, 300):
        a, b, *_ = random_mesh(rng, size, 6)
        a_parts.append(a + at)
        b_parts.append(b + at)
        at += size
    a, b = np.concatenate(a_parts), np.concatenate(b_parts)
    truth = rng.normal(0, 1e6, at)
    got = solve_mesh(at, a, b, truth[b] - truth[a], np.ones(a.size))
    assert got.x == pytest.approx(centred(truth, a, b, np.ones(a.size), got.component), abs=1e-2)
    assert np.isfinite(got.sigma).all()
    assert (got.sigma > 0).all()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((2, [0], [2], [1.0], [1.0]), "edge 0: nodes 0, 2, expected 0 to 1"),
        ((2, [-1], [1], [1.0], [1.0]), "edge 0: nodes -1, 1"),
        ((2, [0], [1], [float("nan")], [1.0]), "value nan"),
        ((2, [0], [1], [float("inf")], [1.0]), "value inf"),
        ((2, [0], [1], [1.0], [0.0]), "sigma 0.0"),
        ((2, [0], [1], [1.0], [float("nan")]), "sigma nan"),
        ((2, [0], [1], [1.0], [-1.0]), "sigma -1.0"),
        ((2, [0, 1], [1], [1.0], [1.0]), "expected 2 as in a"),
        ((-1, [], [], [], []), "-1 nodes"),
    ],
)
def test_wrong_input_is_one_clear_line(arguments, text):
    with pytest.raises(ValueError, match=text):
        solve_mesh(*arguments)


@given(st.integers(1, 12), st.data())
@settings(max_examples=100, deadline=None)
def test_any_graph_gives_finite_figures(nodes, data):
    edges = data.draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=30))
    number = st.floats(-1e18, 1e18)
    value = data.draw(st.lists(number, min_size=len(edges), max_size=len(edges)))
    sigma = data.draw(st.lists(st.floats(1e-3, 1e9), min_size=len(edges), max_size=len(edges)))
    a, b = [e[0] for e in edges], [e[1] for e in edges]
    got = solve_mesh(nodes, a, b, value, sigma)
    assert np.isfinite(got.x).all()
    assert np.isfinite(got.residual).all()
    assert (got.sigma >= 0).all()
    assert ((got.weight >= 0) & (got.weight <= 1)).all()
    touched = {node for e in edges if e[0] != e[1] for node in e}
    assert set(np.flatnonzero(np.isfinite(got.sigma))) == touched


def test_a_thousand_clocks_are_quick():
    a, b, value, sigma, _ = random_mesh(np.random.default_rng(1), 1_000)
    best = min(_seconds(lambda: solve_mesh(1_000, a, b, value, sigma)) for _ in range(5))
    assert best < 0.1  # about 5 ms on an idle core


def _seconds(work):
    begin = time.thread_time()
    work()
    return time.thread_time() - begin
