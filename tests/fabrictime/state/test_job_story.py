"""The story of a job: times of one verdict, and how two runs differ."""

import pytest

from fabrictime.state.job_story import (
    Run,
    compare,
    explain,
    ordered,
    outliers,
    shares,
    spans_of,
    telling,
    with_parts,
)
from tests.fabrictime.commands.jobs.job_diagnoses import LINK, S, contended, flow, healthy

T = 1_900_000_000 * S


def run_of(*records, job="A"):
    heads = ordered(records)
    return Run(job, heads, [telling(heads), heads[-1]])


def test_records_of_one_verdict_are_one_span_and_a_repeated_record_counts_once():
    good = [healthy("A", n, T + 5 * n * S, since_ns=T - 5 * S) for n in range(3)]
    bad = [contended("A", n, T + 5 * n * S, since_ns=T + 9 * S) for n in (3, 4)]
    spans = spans_of(ordered([*bad, *good, *good]))
    assert [(span.verdict, span.begin_ns - T, span.end_ns - T) for span in spans] == [
        ("HEALTHY", -5 * S, 10 * S),
        ("CONTENTION", 10 * S, 20 * S),
    ]
    assert spans[1].loss_share == 0.31


def test_an_explanation_has_the_newest_record_its_age_and_the_verdicts():
    explanation = explain(run_of(healthy("A", 1, T), contended("A", 2, T + 5 * S)), T + 7 * S)
    assert explanation["age_ns"] == 2 * S
    assert explanation["diagnosis"]["verdict"] == "CONTENTION"
    assert [verdict["verdict"] for verdict in explanation["verdicts"]] == ["HEALTHY", "CONTENTION"]


def test_the_costliest_verdict_describes_a_run():
    records = [contended("A", n, T + n, confidence=n / 10) for n in range(5)]
    records += [healthy("A", 9, T + 9, verdict="STRAGGLER", loss_share=0.9)]
    assert telling(ordered(records))["number"] == 4
    assert telling([healthy("A", 1, T)])["number"] == 1


@pytest.mark.parametrize(
    ("delays", "slow"),
    [
        ([4_000, 4_000, 4_000, 94_000], [94_000]),
        ([4_000, 4_000, 4_000, 20_000], []),
        ([90_000, 95_000, 94_000, 91_000], []),
        ([94_000, None, 4_000], []),
        ([], []),
    ],
)
def test_a_flow_is_an_outlier_by_ratio_and_by_difference(delays, slow):
    flows = [flow(n, n + 1, delay_ns) for n, delay_ns in enumerate(delays)]
    assert [flow["delay_ns"] for flow, _ in outliers(flows)] == slow


def test_shares_of_the_time_are_of_all_ranks():
    time_shares = shares(healthy("A", 1, T))
    assert (time_shares["compute_ns"], time_shares["network_late_ns"], time_shares["flush_ns"]) == (
        0.6,
        0.2,
        0.0,
    )
    assert shares({"time_splits": []}) == {}


def test_a_comparison_names_rate_pair_link_and_the_other_job():
    comparison = compare(run_of(healthy("A", 1, T)), run_of(contended("A", 9, T + 100 * S)))
    assert comparison["slower"] == 2
    assert comparison["text"] == (
        "run 2: 190 of 360 Gbit/s; h3/mlx5_0 to h0/mlx5_0 saw 94.0 µs, others 4.00 µs; crosses "
        "leaf2:swp3 → spine3:swp2, contended by job B; peers late 32% of the time, 20% in run 1"
    )
    turned = compare(run_of(contended("A", 9, T)), run_of(healthy("B", 1, T), job="B"))
    assert turned["text"].startswith("run 1: 190 of 360 Gbit/s; ")
    assert [run["job"] for run in turned["runs"]] == ["A", "B"]


def test_a_comparison_without_rates_uses_iterations_then_verdicts():
    bare = {"bus_bps": None, "flows": [], "time_splits": [], "links": []}
    comparison = compare(run_of(healthy("A", 1, T, **bare)), run_of(contended("A", 2, T, **bare)))
    assert comparison["text"] == (
        "run 2: an iteration takes 205 ms, in the other run 110 ms; "
        "job B shares leaf2 to spine3 with h3/mlx5_0 to h0/mlx5_0"
    )
    bare |= {"iteration_ns": None}
    comparison = compare(run_of(contended("A", 1, T, **bare)), run_of(healthy("A", 2, T, **bare)))
    assert comparison["text"].startswith("run 1: no rates are known; ")


def test_two_healthy_runs_have_no_cause():
    comparison = compare(run_of(healthy("A", 1, T)), run_of(healthy("A", 2, T, bus_bps=3.5e11)))
    assert comparison["text"] == "run 2: 350 of 360 Gbit/s; no cause is known: both runs are HEALTHY"


def test_a_path_in_the_evidence_is_named():
    record = contended("A", 2, T)
    record["evidence"].append({**record["evidence"][0], "quantity": "path", "number": 51731.0})
    comparison = compare(run_of(healthy("A", 1, T)), run_of(record))
    assert "; path 51731 crosses leaf2:swp3 → spine3:swp2, contended by job B" in comparison["text"]
    assert comparison["runs"][1]["links"] == [LINK]


def test_a_record_without_parts_takes_those_of_the_nearest_record_before_else_after():
    brief = {"time_splits": [], "flows": []}
    records = [{**healthy("A", n, T + n * S), **({} if n in (1, 4) else brief), "bytes": n} for n in range(6)]
    heads = [{name: record[name] for name in ("number", "begin_ns")} for record in records]

    full_records = [
        with_parts(heads, head, lambda head_record: records[head_record["number"]]) for head in heads
    ]

    assert [record["number"] for record in full_records] == list(range(6))
    assert all(record["flows"] == records[1]["flows"] for record in full_records)
    assert with_parts(heads[:1], heads[0], lambda head: records[head["number"]])["flows"] == []
