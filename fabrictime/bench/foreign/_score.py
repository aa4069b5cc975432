"""Scores the diagnoses of the foreign runs. Each second counts, since a user may read at any time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final

from fabrictime.bench import Figure, Missing, Value
from fabrictime.bench.foreign._results import Outcome
from fabrictime.bench.foreign._truth import (
    CAUSES,
    HANG_VERDICTS,
    HEALTHY,
    INNOCENT,
    STUCK_VERDICTS,
    SURE_EFFECT,
    Answer,
    is_right,
    is_second,
    names,
)

SECOND_NS: Final = 1_000_000_000
FROM_S: Final = 10
"""Seconds after the begin of a fault from which answers are scored."""
BINS: Final = 10
PAUSE_MARGIN_NS: Final = 2 * SECOND_NS
_TEXTS: Final = 6
_NO_ANSWER: Final = Answer(0, "UNKNOWN", 0.0, blames_network=False, subject="")


def sampled(answers: Sequence[Answer], begin_ns: int, end_ns: int) -> Iterator[Answer]:
    """Yield, for each second of an interval, the newest answer at that second."""
    place = 0
    for at_ns in range(begin_ns, end_ns, SECOND_NS):
        while place < len(answers) and answers[place].at_ns <= at_ns:
            place += 1
        yield answers[place - 1] if place else _NO_ANSWER


def scored(outcome: Outcome) -> list[tuple[Answer, bool]]:
    """Return a run's answers from `FROM_S` after its fault's begin to its end, each with whether it is right.

    With two faults, an answer about either fault is right.
    """
    cause = CAUSES[outcome.case.cause]
    answers = sampled(outcome.answers, outcome.begin_ns + FROM_S * SECOND_NS, outcome.end_ns)
    second = outcome.second
    return [
        (
            answer,
            is_right(answer, cause, outcome.culprit, outcome.effect)
            or (second is not None and is_second(answer, second)),
        )
        for answer in answers
    ]


def is_harmed(outcome: Outcome) -> bool:
    """Return whether a run has a fault that costs its job so much that HEALTHY is wrong."""
    cause, effect = CAUSES[outcome.case.cause], outcome.effect
    is_slower = not cause.must_slow or effect is None or effect >= SURE_EFFECT
    return HEALTHY not in cause.verdicts and is_slower


def first_right_s(outcome: Outcome) -> float:
    """Return the seconds from the fault's begin to the first right answer, or the fault's length."""
    cause = CAUSES[outcome.case.cause]
    sample = sampled(outcome.answers, outcome.begin_ns, outcome.end_ns)
    return _first(is_right(answer, cause, outcome.culprit, outcome.effect) for answer in sample)


def cleared_s(outcome: Outcome) -> float:
    """Return the seconds from the fault's end to the first HEALTHY, or to the run's end."""
    sample = sampled(outcome.answers, outcome.end_ns, outcome.finish_ns)
    return _first(answer.verdict == HEALTHY for answer in sample)


def second_named_s(outcome: Outcome) -> float:
    """Return the seconds from the second fault's begin until an answer names it, or until its end."""
    second = outcome.second
    sample = sampled(outcome.answers, outcome.second_ns, outcome.end_ns)
    return _first(second is not None and is_second(answer, second) for answer in sample)


def stalled_s(outcome: Outcome) -> float:
    """Return the seconds until an answer declares that the job is stuck and names the guilty rank."""
    sample = sampled(outcome.answers, outcome.begin_ns, outcome.end_ns)
    return _first(_names_stuck(outcome, answer) for answer in sample)


def _names_stuck(outcome: Outcome, answer: Answer) -> bool:
    return answer.verdict in HANG_VERDICTS | set(STUCK_VERDICTS) and names(
        answer.subject, answer.ranks, answer.jobs, "rank", outcome.culprit
    )


def _first(are_right: Iterable[bool]) -> float:
    count = 0
    for is_it in are_right:
        if is_it:
            break
        count += 1
    return float(count)


def changes_per_minute(outcome: Outcome) -> float:
    """Return how often per minute verdict or subject change while the fault is constant."""
    sample = [(answer.verdict, answer.subject) for answer, _ in scored(outcome)]
    changes = sum(one != next_one for one, next_one in pairwise(sample))
    return 60 * changes / len(sample) if sample else 0.0


def false_hangs(outcome: Outcome) -> int:
    """Return the number of pauses in which a verdict or an alert declared a hang."""
    times = [answer.at_ns for answer in outcome.answers if answer.verdict in HANG_VERDICTS]
    times += outcome.hang_alerts_ns
    return sum(
        any(begin_ns <= at_ns <= end_ns + PAUSE_MARGIN_NS for at_ns in times)
        for begin_ns, end_ns in outcome.pauses_ns
    )


