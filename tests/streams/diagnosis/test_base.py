"""Candidates."""

from __future__ import annotations

from schemas.records import Verdict
from streams.diagnosis.base import Candidate, observation


def test_a_candidate_is_neither_weighed_nor_decisive_at_first() -> None:
    candidate = Candidate(Verdict.STRAGGLER, 0.5, "h1", "text", "remedy")
    assert candidate.confidence == 0.0
    assert not candidate.decisive


def test_an_observation_has_figures_as_floats() -> None:
    found = observation("fabric.delays", "a", "delay_us", 94, None, "text", 7)
    assert (found["number"], found["expected"], found["at_ns"]) == (94.0, None, 7)
