"""Odds of causes from their symptoms, with the weights of the package."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.records import LinkState, Verdict
from streams.diagnosis.candidate import Candidate
from streams.diagnosis.job import work
from streams.diagnosis.model import CERTAIN_LOG_ODDS, MAX_HALVINGS, fitted_weights, halvings, weigh
from streams.diagnosis.symptoms import HYPOTHESES, Symptom, Symptoms
from tests.examples import examples
from tests.streams.diagnosis.scenario import MS, Job, World, route

PAIR = ("a/n0", "b/n0")
OTHER = ("c/n0", "d/n0")
_symptoms = st.dictionaries(st.sampled_from(Symptom), st.floats(0, 1))


def candidate(verdict: Verdict, pair: tuple[str, str] = PAIR, **symptoms: float) -> Candidate:
    measured: Symptoms = {Symptom[name]: value for name, value in symptoms.items()}
    return Candidate(verdict, 0.3, str(pair), "", "", pairs={pair}, symptoms=measured)


def weighed(*candidates: Candidate) -> list[float]:
    weigh(fitted_weights(), candidates, lambda _: True)
    return [one.confidence for one in candidates]


def test_weights_are_finite_and_not_negative() -> None:
    weights = fitted_weights()
    assert all(value >= 0 for value in weights.symptoms.values())
    assert all(math.isfinite(value) for value in (*weights.bias.values(), *weights.symptoms.values()))


@given(st.sampled_from(list(HYPOTHESES)), _symptoms, st.sampled_from(Symptom), st.floats(0, 1))
@settings(max_examples=examples(300))
def test_more_evidence_for_a_cause_never_lowers_its_confidence(
    cause: Verdict, symptoms: Symptoms, symptom: Symptom, more: float
) -> None:
    weights, less = fitted_weights(), symptoms.get(symptom, 0.0)
    stronger = symptoms | {symptom: max(less, more)}
    change = weights.confidence(cause, stronger) - weights.confidence(cause, symptoms)
    assert change * HYPOTHESES[cause].sign(symptom) >= -1e-12
    if not HYPOTHESES[cause].sign(symptom):
        assert change == pytest.approx(0.0)


@given(st.sampled_from(list(HYPOTHESES)), _symptoms)
@settings(max_examples=examples(300))
def test_no_diagnosis_is_certain(cause: Verdict, symptoms: Symptoms) -> None:
    bound = 1 / (1 + math.exp(-CERTAIN_LOG_ODDS))
    assert 1 - bound <= fitted_weights().confidence(cause, symptoms) <= bound


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
@settings(max_examples=examples(300))
def test_the_correction_keeps_the_order_of_answers(one: float, other: float) -> None:
    weights = fitted_weights()
    low, high = sorted((one, other))
    assert weights.calibrated(0.0) == 0.0 < weights.calibrated(low) <= weights.calibrated(high) < 1


def test_an_effect_is_less_likely_beside_its_cause() -> None:
    alone = weighed(candidate(Verdict.SLOW_FLOW))[0]
    effect, cause = weighed(
        candidate(Verdict.SLOW_FLOW), candidate(Verdict.CONTENTION, CROSSED=1, OTHERS_TRAFFIC=1, SLOW_THERE=1)
    )
    assert effect < alone
    assert effect < cause


def test_a_cause_of_other_pairs_explains_nothing() -> None:
    flow = candidate(Verdict.SLOW_FLOW)
    weighed(flow, candidate(Verdict.CONTENTION, OTHER, CROSSED=1))
    assert flow.symptoms[Symptom.EXPLAINED] == 0
    assert flow.symptoms[Symptom.RIVAL] > 0


def test_an_effect_is_no_rival_of_its_cause() -> None:
    cause = candidate(Verdict.GREY_LINK, DECLARED=1)
    alone = weighed(cause)[0]
    assert weighed(cause, candidate(Verdict.SLOW_FLOW))[0] == pytest.approx(alone)


def test_weighing_again_changes_nothing() -> None:
    some = [
        candidate(Verdict.CONTENTION, CROSSED=1),
        candidate(Verdict.SLOW_FLOW),
        candidate(Verdict.STRAGGLER, OTHER),
    ]
    assert weighed(*some) == weighed(*some)


@pytest.mark.parametrize(
    ("cost", "greatest", "expected"),
    [(0.3, 0.3, 0), (0.15, 0.3, 1), (0.0, 0.3, MAX_HALVINGS), (1e-9, 1.0, MAX_HALVINGS), (0.0, 0.0, 0)],
)
def test_halvings(cost: float, greatest: float, expected: float) -> None:
    assert halvings(cost, greatest) == pytest.approx(expected)


@pytest.mark.parametrize("ms", [4.0, 4.08, 3.6])
def test_a_job_that_is_not_slower_than_its_baseline_has_no_cause(ms: float) -> None:
    """As fast as before, 1% slower, and faster, while a link on its way flaps and loses packets."""
    for state in (LinkState.FLAPPING, LinkState.GREY):
        world = World(Job(split=True, own_share=0.5))
        world.learn()
        world.health(route(1, 2, 1)[1], state, world.job.at_ns, loss_rate=0.02)
        world.job.network = lambda rank, at: ms * 1_000_000
        answers = [world.step() for _ in range(8)]
        assert {answer["verdict"] for answer in answers} == {Verdict.HEALTHY}
        assert not any(answer["blames_network"] for answer in answers)


@pytest.mark.parametrize("has_iterations", [True, False])
@pytest.mark.parametrize(("slow_ranks", "verdict"), [((3,), Verdict.SLOW_FLOW), ((2, 3), Verdict.PCIE_LIMIT)])
def test_slow_pairs_are_no_cause_while_iterations_take_as_long(
    slow_ranks: tuple[int, ...], verdict: Verdict, has_iterations: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job moves data for longer and computes for less: hosts without spare processor time vary so.

    In jobs of point-to-point messages no iterations are found, but as many operations in the same time.
    """
    if not has_iterations:
        monkeypatch.setattr(work, "_find_iterations", lambda *_: None)
    world = World(Job())
    world.learn()
    world.job.pair_us = lambda rank, at: 120.0 if rank in slow_ranks else 4.0
    world.job.network, world.job.compute = lambda rank, at: 5.5 * MS, lambda rank, at: 6.5 * MS
    assert {world.step()["verdict"] for _ in range(8)} == {Verdict.HEALTHY}
    world.job.network = lambda rank, at: 12.0 * MS
    assert [world.step()["verdict"] for _ in range(8)][-1] == verdict
