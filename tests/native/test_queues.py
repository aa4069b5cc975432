"""Queue inference on links whose queues are known: what is found, and what it says of its own error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core.queues import QueueSolver

PACKET_NS = 1200.0


class Mesh:
    """Routes of three links each through hosts' last links and two layers of fabric links."""

    def __init__(self, seed, hosts=24, uplinks=12, downlinks=12, routes=400):
        self.rng = np.random.default_rng(seed)
        self.links = hosts + uplinks + downlinks
        self.routes = np.stack([
            hosts + self.rng.integers(0, uplinks, routes),
            hosts + uplinks + self.rng.integers(0, downlinks, routes),
            self.rng.integers(0, hosts, routes),
        ], axis=1)  # fmt: skip

    def solver(self, slot_ns=250_000.0, **options):
        start = np.arange(0, self.routes.size + 1, 3)
        return QueueSolver(np.full(self.links, PACKET_NS), start, self.routes.ravel(), slot_ns, **options)

    def observe(self, queue_ns, per_slot=120, noise_ns=8.0):
        """Probes of random routes; each sees the queues of its slot."""
        slots = len(queue_ns)
        route = self.rng.integers(0, len(self.routes), (slots, per_slot))
        delay = queue_ns[np.arange(slots)[:, None, None], self.routes[route]].sum(axis=2)
        delay = delay + self.rng.normal(0, noise_ns, delay.shape)
        return (
            np.arange(slots + 1) * per_slot, route.ravel(), np.ones(route.size), delay.ravel(),
            np.full(route.size, noise_ns),
        )  # fmt: skip


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
    start, route, count, delay, noise = mesh.observe(queue)
    whole = mesh.solver()
    for at in range(0, 200, 20):
        cut = slice(at * 120, (at + 20) * 120)
        last = whole.solve(start[:21], route[cut], count[cut], delay[cut], noise[cut])
    assert last.queue_ns[:, 5] == pytest.approx(80_000, rel=0.03)
    other = mesh.solver()
    other.restore(*whole.state())
    few = slice(120, 240)
    again = other.solve([0, 120], route[few], count[few], delay[few], noise[few])
    assert again.queue_ns[0, 5] == pytest.approx(80_000, rel=0.1)


def test_the_stated_error_holds_for_what_it_is_meant_for():
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
    found = mesh.solver().solve([0, 0], [], [], [], [])
    assert not found.queue_ns.any()
    assert not found.sigma_ns.any()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 5), st.floats(-1e6, 1e9), st.floats(1, 1e6))
def test_any_input_gives_finite_queues_that_are_not_negative(seed, slots, scale, noise):
    mesh = Mesh(seed, hosts=4, uplinks=3, downlinks=3, routes=20)
    n = int(mesh.rng.integers(0, 30)) if slots else 0
    at = np.sort(mesh.rng.integers(0, n + 1, max(slots - 1, 0)))
    start = np.concatenate([[0], at, [n]]) if slots else np.array([0])
    delay = scale * mesh.rng.random(n)
    solver = mesh.solver()
    for _ in range(2):
        found = solver.solve(start, mesh.rng.integers(0, 20, n), np.ones(n), delay, np.full(n, noise))
        assert np.isfinite(found.queue_ns).all()
        assert np.isfinite(found.sigma_ns).all()
        assert (found.queue_ns >= 0).all()


@pytest.mark.parametrize(
    ("packet_ns", "start", "link", "said"),
    [
        ([0.0], [0], [], "packet_ns of link 0"),
        ([1.0], [0, 2], [0, 0], "twice"),
        ([1.0], [0, 1], [1], "expected 0 to 0"),
        ([1.0], [1, 1], [0], "route_start"),
    ],
)
def test_routes_that_make_no_sense_are_refused(packet_ns, start, link, said):
    with pytest.raises(ValueError, match=said):
        QueueSolver(packet_ns, start, link, 1e6)


@pytest.mark.parametrize(
    ("start", "route", "count", "delay", "said"),
    [
        ([0, 1], [7], [1.0], [0.0], "route 7"),
        ([0, 1], [0], [0.0], [0.0], "count 0"),
        ([0, 1], [0], [1.0], [np.nan], "delay_ns nan"),
        ([0, 2], [0], [1.0], [0.0], "slot_start"),
        ([0, 1], [0], [1.0, 1.0], [0.0], "2, 1, 1 elements"),
    ],
)
def test_observations_that_make_no_sense_are_refused(start, route, count, delay, said):
    solver = QueueSolver([1200.0], [0, 1], [0], 1e6)
    with pytest.raises(ValueError, match=said):
        solver.solve(start, route, count, delay, np.ones(len(route)))
