"""The list of jobs: running ones, the unhealthy first."""

from fabrictime.commands.jobs.table import rows_of, wrong
from tests.fabrictime.commands.jobs.job_diagnoses import S, contended, healthy

T = 1_900_000_000 * S


def test_running_jobs_come_first_by_the_time_that_they_lose():
    newest = {
        "a": healthy("a", 1, T),
        "b": contended("b", 1, T, loss_share=0.1),
        "c": contended("c", 1, T),
        "d": contended("d", 1, T - 100 * S),
    }
    rows = rows_of(newest, T + S, everything=True)
    assert [(row["job"], row["runs"]) for row in rows] == [
        ("c", True),
        ("b", True),
        ("a", True),
        ("d", False),
    ]
    assert [row["job"] for row in rows_of(newest, T + S, everything=False)] == ["c", "b", "a"]
    assert [line.partition(":")[0] for line in wrong(rows)] == ["job c", "job b"]
