"""Records of a real NCCL job: two ranks of NCCL 2.28.9 on one H200, with data over TCP.

Rank 1 computes 250 ms in each round of seven operations. All-to-alls send messages to the own rank, too.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.records import CollectiveBatch, Verdict
from streams.diagnosis.job.view import JobView
from streams.diagnosis.network.view import NetworkView
from tests.streams.diagnosis.scenario import evaluate

S = 1_000_000_000
RECORDED = Path(__file__).parent / "nccl_2.28.9_late_rank.json.gz"


@pytest.fixture(scope="module")
def records() -> list[CollectiveBatch]:
    """The records as if each rank had a host of its own, with synchronised clocks."""
    with gzip.open(RECORDED, "rt") as file:
        found: list[Any] = json.load(file)
    ranks = {each["process"]: each["communicators"][0]["rank"] for each in found if each["communicators"]}
    for each in found:
        each |= {"host": f"h{ranks[each['process']]}", "clock": "SYNCED", "bound_ns": 1000.0}
        each |= {"reports": [], "activity": None, "calls_ignored": 0}
        for communicator in each["communicators"]:
            communicator["nics"] = [f"h{communicator['rank']}/eth1"]
    return sorted(found, key=lambda each: each["end_ns"])


def test_the_rank_that_computes_too_long_is_named_and_not_the_network(records: list[CollectiveBatch]) -> None:
    job = JobView("train")
    for each in records:
        job.take(each, each["end_ns"])
    begin_ns = min(each["begin_ns"] for each in records)
    for at_ns in (2 * S, 5 * S // 2, 3 * S):
        found = evaluate(job, NetworkView(), begin_ns + at_ns - 3 * S // 2, begin_ns + at_ns)
        assert (found["verdict"], found["ranks"]) == (Verdict.STRAGGLER, [1])
        assert not found["blames_network"]
        waiting, late = found["time_splits"]
        assert late["compute_ns"] > 0.8 * 1.5 * S > 0.1 * 1.5 * S > waiting["compute_ns"]
        assert waiting["network_late_ns"] < 0.5 * 1.5 * S


def test_times_of_the_network_leave_out_the_wait_for_the_late_rank(records: list[CollectiveBatch]) -> None:
    job = JobView("train")
    for each in records:
        job.take(each, each["end_ns"])
    begin_ns = min(each["begin_ns"] for each in records)
    found = evaluate(job, NetworkView(), begin_ns + S, begin_ns + 3 * S)
    assert len(found["flows"]) == 2
    assert all(each["data_ns"] is not None and each["data_ns"] < 50_000_000 for each in found["flows"])
