"""The text of `explain` for diagnoses of jobs."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from fabrictime.commands.jobs.explain_job import draw, draw_comparison
from fabrictime.state.job_story import Run, compare, explain, ordered, telling
from tests.fabrictime.commands.jobs.job_diagnoses import S, contended, flow, healthy, split

T = 1_900_000_000 * S
TEXTS = Path(__file__).parent / "texts"


def run_of(*records, job="A"):
    heads = ordered(records)
    return Run(job, heads, [telling(heads), heads[-1]])


def text_of(drawn):
    out = io.StringIO()
    console = Console(file=out, width=160)
    for each in drawn:
        console.print(each, highlight=False)
    return re.sub(r" +\n", "\n", out.getvalue())


def test_a_contended_job_is_explained_with_its_evidence():
    records = [healthy("A", n, T + 5 * n * S) for n in range(3)]
    records += [contended("A", n, T + 5 * n * S, since_ns=T + 10 * S) for n in (3, 4)]
    assert text_of(draw(explain(run_of(*records), T + 21 * S))) == (TEXTS / "contended.txt").read_text(
        encoding="utf-8"
    )


def test_a_job_without_figures_is_explained_by_missing_evidence():
    record = healthy(
        "A", 1, T, verdict="UNKNOWN", confidence=0.0, text="not enough evidence", ranks_total=0, ranks_seen=1,
        hosts=1, iteration_ns=None, bus_bps=None, time_splits=[], flows=[], since_ns=T,
        missing=["no record of 3 of 4 ranks"],
    )  # fmt: skip
    assert (
        text_of(draw(explain(run_of(record), T + 90 * S)))
        == """\
A: 1 rank on 1 host
UNKNOWN since 17:46:40 UTC (0.0 s), confidence 0%: not enough evidence
its last record is 90 s old: it has ended, or is not measured

missing: no record of 3 of 4 ranks
"""
    )


def test_a_straggler_is_not_the_networks_fault_and_many_ranks_are_summed_up():
    record = healthy(
        "A", 1, T, verdict="STRAGGLER", text="rank 17 computes 40% longer", ranks=[17], tenant="red",
        loss_share=0.2, time_splits=[split(rank, S) for rank in range(256)],
        flows=[flow(1, n, None, data_ns=n * 1000) for n in range(2, 40)],
    )  # fmt: skip
    text = text_of(draw(explain(run_of(record), T)))
    assert "A of tenant red: 8 of 8 ranks" in text
    assert ", costs 20% of the time, not the network's fault: rank 17 computes 40% longer" in text
    assert "\n17*   h8/mlx5_1" in text
    assert "and 244 more ranks, network 1.00 s in the median" in text
    assert "slowest of 38 pairs of NICs\n" in text
    assert "39.0 µs" in text


def test_two_runs_are_compared_in_one_line_and_a_table():
    first, second = run_of(healthy("A", 1, T)), run_of(contended("A", 9, T + 100 * S))
    assert text_of(draw_comparison(compare(first, second))) == (TEXTS / "comparison.txt").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("verdict", ["HANG", "DEAD_RANK", "GREY_LINK", "OWN_PACING", "PROGRAM_MISMATCH"])
def test_every_verdict_is_drawn(verdict):
    record = contended("A", 1, T, verdict=verdict, blames_network=verdict == "GREY_LINK")
    assert f"{verdict} since" in text_of(draw(explain(run_of(record), T)))