def calibration_error(pairs: Iterable[tuple[float, bool]]) -> float:
    """Return the mean difference between confidence and share of right answers, over equal-count bins."""
    ordered = sorted(pairs)
    edges = [len(ordered) * number // BINS for number in range(BINS + 1)]
    bins = [ordered[begin:end] for begin, end in pairwise(edges) if end > begin]
    return sum(
        len(part) * abs(fmean(confidence for confidence, _ in part) - fmean(right for _, right in part))
        for part in bins
    ) / max(1, len(ordered))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def summary(outcome: Outcome) -> str:
    """Return the share of right answers of a run, and its answers in order, as text."""
    texts: list[str] = []
    for answer in sampled(outcome.answers, outcome.begin_ns or outcome.ready_ns, outcome.finish_ns):
        text = f"{answer.verdict} {answer.subject}".strip()
        if not texts or texts[-1] != text:
            texts.append(text)
    effect = "" if outcome.effect is None else f", iterations take {outcome.effect:.2f} times as long"
    right = [is_it for _, is_it in scored(outcome)]
    share = f"{fmean(right):.2f} right" if right else f"{false_hangs(outcome)} false hangs"
    return f"{share}{effect}: {', then '.join(texts[:_TEXTS])}"


def right_by_cause(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Return the share of right answers of each cause."""
    by_cause: dict[str, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        by_cause[outcome.case.cause] += [right for _, right in scored(outcome)]
    return {cause: fmean(right) for cause, right in by_cause.items() if right}


def figures(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """Return all figures of outcomes, which may come from any parts."""
    valid = [outcome for outcome in outcomes if not outcome.error]
    runs = [outcome for outcome in valid if outcome.case.part == "runs"]
    errors = [f"{outcome.case.name}: {outcome.error}" for outcome in outcomes if outcome.error]
    return {
        **_run_figures(runs, "; ".join(errors)),
        **_hang_figures([outcome for outcome in valid if outcome.case.part == "hangs"]),
        "network_blamed_s_per_hour": _blamed(valid),
        "foreign_load": _mean(
            [outcome.load for outcome in valid], "runs at a load above 8 measure the machine"
        ),
        "false_hangs": _false_hangs(valid),
    }


def _run_figures(runs: Sequence[Outcome], errors: str) -> dict[str, Value]:
    harmed = [outcome for outcome in runs if is_harmed(outcome)]
    cleared = [cleared_s(outcome) for outcome in harmed if outcome.case.after_s]
    healthy = sum(outcome.case.cause in INNOCENT for outcome in runs)
    right = right_by_cause(runs)
    return {
        "foreign_right": _mean(list(right.values()), "; ".join(_worst(right))),
        "first_right_s": _percentile([first_right_s(outcome) for outcome in harmed], 0.9),
        "cleared_after_end_s": _percentile(cleared, 0.9),
        "second_named_s": _percentile([second_named_s(outcome) for outcome in runs if outcome.second], 0.9),
        "verdict_changes_per_minute": _percentile([changes_per_minute(outcome) for outcome in runs], 0.95),
        "foreign_calibration_error": _calibration(runs),
        "foreign_runs": Figure(len(runs), note=errors),
        "foreign_healthy_runs": Figure(healthy),
        "foreign_programs": Figure(len({(outcome.case.program, outcome.case.size) for outcome in runs})),
    }


def _hang_figures(hangs: Sequence[Outcome]) -> dict[str, Value]:
    return {
        "hang_rank_right": _mean([float(_is_hang_right(outcome)) for outcome in hangs], _wrong_hangs(hangs)),
        "stalled_s": _percentile([stalled_s(outcome) for outcome in hangs], 0.9),
    }


def _calibration(runs: Iterable[Outcome]) -> Value:
    pairs = [(answer.confidence, is_it) for outcome in runs for answer, is_it in scored(outcome)]
    if not pairs:
        return Missing("no run was scored")
    return Figure(calibration_error(pairs), note=f"{len(pairs)} answers")


def _worst(right: Mapping[str, float]) -> list[str]:
    return [f"{cause} {share:.2f}" for cause, share in sorted(right.items(), key=lambda item: item[1])]


def _is_hang_right(outcome: Outcome) -> bool:
    sample = list(sampled(outcome.answers, outcome.begin_ns, outcome.end_ns))
    return bool(sample) and _names_stuck(outcome, sample[-1])


def _wrong_hangs(hangs: Iterable[Outcome]) -> str:
    return "; ".join(f"{one.case.name} {one.case.cause}" for one in hangs if not _is_hang_right(one))


def _blamed(outcomes: Iterable[Outcome]) -> Value:
    """Return the seconds per hour in which answers blame the network in runs where it is innocent."""
    blamed = seconds = 0
    for outcome in outcomes:
        if not CAUSES[outcome.case.cause].is_network:
            for answer in sampled(outcome.answers, outcome.ready_ns, outcome.finish_ns):
                blamed += answer.blames_network
                seconds += 1
    if not seconds:
        return Missing("no innocent run")
    return Figure(3600 * blamed / seconds, note=f"{blamed} s of {seconds / 3600:.2f} h")


def _false_hangs(outcomes: Iterable[Outcome]) -> Value:
    paused = [outcome for outcome in outcomes if outcome.pauses_ns]
    count = sum(len(outcome.pauses_ns) for outcome in paused)
    if not count:
        return Missing("no pause was measured")
    return Figure(sum(map(false_hangs, paused)), note=f"{count} pauses")


def _mean(values: Sequence[float], note: str) -> Value:
    return Figure(fmean(values), note=note) if values else Missing("no run was scored")


def _percentile(values: Sequence[float], share: float) -> Value:
    if not values:
        return Missing("no run was scored")
    return Figure(percentile(values, share), note=f"{len(values)} runs, median {percentile(values, 0.5):g}")
