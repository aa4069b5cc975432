"""Operations that do not end."""

from __future__ import annotations

from typing import Any

import pytest

from streams.diagnosis.case import Stuck, case_of
from streams.diagnosis.job.stuck import find_stuck
from streams.diagnosis.rules import DiagnosisRules
from tests.records import make_part
from tests.streams.diagnosis.scenario import Job, S, World


def activity(**fields: float) -> dict[str, Any]:
    """Return what a process did in a second; by default nothing."""
    idle = {"interval_ns": S, "cpu_ns": 0, "io_bytes": 0, "disk_share": 0.0, "stopped_share": 0.0}
    return idle | fields


def stuck(
    age_ns: int, missing: set[int], ended: set[int] = frozenset(), stopped: set[int] = frozenset()
) -> Stuck | None:
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
        fields = {"ended": rank in ended, "activity": activity(stopped_share=float(rank in stopped))}
        world.view.take(world.job.batch(rank, operations, begin_ns, end_ns, **fields), end_ns)
    return find_stuck(case_of(world.view, world.network, end_ns - S, end_ns, DiagnosisRules()))


def test_a_missing_rank_may_pause_for_minutes() -> None:
    found = stuck(10 * S, {2})
    assert found is not None
    assert ([rank.number for rank in found.missing], found.is_circle) == ([2], False)
    assert (found.stalls, found.hangs) == (True, False)
    assert found.waiting == {0, 1, 3}
    assert found.function == "ALL_REDUCE"


def test_a_rank_is_missing_for_longer_than_any_pause() -> None:
    found = stuck(181 * S, {2})
    assert found is not None
    assert found.hangs


@pytest.mark.parametrize("missing", [{2}, set()])
def test_a_stopped_rank_hangs_the_others_before_and_in_an_operation(missing: set[int]) -> None:
    found = stuck(10 * S, missing, stopped={2})
    assert found is not None
    assert ([rank.number for rank in found.missing], found.hangs) == ([2], True)


def test_an_operation_that_all_ranks_began_needs_a_usual_time_to_hang() -> None:
    """Its first run may compile kernels."""
    found = stuck(10 * S, set())
    assert found is not None
    assert (found.missing, found.hangs) == ([], False)


def messages(*waits: tuple[int, int], age_ns: int = 20 * S, late_ns: int = 0, **fields: Any) -> Stuck | None:
    """Return the operation at the root of waits for messages: (rank, peer) each. `late_ns`: age of the last
    other operation of each rank."""
    world = World(Job(ranks=4, queue_pairs=False))
    world.learn(1)
    begin_ns = world.job.at_ns
    end_ns = begin_ns + age_ns

    def operation(peer: int, at_ns: int, **more: Any) -> dict[str, Any]:
        row = {"seq": 5, "function": "RECEIVE", "peer": peer, "begin_ns": at_ns, **more}
        return make_part("CollectiveBatch", "CollectiveOperation", **row)

    for rank in range(4):
        rows = [operation(peer, begin_ns) for waiter, peer in waits if waiter == rank]
        if late_ns:
            at_ns = end_ns - late_ns
            rows.append(operation((rank + 1) % 4, at_ns, end_ns=at_ns, seq=6))
        world.view.take(world.job.batch(rank, rows, end_ns - S, end_ns, **fields), end_ns)
    return find_stuck(case_of(world.view, world.network, end_ns - S, end_ns, DiagnosisRules()))


def test_the_rank_that_sends_no_message_is_missing() -> None:
    """Rank 0 waits for 1, 3 for 0, 1 for 2, which waits for nobody."""
    found = messages((0, 1), (1, 2), (3, 0))
    assert found is not None
    assert ([rank.number for rank in found.missing], found.is_collective) == ([2], False)
    assert (found.function, found.waiting) == ("RECEIVE", {0, 1, 3})
    assert (found.stalls, found.hangs) == (True, False)


def test_receives_that_were_posted_ahead_are_no_waits() -> None:
    assert messages((0, 1), (1, 2), (3, 0), late_ns=10_000_000) is None


@pytest.mark.parametrize(("waited_ns", "named"), [(4 * S, [2]), (3 * S, [])])
def test_a_sender_without_a_recent_record_is_named_once_it_would_have_reported(
    waited_ns: int, named: list[int]
) -> None:
    """Rank 3 waits for 0, and 0 for 2, whose newest record is two seconds old: 2 is not silent."""
    world = World(Job(ranks=4, queue_pairs=False))
    world.learn(1)
    begin_ns = world.job.at_ns
    end_ns = begin_ns + waited_ns
    for rank, peer in ((0, 2), (1, 2), (2, None), (3, 0)):
        row = {"seq": 5, "function": "RECEIVE", "peer": peer, "begin_ns": begin_ns}
        rows = [] if peer is None else [make_part("CollectiveBatch", "CollectiveOperation", **row)]
        until_ns = end_ns - 2 * S * (rank == 2)
        world.view.take(world.job.batch(rank, rows, begin_ns, until_ns), end_ns)
    stuck_at = find_stuck(case_of(world.view, world.network, end_ns - 5 * S, end_ns, DiagnosisRules()))
    assert stuck_at is not None
    assert [rank.number for rank in stuck_at.missing] == named


def test_ranks_that_wait_for_messages_from_each_other() -> None:
    found = messages((0, 1), (1, 0))
    assert found is not None
    assert found.is_circle
    assert [rank.number for rank in found.missing] == [0, 1]
    assert not found.hangs, "a path that loses the messages looks alike"


def test_ranks_that_wait_for_a_circle_are_no_part_of_it() -> None:
    found = messages((0, 1), (1, 2), (2, 1), (3, 0))
    assert found is not None
    assert [rank.number for rank in found.missing] == [1, 2]


def test_a_rank_that_is_ahead_of_its_messages_is_named() -> None:
    """Rank 2 left out its messages, and is in the next collective; 1 and 3 wait for them, 0 for 1 and 3."""
    world = World(Job(ranks=4, queue_pairs=False))
    world.learn(1)
    begin_ns = world.job.at_ns
    end_ns = begin_ns + 20 * S
    peers = {0: (1, 3), 1: (2,), 3: (2,)}
    for rank in range(4):
        common = {"seq": world.job.seq, "begin_ns": begin_ns}
        rows = [
            make_part("CollectiveBatch", "CollectiveOperation", function="RECEIVE", peer=peer, **common)
            for peer in peers.get(rank, ())
        ] or [make_part("CollectiveBatch", "CollectiveOperation", function="ALL_REDUCE", **common)]
        world.view.take(world.job.batch(rank, rows, end_ns - S, end_ns), end_ns)
    found = find_stuck(case_of(world.view, world.network, end_ns - S, end_ns, DiagnosisRules()))
    assert found is not None
    assert ([rank.number for rank in found.missing], found.is_circle, found.is_collective) == (
        [2],
        True,
        False,
    )
    assert (found.stalls, found.hangs) == (True, False)


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
