"""Operations of a job joined across ranks."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.records import CollectiveBatch, CollectiveFunction
from streams.diagnosis.job.ranks import ranks_of
from streams.diagnosis.job.view import JobView
from streams.diagnosis.job.work import Work, mixed, work_of
from tests.records import make_part
from tests.streams.diagnosis.scenario import BEGIN, JOB, MS, Job, S


def work(records: list[CollectiveBatch], end_ns: int) -> Work:
    view = JobView(JOB)
    for each in records:
        view.take(each, BEGIN)
    return work_of(view, ranks_of(view, BEGIN, end_ns), view.columns(BEGIN, end_ns), BEGIN, end_ns)


def two_ranks(*operations: dict[str, object], unsynced: frozenset[int] = frozenset()) -> Work:
    """Return the work of ranks that called one operation each."""
    job = Job(ranks=len(operations), queue_pairs=False, unsynced=unsynced)
    batches = [
        job.batch(
            rank, [make_part("CollectiveBatch", "CollectiveOperation", kept="ALL", **each)], BEGIN, BEGIN + S
        )
        for rank, each in enumerate(operations)
    ]
    return work(batches, BEGIN + S)


def test_equal_rows_have_equal_numbers_and_others_do_not() -> None:
    rows = np.arange(3000).reshape(-1, 3)
    found = mixed(*rows.T)
    assert len(set(found.tolist())) == 1000
    assert (found == mixed(*rows.T)).all()
    assert mixed(np.array([1]), np.array([2])) != mixed(np.array([2]), np.array([1]))


def test_a_rank_waits_until_the_last_one_arrives_and_then_moves_data() -> None:
    found = two_ranks(
        {"function": CollectiveFunction.ALL_REDUCE, "begin_ns": BEGIN, "end_ns": BEGIN + 9 * MS},
        {"function": CollectiveFunction.ALL_REDUCE, "begin_ns": BEGIN + 6 * MS, "end_ns": BEGIN + 9 * MS},
    )
    assert sorted(found.wait.tolist()) == [0.0, 6.0 * MS]
    assert found.network.tolist() == [3.0 * MS, 3.0 * MS]


def test_the_receiver_of_a_message_waits_for_its_sender() -> None:
    found = two_ranks(
        {
            "function": CollectiveFunction.SEND,
            "peer": 1,
            "begin_ns": BEGIN + 5 * MS,
            "end_ns": BEGIN + 8 * MS,
        },
        {"function": CollectiveFunction.RECEIVE, "peer": 0, "begin_ns": BEGIN, "end_ns": BEGIN + 8 * MS},
    )
    assert sorted(found.wait.tolist()) == [0.0, 5.0 * MS]
    assert found.network.tolist() == [3.0 * MS, 3.0 * MS]


def test_only_the_root_of_a_broadcast_is_waited_for() -> None:
    fields = {"function": CollectiveFunction.BROADCAST, "peer": 0, "end_ns": BEGIN + 9 * MS}
    found = two_ranks({**fields, "begin_ns": BEGIN + 2 * MS}, {**fields, "begin_ns": BEGIN + 4 * MS})
    assert found.wait.tolist() == [0.0, 0.0]
    late = two_ranks({**fields, "begin_ns": BEGIN + 7 * MS}, {**fields, "begin_ns": BEGIN + 4 * MS})
    assert sorted(late.wait.tolist()) == [0.0, 3.0 * MS]


def test_a_rank_of_a_reduction_does_not_wait_for_the_others() -> None:
    fields = {"function": CollectiveFunction.REDUCE, "peer": 0, "end_ns": BEGIN + 9 * MS}
    found = two_ranks({**fields, "begin_ns": BEGIN}, {**fields, "begin_ns": BEGIN + 4 * MS})
    assert found.wait.tolist() == [0.0, 0.0]


def test_the_slowest_rank_sets_the_time_of_an_operation() -> None:
    fields = {"function": CollectiveFunction.ALL_REDUCE, "begin_ns": BEGIN, "end_ns": BEGIN + 9 * MS}
    found = two_ranks(
        {**fields, "network_late_ns": 8 * MS, "peer_late_ns": 0},
        {**fields, "network_late_ns": 1 * MS, "peer_late_ns": 7 * MS},
    )
    assert found.critical.tolist() == [8.0 * MS, 8.0 * MS]


def test_a_rank_with_an_unsynced_clock_may_be_the_slowest() -> None:
    fields = {"function": CollectiveFunction.ALL_REDUCE, "begin_ns": BEGIN, "end_ns": BEGIN + 9 * MS}
    found = two_ranks(
        {**fields, "network_late_ns": 1 * MS, "peer_late_ns": 7 * MS},
        {**fields, "network_late_ns": 8 * MS, "peer_late_ns": 0},
        unsynced=frozenset({1}),
    )
    assert found.critical.tolist() == [8.0 * MS, 8.0 * MS]


def test_an_operation_counts_once_and_as_ended() -> None:
    job = Job(ranks=1, queue_pairs=False)
    fields = {"function": CollectiveFunction.ALL_REDUCE, "begin_ns": BEGIN}
    running = make_part("CollectiveBatch", "CollectiveOperation", **fields)
    ended = make_part("CollectiveBatch", "CollectiveOperation", end_ns=BEGIN + MS, **fields)
    found = work([job.batch(0, [each], BEGIN, BEGIN + S) for each in (running, ended)], BEGIN + S)
    assert found.running.tolist() == [False]


def test_an_operation_across_the_interval_counts_in_part() -> None:
    found = two_ranks(
        {"function": CollectiveFunction.BARRIER, "begin_ns": BEGIN - 3 * MS, "end_ns": BEGIN + MS}
    )
    assert found.weight.tolist() == [pytest.approx(0.25)]


def test_iterations_and_pace_of_a_job() -> None:
    job = Job(ranks=2, jitter=0.0)
    found = work(job.run(240 * MS), job.at_ns)
    assert found.iterations is not None
    assert (found.iterations.period, found.iterations.length_ns) == (2, pytest.approx(12.0 * MS, rel=1e-3))
    assert found.pace_ns == pytest.approx(6.0 * MS, rel=0.05)
    assert list(found.kind_network.values()) == pytest.approx([2.0 * MS] * 2, rel=1e-3)
