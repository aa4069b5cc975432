"""Rows and frames of the tab Jobs: order of jobs, marks of verdicts, ranks by part."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state.fabric_state import FabricState
from fabrictime.web.tabs.jobs import frames
from tests.fabrictime.fill import fill
from tests.fabrictime.job_records import INTERVAL_NS, JobRecords, head_of

S = 1_000_000_000


def put(state: FabricState, made: JobRecords, count: int, slow_from: int = 10**9) -> None:
    """Diagnoses up to now; from number `slow_from` on, rank 2 is slow."""
    for k in range(count):
        record = made.diagnosis(
            k, made.fabric.now_ns - (count - 1 - k) * INTERVAL_NS, 2 if k >= slow_from else None
        )
        fill(state, ("fabric.diagnoses", made.job, record))


def test_running_jobs_with_a_fault_stand_first(state: FabricState, fabric: Any, made: JobRecords) -> None:
    put(state, JobRecords(fabric, "fine"), 3)
    put(state, made, 3, slow_from=2)
    ended = JobRecords(fabric, "old", ranks=1)
    fill(state, ("fabric.diagnoses", "old", ended.diagnosis(1, fabric.now_ns - 600 * S, None)))
    rows = frames.job_rows(state.jobs.jobs, fabric.now_ns)
    assert [(row["job"], row["verdict"], row["kind"]) for row in rows] == [
        ("llama", "slow flow", "network"),
        ("fine", "healthy", "healthy"),
        ("old", "healthy", "healthy"),
    ]
    assert rows[0]["since"].endswith("5.00 s")
    assert rows[2]["since"] == "ended 10 min ago"
    assert [row["past"] for row in rows] == [False] * 3
    past = frames.past_row(head_of(ended.diagnosis(1, fabric.now_ns - 7_200 * S)), fabric.now_ns)
    assert (past["since"], past["past"], past["trend"]) == ("ended 2 h ago", True, [])
    assert rows[0]["iteration"].endswith(", expected 640 ms")
    assert rows[0]["bandwidth"].endswith(", expected 360 Gbit/s")
    assert len(rows[0]["trend"]) == 3


def test_a_verdict_without_effect_on_the_job_is_no_fault(made: JobRecords, fabric: Any) -> None:
    """The tab Now counts the job as healthy, and so does the header."""
    fields = {"iteration_ns": 630_000_000, "expected_iteration_ns": 640_000_000}
    head = head_of(made.diagnosis(1, fabric.now_ns, slow=2, **fields))
    assert frames.kind_now(head) == "unknown"
    assert frames.verdict_text(head).startswith("iterations take the expected time; h3/eth1 to h4/eth1")
    slow = head_of(made.diagnosis(1, fabric.now_ns, slow=2))
    assert frames.kind_now(slow) == "network"
    assert frames.verdict_text(slow).startswith("h3/eth1 to h4/eth1")


def test_missing_ranks_and_unknown_figures_are_shown_as_such(made: JobRecords, fabric: Any) -> None:
    record = made.diagnosis(1, fabric.now_ns, ranks_seen=6, iteration_ns=None, bus_bps=None)
    assert frames.ranks_text(record) == "6 of 8"
    assert frames.ranks_text({**record, "ranks_total": 0}) == "6"
    figures = dict(frames.head_figures(head_of(record), fabric.now_ns))
    assert (figures["iteration"], figures["bus bandwidth"]) == ("—", "—")


def test_a_change_of_the_verdict_is_marked_and_the_band_is_that_of_healthy_intervals(
    state: FabricState, made: JobRecords
) -> None:
    put(state, made, 12, slow_from=10)
    job, now = state.jobs.jobs["llama"], made.fabric.now_ns
    frame = frames.iterations_frame(job.intervals, now, 900 * S, job.intervals[3].key)
    assert [mark[1:] for mark in frame["marks"]] == [[f"slow flow {job.head['subject']}", "network"]]
    assert frame["marks"][0][0] == frame["begin"][10]
    low, high = frame["band"]
    assert 620e6 < low < high < 670e6
    assert frame["names"] == ["healthy", "slow flow"]
    assert frame["chosen"] == frame["keys"][3]
    few = frames.iterations_frame(job.intervals[:3], now, 900 * S, None)
    assert few["band"] is None
    assert frames.within(job.intervals, now, 20 * S) == job.intervals[-4:]


def test_evidence_has_units_and_the_figure_of_its_like(made: JobRecords, fabric: Any) -> None:
    head = head_of(made.diagnosis(1, fabric.now_ns, slow=2))
    [row] = frames.evidence_rows(head)
    assert (row["measured"], row["expected"]) == ("94.0 µs", "4.00 µs")
    assert row["from"] == "fabric.delays h3/eth1"
    assert frames.figure_text("data_us", 1300.0) == "1.30 ms"
    [other] = frames.alternative_rows(head)
    assert (other["verdict"], other["confidence"]) == ("slow sender", "20%")
    chips = frames.subject_chips(head)
    assert [chip[0] for chip in chips] == [head["links"][0], "h3/eth1", "batch-b"]
    assert chips[0][2].startswith("/fabric?link=")
    assert chips[0][2].endswith("job=llama")
    assert frames.missing_markup(["<b>"]) == "<p>not known: &lt;b&gt;</p>"


@pytest.mark.parametrize(
    ("quantity", "number", "text"),
    [
        ("rate_bps", 3.6e11, "360 Gbit/s"),
        ("loss_share", 0.02, "2%"),
        ("loss_rate", 0.1335, "13%"),
        ("age_s", 5.242, "5.2 s"),
        ("late_ms", 20.1, "20.1 ms"),
        ("pause_sent_per_s", 1200.0, "1,200/s"),
        ("depth_bytes", 1500.0, "1.50 kB"),
        ("queue_pairs", 1.0, "1"),
        ("delay_ns", None, "—"),
    ],
)
def test_a_figure_takes_the_unit_of_its_name(quantity: str, number: float | None, text: str) -> None:
    assert frames.figure_text(quantity, number) == text


def test_ranks_are_sorted_by_the_part_that_the_verdict_is_about(made: JobRecords, fabric: Any) -> None:
    record = made.diagnosis(1, fabric.now_ns, slow=2)
    assert frames.sort_for(record["verdict"]) == "network_late_ns"
    assert frames.sort_for("STRAGGLER") == "compute_ns"
    frame = frames.ranks_frame(record["time_splits"], record["ranks"], INTERVAL_NS, "network_late_ns", 5)
    assert frame["ranks"][0][:4] == [2, "h3", "h3/eth1", 1]
    assert frame["parts"][4] == sorted(frame["parts"][4], reverse=True)
    assert all(980 <= sum(part[k] for part in frame["parts"]) <= 1020 for k in range(8))
    by_number = frames.ranks_frame(record["time_splits"], [], INTERVAL_NS, "rank", None)
    assert [each[0] for each in by_number["ranks"]] == list(range(8))
    assert (by_number["sort"], by_number["chosen"]) == (-1, -1)
    figures = dict(frames.rank_figures(record["time_splits"][2]))
    assert set(figures) == {*frames.PARTS.values(), "arrived last"}
