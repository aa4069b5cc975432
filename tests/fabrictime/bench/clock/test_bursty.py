"""The clock bench's fabric of shared queues."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench._truth import Traffic
from fabrictime.bench.clock.bursty import WINDOW_NS, BurstyFleet, scores

IDLE = Traffic(idle=1.0, incast_every_ns=0.0)


def test_a_window_has_coded_pairs_of_every_directed_pair() -> None:
    shared, apart = next(BurstyFleet(8, 3, 1, 1, IDLE).windows())
    assert sum(len(columns.peers) for columns in shared.columns.values()) == 8 * 3
    columns = shared.columns["host00/eth0"]
    assert len(columns.sent) % 2 == 0
    assert np.diff(columns.start).mean() == pytest.approx(1_000, rel=0.1)
    gaps = columns.sent[1::2] - columns.sent[::2]
    assert gaps.mean() == pytest.approx(20_000, abs=10)
    assert shared.samples == apart.samples
    assert shared.window_ns == WINDOW_NS


def test_idle_queues_give_clocks_to_a_few_ns() -> None:
    fleet = BurstyFleet(8, 3, 2, 1, IDLE)
    truth = fleet._truth
    window = next(fleet.windows())[0]
    columns = window.columns["host00/eth0"]
    peer = truth.names.index(columns.peers[0])
    mine = slice(columns.start[0], columns.start[1])
    sent = (columns.sent[mine] - 1_764_000_000_000_000_000).astype(float)
    there = columns.forward[mine] - (truth.ahead_ns(peer, sent) - truth.ahead_ns(0, sent))
    assert np.ptp(there) < 150
    assert abs(there.mean() - 4_000) < 2_100


def test_quick_scores_have_every_window() -> None:
    lines: list[str] = []
    shared, apart = scores(8, 3, 2, 1, lines.append)
    assert len(shared.state) == len(apart.state) == len(lines) == 2
    assert np.isfinite(shared.p99_of_window_ns(1))


def test_clocks_of_a_small_fleet_are_within_a_tenth_of_a_us_by_the_third_window() -> None:
    """Most of its pairs meet a queue with nearly every probe: by lines alone they are off by half a us."""
    shared, apart = scores(16, 4, 3, 14, lambda line: None)
    assert shared.p99_of_window_ns(2) < 100
    assert apart.p99_of_window_ns(2) < 100
    covered, stated = shared.covered()
    assert covered == stated > 0
