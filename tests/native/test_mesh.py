"""The mesh solve against numpy's least squares and against simulated truth."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core import solve_mesh
from tests.examples import examples


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
def test_the_solution_equals_numpy_lstsq(nodes):
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


def test_sigma_grows_where_edges_are_worse_than_stated():
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


def test_priors_place_a_part_and_a_step_follows_its_pairs():
    rng = np.random.default_rng(11)
    a, b, value, sigma, truth = random_mesh(rng, 100)
    prior = truth + rng.normal(0, 20, 100)
    prior[[3, 50]] += 1e6
    got = solve_mesh(100, a, b, value, sigma, prior, np.full(100, 20.0))
    assert np.abs(got.x - truth).max() < 30
    assert np.abs((got.x - truth) / got.sigma).max() < 4.5
    assert (got.prior_weight[[3, 50]] < 0.01).all()
    assert np.median(got.prior_weight) == 1
    assert got.prior_residual == pytest.approx(prior - got.x, abs=1e-6)


def test_a_part_is_absolute_with_a_single_prior():
    got = solve_mesh(4, [0, 2], [1, 3], [5.0, 7.0], [3.0, 1.0], [100.0, 0, 0, 0], [4.0, *[np.inf] * 3])
    assert got.x.tolist() == pytest.approx([100, 105, -3.5, 3.5])
    assert got.sigma.tolist() == pytest.approx([4, 5, 0.5, 0.5])
    assert got.prior_weight.tolist() == [1, 0, 0, 0]


def test_a_node_without_edges_keeps_its_prior():
    got = solve_mesh(3, [0], [1], [1.0], [1.0], [np.nan, np.nan, 42.0], [np.inf, np.inf, 7.0])
    assert got.x[2] == 42
    assert got.sigma[2] == pytest.approx(7)
    assert got.component.tolist() == [0, 0, 1]


def test_priors_wrong_each_by_a_millisecond_place_the_pairs_shape():
    """Pairs are right to some ns: the shape is theirs, and how badly the priors place it is said."""
    rng = np.random.default_rng(12)
    a, b, value, sigma, truth = random_mesh(rng, 64, sigma=(3.0, 3.0))
    prior = truth + rng.normal(0, 1e6, 64)
    got = solve_mesh(64, a, b, value, sigma, prior, np.full(64, 5.0))
    off = got.x - truth
    assert np.ptp(off) < 10
    assert np.median(got.weight) == 1
    assert 5e4 < got.sigma[0] < 4e5
    assert abs(off.mean()) < 4 * got.sigma[0]


def test_a_common_drift_of_all_priors_moves_all():
    rng = np.random.default_rng(13)
    a, b, value, sigma, truth = random_mesh(rng, 64)
    got = solve_mesh(64, a, b, value, sigma, truth + 1e9, np.full(64, 5.0))
    assert np.abs(got.x - truth - 1e9).max() < 40
    assert (got.prior_weight == 1).mean() > 0.9


@given(
    st.integers(2, 70),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e3, -1e6, 12345.678, 3e9, -1e14]),
    st.booleans(),
)
@settings(max_examples=examples(60))
def test_a_constant_on_one_clock_moves_that_clock_alone(nodes, seed, constant, with_priors):
    rng = np.random.default_rng(seed)
    a, b, value, sigma, truth = random_mesh(rng, nodes, 6)
    bad = rng.random(a.size) < 0.1
    value[bad] += rng.normal(0, 1e5, bad.sum())
    moved = np.zeros(nodes)
    moved[rng.integers(nodes)] = constant
    prior = (truth + rng.normal(0, 20, nodes), np.full(nodes, 20.0)) if with_priors else ()
    shifted = (prior[0] + moved, prior[1]) if with_priors else ()
    before = solve_mesh(nodes, a, b, value, sigma, *prior)
    after = solve_mesh(nodes, a, b, value + moved[b] - moved[a], sigma, *shifted)
    by = after.x - before.x - moved
    if not with_priors:
        by -= np.median(by)
    assert by == pytest.approx(np.zeros(nodes), abs=max(0.01 * before.sigma.min(), 1e-13 * abs(constant)))


@pytest.mark.parametrize("share", [0.1, 0.2])
@pytest.mark.parametrize(("nodes", "rounds"), [(64, 10), (1_000, 2)])
@pytest.mark.parametrize("prior_ns", [None, 20.0])
def test_wrong_edges_of_any_size(share, nodes, rounds, prior_ns):
    """From 100 sigma to 1e9: named, every one, and nobody is off by more than sigma says."""
    rng = np.random.default_rng(14)
    for _ in range(rounds):
        a, b, value, sigma, truth = random_mesh(rng, nodes)
        bad = rng.random(a.size) < share
        wrong = np.maximum(10.0 ** rng.uniform(2, 9, bad.sum()), 100 * sigma[bad])
        value[bad] += rng.choice([-1, 1], bad.sum()) * wrong
        prior = () if prior_ns is None else (truth + rng.normal(0, prior_ns, nodes), np.full(nodes, prior_ns))
        got = solve_mesh(nodes, a, b, value, sigma, *prior)
        off = got.x - truth
        if prior_ns is None:
            off = off - np.median(off)
        assert np.array_equal(got.weight < 0.1, bad)
        assert np.abs(off / got.sigma).max() < 6
        assert got.sigma.max() < 25


@pytest.mark.parametrize("nodes", [16, 64, 1_000])
@pytest.mark.parametrize("with_priors", [True, False])
def test_a_falseticker_moves_no_clock_and_is_named(nodes, with_priors):
    """One clock, the first, where a walk would begin: each of its edges is wrong by another amount."""
    rng = np.random.default_rng(15)
    for _ in range(6):
        a, b, value, sigma, truth = random_mesh(rng, nodes, 7)
        its = (a == 0) | (b == 0)
        value[its] += rng.normal(0, 1e6, its.sum())
        prior = (truth + rng.normal(0, 20, nodes), np.full(nodes, 20.0)) if with_priors else ()
        got = solve_mesh(nodes, a, b, value, sigma, *prior)
        without = solve_mesh(nodes, a[~its], b[~its], value[~its], sigma[~its], *prior)
        by = (got.x - without.x)[1:]
        if not with_priors:
            by = by - np.median(by)
        assert np.abs(by / without.sigma[1:]).max() < 0.4  # by what counts as far off, not by its amounts
        assert got.contradiction[0] > 1_000
        assert got.contradiction[1:].max() < 3
        assert got.sigma[0] > 1e5
        assert got.sigma[1:] == pytest.approx(without.sigma[1:], rel=0.3)
        if with_priors:
            assert abs(got.x[0] - truth[0]) < 100  # as none of its pairs says more than its prior


def test_a_clock_that_stepped_alone_contradicts_no_other():
    rng = np.random.default_rng(16)
    a, b, value, sigma, truth = random_mesh(rng, 64)
    truth[5] += 1e6
    value += 1e6 * (b == 5) - 1e6 * (a == 5)
    prior = truth - 1e6 * (np.arange(64) == 5)
    got = solve_mesh(64, a, b, value, sigma, prior, np.full(64, 10.0))
    assert got.x[5] == pytest.approx(truth[5], abs=40)
    assert got.contradiction.max() < 3
    assert got.sigma.max() < 20
    assert np.flatnonzero(got.prior_weight < 0.01).tolist() == [5]


D = 1e6


@pytest.mark.parametrize(
    ("edges", "uncertain"),
    [
        ([(0, 1, 0), (0, 1, D)], {0, 1}),
        ([(0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 0, D)], {0, 1, 2, 3}),
        ([(2, 0, 0), (2, 1, 0), (3, 0, 0), (3, 1, 0), (4, 0, 0), (4, 1, D)], {4}),
        # a clock against a group that holds together: 3 to 3
        (
            [(0, k, 0 if k < 4 else D) for k in range(1, 7)]
            + [(i, j, 0) for i in range(1, 7) for j in range(i + 1, 7)],
            {0},
        ),
        # two groups: 3 to 3
        (
            [(i, 4 + i, 0 if i < 2 else D) for i in range(4)]
            + [(4 * g + i, 4 * g + j, 0) for g in (0, 1) for i in range(4) for j in range(i + 1, 4)],
            set(range(8)),
        ),
    ],
    ids=["two edges", "ring", "star with two centres", "clock and group", "two groups"],
)
def test_sigma_marks_a_tie(edges, uncertain):
    a, b, value = (np.array(column) for column in zip(*edges, strict=True))
    nodes = int(max(a.max(), b.max())) + 1
    got = solve_mesh(nodes, a, b, value, np.ones(len(a)))
    wide = set(np.flatnonzero(got.sigma > D / 20).tolist())
    assert wide >= uncertain or wide >= set(range(nodes)) - uncertain  # one side of it or the other


def test_two_against_one_is_no_tie():
    got = solve_mesh(2, [0, 0, 1], [1, 1, 0], [5.0, D, -5.0], [1.0, 1.0, 1.0])
    assert got.x[1] - got.x[0] == pytest.approx(5, abs=0.01)
    assert got.sigma.max() < 2
    assert got.weight[1] < 1e-3


def test_priors_that_weigh_next_to_nothing():
    """Shape and place are solved to the rounding of each, whatever the ratio of their weights."""
    for nodes in (3, 40, 200):
        rng = np.random.default_rng(24)
        a, b, value, sigma, truth = random_mesh(rng, nodes, 6, sigma=(1e-3, 1e-3))
        got = solve_mesh(nodes, a, b, value, sigma, truth + 1e10, np.full(nodes, 1e11))
        assert np.ptp(got.x - truth) < 0.01
        assert got.x - truth == pytest.approx(np.full(nodes, 1e10), rel=1e-9)
        assert got.sigma == pytest.approx(
            np.full(nodes, 1e11 / np.sqrt(nodes)), rel=0.4 if nodes > 96 else 1e-6
        )
    apart = solve_mesh(3, [0, 0], [2, 1], [0.0, 1.0], [4.0, 2.0], [0, 3.6e16, 0], [20, 1, np.inf])
    assert apart.residual == pytest.approx([0, 0], abs=1e-3)
    assert 1e15 < apart.sigma[0] < 1e17


def test_a_prior_and_a_single_edge_that_disagree():
    got = solve_mesh(2, [0], [1], [D], [3.0], [0.0, 0.0], [20.0, 20.0])
    assert got.sigma.min() > D / 10
    assert np.abs(got.x).max() < D


@pytest.mark.parametrize("nodes", [64, 1_000])
@pytest.mark.parametrize("with_priors", [True, False])
def test_sigmas_from_a_third_of_a_nanosecond_to_a_tenth_of_a_millisecond(nodes, with_priors):
    rng = np.random.default_rng(17)
    scaled = []
    for _ in range(4):
        a, b, _, _, truth = random_mesh(rng, nodes)
        sigma = np.exp(rng.uniform(np.log(0.3), np.log(1e5), a.size))
        value = truth[b] - truth[a] + rng.normal(0, 1, a.size) * sigma
        prior = (truth + rng.normal(0, 20, nodes), np.full(nodes, 20.0)) if with_priors else ()
        got = solve_mesh(nodes, a, b, value, sigma, *prior)
        off = got.x - truth
        if not with_priors:
            off = off - centre_of(truth - got.x, a, b, got.weight / sigma**2)
        scaled.append(off / got.sigma)
        assert np.mean((got.residual / sigma) ** 2) < 1.1
    inside = np.abs(np.concatenate(scaled))
    assert np.sqrt(np.mean(inside**2)) < 1.5
    assert inside.max() < 7


def centre_of(x, a, b, weight):
    """The mean by which x would have to be taken, weighted by the nodes' information."""
    diagonal = np.bincount(a, weight, len(x)) + np.bincount(b, weight, len(x))
    return -np.sum(x * diagonal) / diagonal.sum()


