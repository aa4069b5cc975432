"""Job plans: connections and bytes of each rank and phase."""

from __future__ import annotations

from collections import Counter

import pytest

from fabrictime.testbed.jobs.plan import ENDLESS_BYTES, make_job_plan


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_an_all_to_all_sends_a_chunk_from_each_rank_to_each_other(ranks: int) -> None:
    plan = make_job_plan("alltoall", ranks, 1, 1000 * ranks)
    sent = Counter((a, b) for phase in plan.phases() for a, b, size in phase if size == 1000)
    assert sent == Counter({(a, b): 1 for a in range(ranks) for b in range(ranks) if a != b})
    for phase in plan.phases():
        assert sorted(b for _, b, _ in phase) == list(range(ranks)), "each rank receives from one other"


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_ring_all_reduce_has_two_rounds_over_the_ring(ranks: int) -> None:
    plan = make_job_plan("allreduce", ranks, 1, 1000 * ranks)
    assert len(plan.phases()) == 2 * (ranks - 1)
    assert len(plan.routes) == ranks, "a connection is used in every phase"
    assert plan.iteration_bytes == 2 * (ranks - 1) * ranks * 1000


def test_several_connections_share_a_chunk() -> None:
    one, four = (make_job_plan("alltoall", 4, connections, 16_000) for connections in (1, 4))
    assert one.iteration_bytes == four.iteration_bytes
    assert len(four.ends) == 4 * len(one.ends)


def test_an_incast_sends_to_the_first_rank_alone() -> None:
    [phase] = make_job_plan("incast", 5, 1, 700).phases()
    assert sorted(phase) == [(rank, 0, 700) for rank in range(1, 5)]


def test_an_rpc_answers_on_the_connection_of_its_request() -> None:
    plan = make_job_plan("rpc", 2, 3, 100)
    assert [(route.stream, route.back) for route in plan.routes] == [(0, 1), (2, 3), (4, 5)]
    assert plan.phases() == [[(0, 1, 100)] * 3, [(1, 0, 100)] * 3]


def test_bulk_has_no_end_and_an_empty_connection_is_refused() -> None:
    assert make_job_plan("bulk", 2, 1, 5).phases() == [[(0, 1, ENDLESS_BYTES)]]
    with pytest.raises(ValueError, match="size_bytes 3"):
        make_job_plan("alltoall", 4, 1, 3)
