"""Candidates."""

from __future__ import annotations

from schemas.records import Verdict
from streams.diagnosis.base import Candidate, observation


def test_a_candidate_weighs_as_much_as_it_is_sure_and_costs() -> None:
    candidate = Candidate(Verdict.STRAGGLER, 0.8, 0.5, "h1", "text", "remedy")
    assert candidate.score == 0.4
    assert not candidate.decisive


def test_an_observation_has_figures_as_floats() -> None:
    found = observation("fabric.delays", "a", "delay_us", 94, None, "text", 7)
    assert (found["number"], found["expected"], found["at_ns"]) == (94.0, None, 7)
