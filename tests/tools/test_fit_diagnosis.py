"""The fit of the diagnosis to recorded incidents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fabrictime.bench.workload._answers import Answer
from fabrictime.bench.workload._drawn import Incident
from fabrictime.bench.workload._recorded import record
from schemas.records import Verdict
from streams.diagnosis import model
from streams.diagnosis.candidate import Candidate
from streams.diagnosis.symptoms import HYPOTHESES, Symptom
from tools import fit_diagnosis as fit

GREY = Verdict.GREY_LINK


def evaluations(*rows: tuple[float, bool]) -> list[list[fit.Row]]:
    """Return evaluations with one grey link each: is it certainly crossed, and is it right?"""
    return [[fit.Row(GREY, {Symptom.CROSSED: crossed}, right, True, ([], []))] for crossed, right in rows]


def solved(*rows: tuple[float, bool], ridge: float = 0.1) -> model.Weights:
    matrix = fit.matrix_of([evaluations(row) for row in rows], fit.PRIOR)
    return fit.weights_of(fit.solve(matrix, ridge))


def test_the_package_holds_all_weights_of_the_fit() -> None:
    assert model.read_weights().bias.keys() == model.read_weights("prior").bias.keys() == HYPOTHESES.keys()
    assert fit.weights_of(fit.values_of(fit.PRIOR)) == fit.PRIOR


def test_confidence_agrees_with_the_share_of_right_rows() -> None:
    weights = solved(*[(1.0, number % 10 < 8) for number in range(200)], ridge=0.001)
    assert weights.confidence(GREY, {Symptom.CROSSED: 1.0}) == pytest.approx(0.8, abs=0.02)


def test_a_symptom_that_contradicts_its_sign_loses_its_weight() -> None:
    rows = [(1.0, False)] * 100 + [(0.0, True)] * 100
    assert solved(*rows).symptoms[Symptom.CROSSED] == 0.0


def test_a_symptom_that_no_row_has_keeps_its_prior() -> None:
    prior = fit.PRIOR.symptoms
    weights = solved((1.0, True), (0.0, False)).symptoms
    assert weights[Symptom.SILENT] / weights[Symptom.SUSPECT] == pytest.approx(
        prior[Symptom.SILENT] / prior[Symptom.SUSPECT], rel=1e-3
    )


def test_rows_that_cannot_be_the_verdict_count_only_as_explanations() -> None:
    cause = fit.Row(GREY, {Symptom.CROSSED: 1.0}, True, False, ([], [1]))
    effect = fit.Row(Verdict.SLOW_FLOW, {}, True, True, ([0], []))
    matrix = fit.matrix_of([[[cause, effect]]], fit.PRIOR)
    assert len(matrix.right) == 1
    assert not matrix.right[0], "a slow flow beside its right cause is not right"
    explained = matrix.features[0][len(HYPOTHESES) + list(Symptom).index(Symptom.EXPLAINED)]
    assert explained == pytest.approx(-fit.PRIOR.confidence(GREY, cause.symptoms))


def test_rows_without_noise_are_fitted_at_any_ridge() -> None:
    """The common scale alone separates them, so the choice of the ridge is free."""
    rows = fit.matrix_of([evaluations((1.0, True), (0.0, False))] * 10, fit.PRIOR)
    ridge, loss = fit.best_ridge(rows)
    assert ridge in fit.RIDGES
    assert loss < 0.01


def test_calibrated_answers_are_as_often_right_as_they_state_on_average() -> None:
    """Half of the incidents have answers of 60 %, half of 90 %, and 95 % are right. UNKNOWN says nothing."""
    stated = [(0.6 + 0.3 * (number % 2), number % 20 > 0) for number in range(1000)] + [(0.0, False)] * 100
    weights = replace(
        fit.PRIOR, offset=fit.calibrate([[Answer(sure, right, False)] * 5 for sure, right in stated])
    )
    low, high = weights.calibrated(0.6), weights.calibrated(0.9)
    assert (low + high) / 2 == pytest.approx(0.95, abs=0.01)
    assert weights.calibrated(0.0) == 0.0 < 0.6 < low < high


def test_answers_without_a_wrong_one_do_not_become_certain() -> None:
    stated = (0.6, 0.8, 0.9, 0.95)
    offset = fit.calibrate([[Answer(sure, True, False)] for sure in stated * 5])
    weights = replace(fit.PRIOR, offset=offset)
    assert np.mean([weights.calibrated(sure) for sure in stated]) == pytest.approx(21 / 22, abs=1e-3)


def test_a_cause_is_right_by_its_place_too() -> None:
    incident = Incident("grey", 1, frozenset({GREY}), [], frozenset({"a>b"}), is_network=True)
    right = Candidate(GREY, 0.3, "a<>b", "", "", links=["a>b"])
    elsewhere = replace(right, subject="c<>d", links=["c>d"])
    slow = Candidate(Verdict.SLOW_FLOW, 0.3, "x to y", "", "", links=["a>b"])
    healthy = Candidate(Verdict.HEALTHY, 0.0, "", "", "")
    verdicts = [fit.is_right_about(incident, one, 0.3) for one in (right, elsewhere, slow, healthy)]
    assert verdicts == [True, False, True, False]
    assert fit.is_right_about(incident, healthy, 0.01)


@pytest.mark.slow("runs a simulated fleet for ten seconds")
def test_a_recorded_incident_yields_rows_of_its_cause(tmp_path) -> None:
    path = tmp_path / "straggler-1.rec"
    record("straggler", 1, ranks=16, warm_s=6.0, length_s=5.0).save(path)
    rows = [row for some in fit.rows_of(path) for row in some]
    assert {row.is_right for row in rows if row.verdict == Verdict.STRAGGLER} == {True}
    assert any(row.verdict == Verdict.HEALTHY and row.is_right for row in rows)
    wrong, answers = fit.answers_of(path)
    assert (wrong, answers) == ("", [])
    assert np.isfinite(fit.log_loss(fit.matrix_of([[rows]], fit.PRIOR), fit.values_of(fit.PRIOR)))
