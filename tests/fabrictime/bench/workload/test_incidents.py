"""The incidents of real jobs: when an answer of explain is right. The run is a test of the pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.bench.workload._incidents import INCIDENTS

LINK = "leaf1:swp4>spine2:swp1"


def answer(verdict: str, subject: str = "", **fields: Any) -> dict[str, Any]:
    return {"verdict": verdict, "subject": subject, "subjects": [], "links": [], "jobs": []} | fields


@pytest.mark.parametrize(
    ("name", "found", "subject", "right"),
    [
        ("clean", answer("HEALTHY"), "", True),
        ("clean", answer("CONTENTION", LINK), "", False),
        ("grey_link", answer("GREY_LINK", "leaf1:swp4<>spine2:swp1", links=[LINK]), LINK, True),
        ("grey_link", answer("GREY_LINK", "leaf1:swp5<>spine3:swp1"), LINK, False),
        ("collision", answer("CONTENTION", LINK, jobs=["job-2"]), "job-2", True),
        ("collision", answer("CONTENTION", LINK, jobs=["job-3"]), "job-2", False),
        ("slow_host", answer("SLOW_RECEIVER", "h5/eth1", subjects=["h5/eth1", "h5"]), "h5", True),
        ("straggler", answer("STRAGGLER", "h5"), "", True),
    ],
)
def test_the_verdict_and_its_subject_count(
    name: str, found: dict[str, Any], subject: str, right: bool
) -> None:
    [incident] = [each for each in INCIDENTS if each.name == name]
    assert incident.is_right(found, subject) is right


def test_the_issues_incidents_are_there() -> None:
    names = {"clean", "grey_link", "blackhole", "collision", "slow_host", "straggler", "own_pacing"}
    assert {each.name for each in INCIDENTS} == names
