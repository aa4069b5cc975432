"""Figures of queue inference beside the true queues."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fabrictime.bench._truth import LeafSpine, Traffic
from fabrictime.bench.detect import PARTS
from fabrictime.bench.detect import shared_queues as bench
from fabrictime.bench.detect.shared_fabric import draw


@pytest.fixture(scope="module")
def found() -> bench.Found:
    return bench.found_in(bench.Row(8, 2_000, 8), 1, 2.2)


def test_a_row_has_finite_figures(found: bench.Found) -> None:
    for name in ("ours", "zero", "perfect", "last_slot", "idle_rms", "utilisation_mean", "cores"):
        assert math.isfinite(getattr(found, name)), name
    assert found.perfect < found.zero
    assert found.bounds > 100
    assert found.published > 0.99
    assert "8 NICs, even, 2000/s, batch 8" in found.line()


def test_figures_name_the_worst_row(found: bench.Found) -> None:
    figures = bench.figures_of([found])
    assert set(figures) <= set(PARTS["shared_queues"])


def test_many_perfect_probes_find_the_true_depth() -> None:
    scene = draw(LeafSpine(8), Traffic(), 1, 0.25, 40_000)
    error = bench.perfect(scene) - scene.slots.depth_bytes
    true = scene.slots.depth_bytes
    crossed = np.flatnonzero(scene.crossed)
    assert np.sqrt((error[5:-5, crossed] ** 2).mean()) < 0.1 * np.sqrt((true**2).mean())


def test_true_depths_at_the_probes_times_are_within_their_evidence() -> None:
    scene = draw(LeafSpine(8), Traffic(), 2, 0.25, 8_000)
    limit = bench.evidence(scene)
    crossed = np.flatnonzero(scene.crossed)
    joined = bench.perfect(scene)[:, crossed]
    assert (joined <= limit[:, crossed] + 1).mean() > 0.999
