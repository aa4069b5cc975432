"""Measures of a job: slowness, excess, lateness, and coincidence with faults."""

from __future__ import annotations

import pytest

from streams.diagnosis.case import Case, case_of
from streams.diagnosis.job.view import Interval
from streams.diagnosis.rules import DiagnosisRules
from tests.streams.diagnosis.scenario import MS, Job, S, World


def slow_case(world: World, network_ms: float = 12.0) -> Case:
    """Return the case of a job with slow transfers, without learning from it."""
    world.learn()
    world.job.network = lambda rank, at: network_ms * MS
    begin_ns = world.job.at_ns
    for each in world.job.run():
        world.view.take(each, world.job.at_ns)
    return case_of(world.view, world.network, begin_ns, world.job.at_ns, DiagnosisRules())


def test_slow_transfers_are_an_excess_of_the_network() -> None:
    found = slow_case(World(Job()))
    assert found.ratio == pytest.approx(20.1 / 12.1, rel=0.02)
    assert found.network_excess == pytest.approx(8 / 20.1, rel=0.05)
    assert found.is_slow
    assert found.wait_share < 0.02


def test_the_excess_is_that_of_the_whole_operation_not_of_each_rank_alone() -> None:
    found = slow_case(World(Job(split=True, own_share=0.5)))
    assert found.network_excess == pytest.approx(8 / 20.1, rel=0.05)


def test_ranks_that_are_not_seen_leave_the_slowest_ranks_own_time() -> None:
    world = World(Job(split=True, own_share=0.5, silent=frozenset({5})))
    assert slow_case(world).network_excess == pytest.approx(4 / 20.1, rel=0.05)


@pytest.mark.parametrize("hidden", [frozenset(), frozenset({3}), frozenset({6})])
def test_a_rank_that_computes_too_long_is_no_excess_of_the_network(hidden: frozenset[int]) -> None:
    world = World(Job(split=True, own_share=0.5))
    world.learn()
    world.job.silent = hidden
    world.job.compute = lambda rank, at: 20.0 * MS if rank == 3 else 8.0 * MS
    begin_ns = world.job.at_ns
    for each in world.job.run():
        world.view.take(each, world.job.at_ns)
    found = case_of(world.view, world.network, begin_ns, world.job.at_ns, DiagnosisRules())
    assert found.ratio is not None
    assert found.ratio > 1.9
    assert (found.network_excess or 0.0) < 0.005


def test_a_fault_explains_the_excess_while_it_lasts() -> None:
    found = slow_case(World(Job()))
    at_ns = found.begin_ns
    assert found.network_loss(at_ns, 2**62, 0.1) == pytest.approx(found.network_excess or 0)
    assert found.network_loss(at_ns + 900 * MS, 2**62, 0.1) == pytest.approx(found.network_excess or 0)
    assert found.excess_within(at_ns, at_ns + S // 2) == pytest.approx(0.5, abs=0.05)


def test_a_fault_older_than_the_job_costs_as_estimated() -> None:
    new = World(Job())
    new.step()
    begin_ns = new.job.at_ns
    for each in new.job.run():
        new.view.take(each, new.job.at_ns)
    case = case_of(new.view, new.network, begin_ns, new.job.at_ns, DiagnosisRules())
    assert case.network_loss(begin_ns - 100 * S, 2**62, 0.1) == 0.1


def test_lateness_is_the_share_of_time_that_others_wait() -> None:
    world = World(Job(jitter=0.0))
    world.job.compute = lambda rank, at: 12.0 * MS if rank == 3 else 8.0 * MS
    world.step()
    end_ns = world.job.at_ns
    found = case_of(world.view, world.network, end_ns - S, end_ns, DiagnosisRules()).lateness
    assert found.total[3] == pytest.approx(7 / 8 * 4 / 16, rel=0.05)
    assert found.own[3] == pytest.approx(found.total[3], rel=0.05)
    assert found.total.sum() == pytest.approx(found.total[3])


def test_waiting_for_the_gpu_of_a_nic() -> None:
    world = World(Job(split=True, gpu=lambda rank, at: 2.0 * MS if rank == 2 else 0.0))
    world.step()
    end_ns = world.job.at_ns
    found = case_of(world.view, world.network, end_ns - S, end_ns, DiagnosisRules())
    assert found.gpu_wait_of("h2/n0") == pytest.approx(0.5, rel=0.1)
    assert found.gpu_wait_of("h3/n0") == 0.0
    assert found.gpu_wait_of("h9/n0") is None


def test_a_fault_while_the_job_was_fast_explains_nothing() -> None:
    world = World(Job())
    world.learn()
    fault_ns = world.job.at_ns
    for _ in range(15):
        world.step()
    found = slow_case(world)
    assert found.was_fast_during(fault_ns)
    assert found.network_loss(fault_ns, 2**62, 0.1) == 0.0
    assert not found.was_fast_during(found.begin_ns)
    assert not found.was_fast_during(found.begin_ns - 100 * S)


def test_a_loss_counts_for_the_time_since_its_cause_began() -> None:
    found = slow_case(World(Job()))
    long_ns = int(found.length_ns)
    assert found.share_since(0.1, None) == 0.1
    assert found.share_since(0.1, found.begin_ns - 100 * S) == 0.1, "before the job's baseline"
    assert found.share_since(0.1, found.begin_ns) == pytest.approx(0.1)
    found.begin_ns -= 4 * long_ns
    assert found.share_since(0.1, found.end_ns - S) == pytest.approx(0.1 * 5 / 2, rel=0.02)
    assert found.share_since(0.1, found.end_ns) == pytest.approx(0.1 * 5 / 2, rel=0.02), "2 s at least"


def test_a_fault_of_unknown_begin_explains_all_of_the_excess() -> None:
    found = slow_case(World(Job()))
    assert found.network_loss(None, found.end_ns, 0.1) == pytest.approx(found.network_excess or 0)


def test_an_operation_that_is_seen_whole_has_no_excess_by_its_ranks_own_times() -> None:
    """Ranks that waited less for the network in the first intervals set no baseline for whole operations."""
    world = World(Job(split=True, own_share=0.5, jitter=0.0))
    world.learn()
    world.job.own_share = 1.0
    begin_ns = world.job.at_ns
    for each in world.job.run():
        world.view.take(each, world.job.at_ns)
    found = case_of(world.view, world.network, begin_ns, world.job.at_ns, DiagnosisRules())
    assert found.network_excess == pytest.approx(0, abs=0.001)


def test_a_change_of_routes_within_a_fast_interval_is_not_usual_yet() -> None:
    world = World(Job())
    case = slow_case(world)
    case.job.history.clear()
    for end, pairs in enumerate([4.0, 4.0, None, 7.0], start=5):
        case.job.history.append(Interval((end - 5) * S, end * S, 1.0, 0.0, pairs))
    assert case.usual_pairs == 4.0
    for end in range(9, 15):
        case.job.history.append(Interval((end - 5) * S, end * S, 1.0, 0.0, 7.0))
    del case.usual_pairs
    assert case.usual_pairs == 7.0
