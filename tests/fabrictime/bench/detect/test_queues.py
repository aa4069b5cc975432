"""The depths of the queue bench, and the delays of paths from them."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench.detect.queues import _queues, _sums
from producers.sim.topology import Fleet, Shape


def test_a_paths_delay_is_the_sum_of_its_links() -> None:
    start, link = np.array([0, 2, 5, 6]), np.array([0, 1, 1, 2, 3, 3])
    depth = np.array([1.0, 10.0, 100.0, 1000.0])
    assert _sums(depth, start, link, np.array([0, 1, 2, 0])).tolist() == [11, 1110, 1000, 11]


def test_one_link_in_twenty_is_deep() -> None:
    fleet = Fleet(Shape.of(64))
    depth = _queues(np.random.default_rng(1), fleet, 50)
    links = len(fleet.rate_bps)
    assert depth.shape == (50, links)
    assert (np.median(depth, axis=0) > 5_000).sum() == pytest.approx(links // 20, abs=links // 100)
    assert depth.min() >= 0
