"""Queue inference on links whose queues are known: what is found, and what it says of its own error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core.queues import QueueSolver
from tests.examples import examples

PACKET_NS = 1200.0
SLOT_NS = 250_000.0


class Mesh:
    """Routes of three links each through hosts' last links and two layers of fabric links."""

    def __init__(self, seed, hosts=24, uplinks=12, downlinks=12, routes=400):
        self.rng = np.random.default_rng(seed)
        self.links = hosts + uplinks + downlinks
        self.routes = np.stack(
            [
                hosts + self.rng.integers(0, uplinks, routes),
                hosts + uplinks + self.rng.integers(0, downlinks, routes),
                self.rng.integers(0, hosts, routes),
            ],
            axis=1,
        )

    def solver(self, **options):
        start = np.arange(0, self.routes.size + 1, 3)
        return QueueSolver(np.full(self.links, PACKET_NS), start, self.routes.ravel(), **options)

    def observe(self, queue_ns, per_slot=120, noise_ns=8.0):
        """Probes of random routes at random times; each sees the queues of its slot."""
        slots = len(queue_ns)
        route = self.rng.integers(0, len(self.routes), (slots, per_slot))
        at = self.rng.random(route.size)
        delay = queue_ns[np.arange(slots)[:, None, None], self.routes[route]].sum(axis=2)
        delay = delay + self.rng.normal(0, noise_ns, delay.shape)
        return (
            SLOT_NS,
            np.arange(slots + 1) * per_slot,
            route.ravel(),
            at,
            np.ones(route.size),
            delay.ravel(),
            np.full(route.size, noise_ns),
        )


def test_standing_queues_are_found_and_others_stay_empty():
    mesh = Mesh(1)
    queue = np.zeros((80, mesh.links))
    queue[:, 3], queue[:, 30], queue[:, 40] = 50_000, 200_000, 20_000
    found = mesh.solver().solve(*mesh.observe(queue))
    error = found.queue_ns[20:] - queue[20:]
    assert np.abs(error[:, [3, 30, 40]]).mean() < 0.05 * 50_000
    others = np.delete(error, [3, 30, 40], axis=1)
    assert np.sqrt((others**2).mean()) < 2 * PACKET_NS


def test_a_burst_is_seen_where_and_when_it_is():
    mesh = Mesh(2)
    queue = np.zeros((80, mesh.links))
    queue[40:48, 27] = np.linspace(300_000, 60_000, 8)
    found = mesh.solver().solve(*mesh.observe(queue))
    assert np.argmax(found.queue_ns.sum(axis=0)) == 27
    assert found.queue_ns[41:47, 27] == pytest.approx(queue[41:47, 27], rel=0.25)
    assert found.queue_ns[:36, 27].max() < 30_000
    assert found.queue_ns[52:, 27].max() < 30_000


def test_calls_go_on_from_each_other_and_a_restored_solver_too():
    mesh = Mesh(3)
    queue = np.zeros((200, mesh.links))
    queue[:, 5] = 80_000
    _, start, route, when, count, delay, noise = mesh.observe(queue)
    whole = mesh.solver()
    for at in range(0, 200, 20):
        cut = slice(at * 120, (at + 20) * 120)
        last = whole.solve(SLOT_NS, start[:21], route[cut], when[cut], count[cut], delay[cut], noise[cut])
    assert last.queue_ns[:, 5] == pytest.approx(80_000, rel=0.03)
    other = mesh.solver()
    other.restore(*whole.state())
    few = slice(120, 240)
    again = other.solve(SLOT_NS, [0, 120], route[few], when[few], count[few], delay[few], noise[few])
    assert again.queue_ns[0, 5] == pytest.approx(80_000, rel=0.1)


def test_the_stated_error_covers_the_truth():
    mesh = Mesh(4)
    rng = np.random.default_rng(5)
    queue = np.abs(np.cumsum(rng.normal(0, 4_000, (160, mesh.links)), axis=0))
    queue[:, ::2] = 0  # where every link of a layer queued, the layers' levels could not be told apart
    found = mesh.solver().solve(*mesh.observe(queue))
    inside = np.abs(found.queue_ns - queue)[20:] <= 2 * found.sigma_ns[20:]
    assert inside.mean() > 0.9
    assert np.median(found.sigma_ns[20:]) < 30_000


def test_links_without_probes_are_nothing_known():
    mesh = Mesh(6)
    found = mesh.solver().solve(SLOT_NS, [0, 0], [], [], [], [], [])
    assert not found.queue_ns.any()
    assert not found.sigma_ns.any()


@settings(max_examples=examples(40))
@given(st.integers(0, 2**31), st.integers(0, 5), st.floats(-1e6, 1e9), st.floats(1, 1e6), st.integers(1, 5))
def test_any_input_gives_finite_queues_that_are_not_negative(seed, slots, scale, noise, knots):
    mesh = Mesh(seed, hosts=4, uplinks=3, downlinks=3, routes=20)
    n = int(mesh.rng.integers(0, 30)) if slots else 0
    at = np.sort(mesh.rng.integers(0, n + 1, max(slots - 1, 0)))
    start = np.concatenate([[0], at, [n]]) if slots else np.array([0])
    delay = scale * mesh.rng.random(n)
    solver = mesh.solver()
    for _ in range(2):
        route, at = mesh.rng.integers(0, 20, n), mesh.rng.random(n)
        found = solver.solve(SLOT_NS, start, route, at, np.ones(n), delay, np.full(n, noise), knots)
        assert np.isfinite(found.queue_ns).all()
        assert np.isfinite(found.sigma_ns).all()
        assert (found.queue_ns >= 0).all()


