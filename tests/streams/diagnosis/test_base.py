"""Candidates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from schemas.records import Verdict
from streams.diagnosis.base import Candidate, observation
from streams.diagnosis.job.ranks import Rank
from streams.diagnosis.record import ranks_text


def test_a_candidate_is_neither_weighed_nor_decisive_at_first() -> None:
    candidate = Candidate(Verdict.STRAGGLER, 0.5, "h1", "text", "remedy")
    assert candidate.confidence == 0.0
    assert not candidate.decisive


def test_an_observation_has_figures_as_floats() -> None:
    found = observation("fabric.delays", "a", "delay_us", 94, None, "text", 7)
    assert (found["number"], found["expected"], found["at_ns"]) == (94.0, None, 7)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "rank 3 on h0"),
        ([2, 3], "ranks 2, 3 on h0"),
        ([0, 1, 2, 3], "ranks 0 to 3 on h0"),
        ([0, 2, 3], "ranks 0, 2, 3 on h0"),
        ([0, 9], "rank 0 on h0, rank 9 on h1"),
        ([0, 8, 16, 24], "rank 0 on h0, rank 8 on h1, rank 16 on h2 and 1 more"),
    ],
)
def test_ranks_of_one_host_are_named_together(numbers: list[int], text: str) -> None:
    ranks = [cast(Rank, SimpleNamespace(number=number, host=f"h{number // 8}")) for number in numbers]
    assert ranks_text(ranks, limit=3) == text
