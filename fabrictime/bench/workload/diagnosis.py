"""Measures the diagnosis of simulated jobs over incidents of all kinds, drawn at run time.

Each incident runs a fleet of its own through the pipeline's operators, in simulated time. By hand:
`python -m fabrictime.bench.workload.diagnosis KIND SEED` repeats one and shows its verdicts.
"""

from __future__ import annotations

import itertools
import secrets
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._parts import side_by_side
from fabrictime.bench.workload._drawn import HARMLESS, JOB, KINDS, Incident, draw, simulation
from fabrictime.bench.workload._simulated import TOPICS, Pipeline
from producers.sim.simulation import Simulation
from schemas.records import Diagnosis, Verdict

__all__ = ["Asked", "Outcome", "is_right", "measure", "run_incident"]

INCIDENTS, QUICK_EACH = 400, 1
LARGE: Final = 8
"""Incidents of jobs with 256 ranks, in addition."""
LARGE_RANKS: Final = 256
WARM_S: Final = 8.0
"""Time in which the job's good time is learned."""
INCIDENT_S: Final = 9.0
LONG_S: Final = 24.0
"""A long incident, one of each kind: its verdict must hold while evidence for it comes and goes."""
BEFORE_S, AFTER_S = 2.0, 4.0
"""Times in which the true iterations are counted: before the incident, and at its end."""
MAX_RANKS: Final = 8
"""Ranks that a right verdict may name beside the right one."""
REPORT_EVERY: Final = 25


class Asked(NamedTuple):
    """An incident to run."""

    kind: str
    seed: int
    ranks: int = 16
    length_s: float = INCIDENT_S


@dataclass(slots=True)
class Outcome:
    """One incident and its verdicts."""

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
    """Share by which true iterations are rarer than before."""
    anomaly_s: float | None = None
    """From the begin until a verdict other than HEALTHY; None: never."""
    root_cause_s: float | None = None
    """From the begin until the right verdict, after which no wrong one came; None: never."""
    cpu_s: float = 0.0
    length_s: float = INCIDENT_S
    shown: list[str] = field(default_factory=list)


def is_right(incident: Incident, found: Diagnosis, slowdown: float) -> bool:
    """Return whether a verdict names the incident's cause and its place.

    A fault that does not slow the job may be named or not.
    """
    harmless = slowdown < HARMLESS and incident.is_network is not False
    if found["verdict"] == Verdict.HEALTHY and harmless:
        return True
    if found["verdict"] not in incident.verdicts:
        return False
    if incident.is_decoy:
        return True
    named = {found["subject"], *found["subjects"], *found["links"], *found["nics"]}
    if incident.subjects and not incident.subjects & named:
        return False
    if incident.jobs and not incident.jobs <= set(found["jobs"]):
        return False
    ranks = set(found["ranks"])
    return not incident.ranks or (incident.ranks <= ranks and len(ranks) <= MAX_RANKS)


def run_incident(asked: Asked) -> Outcome:
    """Run an incident. A seed whose fleet has no place for it moves on."""
    seed = asked.seed
    while True:
        sim = simulation(asked.kind, seed, TOPICS, ranks=asked.ranks)
        try:
            incident = draw(asked.kind, sim, seed)
        except LookupError:
            seed += 1
            continue
        return _run(sim, incident, asked.length_s)


def _run(sim: Simulation, incident: Incident, length_s: float) -> Outcome:
    pipeline = Pipeline(sim, JOB)
    rng = np.random.default_rng([incident.seed, 3])
    shown = [_line(sim, at_ns, found) for at_ns, found in pipeline.advance(WARM_S - BEFORE_S)]
    before = _iterations(sim)
    shown += [_line(sim, at_ns, found) for at_ns, found in pipeline.advance(BEFORE_S)]
    usual = (_iterations(sim) - before) / BEFORE_S
    shown += [
        _line(sim, at_ns, found) for at_ns, found in pipeline.advance(float(np.round(rng.uniform(0, 1), 2)))
    ]
    if incident.prepare is not None:
        incident.prepare(sim)
    for line in (*incident.decoys, *incident.lines):
        sim.fault(line)
    shown.append(f"begins: {incident.kind} {incident.lines} {incident.decoys}")
    begin_ns = sim.now_ns
    found = [*pipeline.advance(length_s - AFTER_S)]
    now = _iterations(sim)
    found += [*pipeline.advance(AFTER_S)]
    slowdown = 1 - (_iterations(sim) - now) / AFTER_S / max(usual, 1e-9)
    outcome = _outcome(sim, incident, found, begin_ns, slowdown, shown)
    outcome.cpu_s, outcome.length_s = pipeline.busy_s, length_s
    return outcome


def _outcome(
    sim: Simulation,
    incident: Incident,
    found: Sequence[tuple[int, Diagnosis]],
    begin_ns: int,
    slowdown: float,
    shown: list[str],
) -> Outcome:
    right = [is_right(incident, each, slowdown) for _, each in found]
    last = found[-1][1]
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
        shown=shown + [_line(sim, at_ns, each) for at_ns, each in found],
    )
    for at_ns, each in found:
        if each["verdict"] != Verdict.HEALTHY and outcome.anomaly_s is None:
            outcome.anomaly_s = (at_ns - begin_ns) / 1e9
    if right[-1]:
        first = len(right) - next((n for n, yes in enumerate(reversed(right)) if not yes), len(right))
        outcome.root_cause_s = (found[first][0] - begin_ns) / 1e9
    return outcome


