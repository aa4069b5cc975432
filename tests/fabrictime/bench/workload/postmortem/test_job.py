"""Tests that a job's ranks, groups and hosts fit together."""

from __future__ import annotations

from random import Random

import pytest

from fabrictime.bench.workload.postmortem.job import draw_job


@pytest.mark.parametrize("seed", range(20))
def test_each_rank_is_in_one_group_of_each_kind(seed: int) -> None:
    job = draw_job(Random(seed))
    assert 8 <= job.size <= 64
    assert job.tensor * job.data * job.stages == job.size
    for groups in (job.tensors, job.datas, job.pipelines):
        ranks = [rank for group in groups for rank in group.ranks]
        assert sorted(ranks) == (list(job.world.ranks) if groups else [])
    assert all(group.hosts == 1 for group in job.tensors)
