"""The table of causes and their symptoms."""

from __future__ import annotations

import pytest

from schemas.records import Verdict
from streams.diagnosis.symptoms import HYPOTHESES, Symptom


def test_all_verdicts_but_unknown_have_a_row() -> None:
    assert set(HYPOTHESES) == set(Verdict) - {Verdict.UNKNOWN}


def test_each_symptom_speaks_for_or_against_some_cause() -> None:
    used = {symptom for row in HYPOTHESES.values() for symptom in (*row.speaks_for, *row.against)}
    assert used == set(Symptom)


@pytest.mark.parametrize("cause", HYPOTHESES)
def test_no_symptom_speaks_both_for_and_against_a_cause(cause: Verdict) -> None:
    row = HYPOTHESES[cause]
    assert not set(row.speaks_for) & set(row.against)
    assert (Symptom.EXPLAINED in row.against) == bool(row.explained_by)
    assert cause not in row.explained_by