def _iterations(sim: Simulation) -> int:
    return next(job.done for job in sim.jobs.jobs if job.name == JOB)


def _line(sim: Simulation, at_ns: int, found: Diagnosis) -> str:
    others = ", ".join(f"{each['verdict']} {each['confidence']:.2f}" for each in found["alternatives"][:3])
    return (
        f"{(at_ns - sim.start_ns) / 1e9:6.2f} {found['verdict']} {found['confidence']:.2f} "
        f"loss {found['loss_share']:.2f} {found['subject']}: {found['text']} [{others}]"
    )


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure for about an hour on two cores, or some minutes with `quick` (one of each kind)."""
    kinds = list(KINDS)
    first = secrets.randbits(31)
    count = QUICK_EACH * len(kinds) if quick else INCIDENTS
    asked = [Asked(kinds[n % len(kinds)], first + 1000 * n) for n in range(count)]
    if not quick:
        seeds = itertools.count(first + 1000 * count, 1000)
        asked += [Asked(kinds[n * 3 % len(kinds)], next(seeds), LARGE_RANKS) for n in range(LARGE)]
        asked += [Asked(kind, next(seeds), length_s=LONG_S) for kind in kinds]
    progress(f"diagnosis: {len(asked)} incidents of {len(kinds)} kinds, first seed {first}")
    outcomes: list[Outcome] = []
    for each in side_by_side(run_incident, asked):
        outcomes.append(each)
        if not each.is_right:
            progress(f"wrong: {each.kind} seed {each.seed} {each.lines}: {each.verdict}: {each.text}")
        if len(outcomes) % REPORT_EVERY == 0:
            progress(f"diagnosis: {sum(o.is_right for o in outcomes)} of {len(outcomes)} right")
    return figures(outcomes, first)


def figures(outcomes: Sequence[Outcome], first: int) -> dict[str, Value]:
    """Return the figures of incidents, with a table by kind in the notes."""
    lasting = _lasting([each for each in outcomes if each.length_s > INCIDENT_S])
    outcomes = [each for each in outcomes if each.length_s <= INCIDENT_S]
    right = sum(each.is_right for each in outcomes)
    innocent = [each for each in outcomes if each.is_network is False]
    blamed = [each for each in innocent if each.blamed_network]
    ill = [each for each in outcomes if not each.is_decoy and (each.slowdown >= HARMLESS or each.anomaly_s)]
    anomaly = [each.anomaly_s if each.anomaly_s is not None else np.inf for each in ill]
    root = [each.root_cause_s if each.root_cause_s is not None else np.inf for each in ill]
    wrong = [f"{each.kind} {each.seed} as {each.verdict}" for each in outcomes if not each.is_right]
    note = f"{len(outcomes)} incidents, first seed {first}; wrong: {', '.join(wrong) or 'none'}"
    found: dict[str, Value] = {
        "diagnosis_right": Figure(right / max(1, len(outcomes)), note=note),
        "network_blamed_wrongly": Figure(
            len(blamed) / max(1, len(innocent)),
            note=f"{len(innocent)} incidents of other causes: "
            + (", ".join(f"{each.kind} {each.seed}" for each in blamed) or "none"),
        ),
        "anomaly_s_p90": Figure(_quantile(anomaly, 0.9), "s", f"{len(ill)} incidents"),
        "root_cause_s_p60": Figure(_quantile(root, 0.6), "s", f"{len(ill)} incidents"),
    }
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        by_kind[each.kind].append(each)
    for kind, some in sorted(by_kind.items()):
        times = [each.root_cause_s for each in some if each.root_cause_s is not None]
        verdicts = sorted({each.verdict for each in some})
        found[f"diagnosis_right_{kind.replace('-', '_')}"] = Figure(
            sum(each.is_right for each in some) / len(some),
            "1",
            f"{len(some)} incidents, median {np.median(times or [np.nan]):.1f} s: {', '.join(verdicts)}",
        )
    cpu_s = sum(each.cpu_s for each in outcomes) / max(1, len(outcomes))
    found["diagnosis_cpu_share"] = Figure(
        cpu_s / (WARM_S + INCIDENT_S), "1", "of one core, the diagnosis and its reading of messages"
    )
    return found | lasting


def _lasting(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """Return the share of long incidents whose right verdict came in time and lasted until the end."""
    if not outcomes:
        return {}
    lost = [each for each in outcomes if each.root_cause_s is None or each.root_cause_s > INCIDENT_S]
    note = f"{len(outcomes)} incidents of {outcomes[0].length_s:g} s; not: "
    note += ", ".join(f"{each.kind} {each.seed} as {each.verdict}" for each in lost) or "none"
    return {"long_diagnosis_right": Figure(1 - len(lost) / len(outcomes), "1", note)}


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values or [np.nan], share, method="higher"))


if __name__ == "__main__":
    _kind, _seed, *_more = sys.argv[1:]
    _found = run_incident(Asked(_kind, int(_seed), *(int(each) for each in _more[:1])))
    print(*_found.shown, sep="\n")
    print(
        f"right: {_found.is_right}; slowdown {_found.slowdown:.2f}; anomaly {_found.anomaly_s} s, "
        f"cause {_found.root_cause_s} s"
    )