@pytest.mark.parametrize(
    ("nodes", "peers", "rounds"), [(3, 1, 1_500), (3, 2, 1_500), (64, 10, 40), (1_000, 10, 4)]
)
@pytest.mark.parametrize("prior_ns", [None, 20.0])
def test_sigma_and_leverage_are_calibrated(nodes, peers, rounds, prior_ns):
    rng = np.random.default_rng(18)
    scaled, squares, left = [], [], []
    for _ in range(rounds):
        a, b, value, sigma, truth = random_mesh(rng, nodes, peers)
        prior = () if prior_ns is None else (truth + rng.normal(0, prior_ns, nodes), np.full(nodes, prior_ns))
        got = solve_mesh(nodes, a, b, value, sigma, *prior)
        off = got.x - truth
        if prior_ns is None:
            mean = np.zeros(nodes)
            for part in range(len(got.scale)):
                its = got.component == part
                diagonal = np.bincount(a, got.weight / sigma**2, nodes) + np.bincount(
                    b, got.weight / sigma**2, nodes
                )
                mean[its] = np.average(off[its], weights=diagonal[its])
            off = off - mean
        scaled.append(off / got.sigma)
        squares.append((got.residual / sigma) ** 2)
        left.append(1 - got.leverage)
    assert np.sqrt(np.mean(np.concatenate(scaled) ** 2)) == pytest.approx(1, abs=0.15)
    assert np.mean(np.concatenate(squares)) == pytest.approx(
        np.mean(np.concatenate(left)), rel=0.15, abs=0.12
    )


