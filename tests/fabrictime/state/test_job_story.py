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
from tests.fabrictime.commands.job_diagnoses import LINK, S, contended, flow, healthy

T = 1_900_000_000 * S


def run_of(*records, job="A"):
    heads = ordered(records)
    return Run(job, heads, [telling(heads), heads[-1]])


def test_records_of_one_verdict_are_one_span_and_a_repeated_record_counts_once():
    good = [healthy("A", n, T + 5 * n * S, since_ns=T - 5 * S) for n in range(3)]
    bad = [contended("A", n, T + 5 * n * S, since_ns=T + 9 * S) for n in (3, 4)]
    spans = spans_of(ordered([*bad, *good, *good]))
    assert [(each.verdict, each.begin_ns - T, each.end_ns - T) for each in spans] == [
        ("HEALTHY", -5 * S, 10 * S),
        ("CONTENTION", 10 * S, 20 * S),
    ]
    assert spans[1].loss_share == 0.31


def test_an_explanation_has_the_newest_record_its_age_and_the_verdicts():
    found = explain(run_of(healthy("A", 1, T), contended("A", 2, T + 5 * S)), T + 7 * S)
    assert found["age_ns"] == 2 * S
    assert found["diagnosis"]["verdict"] == "CONTENTION"
    assert [each["verdict"] for each in found["verdicts"]] == ["HEALTHY", "CONTENTION"]


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
    assert [each["delay_ns"] for each, _ in outliers(flows)] == slow


def test_shares_of_the_time_are_of_all_ranks():
    found = shares(healthy("A", 1, T))
    assert (found["compute_ns"], found["network_late_ns"], found["flush_ns"]) == (0.6, 0.2, 0.0)
    assert shares({"time_splits": []}) == {}


def test_a_comparison_names_rate_pair_link_and_the_other_job():
    found = compare(run_of(healthy("A", 1, T)), run_of(contended("A", 9, T + 100 * S)))
    assert found["slower"] == 2
    assert found["text"] == (
        "run 2: 190 of 360 Gbit/s; h3/mlx5_0 to h0/mlx5_0 saw 94.0 µs, others 4.00 µs; crosses "
        "leaf2:swp3 → spine3:swp2, contended by job B; peers late 32% of the time, 20% in run 1"
    )
    turned = compare(run_of(contended("A", 9, T)), run_of(healthy("B", 1, T), job="B"))
    assert turned["text"].startswith("run 1: 190 of 360 Gbit/s; ")
    assert [each["job"] for each in turned["runs"]] == ["A", "B"]


def test_a_comparison_without_rates_uses_iterations_then_verdicts():
    bare = {"bus_bps": None, "flows": [], "time_splits": [], "links": []}
    found = compare(run_of(healthy("A", 1, T, **bare)), run_of(contended("A", 2, T, **bare)))
    assert found["text"] == (
        "run 2: an iteration takes 205 ms, in the other run 110 ms; "
        "job B shares leaf2 to spine3 with h3/mlx5_0 to h0/mlx5_0"
    )
    bare |= {"iteration_ns": None}
    found = compare(run_of(contended("A", 1, T, **bare)), run_of(healthy("A", 2, T, **bare)))
    assert found["text"].startswith("run 1: no rates are known; ")


def test_two_healthy_runs_have_no_cause():
    found = compare(run_of(healthy("A", 1, T)), run_of(healthy("A", 2, T, bus_bps=3.5e11)))
    assert found["text"] == "run 2: 350 of 360 Gbit/s; no cause is known: both runs are HEALTHY"


def test_a_path_in_the_evidence_is_named():
    record = contended("A", 2, T)
    record["evidence"].append({**record["evidence"][0], "quantity": "path", "number": 51731.0})
    found = compare(run_of(healthy("A", 1, T)), run_of(record))
    assert "; path 51731 crosses leaf2:swp3 → spine3:swp2, contended by job B" in found["text"]
    assert found["runs"][1]["links"] == [LINK]


def test_a_record_without_parts_takes_those_of_the_nearest_record_before_else_after():
    brief = {"time_splits": [], "flows": []}
    records = [{**healthy("A", n, T + n * S), **({} if n in (1, 4) else brief), "bytes": n} for n in range(6)]
    heads = [{name: each[name] for name in ("number", "begin_ns")} for each in records]

    found = [with_parts(heads, head, lambda each: records[each["number"]]) for head in heads]

    assert [each["number"] for each in found] == list(range(6))
    assert all(each["flows"] == records[1]["flows"] for each in found)
    assert with_parts(heads[:1], heads[0], lambda each: records[each["number"]])["flows"] == []
