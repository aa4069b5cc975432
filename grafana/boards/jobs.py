"""Builds the dashboard of jobs: verdicts, iterations, ranks by time split, collectives, slow flows."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, table, timeseries

from grafana import job_queries
from grafana.panels import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    choice,
    color_override,
    colored,
    link_override,
    new_dashboard,
    page_link,
    series_panel,
    stacked_panel,
    stat_panel,
    state_panel,
    table_panel,
    unit_override,
)

PART_COLORS: Final = {
    "compute_share": GREY,
    "launch_share": PURPLE,
    "gpu_late_share": ORANGE,
    "peer_late_share": SKY,
    "network_late_share": VERMILLION,
    "flush_share": BLUE,
}
KINDS: Final = (
    ("not enough evidence", GREY),
    ("healthy", BLUE),
    ("slowed by something else", ORANGE),
    ("slowed by the network", VERMILLION),
)
JOB_URL: Final = "/d/fabrictime-jobs?${__url_time_range}&var-job=${__data.fields.job}"
PAIR_URL: Final = (
    "/d/fabrictime-delays?${__url_time_range}&var-nic=${__data.fields.nic}&var-peer=${__data.fields.peer}"
)
FABRIC_URL: Final = "/d/fabrictime-fabric?${__url_time_range}"


def jobs() -> dashboard.Dashboard:
    """Return the dashboard of jobs: the cause and start of each slowdown, and its ranks, flows and links."""
    kinds = colored(
        stat_panel("Jobs", "By the newest verdict of the range.", job_queries.JOBS_BY_KIND, "short"),
        {"network": VERMILLION, "other": ORANGE, "healthy": BLUE, "unknown": GREY},
    )
    slower = stat_panel(
        "Slowest iteration",
        "Of the slowest job, over its expected one.",
        job_queries.SLOWEST,
        "suffix: times",
        {1.1: ORANGE, 1.5: VERMILLION},
    )
    lost = stat_panel(
        "Time lost",
        "Of the job that loses most to one cause.",
        job_queries.LOST_SHARE,
        "percentunit",
        {0.05: ORANGE, 0.2: VERMILLION},
    )
    split = colored(
        stacked_panel(
            "Time of all ranks by part",
            "Share of the time, mean of the ranks of the chosen jobs.",
            job_queries.SPLIT_SERIES,
            "percentunit",
        ),
        PART_COLORS,
    )
    return new_dashboard(
        "fabrictime-jobs",
        "fabrictime: jobs",
        "Why a job is slow: rank, flow and link.",
        kinds,
        slower,
        lost,
        stat_panel("Ranks", "Ranks that report, and all.", job_queries.RANKS_REPORTING, "short"),
        state_panel("Verdicts", job_queries.VERDICT_ROWS, 24, KINDS),
        _verdicts(),
        _with_expected("Iteration", "Mean of each interval.", job_queries.ITERATIONS, "ns"),
        _with_expected("Bus bandwidth", "As nccl-tests has it.", job_queries.BUS_SERIES, "bps"),
        split,
        series_panel(
            "Network-late ranks",
            "Time of moving data in an interval; the 20 ranks with most.",
            job_queries.RANK_SERIES,
            "ns",
        ),
        _nanoseconds(table_panel("Ranks", "Means over the range.", job_queries.RANK_TABLE)),
        series_panel(
            "Bus bandwidth by function",
            "Weighted by the time of the operations.",
            job_queries.FUNCTION_SERIES,
            "bps",
            24,
        ),
        _nanoseconds(
            table_panel("Collectives", "By function, algorithm and size.", job_queries.FUNCTION_TABLE)
        )
        .override_by_name("bus", unit_override("bps"))
        .override_by_name("from_bytes", unit_override("decbytes")),
        series_panel(
            "Delay of the data",
            "From post to completion; the 20 slowest pairs of NICs.",
            job_queries.DATA_SERIES,
            "ns",
        ),
        series_panel(
            "Delay of probes between the same NICs",
            "One-way, median. Data far slower than probes: see traffic class and queue pairs.",
            job_queries.PROBE_SERIES,
            "ns",
        ),
        series_panel(
            "Queue pairs, p99",
            "From post to completion, the slowest queue pair of each NIC; the 20 slowest NICs.",
            job_queries.QUEUE_PAIR_SERIES,
            "ns",
        ),
        series_panel(
            "Counters of the jobs' NICs",
            "Increments of all NICs: congestion notifications, CE marks, retransmits, pause frames.",
            job_queries.COUNTER_SERIES,
            "short",
        ),
        _flows(),
        variables=(choice("job", "Job", job_queries.JOB_VALUES),),
    )


def _with_expected(title: str, doc: str, sql: str, unit: str) -> timeseries.Panel:
    panel = series_panel(title, f"{doc} Grey: expected, the job's baseline.", sql, unit)
    return panel.override_by_regexp("expected.*", color_override(GREY))


def _verdicts() -> table.Panel:
    return (
        table_panel(
            "Verdicts other than healthy", "The newest first, with remedy.", job_queries.VERDICT_TABLE
        )
        .override_by_name("lost", unit_override("percentunit"))
        .override_by_name("sure", unit_override("percentunit"))
        .override_by_name("job", link_override("this job", JOB_URL))
        .override_by_name("named", link_override("the fabric", FABRIC_URL))
        .override_by_name("verdict", page_link("this job on the page", "jobs?job={job}"))
    )


def _flows() -> table.Panel:
    return (
        _nanoseconds(
            table_panel("Slow flows", "Pairs of NICs, the slowest data first.", job_queries.FLOW_TABLE)
        )
        .override_by_name("mean_rate_bps", unit_override("bps"))
        .override_by_name("nic", link_override("delays of this pair", PAIR_URL))
        .override_by_name("crossed", link_override("the fabric", FABRIC_URL))
    )


def _nanoseconds(panel: table.Panel) -> table.Panel:
    return panel.override_by_regexp(".*_ns", unit_override("ns"))
