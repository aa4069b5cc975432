"""Figures of the dashboard of jobs: verdicts, iterations, splits, collectives and flows of one slow job."""

import pytest

from grafana import job_queries

JOB = {"job": ["llm"]}


def rows(asked, sql):
    """Return the rows as dicts by column."""
    result = asked(sql, **JOB)
    return [dict(zip(result.column_names, row, strict=True)) for row in result.result_rows]


def test_the_newest_verdict_of_each_job_counts(asked):
    assert asked(job_queries.JOB_VALUES).result_rows == [("llm",)]
    assert rows(asked, job_queries.JOBS_BY_KIND) == [{"network": 1, "other": 0, "healthy": 0, "unknown": 0}]
    assert rows(asked, job_queries.LOST_SHARE)[0]["lost"] == pytest.approx(0.31)
    assert 1.4 < rows(asked, job_queries.SLOWEST)[0]["slower"] < 1.6
    assert rows(asked, job_queries.RANKS_REPORTING) == [{"reporting": 4, "in_all": 4}]


def test_verdicts_over_time_and_those_that_are_not_healthy(asked):
    kinds = [row["kind"] for row in rows(asked, job_queries.VERDICT_ROWS)]
    assert (kinds[0], kinds[-1]) == (1, 3)
    [row] = rows(asked, job_queries.VERDICT_TABLE)
    assert (row["verdict"], row["intervals"]) == ("SLOW_FLOW", 5)
    assert row["advice"].startswith("move the flow")
    iterations = rows(asked, job_queries.ITERATIONS)
    assert iterations[-1]["iteration"] > 1.3 * iterations[0]["iteration"]
    assert {row["expected"] for row in iterations} == {640e6}
    assert {row["expected"] for row in rows(asked, job_queries.BUS_SERIES)} == {360e9}


def test_parts_add_up_to_the_interval_and_the_late_rank_stands_first(asked):
    for row in rows(asked, job_queries.SPLIT_SERIES):
        assert sum(row[f"{part}_share"] for part in job_queries.PARTS) == pytest.approx(1, abs=0.01)
    ranks = rows(asked, job_queries.RANK_TABLE)
    assert ranks[0]["rank"] == 2
    assert ranks[0]["on_host"] == "h2"
    assert {row["of"] for row in rows(asked, job_queries.RANK_SERIES)} == {f"llm rank {k}" for k in range(4)}


def test_collectives_are_weighted_by_time(asked):
    [row] = rows(asked, job_queries.FUNCTION_TABLE)
    assert (row["function"], row["operations"], row["mean_ns"], row["bus"]) == (
        "ALL_REDUCE",
        400,
        4e7,
        3.5e11,
    )
    assert (row["network_late_each_ns"], row["peer_late_each_ns"]) == (3e7, 5e6)
    assert {row["bus"] for row in rows(asked, job_queries.FUNCTION_SERIES)} == {3.5e11}


def test_the_slowest_flow_stands_first_with_both_delays(asked):
    found = rows(asked, job_queries.FLOW_TABLE)
    assert (found[0]["nic"], found[0]["peer"], found[0]["crossed"]) == (
        "h2/eth0",
        "h3/eth0",
        "leaf1:swp3>spine1:swp1",
    )
    assert found[0]["slowest_data_ns"] > 300_000 > found[1]["slowest_data_ns"]
    assert max(row["data"] for row in rows(asked, job_queries.DATA_SERIES)) == found[0]["slowest_data_ns"]
    assert max(row["probes"] for row in rows(asked, job_queries.PROBE_SERIES)) > 80_000


def test_queue_pairs_and_counters_are_those_of_the_nics(asked):
    found = rows(asked, job_queries.QUEUE_PAIR_SERIES)
    assert {row["nic"] for row in found} == {f"h{k}/eth0" for k in range(4)}
    assert {row["p99"] for row in found} == {1_900_000}
    counters = rows(asked, job_queries.COUNTER_SERIES)
    assert sum(row["cnp_received_all"] for row in counters) == 4 * 10 * 1_204
    assert sum(row["retransmits_all"] for row in counters) == 0
