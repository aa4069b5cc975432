"""Traffic and sums of the queue bench: flows over links, and delays of paths from depths."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fabrictime.bench.detect.queues import Run, _over_links, _queues, _sums
from producers.sim.topology import Fleet, Shape


def test_bytes_of_a_flow_count_on_each_of_its_links() -> None:
    fleet = SimpleNamespace(rate_bps=np.zeros(4), link_ids=["a", "b", "c", "d"])
    paths = [
        SimpleNamespace(start=np.array([0, 2, 3]), link=np.array([0, 1, 1])),
        SimpleNamespace(start=np.array([0, 1]), link=np.array([3])),
    ]
    found = _over_links(fleet, paths, np.array([100.0, 10.0, 1.0]))  # type: ignore[arg-type]
    assert found == {"a": 800.0, "b": 880.0, "c": 0.0, "d": 8.0}


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


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(16, 1, 0.15, 0.5, incast=True)


def test_depths_that_are_inferred_lie_near_the_truth(run: Run) -> None:
    records = run.infer()
    true, found, bound = run.depths(records)
    assert true.shape == found.shape == bound.shape
    assert len(true) > 10
    assert np.sqrt(np.mean((true - found) ** 2)) < np.sqrt(np.mean(true**2)), "better than to answer zero"


def test_stamps_are_on_steps_and_batches_in_order_of_their_flush(run: Run) -> None:
    batches = run.batches()
    assert [when for when, _ in batches] == sorted(when for when, _ in batches)
    for _, batch in batches[:20]:
        assert (batch.sent % 8 == 0).all()
        assert (batch.forward > 0).all()
