"""Measures the diagnosis of simulated jobs over incidents of all kinds, drawn at run time.

Each incident has its own fleet and passes the pipeline's operators, in simulated time. To repeat one and
print its verdicts: `python -m fabrictime.bench.workload.diagnosis KIND SEED`.
"""

from __future__ import annotations

import itertools
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._parts import side_by_side
from fabrictime.bench.workload._answers import (
    Answer,
    answers_by_second,
    auroc,
    calibration,
    calibration_error,
    changes_per_minute,
)
from fabrictime.bench.workload._drawn import HARMLESS, JOB, KINDS, Incident, draw, simulation
from fabrictime.bench.workload._recorded import AFTER_S, BEFORE_S, iterations
from fabrictime.bench.workload._simulated import TOPICS, Pipeline
from producers.sim.simulation import Simulation
from schemas.records import Diagnosis, Verdict
from streams.diagnosis import inputs
from streams.diagnosis.case import Case
from streams.diagnosis.diagnose import evaluate_case

INCIDENTS, QUICK_EACH = 400, 1
LARGE: Final = 8
"""Number of additional incidents with jobs of 256 ranks."""
LARGE_RANKS: Final = 256
WARM_S: Final = 8.0
"""Time in which the diagnosis learns the job's normal iteration time."""
INCIDENT_S: Final = 14.0
"""Length of an incident: five answers are scored, one each second from the tenth on."""
LONG_S: Final = 24.0
"""Length of a long incident, of which each kind has one. Its verdict must hold while evidence comes and
goes."""
MAX_RANKS: Final = 8
"""Largest number of ranks that a right verdict may name."""
REPORT_EVERY: Final = 25


class Asked(NamedTuple):
    """An incident to run: its kind, seed and size."""

    kind: str
    seed: int
    ranks: int = 16
    length_s: float = INCIDENT_S


@dataclass(slots=True)
class Outcome:
    """The results of one incident: its verdicts and their scores."""

    kind: str
    seed: int
    is_right: bool
    blamed_network: bool
    is_network: bool | None
    is_decoy: bool
    verdict: str
    text: str
    lines: list[str]
    slowdown: float
    """Share by which true iterations are less frequent than before the incident."""
    anomaly_s: float | None = None
    """Time from the incident's begin to the first verdict other than HEALTHY; None if there was none."""
    root_cause_s: float | None = None
    """Time from the begin to the right verdict after which no wrong one came; None if there was none."""
    cpu_s: float = 0.0
    length_s: float = INCIDENT_S
    ranks: int = 16
    evaluation_ms: float = 0.0
    """Median processor time of an evaluation."""
    log_lines: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    """The answers of each second from the tenth on."""
    changes_per_minute: float = 0.0


def is_right(incident: Incident, diagnosis: Diagnosis, slowdown: float) -> bool:
    """Return whether a diagnosis names the incident's cause and its place.

    If the fault does not slow the job down, HEALTHY also counts as right.
    """
    harmless = slowdown < HARMLESS and incident.is_network is not False
    if diagnosis["verdict"] == Verdict.HEALTHY and harmless:
        return True
    if diagnosis["verdict"] not in incident.verdicts:
        return False
    if incident.is_decoy:
        return True
    named = {diagnosis["subject"], *diagnosis["subjects"], *diagnosis["links"], *diagnosis["nics"]}
    if incident.subjects and not incident.subjects & named:
        return False
    if incident.jobs and not incident.jobs <= set(diagnosis["jobs"]):
        return False
    ranks = set(diagnosis["ranks"])
    return not incident.ranks or (incident.ranks <= ranks and len(ranks) <= MAX_RANKS)


def is_stalled(incident: Incident, diagnosis: Diagnosis) -> bool:
    """Return whether a diagnosis names the rank of a hang that may still be a pause."""
    named = incident.ranks <= set(diagnosis["ranks"]) and len(diagnosis["ranks"]) <= MAX_RANKS
    is_hang = Verdict.HANG in incident.verdicts
    return is_hang and named and diagnosis["verdict"] == Verdict.STALLED


