"""Pairs slower than their like, and the end that they share."""

from __future__ import annotations

import pytest

from streams.diagnosis.case import Case, case_of
from streams.diagnosis.network.outliers import common_end, find_outliers, network_is_normal
from streams.diagnosis.rules import DiagnosisRules
from tests.streams.diagnosis.scenario import BEGIN, Job, World, nic


def case(delays_us: dict[int, float], ranks: int = 8) -> Case:
    world = World(Job(ranks=ranks, pair_us=lambda rank, at: delays_us.get(rank, 4.0)))
    world.learn(1)
    found = case_of(world.view, world.network, BEGIN, world.job.at_ns, DiagnosisRules())
    found.outliers = find_outliers(found)
    return found


def test_one_pair_of_94_us_among_4() -> None:
    [outlier] = case({3: 94.0}).outliers
    assert (outlier.pair.nic, outlier.value_ns, outlier.like_ns) == (nic(3), 94_000, 4_000)
    assert outlier.times == pytest.approx(23.5)
    assert outlier.lost == pytest.approx(1 - 4 / 94)


@pytest.mark.parametrize(
    ("delays_us", "ranks"),
    [({3: 20.0}, 8), ({at: 100.0 * at for at in range(8)}, 8), ({1: 94.0}, 2), ({}, 8)],
    ids=["little more", "all differ", "nothing to compare", "all equal"],
)
def test_near_misses_are_no_outliers(delays_us: dict[int, float], ranks: int) -> None:
    assert case(delays_us, ranks).outliers == []


def test_a_nic_slow_in_both_directions_is_the_common_end() -> None:
    found = case({2: 94.0, 3: 90.0})
    assert common_end(found, found.outliers)[:2] == (nic(3), "both")


def test_pairs_without_a_common_end_have_none() -> None:
    found = case({1: 94.0, 5: 90.0})
    assert common_end(found, found.outliers)[:2] == ("", "")
    assert common_end(found, found.outliers[:1])[0] == ""


def test_probes_show_whether_the_network_is_normal() -> None:
    found = case({3: 94.0})
    pairs = [each.pair for each in found.outliers]
    assert network_is_normal(found, pairs) is True
    found.probes_known[nic(3), nic(4)] = None
    assert network_is_normal(found, pairs) is None
