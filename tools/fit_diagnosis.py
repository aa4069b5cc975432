"""Fits the weights of the diagnosis to recorded incidents of the simulation, and scores them.

    python -m tools.fit_diagnosis record FOLDER COUNT [SEED]  # simulates incidents, 15 s of a core each
    python -m tools.fit_diagnosis fit FOLDER             # writes streams/diagnosis/weights.json
    python -m tools.fit_diagnosis calibrate FOLDER       # corrects the confidence of answers in that file
    python -m tools.fit_diagnosis score FOLDER           # share of right answers, calibration, AUROC

Seeds from 2**40 on are only for the fit; `fabrictime bench workload diagnosis` draws lower seeds. The fit is
a logistic regression with positive weights. Its ridge penalty is relative to the prior: log odds of causes
and symptoms set by experts, with a common scale and offset that the fit chooses. So a symptom that no
incident showed keeps its prior. Cross-validation over incidents chooses the strength of the ridge: the
greatest within a standard error of the least loss.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np
from scipy.optimize import brentq, minimize

from fabrictime.bench.workload._answers import Answer, answers_by_second, auroc, calibration_error
from fabrictime.bench.workload._drawn import HARMLESS, JOB, KINDS, Incident
from fabrictime.bench.workload._recorded import Recording, record, replay
from fabrictime.bench.workload.diagnosis import is_right, is_stalled
from schemas.records import Verdict
from streams.diagnosis import diagnose, model, no_cause
from streams.diagnosis.candidate import Candidate
from streams.diagnosis.case import Case
from streams.diagnosis.symptoms import HYPOTHESES, Symptom, Symptoms

FIT_SEEDS: Final = 2**40
SEEDS_EACH: Final = 1000
"""Distance of the seeds of two incidents: an incident without a place in its fleet takes the next seed."""
WARM_S, LENGTH_S, RANKS = 8.0, 14.0, 16
ROWS_EACH: Final = 4.0
"""Number of independent rows that an incident counts as: its evaluations repeat each other."""
STILL: Final = 0.9
"""Slowdown from which on a job stands still."""
EFFECTS: Final = (Verdict.SLOW_FLOW, Verdict.HANG)
RIDGES: Final = (3.0, 10.0, 30.0)
"""Strengths of the ridge that are tried. Smaller ones lower the loss of rows, but made no further answer
right in 104 incidents, and causes that no incident showed, such as a dead link that flows left, got lost."""
FOLDS: Final = 5
PASSES: Final = 3
"""Number of fits, each with EXPLAINED by the weights of the one before."""
PRIOR: Final = model.read_weights("prior")
_VERDICTS: Final = list(HYPOTHESES)
_SYMPTOMS: Final = list(Symptom)


class Row(NamedTuple):
    """A possible cause in one evaluation, with its symptoms and whether it is right."""

    verdict: Verdict
    symptoms: Symptoms
    is_right: bool
    counts: bool
    """Whether it could be the verdict."""
    related: tuple[list[int], ...]
    """Places of the rows that can explain it, and of its rivals."""


@dataclass(slots=True)
class Evaluations:
    """Collects the rows of the evaluations of one incident."""

    recording: Recording
    rows: list[list[Row]] = field(default_factory=list)
    _case: Case | None = None

    def add_common_symptoms(self, case: Case, *arguments: Any) -> None:
        """Store the case whose candidates are weighed next."""
        self._case = case
        model.add_common_symptoms(case, *arguments)

    def weigh(self, weights: model.Weights, candidates: Sequence[Candidate], is_cause: Any) -> None:
        """Add the candidates of an evaluation as rows."""
        model.weigh(weights, candidates, is_cause)
        case = self._case
        if case is None or case.job.job != JOB:
            return
        places = {id(candidate): at for at, candidate in enumerate(candidates)}
        self.rows.append(
            [
                Row(
                    candidate.verdict,
                    {
                        name: value
                        for name, value in candidate.symptoms.items()
                        if name not in model.SECOND_PASS
                    },
                    self._is_right(candidate),
                    diagnose.can_be_verdict(case, candidate),
                    tuple(
                        [places[id(other)] for other in others]
                        for others in model.relations(candidate, candidates, is_cause)
                    ),
                )
                for candidate in candidates
            ]
        )

    def without_cause(self, case: Case, *arguments: Any) -> Candidate:
        """Add the candidate without a cause as a row."""
        answer = _WITHOUT_CAUSE(case, *arguments)
        if case.job.job == JOB and answer.verdict in HYPOTHESES:
            self.rows.append([Row(answer.verdict, dict(answer.symptoms), self._is_right(answer), True, ())])
        return answer

    def _is_right(self, candidate: Candidate) -> bool:
        case, recording = self._case, self.recording
        if case is None or case.end_ns < recording.begin_ns:
            return candidate.verdict == Verdict.HEALTHY
        return is_right_about(recording.incident, candidate, recording.slowdown)


_WITHOUT_CAUSE: Final = no_cause.without_cause


def is_right_about(incident: Incident, candidate: Candidate, slowdown: float) -> bool:
    """Return whether a candidate names the incident's cause and its place.

    An effect is right if no cause of it is observed: a slow flow for a fault on its links or NICs, and a hang
    without suspects for a job that stands still.
    """
    names = ("verdict", "subject", "subjects", "links", "nics", "jobs", "ranks")
    named: Any = {name: getattr(candidate, name) for name in names}
    harmless = slowdown < HARMLESS and incident.is_network is not False
    if candidate.verdict == Verdict.SLOW_FLOW:
        return bool(incident.subjects & {*candidate.links, *candidate.nics}) and not harmless
    if candidate.verdict == Verdict.HANG and not candidate.symptoms.get(Symptom.SUSPECT):
        return slowdown > STILL
    if candidate.verdict == Verdict.HEALTHY:
        return harmless or Verdict.HEALTHY in incident.verdicts
    return is_right(incident, named, slowdown) or is_stalled(incident, named)


def rows_of(path: Path) -> list[list[Row]]:
    """Return the rows of a recorded incident, by evaluation."""
    recording = Recording.load(path)
    evaluations = Evaluations(recording)
    with (
        patch.object(diagnose, "add_common_symptoms", evaluations.add_common_symptoms),
        patch.object(diagnose, "weigh", evaluations.weigh),
        patch.object(diagnose, "without_cause", evaluations.without_cause),
        patch.object(diagnose, "fitted_weights", lambda: PRIOR),
        patch.object(no_cause, "fitted_weights", lambda: PRIOR),
    ):
        for _ in replay(recording):
            pass
    return evaluations.rows


# --------------------------------------------------------------------------------------------- fit


class Matrix(NamedTuple):
    """The causes that could be the verdict, as arrays with one element or row for each."""

    features: np.ndarray
    """One column for each cause, then one for each symptom, with its sign."""
    right: np.ndarray
    weight: np.ndarray
    incident: np.ndarray


def matrix_of(incidents: Sequence[list[list[Row]]], weights: model.Weights) -> Matrix:
    """Return the scored rows as arrays, with EXPLAINED computed by the given weights."""
    features, right, weight, numbers = [], [], [], []
    for number, evaluations in enumerate(incidents):
        count = sum(row.counts for rows in evaluations for row in rows)
        for rows in evaluations:
            sure = [weights.confidence(row.verdict, row.symptoms) for row in rows]
            for row in filter(lambda row: row.counts, rows):
                second = [max((sure[at] for at in places), default=0.0) for places in row.related]
                symptoms = row.symptoms | dict(zip(model.SECOND_PASS, second, strict=False))
                features.append(_features(row.verdict, symptoms))
                is_seen = any(rows[at].is_right for places in row.related[:1] for at in places)
                right.append(row.is_right and not (row.verdict in EFFECTS and is_seen))
                weight.append(ROWS_EACH / count)
                numbers.append(number)
    return Matrix(np.array(features), np.array(right, float), np.array(weight), np.array(numbers))


def _features(verdict: Verdict, symptoms: Symptoms) -> np.ndarray:
    sign = HYPOTHESES[verdict].sign
    causes = [float(other == verdict) for other in _VERDICTS]
    return np.array(causes + [sign(symptom) * float(symptoms.get(symptom, 0.0)) for symptom in _SYMPTOMS])


def solve(rows: Matrix, ridge: float) -> np.ndarray:
    """Return biases and weights that minimise the log loss plus the ridge."""
    causes, symptoms = len(_VERDICTS), len(_SYMPTOMS)
    is_bias = np.repeat((1.0, 0.0), (causes, symptoms))
    prior = values_of(PRIOR)
    targets = rows.right

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        (offset, scale), values = values[:2], values[2:]
        odds = rows.features @ values
        distance = values - scale * prior - offset * is_bias
        total = rows.weight @ (np.logaddexp(0.0, odds) - targets * odds) + ridge * distance @ distance
        slope = rows.features.T @ (rows.weight * (1 / (1 + np.exp(-odds)) - targets)) + 2 * ridge * distance
        pull = -2 * ridge * np.array([distance @ is_bias, distance @ prior])
        return float(total), np.concatenate([pull, slope])

    begin = np.concatenate([[0.0, 1.0], prior])
    bounds: list[tuple[float | None, None]] = [(None, None), (0, None)]
    bounds += [(None, None)] * causes + [(0, None)] * symptoms
    return np.asarray(minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds).x[2:])


def log_loss(rows: Matrix, values: np.ndarray) -> float:
    """Return the mean log loss of weights over rows."""
    odds = rows.features @ values
    return float(rows.weight @ (np.logaddexp(0.0, odds) - rows.right * odds) / rows.weight.sum())


def _part(rows: Matrix, mask: np.ndarray) -> Matrix:
    return Matrix(*(column[mask] for column in rows))


def best_ridge(rows: Matrix) -> tuple[float, float]:
    """Return the ridge that cross-validation chooses, and its loss.

    The choice is the greatest ridge within a standard error of the least loss (Breiman 1984).
    """
    folds = [rows.incident % FOLDS == fold for fold in range(FOLDS)]
    losses = {
        ridge: [log_loss(_part(rows, out), solve(_part(rows, ~out), ridge)) for out in folds if out.any()]
        for ridge in RIDGES
    }
    lowest = min(losses.values(), key=lambda values: float(np.mean(values)))
    bound = float(np.mean(lowest) + np.std(lowest) / np.sqrt(len(lowest)))
    best = max(ridge for ridge, values in losses.items() if np.mean(values) <= bound)
    return best, float(np.mean(losses[best]))


def values_of(weights: model.Weights) -> np.ndarray:
    """Return a table of biases and weights as an array."""
    return np.array(
        [weights.bias[verdict] for verdict in _VERDICTS]
        + [weights.symptoms[symptom] for symptom in _SYMPTOMS]
    )


def weights_of(values: np.ndarray) -> model.Weights:
    """Return biases and weights as a table."""
    causes = len(_VERDICTS)
    return model.Weights(
        dict(zip(_VERDICTS, values[:causes].tolist(), strict=True)),
        dict(zip(_SYMPTOMS, values[causes:].tolist(), strict=True)),
    )


def fit(folder: Path) -> dict[str, Any]:
    """Return the weights fitted to all recorded incidents of a folder, with the figures of their choice."""
    paths = sorted(folder.glob("*.rec"))
    kinds = {path.stem.rpartition("-")[0] for path in paths}
    incidents = list(_side_by_side(rows_of, paths))
    weights, ridge, loss = PRIOR, 0.0, 0.0
    for _ in range(PASSES):
        rows = matrix_of(incidents, weights)
        ridge, loss = best_ridge(rows)
        weights = weights_of(solve(rows, ridge))
    return {
        "data": f"{len(paths)} simulated incidents of {len(kinds)} kinds, seeds from 2**40 on, "
        f"{len(rows.right)} rows; ridge {ridge:g}, log loss in cross-validation {loss:.3f}",
        "prior": table_of(PRIOR),
        **table_of(weights),
    }


def calibrate(answers: Sequence[Sequence[Answer]]) -> float:
    """Return the offset of the log odds that makes confidence equal the share of right answers.

    Each incident counts once. As in Platt (1999), one more incident of each kind is assumed, so that answers
    which are all right do not become certain. Fitting a scale too would change the order of such answers.
    """
    pairs = [(answer, 1 / len(some)) for some in answers for answer in some if answer.confidence > 0]
    odds = np.array([model.odds_of(answer.confidence) for answer, _ in pairs])
    weight = np.array([share for _, share in pairs])
    right = weight @ np.array([answer.is_right for answer, _ in pairs])
    share = float((right + 1) / (weight.sum() + 2))

    def excess(offset: float) -> float:
        return float(weight @ (1 / (1 + np.exp(-odds - offset)))) - share * float(weight.sum())

    return round(float(brentq(excess, -10.0, 10.0)), 2)


def write_calibration(folder: Path) -> tuple[float, str]:
    """Fit the offset to the answers about recorded incidents, and add it to the package's weights file."""
    content = json.loads(model.WEIGHTS.read_text())
    content.pop("calibration", None)
    model.WEIGHTS.write_text(json.dumps(content, indent=1) + "\n")
    answers = [some for _, some in _side_by_side(answers_of, sorted(folder.glob("*.rec"))) if some]
    offset = calibrate(answers)
    data = f"{sum(map(len, answers))} answers about {len(answers)} simulated incidents, seeds from 2**40 on"
    content["calibration"] = {"data": data, "offset": offset}
    model.WEIGHTS.write_text(json.dumps(content, indent=1) + "\n")
    return offset, data