def test_leverage_is_exact_in_small_parts_and_near_in_large_ones():
    rng = np.random.default_rng(19)
    for nodes, near in ((40, 1e-6), (200, 0.2)):
        a, b, value, sigma, _ = random_mesh(rng, nodes)
        value = rng.uniform(-0.5, 0.5, a.size) * sigma
        got = solve_mesh(nodes, a, b, value, sigma)
        design = np.zeros((a.size, nodes))
        design[np.arange(a.size), a] -= 1
        design[np.arange(a.size), b] += 1
        design /= sigma[:, None]
        exact = np.einsum("ij,jk,ik->i", design, np.linalg.pinv(design.T @ design), design)
        assert got.leverage == pytest.approx(exact, abs=near)
        assert got.leverage.mean() == pytest.approx(exact.mean(), rel=0.1)
        assert got.dof.tolist() == [a.size - nodes + 1]


def test_scale_measures_how_much_worse_edges_are():
    rng = np.random.default_rng(20)
    a, b, value, sigma, _ = random_mesh(rng, 200)
    assert solve_mesh(200, a, b, value, sigma).scale == pytest.approx([1], rel=0.1)
    assert solve_mesh(200, a, b, value, sigma / 10).scale == pytest.approx([10], rel=0.1)
    assert solve_mesh(200, a, b, value, sigma * 10).scale == pytest.approx([0.1], rel=0.1)


