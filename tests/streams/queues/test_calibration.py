"""Calibration of depths with the cells that the solver does not see."""

from __future__ import annotations

import numpy as np
import pytest

from native.core.columns import Float64s
from native.core.queue_cells import lay_out
from streams.queues.calibration import EVERY, Calibration

PACKET_NS = 1_200.0
SLOTS = 10
LINKS = 3
ROUTES = ((0, 2), (1, 2), (0,), (1,), (2,))


def calibration() -> Calibration:
    start = np.concatenate([[0], np.cumsum([len(route) for route in ROUTES])]).astype(np.int64)
    hop = np.array([link for route in ROUTES for link in route], np.int32)
    return Calibration(start, hop, np.full(LINKS, PACKET_NS))


def block(rng: np.random.Generator) -> tuple[Float64s, Float64s]:
    """Return true and inferred queues: link 0 exact, link 1 invented, link 2 half noise."""
    true = np.zeros((SLOTS, LINKS))
    true[:, 0] = rng.exponential(20_000, SLOTS)
    true[:, 2] = rng.exponential(10_000, SLOTS)
    inferred = true.copy()
    inferred[:, 1] = rng.exponential(5_000, SLOTS)
    inferred[:, 2] = 20_000 + (true[:, 2] - 10_000) + rng.normal(0, 10_000, SLOTS)
    return true, inferred


def teach(found: Calibration, rng: np.random.Generator, blocks: int = 2_000) -> None:
    for _ in range(blocks):
        true, inferred = block(rng)
        route = np.repeat(np.arange(len(ROUTES)), 8).astype(np.int32)
        slot = rng.integers(0, SLOTS, len(route))
        delay = np.array(
            [true[at, list(ROUTES[number])].sum() for number, at in zip(route, slot, strict=True)]
        )
        found.learn(
            inferred,
            0.01,
            route,
            np.ones(len(route)),
            delay,
            np.ones(len(route), np.bool_),
            slot.astype(np.int64),
        )


@pytest.fixture(scope="module")
def taught() -> Calibration:
    found = calibration()
    assert not found.ready
    teach(found, np.random.default_rng(1))
    return found


def test_an_invented_queue_is_dropped_and_an_exact_one_kept(taught: Calibration) -> None:
    assert taught.ready
    rng = np.random.default_rng(2)
    errors, raw = [], []
    for _ in range(100):
        true, inferred = block(rng)
        depth, _ = taught.depths(inferred, np.full(inferred.shape, np.inf))
        errors.append(depth - true)
        raw.append(inferred - true)
    rms = np.sqrt(np.mean(np.square(errors), axis=(0, 1)))
    before = np.sqrt(np.mean(np.square(raw), axis=(0, 1)))
    assert rms[0] < 3_000
    assert rms[1] < 1_000
    assert rms[2] < 0.65 * before[2]


def test_the_bound_holds(taught: Calibration) -> None:
    rng = np.random.default_rng(3)
    inside = []
    for _ in range(100):
        true, inferred = block(rng)
        depth, bound = taught.depths(inferred, np.full(inferred.shape, np.inf))
        inside.append(np.abs(depth - true) <= bound)
    assert np.mean(inside) >= 0.95


def test_a_queue_that_begins_to_stand_is_published_at_once(taught: Calibration) -> None:
    inferred = np.full((SLOTS, LINKS), 0.0)
    inferred[:, 1] = 200_000
    depth, _ = taught.depths(inferred, np.full(inferred.shape, np.inf))
    assert depth[:, 1].min() > 170_000


def test_no_depth_is_above_its_limit(taught: Calibration) -> None:
    inferred = np.full((SLOTS, LINKS), 50_000.0)
    slot, route = np.array([2, 5]), np.array([0, 2], np.int32)
    limit = taught.limit_ns(SLOTS, slot, route, np.array([30_000.0, 40_000.0]))
    assert limit[:, 0].tolist() == [
        30_000,
        30_000,
        30_000,
        30_000,
        40_000,
        40_000,
        40_000,
        40_000,
        40_000,
        40_000,
    ]
    assert limit[0, 2] == 30_000
    assert np.isinf(limit[:, 1]).all()
    depth, _ = taught.depths(inferred, limit)
    assert (depth <= limit).all()


def test_probes_beside_a_block_bound_its_first_and_last_slot(taught: Calibration) -> None:
    link_0 = np.array([2, 2], np.int32)
    taught.limit_ns(SLOTS, np.array([SLOTS - 2, SLOTS]), link_0, np.array([9_000.0, 5_000.0]))
    after = taught.limit_ns(SLOTS, np.array([3]), link_0[:1], np.array([70_000.0]), goes_on=True)
    assert after[:4, 0].tolist() == [5_000, 5_000, 70_000, 70_000]
    apart = taught.limit_ns(SLOTS, np.array([3]), link_0[:1], np.array([70_000.0]))
    assert apart[0, 0] == 70_000


def test_an_idle_link_has_no_level_where_means_alone_leave_it_open() -> None:
    """Two links up and two down, all routes: 10 us more up and less down would give the same means."""
    routes = [(up, down) for up in (0, 1) for down in (2, 3)]
    start = np.arange(0, 9, 2, dtype=np.int64)
    found = Calibration(start, np.array(routes, np.int32).ravel(), np.full(4, PACKET_NS))
    rng = np.random.default_rng(4)
    for _ in range(600):
        true = rng.exponential([1e-9, 20_000, 15_000, 25_000], (SLOTS, 4))
        route = np.repeat(np.arange(4), 8).astype(np.int32)
        slot = rng.integers(0, SLOTS, len(route))
        delay = true[slot[:, None], np.array(routes)[route]].sum(axis=1)
        inferred = np.maximum(true + rng.normal(0, 6_000, true.shape), 0.0)
        all_back = np.ones(len(route), np.bool_)
        found.learn(inferred, 0.01, route, np.ones(len(route)), delay, all_back, slot.astype(np.int64))
    assert found.level_ns[0] < 1_000
    assert found.level_ns[1:4] == pytest.approx([20_000, 15_000, 25_000], rel=0.15)
    depth, _ = found.depths(inferred, np.full(inferred.shape, np.inf))
    assert (depth[:, 0] > 2_400).mean() <= 0.1


def test_state_goes_on_when_routes_change(taught: Calibration) -> None:
    other = calibration()
    other.restore(np.array([2, -1, 0]), taught)
    assert other.ready
    assert other.slope[:, :3].tolist() == [[taught.slope[k, 2], 1.0, taught.slope[k, 0]] for k in range(2)]
    assert other.level_ns[2] == taught.level_ns[0]
    assert Calibration.none().ready is False


def test_one_cell_in_sixteen_is_kept_back() -> None:
    slot, route = np.divmod(np.arange(100_000), 250)
    one = np.ones(len(slot))
    start, _, chosen = lay_out(slot, route.astype(np.int32), 0 * one, one, one, one, 0, 400, 4, EVERY)
    assert start[-1] == len(slot) - chosen.sum()
    assert chosen.mean() == pytest.approx(1 / EVERY, rel=0.05)
    per_route = np.bincount(route, chosen)
    assert per_route.min() > 0.8 * per_route.mean()
