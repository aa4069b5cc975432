"""Tests that accounting and test outputs have a row for each part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fabrictime.bench.workload.postmortem.run import Run
from fabrictime.bench.workload.postmortem.truth import Folder

Incident = tuple[Run, dict[str, tuple[Path, Folder]]]
Contents = Callable[[Path], list[bytes]]


def test_accounting_has_the_same_columns_in_each_row(incident: Incident, contents: Contents) -> None:
    run, folders = incident
    [content] = contents(folders["slurm-accounting"][0])
    rows = [line.split("|") for line in content.decode().splitlines()]
    assert {len(row) for row in rows} == {len(rows[0])}
    assert rows[1][0] == str(run.job.number)


def test_each_result_of_nccl_tests_has_its_measures(incident: Incident, contents: Contents) -> None:
    for content in contents(incident[1]["nccl-tests"][0]):
        results = [line.split() for line in content.decode().splitlines() if not line.startswith("#")]
        assert {len(result) for result in results} == {13}
