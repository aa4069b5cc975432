"""Sums of each rank's time, and the scale of a sample."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.records import CollectiveBatch, CollectiveFunction, KeptReason
from streams.diagnosis.job.rank_times import positions, rank_times
from streams.diagnosis.job.ranks import ranks_of
from streams.diagnosis.job.view import JobView
from streams.diagnosis.job.work import Work, work_of
from tests.records import make_part
from tests.streams.diagnosis.scenario import BEGIN, JOB, MS, Job, S


def work(records: list[CollectiveBatch], end_ns: int) -> Work:
    view = JobView(JOB)
    for each in records:
        view.take(each, BEGIN)
    return work_of(view, ranks_of(view, BEGIN, end_ns), view.columns(BEGIN, end_ns), BEGIN, end_ns)


def test_positions_of_processes_in_any_order() -> None:
    assert positions([30, 10, 20], np.array([10, 30, 20, 10])).tolist() == [1, 0, 2, 1]
    assert positions([], np.array([], np.int64)).tolist() == []


def test_the_time_of_a_rank_is_split_into_its_parts() -> None:
    job = Job(ranks=4, jitter=0.0, split=True, flush=lambda rank, at: 0.5 * MS)
    records = job.run(250 * MS)
    times = work(records, job.at_ns).times
    assert times.observed.tolist() == [job.at_ns - BEGIN] * 4
    share = times.network_late / times.observed
    assert share == pytest.approx(np.full(4, 4.0 / 13.0), rel=0.02)
    assert times.flush / times.observed == pytest.approx(np.full(4, 1.0 / 13.0), rel=0.02)
    assert times.compute / times.observed == pytest.approx(np.full(4, 8.0 / 13.0), rel=0.02)


def test_a_sample_stands_for_all_operations_of_the_summaries() -> None:
    job = Job(ranks=2, jitter=0.0)
    records = job.run(480 * MS)
    full = work(records, job.at_ns).times
    for record in records:
        every = record["operations"]
        record["summaries"] = [
            make_part(
                "CollectiveBatch",
                "CollectiveSummary",
                function=CollectiveFunction.ALL_REDUCE,
                count=len(every),
                busy_ns=sum((each["end_ns"] or 0) - each["begin_ns"] for each in every),
            )
        ]
        record["operations"] = [{**each, "kept": KeptReason.SAMPLED} for each in every[::8]]
    sampled = work(records, job.at_ns)
    assert sampled.times.network_late == pytest.approx(full.network_late, rel=0.05)
    assert sampled.times.operations.tolist() == full.operations.tolist()
    assert sampled.weight.max() == pytest.approx(8.0, rel=0.1)


def test_ranks_without_operations_take_their_summaries() -> None:
    job = Job(ranks=2)
    records = job.run(100 * MS)
    for record in records:
        record["operations"] = []
        record["summaries"] = [
            make_part(
                "CollectiveBatch",
                "CollectiveSummary",
                function=CollectiveFunction.ALL_REDUCE,
                count=5,
                busy_ns=50 * MS,
                network_late_ns=30 * MS,
            )
        ]
    times = work(records, job.at_ns).times
    assert times.network_late.tolist() == [30 * MS] * 2
    assert times.busy.tolist() == [50 * MS] * 2


def test_no_rank_has_no_times() -> None:
    view = JobView(JOB)
    assert rank_times.__doc__
    assert len(work([], BEGIN + S).times.busy) == 0
    assert len(view) == 0
