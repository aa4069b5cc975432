"""Late evidence is stated by its consequence: which figures are old, and which are current."""

from __future__ import annotations

import pytest

from fabrictime.state.evidence import Age, Source, Verdict, evaluate
from fabrictime.state.freshness import CURRENT, HistoryAge, consequence


def verdict(**late_s: float) -> Verdict:
    """Return the verdict with the given ages; the other sources are fresh."""
    return evaluate({source: Age(late_s.get(source.value, 0.1)) for source in Source})


@pytest.mark.parametrize(
    ("late", "history", "text"),
    [
        ({}, CURRENT, ""),
        ({}, HistoryAge(14.0), "Delays and clocks are 14 s old; links and alerts are current."),
        ({"clocks": 14.0}, CURRENT, "Delays and clocks are 14 s old; links and alerts are current."),
        ({"clocks": 14.0}, HistoryAge(20.0), "Delays and clocks are 20 s old; links and alerts are current."),
        ({"probes": 14.0}, CURRENT, "Links and alerts are 14 s old; delays and clocks are current."),
        (
            {"probes": 9.0, "links": 14.0},
            HistoryAge(3.0),
            "Links and alerts are 14 s old; delays and clocks are current.",
        ),
        ({"probes": 14.0, "clocks": 14.0}, CURRENT, "Links, alerts, delays and clocks are 14 s old."),
        (
            {"probes": 14.0},
            HistoryAge(None, "history: refused"),
            "Links and alerts are 14 s old; delays and clocks are not available.",
        ),
        ({"probes": 14.0}, HistoryAge(None, is_read=False), "Links and alerts are 14 s old."),
    ],
)
def test_the_consequence_names_old_and_current_figures(late: dict, history: HistoryAge, text: str) -> None:
    assert consequence(verdict(**late), history) == text


def test_a_source_without_any_evidence_is_not_measured_yet() -> None:
    ages = {source: Age(60.0, exists=False) for source in Source}
    assert consequence(evaluate(ages)) == "Links, alerts, delays and clocks are not measured yet."


def test_a_silent_log_makes_everything_old() -> None:
    fault = Verdict(("log h:1: no answer (for 7.0 s)",), log_fault="log h:1: no answer")
    assert consequence(fault, CURRENT, 9.0) == "Links and alerts are 9.0 s old: the log does not answer."
    assert consequence(fault) == "Links and alerts are old: the log does not answer."
