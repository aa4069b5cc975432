"""NICs whose flows have longer round trips than all others."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from schemas.records import Diagnosis, Verdict
from streams.diagnosis.case import Case, case_of
from streams.diagnosis.rules import DiagnosisRules
from streams.diagnosis.verdicts.nics import MIN_OTHERS, SLOW_SHARE, _slowest_nic
from tests.records import make_part
from tests.streams.diagnosis.scenario import MS, Job, S, World, nic

REPORT = {"rtt_ns": 100_000, "busy_share": 0.2, "bytes": 10**9, "rate_bps": 2e10}
"""A flow's report before the fault."""


def expected(case: Case) -> tuple[str, float, float] | None:
    """Compare each NIC's flows with all others, one NIC after the other."""
    flows = list(case.traffic.flows.values())
    slow: list[tuple[float, str, float, float]] = []
    for name in sorted({flow["nic"] for flow in flows}, reverse=True):
        own = [flow["rtt_ns"] or 0 for flow in flows if name in (flow["nic"], flow["peer"])]
        others = [flow["rtt_ns"] or 0 for flow in flows if name not in (flow["nic"], flow["peer"])]
        if min(len(own), len(others)) >= MIN_OTHERS:
            limit = case.rules.flow_times * median(others)
            if sum(rtt >= limit for rtt in own) >= SLOW_SHARE * len(own):
                slow.append((median(own) / median(others), name, median(own), median(others)))
    return max(slow, key=lambda entry: (entry[0], -ord(entry[1][1])))[1:] if slow else None


def test_the_nic_with_the_longest_round_trips_is_that_of_a_comparison_one_by_one() -> None:
    world = World(Job(ranks=2))
    world.step()
    end_ns = world.job.at_ns
    case = case_of(world.view, world.network, end_ns - S, end_ns, DiagnosisRules())
    rng = np.random.default_rng(1)
    answers = []
    for _ in range(3_000):
        rtt = 10.0 ** rng.integers(4, 6, 9) * rng.choice([1, 3, 5], 9)
        case.traffic.flows = {
            str(at): make_part(
                "FlowReports", "Flow", nic=nic(a), peer=nic(b), rtt_ns=int(max(rtt[a], rtt[b]))
            )
            for at, (a, b) in enumerate(rng.integers(0, 9, (int(rng.integers(2, 24)), 2)).tolist())
            if a != b
        }
        slowest = _slowest_nic(case)
        answers.append(slowest is not None)
        assert (slowest and slowest[:3]) == expected(case)
    assert 500 < sum(answers) < 2_500


def test_many_nics_push_out_no_baseline_of_the_job() -> None:
    counts = []
    for reports in ({}, REPORT):
        world = World(Job(queue_pairs=False))
        world.flow_fields = dict.fromkeys(range(8), reports)
        world.learn(8)
        counts.append((len(world.view.baselines), len(world.view.nic_baselines)))
    assert counts == [(counts[0][0], 0), (counts[0][0], 16)]


def behind(slow: dict[str, float], compute_ms: float) -> Diagnosis:
    """Return the diagnosis of a job of which rank 3 computes for longer, while the flow of rank 1 changes."""
    world = World(Job(queue_pairs=False))
    world.flow_fields = dict.fromkeys(range(8), REPORT)
    world.learn(8)
    world.job.compute = lambda rank, at: (compute_ms if rank == 3 else 8.0) * MS
    world.flow_fields = {**world.flow_fields, 1: {**REPORT, **slow}}
    return [world.step() for _ in range(8)][-1]


SLOW = {"rtt_ns": 200_000, "busy_share": 0.8}


def test_a_nic_that_has_become_slow_behind_a_straggler_is_a_possible_cause() -> None:
    found = behind(SLOW, 20.0)
    assert (found["verdict"], found["ranks"]) == (Verdict.STRAGGLER, [3])
    other = next(iter(found["alternatives"]))
    assert (other["verdict"], other["subject"]) == (Verdict.SLOW_SENDER, nic(1))
    assert "takes 4.0 times as long to send a bit as before" in other["text"]
    assert "also" not in found["text"], "it costs no time"


@pytest.mark.parametrize(
    ("slow", "compute_ms"), [(SLOW, 8.0), ({"rtt_ns": 200_000}, 20.0), ({"busy_share": 0.8}, 20.0)]
)
def test_a_nic_is_no_possible_cause_alone_nor_by_one_sign(slow: dict[str, float], compute_ms: float) -> None:
    assert not behind(slow, compute_ms)["alternatives"]


@pytest.mark.parametrize(("slow", "verdict"), [(SLOW, Verdict.SLOW_SENDER), ({"rtt_ns": 200_000}, None)])
def test_a_nic_is_named_by_its_growth_although_other_flows_always_had_round_trips_as_long(
    slow: dict[str, float], verdict: Verdict | None
) -> None:
    world = World(Job(queue_pairs=False))
    world.flow_fields = {rank: {**REPORT, "rtt_ns": 300_000 if rank > 3 else 100_000} for rank in range(8)}
    world.learn(8)
    world.job.network = lambda rank, at: 12.0 * MS
    world.flow_fields = {**world.flow_fields, 1: {**REPORT, **slow}}
    diagnosis = [world.step() for _ in range(8)][-1]
    assert (diagnosis["verdict"] if diagnosis["subject"] == nic(1) else None) == verdict
