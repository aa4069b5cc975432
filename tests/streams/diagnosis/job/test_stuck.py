"""Operations that do not end."""

from __future__ import annotations

from streams.diagnosis.case import Stuck, case_of
from streams.diagnosis.job.stuck import find_stuck
from streams.diagnosis.rules import DiagnosisRules
from tests.records import make_part
from tests.streams.diagnosis.scenario import Job, S, World


def stuck(age_ns: int, missing: set[int], ended: set[int] = frozenset()) -> Stuck | None:
    """Return the operation in which all ranks but the missing ones wait for so long."""
    world = World(Job(ranks=4, queue_pairs=False))
    world.learn(1)
    begin_ns = world.job.at_ns
    end_ns = begin_ns + age_ns
    for rank in range(4):
        running = make_part(
            "CollectiveBatch",
            "CollectiveOperation",
            seq=world.job.seq,
            function="ALL_REDUCE",
            begin_ns=begin_ns,
        )
        operations = [] if rank in missing else [running]
        world.view.take(world.job.batch(rank, operations, begin_ns, end_ns, ended=rank in ended), end_ns)
    return find_stuck(case_of(world.view, world.network, end_ns - S, end_ns, DiagnosisRules()))


def test_the_missing_rank_of_an_operation_that_hangs() -> None:
    found = stuck(10 * S, {2})
    assert found is not None
    assert ([rank.number for rank in found.missing], found.hangs, found.is_circle) == ([2], True, False)
    assert found.waiting == {0, 1, 3}
    assert found.function == "ALL_REDUCE"


def test_a_rank_that_has_not_reported_so_far_is_not_missing() -> None:
    found = stuck(S, {2})
    assert found is not None
    assert (found.missing, found.hangs) == ([], False)


def test_a_rank_that_ended_is_missing_at_once() -> None:
    found = stuck(S, {2}, ended={2})
    assert found is not None
    assert [rank.number for rank in found.missing] == [2]


def test_a_job_that_goes_on_is_not_stuck() -> None:
    world = World(Job(ranks=4))
    world.learn(1)
    end_ns = world.job.at_ns
    assert find_stuck(case_of(world.view, world.network, end_ns - S, end_ns, DiagnosisRules())) is None