def table_of(weights: model.Weights) -> dict[str, dict[str, float]]:
    """Return the weights in the format of the weights file."""
    return {
        "bias": {verdict.value: round(weights.bias[verdict], 2) for verdict in _VERDICTS},
        "symptoms": {symptom.name: round(weights.symptoms[symptom], 2) for symptom in _SYMPTOMS},
    }


# --------------------------------------------------------------------------------------------- record, score


def record_incidents(folder: Path, count: int, first: int = FIT_SEEDS) -> Iterator[Path]:
    """Simulate incidents of all kinds in turn, with seeds from `first` on; yield the new files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, kind in zip(range(count), itertools.cycle(KINDS), strict=False):
        seed = first + SEEDS_EACH * number
        if any((folder / f"{kind}-{other}.rec").exists() for other in range(seed, seed + SEEDS_EACH)):
            continue
        warm_s = WARM_S + random.Random(seed).random()  # noqa: S311 - a simulated time
        for other in itertools.count(seed):
            try:
                recording = record(kind, other, ranks=RANKS, warm_s=warm_s, length_s=LENGTH_S)
            except LookupError:
                continue
            path = folder / f"{kind}-{other}.rec"
            recording.save(path)
            yield path
            break


def answers_of(path: Path) -> tuple[str, list[Answer]]:
    """Return text about the last wrong answer ('' if none), and all answers about a recorded incident."""
    recording = Recording.load(path)
    answers, wrong = [], ""
    for _, diagnosis in answers_by_second(list(replay(recording)), recording.begin_ns, recording.end_ns):
        right = is_right(recording.incident, diagnosis, recording.slowdown)
        right = right or is_stalled(recording.incident, diagnosis)
        answers.append(Answer(diagnosis["confidence"], right, diagnosis["blames_network"]))
        if not right:
            wrong = f"{path.stem}: {diagnosis['verdict']} {diagnosis['confidence']:.2f} {diagnosis['text']}"
    return wrong, answers


def score(folder: Path) -> Iterator[str]:
    """Yield the figures over the recorded incidents of a folder, and the wrong answers."""
    results = list(_side_by_side(answers_of, sorted(folder.glob("*.rec"))))
    answers = [answer for _, some in results for answer in some]
    yield from (wrong for wrong, _ in results if wrong)
    yield f"{len(answers)} answers about {len(results)} incidents"
    yield f"diagnosis_right {sum(answer.is_right for answer in answers) / max(1, len(answers)):.4f}"
    yield f"calibration_error {calibration_error(answers):.4f}"
    yield f"confidence_auroc {auroc(answers):.4f}"


def _side_by_side(function: Any, paths: Sequence[Path]) -> Iterator[Any]:
    with ProcessPoolExecutor(2) as pool:
        yield from pool.map(function, paths)


def main() -> None:
    """Run the subcommand that the command line names."""
    part, folder, *more = sys.argv[1:]
    if part == "record":
        for path in record_incidents(Path(folder), *map(int, more)):
            print(path, flush=True)
    elif part == "fit":
        text = json.dumps(fit(Path(folder)), indent=1)
        Path(more[0] if more else model.WEIGHTS).write_text(text + "\n")
        print(text)
    elif part == "calibrate":
        print(*write_calibration(Path(folder)))
    else:
        print(*score(Path(folder)), sep="\n")


if __name__ == "__main__":
    main()
