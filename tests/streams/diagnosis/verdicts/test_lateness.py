"""Late ranks: stragglers and launch skew, within the bounds of the clocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from schemas.records import CollectiveBatch, Diagnosis, KeptReason, LinkState, Verdict
from streams.diagnosis.case import Case
from streams.diagnosis.rules import DiagnosisRules
from streams.diagnosis.verdicts.lateness import _host_of_share
from tests.streams.diagnosis.scenario import MS, Job, Pipeline, World, route, slow


@pytest.mark.parametrize("split", [False, True])
def test_a_rank_that_computes_longer_is_a_straggler_and_the_network_is_not_blamed(split: bool) -> None:
    world = World(Job(split=split))
    world.learn()
    world.job.compute = lambda rank, at: 12.8 * MS if rank == 3 else 8.0 * MS
    found = world.step()
    assert (found["verdict"], found["ranks"], found["blames_network"]) == (Verdict.STRAGGLER, [3], False)
    assert found["subject"] == "h3"
    assert found["confidence"] >= 0.9
    assert found["loss_share"] == pytest.approx(4.2 / 16.8, abs=0.03)
    assert "iterations take 16.8 ms on average, 12.1 ms before: rank 3 on h3 arrived last" in found["text"]


def test_a_straggler_is_found_in_the_first_interval_of_a_job() -> None:
    world = World(Job())
    world.job.compute = lambda rank, at: 12.8 * MS if rank == 3 else 8.0 * MS
    assert world.step()["verdict"] == Verdict.STRAGGLER


def test_a_straggler_is_named_although_a_link_that_the_job_crosses_loses_packets() -> None:
    world = World(Job())
    world.learn()
    world.job.compute = lambda rank, at: 12.8 * MS if rank == 3 else 8.0 * MS
    world.health(route(1, 2, 1)[1], LinkState.GREY, world.job.at_ns, loss_rate=1e-4)
    found = world.step()
    assert (found["verdict"], found["blames_network"]) == (Verdict.STRAGGLER, False)


def test_an_order_of_arrival_within_the_bounds_of_the_clocks_is_no_evidence() -> None:
    world = World(Job(bound_ns=4.0 * MS, jitter=0.001))
    world.job.offsets = {3: 2 * MS}
    found = world.learn()
    assert found["verdict"] == Verdict.HEALTHY
    assert found["time_splits"][3]["last_arrivals"] == 0
    precise = World(Job(bound_ns=1_000.0, jitter=0.001))
    precise.job.offsets = {3: 2 * MS}
    assert precise.learn()["time_splits"][3]["last_arrivals"] > 0


def test_stragglers_that_alternate_are_no_single_host() -> None:
    world = World(Job(jitter=0.2))
    found = world.learn()
    assert found["verdict"] == Verdict.HEALTHY


def test_ranks_of_one_host_are_named_together() -> None:
    world = World(Job())
    world.job.compute = lambda rank, at: 12.8 * MS if rank in (2, 5) and at % 2 == (rank == 5) else 8.0 * MS
    found = world.step()
    assert found["ranks"] in ([2], [5])


def test_kernels_that_begin_late_after_their_call_are_launch_skew() -> None:
    world = World(Job())
    world.learn()
    world.job.launch = lambda rank, at: 2.0 * MS if rank == 2 else 0.05 * MS
    found = world.step()
    assert (found["verdict"], found["ranks"], found["blames_network"]) == (Verdict.LAUNCH_SKEW, [2], False)


def test_launch_skew_of_all_ranks_needs_a_baseline_to_compare_with() -> None:
    world = World(Job())
    world.job.launch = lambda rank, at: 2.0 * MS
    assert world.learn()["verdict"] == Verdict.HEALTHY
    later = World(Job())
    later.learn()
    later.job.launch = lambda rank, at: 2.0 * MS
    assert later.step()["verdict"] == Verdict.LAUNCH_SKEW


def test_a_little_lateness_is_no_verdict() -> None:
    world = World(Job())
    world.job.compute = lambda rank, at: 8.3 * MS if rank == 3 else 8.0 * MS
    assert world.learn()["verdict"] == Verdict.HEALTHY


def test_a_straggler_is_named_in_a_pipeline_of_messages_where_only_its_neighbour_waits_for_it() -> None:
    world = World(Pipeline(queue_pairs=False))
    assert world.learn()["verdict"] == Verdict.HEALTHY
    world.job.compute = lambda rank, at: 20.0 * MS if rank == 3 else 8.0 * MS
    world.step()
    diagnosis = world.step()
    assert (diagnosis["verdict"], diagnosis["ranks"], diagnosis["blames_network"]) == (
        Verdict.STRAGGLER,
        [3],
        False,
    )
    assert "outside of operations for each of them, 4.00 ms before" in diagnosis["text"]


@pytest.mark.parametrize(
    ("compute_ms", "network_ms"), [(20.0, 4.0), (8.0, 20.0), (8.3, 4.0)], ids=["all", "network", "a little"]
)
def test_a_pipeline_that_all_ranks_or_the_network_slow_down_has_no_straggler(
    compute_ms: float, network_ms: float
) -> None:
    world = World(Pipeline(queue_pairs=False))
    world.learn()
    world.job.compute = lambda rank, at: compute_ms * MS
    world.job.network = lambda rank, at: network_ms * MS
    world.step()
    assert world.step()["verdict"] != Verdict.STRAGGLER


def stopped(share: float) -> Diagnosis:
    """Return the answer about a job that takes twice its baseline while rank 3 is stopped for a share."""
    world = World(Job(queue_pairs=False))
    world.learn()
    slow(world, 2.0)
    begin_ns = world.job.at_ns
    batches = world.job.run()
    batches[3]["activity"] = {
        "interval_ns": 1000 * MS,
        "cpu_ns": 0,
        "io_bytes": None,
        "disk_share": 0.0,
        "stopped_share": share,
    }
    return world.diagnose(batches, begin_ns, world.job.at_ns)


def test_a_rank_that_is_stopped_within_operations_is_a_straggler() -> None:
    diagnosis = stopped(0.5)
    assert (diagnosis["verdict"], diagnosis["ranks"], diagnosis["blames_network"]) == (
        Verdict.STRAGGLER,
        [3],
        False,
    )
    assert "stopped in 50% of the samples" in diagnosis["text"]


def test_a_stop_that_is_too_short_for_the_loss_is_no_straggler() -> None:
    assert stopped(0.01)["verdict"] != Verdict.STRAGGLER, "somebody attached a debugger for a moment"


@pytest.mark.parametrize("per_host", [1, 4, 8])
@pytest.mark.parametrize("of_ranks", [np.sum, np.max])
def test_a_host_is_named_however_many_of_its_ranks_are_slow(per_host: int, of_ranks: Any) -> None:
    ranks = [SimpleNamespace(number=number, host=f"h{number // per_host}") for number in range(16)]
    case = cast(Case, SimpleNamespace(members=ranks, rules=DiagnosisRules()))
    shares = np.array([0.3 if rank.host == "h0" else 0.01 for rank in ranks])
    places, _, _ = _host_of_share(case, shares, 0.5, of_ranks)
    assert places == list(range(per_host))


class SampledJob(Job):
    """A job of which a sample of the operations is recorded, so the time outside of operations is unknown."""

    def batch(
        self, rank: int, operations: list[dict[str, Any]], *times: int, **fields: Any
    ) -> CollectiveBatch:
        sample = [{**operation, "kept": KeptReason.SAMPLED} for operation in operations]
        return super().batch(rank, sample, *times, **fields)


@pytest.mark.parametrize(("host", "verdict"), [(2, Verdict.STRAGGLER), (3, Verdict.GREY_LINK)])
def test_a_rank_behind_a_lossy_cable_that_is_late_for_an_unknown_reason_is_no_straggler(
    host: int, verdict: Verdict
) -> None:
    world = World(SampledJob())
    world.learn(8)
    world.job.compute = lambda rank, at: 14.0 * MS if rank == 3 else 8.0 * MS
    world.job.network = lambda rank, at: 6.0 * MS
    world.health(route(host, 5, 1)[0], LinkState.GREY, world.job.at_ns, loss_rate=0.05)
    assert [world.step() for _ in range(6)][-1]["verdict"] == verdict