def run_incident(case: Asked) -> Outcome:
    """Run an incident and return its outcome; if the fleet of a seed has no place for it, try further
    seeds."""
    seed = case.seed
    while True:
        sim = simulation(case.kind, seed, TOPICS, ranks=case.ranks)
        try:
            incident = draw(case.kind, sim, seed)
        except LookupError:
            seed += 1
            continue
        with _timed_evaluations() as times_ns:
            outcome = _run(sim, incident, case.length_s)
        outcome.ranks, outcome.evaluation_ms = case.ranks, float(np.median(times_ns)) / 1e6
        return outcome


@contextmanager
def _timed_evaluations() -> Iterator[list[int]]:
    """Yield a list that gets the processor time, ns, of each evaluation of a job, without reading."""
    times_ns: list[int] = []
    namespace = vars(inputs)

    def timed(*arguments: Any) -> tuple[Case, Diagnosis]:
        begin_ns = time.process_time_ns()
        answer = evaluate_case(*arguments)
        times_ns.append(time.process_time_ns() - begin_ns)
        return answer

    namespace["evaluate_case"] = timed
    try:
        yield times_ns
    finally:
        namespace["evaluate_case"] = evaluate_case


def _run(sim: Simulation, incident: Incident, length_s: float) -> Outcome:
    pipeline = Pipeline(sim, JOB)
    rng = np.random.default_rng([incident.seed, 3])
    log_lines = [_line(sim, at_ns, diagnosis) for at_ns, diagnosis in pipeline.advance(WARM_S - BEFORE_S)]
    before = iterations(sim)
    log_lines += [_line(sim, at_ns, diagnosis) for at_ns, diagnosis in pipeline.advance(BEFORE_S)]
    iterations_per_s = (iterations(sim) - before) / BEFORE_S
    log_lines += [
        _line(sim, at_ns, diagnosis)
        for at_ns, diagnosis in pipeline.advance(float(np.round(rng.uniform(0, 1), 2)))
    ]
    if incident.prepare is not None:
        incident.prepare(sim)
    for line in (*incident.decoys, *incident.lines):
        sim.fault(line)
    log_lines.append(f"begins: {incident.kind} {incident.lines} {incident.decoys}")
    begin_ns = sim.now_ns
    diagnoses = [*pipeline.advance(length_s - AFTER_S)]
    now = iterations(sim)
    diagnoses += [*pipeline.advance(AFTER_S)]
    slowdown = 1 - (iterations(sim) - now) / AFTER_S / max(iterations_per_s, 1e-9)
    outcome = _outcome(sim, incident, diagnoses, begin_ns, slowdown, log_lines)
    outcome.cpu_s, outcome.length_s = pipeline.busy_s, length_s
    return outcome


def _outcome(
    sim: Simulation,
    incident: Incident,
    diagnoses: Sequence[tuple[int, Diagnosis]],
    begin_ns: int,
    slowdown: float,
    log_lines: list[str],
) -> Outcome:
    right = [
        is_right(incident, diagnosis, slowdown) or is_stalled(incident, diagnosis)
        for _, diagnosis in diagnoses
    ]
    last = diagnoses[-1][1]
    outcome = Outcome(
        incident.kind,
        incident.seed,
        right[-1],
        last["blames_network"],
        incident.is_network,
        incident.is_decoy,
        str(last["verdict"]),
        last["text"],
        [*incident.lines, *incident.decoys],
        slowdown,
        log_lines=log_lines + [_line(sim, at_ns, diagnosis) for at_ns, diagnosis in diagnoses],
    )
    outcome.answers = [
        Answer(
            record["confidence"],
            is_right(incident, record, slowdown) or is_stalled(incident, record),
            record["blames_network"],
        )
        for _, record in answers_by_second(diagnoses, begin_ns, sim.now_ns)
    ]
    outcome.changes_per_minute = changes_per_minute(diagnoses, right, begin_ns, sim.now_ns)
    for at_ns, record in diagnoses:
        if record["verdict"] != Verdict.HEALTHY and outcome.anomaly_s is None:
            outcome.anomaly_s = (at_ns - begin_ns) / 1e9
    if right[-1]:
        first = len(right) - next((n for n, yes in enumerate(reversed(right)) if not yes), len(right))
        outcome.root_cause_s = (diagnoses[first][0] - begin_ns) / 1e9
    return outcome


