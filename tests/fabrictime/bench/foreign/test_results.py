"""The results of foreign runs: a file that a later call goes on with."""

from __future__ import annotations

import json
from dataclasses import asdict

from fabrictime.bench.foreign._results import Results, from_json
from fabrictime.bench.foreign._truth import Culprit
from tests.fabrictime.bench.foreign_outcomes import answer, outcome


def test_results_are_read_again_and_finished_cases_are_left_out(tmp_path):
    first = outcome(
        "sleeps", answer(1, "STRAGGLER", "h5", others=(("HEALTHY", ""),)), second=Culprit(1, "h3")
    )
    failed = outcome("stop")
    failed.error = "CannotRun: no job"
    results = Results(tmp_path / "runs", 5)
    results.add(first)
    results.add(failed)
    again = Results(tmp_path / "runs", 6)
    assert again.seed == 5
    assert again.outcomes == [first, failed]
    cases = [first.case, failed.case, outcome("none").case]
    assert again.left(cases, "1") == cases[1:2]
    assert again.left(cases, "") == cases[1:]
    assert again.left(cases, "none") == cases[2:]
    assert from_json(json.loads(json.dumps(asdict(first)))) == first
