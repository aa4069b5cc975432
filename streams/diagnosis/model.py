"""Weighs the symptoms of possible causes: the sum of weights is a cause's log odds, hence its confidence.

Weights come from a fit to simulated incidents (`tools/fit_diagnosis.py`). A cause has `bias` plus the weights
of the symptoms that support it, minus the weights of those that oppose it. All weights are positive, so
evidence for a cause never lowers its odds. In the second of two passes, a likely cause opposes its effects
(EXPLAINED), and all other causes (RIVAL).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from schemas.records import Verdict
from streams.diagnosis.candidate import Candidate
from streams.diagnosis.case import Case
from streams.diagnosis.symptoms import HYPOTHESES, Symptom, Symptoms

SECOND_PASS: Final = (Symptom.EXPLAINED, Symptom.RIVAL)
"""Symptoms that are the confidence of the first pass in other causes."""
WEIGHTS: Final = Path(__file__).with_name("weights.json")
MAX_HALVINGS: Final = 4.0
"""Largest number of halvings by which a cause is cheaper than the costliest one."""
CLEAR_LOSS: Final = 0.2
"""Share of lost time from which on a job is clearly slow."""
CERTAIN_LOG_ODDS: Final = 5.0
"""Bound of the log odds: no diagnosis is surer than 99.3%."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The fitted weights: `bias` of each cause, and the weight of each symptom.

    `offset` corrects the log odds of answers: the most probable of several causes is right more often than
    its own symptoms show.
    """

    bias: Mapping[Verdict, float]
    symptoms: Mapping[Symptom, float]
    offset: float = 0.0

    def log_odds(self, verdict: Verdict, symptoms: Symptoms) -> float:
        """Return the log odds that a cause with these symptoms is the right one."""
        sign = HYPOTHESES[verdict].sign
        return self.bias[verdict] + sum(
            sign(symptom) * self.symptoms[symptom] * value for symptom, value in symptoms.items()
        )

    def confidence(self, verdict: Verdict, symptoms: Symptoms) -> float:
        """Return the probability, 0 to 1, that a cause with these symptoms is the right one."""
        return _probability(self.log_odds(verdict, symptoms))

    def calibrated(self, confidence: float) -> float:
        """Return the probability that an answer of a given confidence is right; 0, as of UNKNOWN, stays 0."""
        return 0.0 if confidence <= 0 else _probability(odds_of(confidence) + self.offset)


def _probability(odds: float) -> float:
    """Return the probability that log odds stand for; they are limited to `CERTAIN_LOG_ODDS`."""
    return 1 / (1 + math.exp(-max(-CERTAIN_LOG_ODDS, min(CERTAIN_LOG_ODDS, odds))))


def odds_of(confidence: float) -> float:
    """Return the log odds of a probability between 0 and 1."""
    return math.log(confidence / (1 - confidence))


@cache
def fitted_weights() -> Weights:
    """Return the fitted weights that the package contains."""
    return read_weights()


def read_weights(part: str = "") -> Weights:
    """Return weights from the package's file; `part="prior"`: the weights with which the fit began."""
    content = json.loads(WEIGHTS.read_text())
    table = content[part] if part else content
    return Weights(
        {verdict: table["bias"][verdict.value] for verdict in HYPOTHESES},
        {symptom: table["symptoms"][symptom.name] for symptom in Symptom},
        table.get("calibration", {}).get("offset", 0.0),
    )


def add_common_symptoms(
    case: Case, candidates: Sequence[Candidate], cost: Callable[[Case, Candidate], float]
) -> None:
    """Add the symptoms that causes share. `cost`: share of the time since its begin that a cause costs."""
    slow_pairs = {outlier.pair.key for outlier in case.outliers}
    costs = {id(candidate): cost(case, candidate) for candidate in candidates}
    for candidate in candidates:
        others = [costs[id(other)] for other in candidates if not is_effect(other, candidate)]
        is_slow = bool(slow_pairs & candidate.pairs)
        candidate.symptoms |= {
            Symptom.SLOW_THERE: is_slow,
            Symptom.SLOW_ELSEWHERE: bool(slow_pairs) and not is_slow,
            Symptom.CHEAPER: halvings(costs[id(candidate)], max(others)) / MAX_HALVINGS,
            Symptom.BARELY_SLOW: _barely_slow(case, candidate.since_ns),
        }


def _barely_slow(case: Case, since_ns: int | None) -> float:
    """Return how near to zero a job's loss since a cause began is, 0 to 1; 0 if its past is unknown."""
    if since_ns is None or case.ratio is None or not case.has_clean_baseline(since_ns):
        return 0.0
    return 1 - min(1.0, case.share_since(case.loss_share, since_ns) / CLEAR_LOSS)


def halvings(cost: float, greatest: float) -> float:
    """Return how often `greatest` must be halved to reach `cost`, at most `MAX_HALVINGS`."""
    if cost <= 0:
        return MAX_HALVINGS if greatest > 0 else 0.0
    return max(0.0, min(MAX_HALVINGS, math.log2(greatest / cost)))


def weigh(weights: Weights, candidates: Sequence[Candidate], is_cause: Callable[[Candidate], bool]) -> None:
    """Set the confidence of candidates in two passes. `is_cause`: whether a candidate can be the verdict."""
    for candidate in candidates:
        for symptom in SECOND_PASS:
            candidate.symptoms.pop(symptom, None)
        candidate.confidence = weights.confidence(candidate.verdict, candidate.symptoms)
    links = [relations(candidate, candidates, is_cause) for candidate in candidates]
    second = [
        [max((other.confidence for other in others), default=0.0) for others in related] for related in links
    ]
    for candidate, values in zip(candidates, second, strict=True):
        candidate.symptoms |= dict(zip(SECOND_PASS, values, strict=True))
        candidate.confidence = weights.confidence(candidate.verdict, candidate.symptoms)


def is_effect(effect: Candidate, cause: Candidate) -> bool:
    """Return whether a cause can explain another candidate: they share pairs, or both stop the job."""
    if cause is effect or cause.verdict not in HYPOTHESES[effect.verdict].explained_by:
        return False
    return bool(cause.pairs & effect.pairs) or (cause.decisive and effect.decisive)


def relations(
    candidate: Candidate, candidates: Iterable[Candidate], is_cause: Callable[[Candidate], bool]
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the causes that can explain a candidate, and its rivals: all causes but its own effects."""
    others = [other for other in candidates if other is not candidate and is_cause(other)]
    causes = [other for other in others if is_effect(candidate, other)]
    rivals = [
        other for other in others if not is_effect(candidate, other) and not is_effect(other, candidate)
    ]
    return causes, rivals
