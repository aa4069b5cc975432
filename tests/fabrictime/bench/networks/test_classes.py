"""The bench of classes: its model of the queue, and its figures on one run."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench import Figure
from fabrictime.bench.networks import TARGETS
from fabrictime.bench.networks.classes import LOADED, Load, Probes, links_of, measure

MS = 1_000_000


def test_the_queue_rises_stands_and_ends() -> None:
    load = Load(100_000, 25_000)
    at = np.array([399, 410, 500, 899, 901]) * float(MS)
    assert load.delay_ns(at) == pytest.approx([0.0, 40_000.0, 80_000.0, 80_000.0, 0.0])
    assert load.marks(at).tolist() == [False, True, True, True, False]


def test_paths_cross_the_loaded_link_by_their_port_alone() -> None:
    assert LOADED in links_of(1, 4, 0)
    assert LOADED not in links_of(1, 4, 1)
    assert LOADED not in links_of(4, 1, 0)
    assert len(links_of(1, 2, 0)) == 2


def test_marks_are_of_the_second_class_on_paths_over_the_loaded_link() -> None:
    probes = Probes(Load(100_000, 25_000, from_s=0.01, until_s=0.2), 0.2, 1)
    marked = sum(len(batch.forward_ce) + len(batch.reverse_ce) for _, batch in probes.batches())
    assert marked == sum(sum(counts) for counts in probes.true_marks.values()) > 0
    assert {name[3] for name in probes.true_marks} == {26}


def test_the_figures_meet_their_targets() -> None:
    figures = measure(lambda _: None, quick=True)
    for name in ("classes_told_apart", "ce_count_error", "contention_open_by_ce_ms"):
        figure = figures[name]
        assert isinstance(figure, Figure)
        assert TARGETS[name].met(figure.value), name