def test_a_solution_without_robust_weights_equals_plain_lstsq():
    rng = np.random.default_rng(21)
    a, b, value, sigma, _ = random_mesh(rng, 30)
    value[3] += 1e5
    got = solve_mesh(30, a, b, value, sigma, robust=False, want_sigma=False)
    design = np.zeros((a.size, 30))
    design[np.arange(a.size), a] -= 1
    design[np.arange(a.size), b] += 1
    wanted = np.linalg.lstsq(design / sigma[:, None], value / sigma, rcond=None)[0]
    assert got.x == pytest.approx(centred(wanted, a, b, 1 / sigma**2, got.component), abs=1e-3)
    assert (got.weight == 1).all()
    assert np.isnan(got.sigma).all()
    assert np.isnan(got.leverage).all()


def test_two_epochs():
    """A clock at 0 and one at 2^60 ns: a double knows the difference to some 100 ns, and so does sigma."""
    rng = np.random.default_rng(22)
    a, b, _, sigma, small = random_mesh(rng, 64)
    epoch = np.where(np.arange(64) % 2, 2.0**60, 0.0)
    value = (epoch[b] - epoch[a]) + (small[b] - small[a] + rng.normal(0, 1, a.size) * sigma)
    got = solve_mesh(64, a, b, value, sigma, epoch + small, np.full(64, 20.0))
    off = (got.x - epoch) - small
    assert np.abs(off / got.sigma).max() < 5
    assert got.sigma.max() < 500
    assert np.abs(off[epoch == 0]).max() < 40