def _line(sim: Simulation, at_ns: int, diagnosis: Diagnosis) -> str:
    others = ", ".join(
        f"{alternative['verdict']} {alternative['confidence']:.2f}"
        for alternative in diagnosis["alternatives"][:3]
    )
    return (
        f"{(at_ns - sim.start_ns) / 1e9:6.2f} {diagnosis['verdict']} {diagnosis['confidence']:.2f} "
        f"loss {diagnosis['loss_share']:.2f} {diagnosis['subject']}: {diagnosis['text']} [{others}]"
    )


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about an hour on two cores, or some minutes with `quick` (one
    of each kind)."""
    kinds = list(KINDS)
    first = secrets.randbits(31)
    count = QUICK_EACH * len(kinds) if quick else INCIDENTS
    cases = [Asked(kinds[n % len(kinds)], first + 1000 * n) for n in range(count)]
    if not quick:
        seeds = itertools.count(first + 1000 * count, 1000)
        cases += [Asked(kinds[n * 3 % len(kinds)], next(seeds), LARGE_RANKS) for n in range(LARGE)]
        cases += [Asked(kind, next(seeds), length_s=LONG_S) for kind in kinds]
    progress(f"diagnosis: {len(cases)} incidents of {len(kinds)} kinds, first seed {first}")
    outcomes: list[Outcome] = []
    for outcome in side_by_side(run_incident, cases):
        outcomes.append(outcome)
        if not outcome.is_right:
            progress(
                f"wrong: {outcome.kind} seed {outcome.seed} {outcome.lines}: "
                f"{outcome.verdict}: {outcome.text}"
            )
        if len(outcomes) % REPORT_EVERY == 0:
            progress(f"diagnosis: {sum(o.is_right for o in outcomes)} of {len(outcomes)} right")
    return figures(outcomes, first)


def figures(outcomes: Sequence[Outcome], first: int) -> dict[str, Value]:
    """Return the figures over all incidents; the notes contain a table by kind."""
    lasting = _lasting([outcome for outcome in outcomes if outcome.length_s > INCIDENT_S])
    outcomes = [outcome for outcome in outcomes if outcome.length_s <= INCIDENT_S]
    innocent = [outcome for outcome in outcomes if outcome.is_network is False]
    answers = [answer for outcome in outcomes for answer in outcome.answers]
    blamed = [outcome for outcome in innocent if any(answer.blames_network for answer in outcome.answers)]
    ill = [
        outcome
        for outcome in outcomes
        if not outcome.is_decoy and (outcome.slowdown >= HARMLESS or outcome.anomaly_s)
    ]
    anomaly = [outcome.anomaly_s if outcome.anomaly_s is not None else np.inf for outcome in ill]
    root = [outcome.root_cause_s if outcome.root_cause_s is not None else np.inf for outcome in ill]
    wrong = [
        f"{outcome.kind} {outcome.seed} as {outcome.verdict}"
        for outcome in outcomes
        if not all(answer.is_right for answer in outcome.answers)
    ]
    note = f"{len(answers)} answers about {len(outcomes)} incidents, first seed {first}; "
    note += f"with a wrong one: {', '.join(wrong) or 'none'}"
    changes = [outcome.changes_per_minute for outcome in outcomes]
    values: dict[str, Value] = {
        "diagnosis_right": Figure(
            sum(answer.is_right for answer in answers) / max(1, len(answers)), note=note
        ),
        "calibration_error": Figure(calibration_error(answers), note=_curve(answers)),
        "confidence_auroc": Figure(auroc(answers), note="right answers against wrong ones"),
        "verdict_changes_per_minute": Figure(
            _quantile(changes, 0.95),
            "1/min",
            "p95 over incidents, from 5 s on, without the first right answer until 10 s",
        ),
        "network_blamed_wrongly": Figure(
            len(blamed) / max(1, len(innocent)),
            note=f"{len(innocent)} incidents of other causes: "
            + (", ".join(f"{outcome.kind} {outcome.seed}" for outcome in blamed) or "none"),
        ),
        "anomaly_s_p90": Figure(_quantile(anomaly, 0.9), "s", f"{len(ill)} incidents"),
        "root_cause_s_p60": Figure(_quantile(root, 0.6), "s", f"{len(ill)} incidents"),
    }
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for result in outcomes:
        by_kind[result.kind].append(result)
    for kind, some in sorted(by_kind.items()):
        times = [outcome.root_cause_s for outcome in some if outcome.root_cause_s is not None]
        verdicts = sorted({outcome.verdict for outcome in some})
        values[f"diagnosis_right_{kind.replace('-', '_')}"] = Figure(
            sum(outcome.is_right for outcome in some) / len(some),
            "1",
            f"{len(some)} incidents, median {np.median(times or [np.nan]):.1f} s: {', '.join(verdicts)}",
        )
    cpu_s = sum(outcome.cpu_s for outcome in outcomes) / max(1, len(outcomes))
    values["diagnosis_cpu_share"] = Figure(
        cpu_s / (WARM_S + INCIDENT_S), "1", "of one core, the diagnosis and its reading of messages"
    )
    return values | lasting | _large([outcome for outcome in outcomes if outcome.ranks == LARGE_RANKS])


def _large(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """Return the processor time of one evaluation, at one per second, for jobs with `LARGE_RANKS` ranks."""
    if not outcomes:
        return {"evaluate_256_ranks_ms": Missing("no job of 256 ranks was run, as with --quick")}
    share = sum(outcome.cpu_s / (WARM_S + outcome.length_s) for outcome in outcomes) / len(outcomes)
    note = f"median of {len(outcomes)} incidents; with the reading of messages {share:.2f} of one core"
    times_ms = [outcome.evaluation_ms for outcome in outcomes]
    return {"evaluate_256_ranks_ms": Figure(float(np.median(times_ms)), "ms", note)}


def _curve(answers: Sequence[Answer]) -> str:
    """Return the calibration curve as text."""
    bins = calibration(answers)
    points = ", ".join(f"{sure:.2f}: {right:.2f}" for sure, right, _ in bins)
    return f"{len(answers)} answers in {len(bins)} bins of equal count, confidence: share right: {points}"


def _lasting(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """Return the share of long incidents whose right verdict came in time and persisted until the end."""
    if not outcomes:
        return {}
    lost = [
        outcome for outcome in outcomes if outcome.root_cause_s is None or outcome.root_cause_s > INCIDENT_S
    ]
    note = f"{len(outcomes)} incidents of {outcomes[0].length_s:g} s; not: "
    note += ", ".join(f"{outcome.kind} {outcome.seed} as {outcome.verdict}" for outcome in lost) or "none"
    return {"long_diagnosis_right": Figure(1 - len(lost) / len(outcomes), "1", note)}


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values or [np.nan], share, method="higher"))


if __name__ == "__main__":
    _kind, _seed, *_more = sys.argv[1:]
    _result = run_incident(Asked(_kind, int(_seed), *(int(argument) for argument in _more[:1])))
    print(*_result.log_lines, sep="\n")
    print(
        f"right: {_result.is_right}; slowdown {_result.slowdown:.2f}; anomaly {_result.anomaly_s} s, "
        f"cause {_result.root_cause_s} s"
    )
