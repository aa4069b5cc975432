"""Scores all answers about incidents: the share of right answers, calibration of confidence, and changes.

A reader sees the newest published diagnosis. So the answer at a second is the newest diagnosis by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from schemas.records import Diagnosis
from streams.runtime.units import NS_PER_S

BINS: Final = 10
"""Number of bins of equal count in which confidence is compared with the share of right answers."""
FROM_S: Final = 10
"""Time after an incident's begin from which each second's answer is scored."""
CONSTANT_S: Final = 5.0
"""Time after an incident's begin from which changes of the verdict count: the first answers may grow."""


class Answer(NamedTuple):
    """The newest diagnosis at a second after an incident's begin, and whether it is right."""

    confidence: float
    is_right: bool
    blames_network: bool


def answers_by_second(
    diagnoses: Sequence[tuple[int, Diagnosis]], begin_ns: int, end_ns: int
) -> list[tuple[float, Diagnosis]]:
    """Return the newest diagnosis at each second from `FROM_S` on, with its time, s after the begin."""
    answers: list[tuple[float, Diagnosis]] = []
    for at_ns in range(begin_ns + FROM_S * NS_PER_S, end_ns + 1, NS_PER_S):
        newest = next((record for read_ns, record in reversed(diagnoses) if read_ns <= at_ns), None)
        if newest is not None:
            answers.append(((at_ns - begin_ns) / NS_PER_S, newest))
    return answers


def changes_per_minute(
    diagnoses: Sequence[tuple[int, Diagnosis]], are_right: Sequence[bool], begin_ns: int, end_ns: int
) -> float:
    """Return how often per minute verdict or subject changed while the fault was constant.

    `are_right` has whether each diagnosis is right. The change to the first right diagnosis does not count if
    it comes before answers are scored.
    """
    since_ns, scored_ns = begin_ns + int(CONSTANT_S * NS_PER_S), begin_ns + FROM_S * NS_PER_S
    causes = [(read_ns, record["verdict"], record["subject"]) for read_ns, record in diagnoses]
    first = next((at for at, right in enumerate(are_right) if right), None)
    changed = [
        at
        for at, (earlier, later) in enumerate(pairwise(causes), 1)
        if later[1:] != earlier[1:] and later[0] > since_ns and not (at == first and later[0] <= scored_ns)
    ]
    return len(changed) * 60 * NS_PER_S / max(end_ns - since_ns, NS_PER_S)


def calibration(answers: Sequence[Answer]) -> list[tuple[float, float, int]]:
    """Return (mean confidence, share of right answers, count) of each bin, by rising confidence."""
    if not answers:
        return []
    ordered = sorted(answers, key=lambda answer: answer.confidence)
    bins = [part for part in np.array_split(np.arange(len(ordered)), BINS) if len(part)]
    return [
        (
            float(np.mean([ordered[at].confidence for at in part])),
            float(np.mean([ordered[at].is_right for at in part])),
            len(part),
        )
        for part in bins
    ]


def calibration_error(answers: Sequence[Answer]) -> float:
    """Return the mean difference between confidence and share of right answers over bins; NaN if empty."""
    bins = calibration(answers)
    total = sum(count for *_, count in bins)
    return sum(abs(sure - right) * count for sure, right, count in bins) / total if total else float("nan")


def auroc(answers: Sequence[Answer]) -> float:
    """Return the chance that a right answer has more confidence than a wrong one (Mann and Whitney 1947).

    Ties count half; the result is NaN without right or without wrong answers.
    """
    right = np.array([answer.confidence for answer in answers if answer.is_right])
    wrong = np.array([answer.confidence for answer in answers if not answer.is_right])
    if not len(right) or not len(wrong):
        return float("nan")
    above = (right[:, None] > wrong[None, :]).mean()
    return float(above + 0.5 * (right[:, None] == wrong[None, :]).mean())
