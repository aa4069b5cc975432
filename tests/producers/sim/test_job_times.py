"""Times of a simulated operation at its ranks, and their parts."""

from __future__ import annotations

import numpy as np
import pytest

from producers.sim.job_conditions import JobConditions
from producers.sim.job_times import arrivals_of, operation_times
from producers.sim.jobs import entries_of

RING = entries_of([([(0, 1), (1, 2), (2, 0)], 1e6)] * 2, 1, 3)
BEGIN_NS = 1e9


def times_of(conditions, lengths):
    """Two phases; in each every rank sends for its length."""
    arrivals = arrivals_of(conditions, 3, np.random.default_rng(1))
    longest = max(lengths)
    begin = BEGIN_NS + np.repeat([0.0, longest], 3)
    moved = np.stack([begin, begin + np.tile(lengths, 2)])
    return operation_times(
        arrivals, RING, moved, BEGIN_NS, BEGIN_NS + 2 * longest, np.zeros(3), conditions, 400e9
    )


def total(times):
    return times.launch + times.gpu_late + times.peer_late + times.network_late + times.flush


def test_the_parts_add_up_and_the_last_rank_waits_for_nobody():
    times = times_of(JobConditions(compute_ns={1: 5e6}), [1e5, 2e5, 1e5])
    assert total(times) == pytest.approx(times.end - times.arrival)
    assert int(times.arrival.argmax()) == 1
    assert times.arrival[1] - times.arrival[0] > 4.5e6
    assert times.network_late == pytest.approx([2e5, 4e5, 2e5])
    assert times.peer_late[0] > 4.5e6 > 1e5 > times.peer_late[1]


def test_a_launch_delays_the_others_and_not_the_call():
    times = times_of(JobConditions(launch_ns={2: 3e6}), [1e5] * 3)
    assert times.launch[2] > 3e6 > 1e5 > times.launch[0]
    assert abs(times.arrival[2] - times.arrival[0]) < 1e6
    assert times.peer_late[0] > 2.5e6


def test_a_slow_pcie_takes_its_time_from_the_network():
    slow = times_of(JobConditions(pcie_share={0: 0.25}), [8e4, 2e4, 2e4])
    assert total(slow) == pytest.approx(slow.end - slow.arrival)
    assert slow.gpu_late[0] + slow.flush[0] > slow.network_late[0] * 2
    assert slow.gpu_late[1] == 0


def test_a_rank_does_not_arrive_before_its_last_operation_ended():
    arrivals = arrivals_of(JobConditions(), 3, np.random.default_rng(1))
    moved = np.full((2, 6), -1.0)
    before = np.full(3, BEGIN_NS - 1.0)
    times = operation_times(arrivals, RING, moved, BEGIN_NS, BEGIN_NS + 1e6, before, JobConditions(), 400e9)
    assert (times.arrival >= before).all()
    assert (times.end == BEGIN_NS + 1e6).all(), "it runs"
    assert total(times) == pytest.approx(times.end - times.arrival)