def test_the_same_twice():
    rng = np.random.default_rng(23)
    a, b, value, sigma, truth = random_mesh(rng, 500)
    one, other = (solve_mesh(500, a, b, value, sigma, truth, np.full(500, 30.0)) for _ in "12")
    assert np.array_equal(one.x, other.x)
    assert np.array_equal(one.sigma, other.sigma)


def test_empty_inputs():
    none = np.empty(0)
    assert solve_mesh(0, none, none, none, none).x.size == 0
    alone = solve_mesh(2, none, none, none, none)
    assert alone.component.tolist() == [0, 1]
    assert np.isinf(alone.sigma).all()


def test_an_edge_to_itself_has_no_effect():
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
        ((1, [], [], [], [], [0.0]), "prior alone"),
        ((2, [], [], [], [], [0.0], [1.0]), "prior, prior_sigma: 1, 1 elements, expected 2"),
        ((1, [], [], [], [], [0.0], [0.0]), "node 0: prior_sigma 0.0"),
        ((1, [], [], [], [], [float("nan")], [1.0]), "node 0: prior nan"),
    ],
)
def test_wrong_input_is_one_clear_line(arguments, text):
    with pytest.raises(ValueError, match=text):
        solve_mesh(*arguments)


@given(st.integers(1, 12), st.data())
@settings(max_examples=examples(100))
def test_any_graph_gives_finite_figures(nodes, data):
    edges = data.draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=30))
    number = st.floats(-1e18, 1e18)
    value = data.draw(st.lists(number, min_size=len(edges), max_size=len(edges)))
    sigma = data.draw(st.lists(st.floats(1e-3, 1e9), min_size=len(edges), max_size=len(edges)))
    a, b = [e[0] for e in edges], [e[1] for e in edges]
    prior = data.draw(st.lists(number, min_size=nodes, max_size=nodes))
    prior_sigma = data.draw(
        st.lists(st.floats(1e-3, 1e9) | st.just(float("inf")), min_size=nodes, max_size=nodes)
    )
    got = solve_mesh(nodes, a, b, value, sigma, prior, prior_sigma)
    assert np.isfinite(got.x).all()
    assert np.isfinite(got.residual).all()
    assert (got.sigma >= 0).all()
    assert ((got.weight >= 0) & (got.weight <= 1)).all()
    assert ((got.leverage >= 0) & (got.leverage <= 1)).all()
    assert np.isfinite(got.contradiction).all()
    assert np.isfinite(got.scale).all()
    parts = {int(got.component[i]) for i in range(nodes) if prior_sigma[i] < np.inf}
    touched = {node for e in edges if e[0] != e[1] for node in e}
    touched |= {i for i in range(nodes) if int(got.component[i]) in parts}
    assert set(np.flatnonzero(np.isfinite(got.sigma))) == touched


def test_a_thousand_clocks_are_quick():
    a, b, value, sigma, _ = random_mesh(np.random.default_rng(1), 1_000)
    best = min(_seconds(lambda: solve_mesh(1_000, a, b, value, sigma)) for _ in range(5))
    assert best < 0.1  # about 5 ms on an idle core


def _seconds(work):
    begin = time.thread_time()
    work()
    return time.thread_time() - begin