@pytest.mark.parametrize("packet_ns", [1e-300, 1e-20, 1e11])
def test_links_of_any_rate_give_finite_queues(packet_ns):
    solver = QueueSolver(np.full(3, packet_ns), [0, 2, 4], [0, 1, 1, 2])
    for _ in range(2):
        found = solver.solve(
            SLOT_NS, [0, 2, 4], [0, 1, 1, 0], np.full(4, 0.5), np.ones(4), np.full(4, 5e4), np.full(4, 8)
        )
        assert np.isfinite(found.queue_ns).all()
        assert np.isfinite(found.sigma_ns).all()


@pytest.mark.parametrize(
    ("packet_ns", "start", "link", "message"),
    [
        ([0.0], [0], [], "packet_ns of link 0"),
        ([1.0], [0, 2], [0, 0], "twice"),
        ([1.0], [0, 1], [1], "expected 0 to 0"),
        ([1.0], [1, 1], [0], "route_start"),
    ],
)
def test_routes_that_make_no_sense_are_refused(packet_ns, start, link, message):
    with pytest.raises(ValueError, match=message):
        QueueSolver(packet_ns, start, link)


@pytest.mark.parametrize(
    ("start", "route", "at", "count", "delay", "message"),
    [
        ([0, 1], [7], [0.5], [1.0], [0.0], "route 7"),
        ([0, 1], [0], [1.5], [1.0], [0.0], "at 1.5"),
        ([0, 1], [0], [np.nan], [1.0], [0.0], "at nan"),
        ([0, 1], [0], [0.5], [0.0], [0.0], "count 0"),
        ([0, 1], [0], [0.5], [1.0], [np.nan], "delay_ns nan"),
        ([0, 2], [0], [0.5], [1.0], [0.0], "slot_start"),
        ([0, 1], [0], [0.5], [1.0, 1.0], [0.0], "1, 2, 1, 1 elements"),
    ],
)
def test_observations_that_make_no_sense_are_refused(start, route, at, count, delay, message):
    solver = QueueSolver([1200.0], [0, 1], [0])
    with pytest.raises(ValueError, match=message):
        solver.solve(SLOT_NS, start, route, at, count, delay, np.ones(len(route)))


def test_a_slot_without_knots_is_refused():
    with pytest.raises(ValueError, match="knots: 0"):
        QueueSolver([1200.0], [0, 1], [0]).solve(SLOT_NS, [0], [], [], [], [], [], 0)


def test_a_slope_within_a_slot_is_followed_by_when_each_probe_came():
    """A queue that drains within a slot: means over slots are right where probes came early or late only."""
    solver = QueueSolver([1200.0], [0, 1], [0])
    rng = np.random.default_rng(7)
    slots, each = 12, 6
    at = rng.random((slots, each))
    at[4:8] *= 0.3
    level = 500_000 - 40_000 * (np.arange(slots)[:, None] + at)
    found = solver.solve(
        1e6,
        np.arange(slots + 1) * each,
        np.zeros(slots * each, int),
        at.ravel(),
        np.ones(slots * each),
        level.ravel(),
        np.full(slots * each, 10.0),
    )
    true = 500_000 - 40_000 * (np.arange(slots) + 0.5)
    assert found.queue_ns[2:, 0] == pytest.approx(true[2:], abs=6_000)


def test_a_probe_meets_a_later_queue_when_the_earlier_one_lets_it_go():
    """Link 0 holds probes up for 0.4 ms; link 1 queues only in ms 6 to 9."""
    solver = QueueSolver([1200.0] * 2, [0, 2, 3], [0, 1, 0])
    rng = np.random.default_rng(8)
    slots, each = 16, 12
    route = np.tile([0, 1], slots * each // 2)
    at = rng.random(slots * each)
    there = np.repeat(np.arange(slots), each) + at + 0.4
    second = np.where((there > 6) & (there < 9), 400_000.0, 0.0) * (route == 0)
    found = solver.solve(
        1e6,
        np.arange(slots + 1) * each,
        route,
        at,
        np.ones(len(at)),
        400_000 + second,
        np.full(len(at), 10.0),
    )
    assert found.queue_ns[:, 1] == pytest.approx([0] * 6 + [400_000] * 3 + [0] * 7, abs=100_000)


@pytest.mark.parametrize("knots", [1, 2])
def test_no_queue_is_deeper_than_the_probes_that_crossed_it(knots):
    """A delayed probe just before a knot, and an empty one after it, are no queue of 100 times the delay."""
    slots, late = 32, 7
    at = np.full(slots, 0.5)
    at[late], at[late + 1] = 0.99, 0.01
    delay = np.zeros(slots)
    delay[late] = 50_000.0
    solver = QueueSolver([PACKET_NS], [0, 1], [0])
    found = solver.solve(
        SLOT_NS,
        np.arange(slots + 1),
        np.zeros(slots, int),
        at,
        np.ones(slots),
        delay,
        np.full(slots, 8.0),
        knots,
    )
    assert 1_000 < found.queue_ns.max() <= 50_000 + 3 * 8.0


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_depths_stay_within_the_evidence(seed, knots):
    rng = np.random.default_rng(seed)
    slots, probes = 16, 40
    solver = QueueSolver(np.full(4, PACKET_NS), [0, 2, 4, 6], [0, 1, 1, 2, 2, 3])
    delay = np.where(rng.random(probes) < 0.3, rng.exponential(40_000.0, probes), 0.0)
    slot = np.sort(rng.integers(0, slots, probes))
    found = solver.solve(
        SLOT_NS,
        np.searchsorted(slot, np.arange(slots + 1)),
        rng.integers(0, 3, probes),
        rng.random(probes),
        np.ones(probes),
        delay,
        np.full(probes, 8.0),
        knots,
    )
    assert found.queue_ns.max() <= max(delay.max() + 3 * 8.0, PACKET_NS) * 1.001
