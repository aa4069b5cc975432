"""Explains a job's speed in an interval.

Every explanation of `EXPLANATIONS` yields candidates. A candidate that stops the job comes first, then the
candidate that costs most of the job's time. The others become alternatives. Without candidates, the job is
HEALTHY if enough is known.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from schemas.records import Diagnosis
from streams.diagnosis import model
from streams.diagnosis.answers import CLEAR_RATIO, WITHOUT_CAUSE
from streams.diagnosis.base import Candidate, Explanation
from streams.diagnosis.case import Case, case_of, is_fast
from streams.diagnosis.job.stuck import find_stuck
from streams.diagnosis.job.view import Interval, JobView, LastVerdict
from streams.diagnosis.model import add_common_symptoms, fitted_weights, is_effect, weigh
from streams.diagnosis.network.link_loads import link_loads, max_pairs
from streams.diagnosis.network.outliers import find_outliers
from streams.diagnosis.network.view import NetworkView
from streams.diagnosis.no_cause import without_cause
from streams.diagnosis.record import make_record, missing_evidence
from streams.diagnosis.rules import DiagnosisRules
from streams.diagnosis.verdicts.configuration import delay_mismatch, own_pacing, rail_mismatch
from streams.diagnosis.verdicts.flows import (
    contention,
    contention_by_marks,
    few_queue_pairs,
    slow_flow,
    slow_flow_by_probes,
)
from streams.diagnosis.verdicts.hosts import pause_storm, pcie_limit, slow_end_by_flows, slow_end_by_pairs
from streams.diagnosis.verdicts.lateness import launch_skew, note_pauses, straggler
from streams.diagnosis.verdicts.links import faulty_links, links_with_losses
from streams.diagnosis.verdicts.nics import note_nics, slow_nic_by_rtt
from streams.diagnosis.verdicts.progress import dead_rank, program_mismatch
from streams.diagnosis.verdicts.ras import ras_verdict
from streams.diagnosis.verdicts.stall import hang, stalled

EXPLANATIONS: Final[tuple[Explanation, ...]] = (
    *(dead_rank, hang, stalled, program_mismatch, ras_verdict),
    *(straggler, launch_skew),
    *(pause_storm, pcie_limit, slow_end_by_pairs, slow_end_by_flows, slow_nic_by_rtt),
    *(faulty_links, links_with_losses),
    *(contention, contention_by_marks, few_queue_pairs, slow_flow, slow_flow_by_probes),
    *(own_pacing, delay_mismatch, rail_mismatch),
)
MAX_ALTERNATIVES: Final = 8


def evaluate_case(
    job: JobView, network: NetworkView, begin_ns: int, end_ns: int, rules: DiagnosisRules | None = None
) -> tuple[Case, Diagnosis]:
    """Return the case and the diagnosis of a job's next interval, and record them in the job's view.

    `add_details` adds details to the record. Raises ValueError for an empty interval.
    """
    case = _case(job, network, begin_ns, end_ns, rules)
    note_pauses(case)
    diagnosis = _diagnosis(case)
    learn(case, diagnosis)
    return case, diagnosis


def learn(case: Case, diagnosis: Diagnosis) -> None:
    """Record an evaluated interval in the job's view: its times, and the verdict's number and begin."""
    job, work = case.job, case.work
    job.number = diagnosis["number"] + 1
    job.last = LastVerdict(diagnosis["verdict"], diagnosis["subject"], diagnosis["since_ns"])
    measures = (case.ratio, case.network_excess, max_pairs(case), case.loss_share)
    interval = Interval(case.begin_ns, case.end_ns, *measures)
    job.moved.note(case.traffic.flows, case.traffic.routes, case.end_ns)
    job.causes.note(case.causes, case.end_ns)
    if is_fast(interval):
        job.causes.clear()
    job.history.append(interval)
    job.stalls.note(*_longest_wait(case), case.end_ns, has_cause=diagnosis["blames_network"])
    note = job.baselines.note
    for kind, ns in work.kind_network.items():
        note(("network", *kind), ns)
    for kind, ns in work.kind_moving.items():
        note(("moving", *kind), ns)
    for pair in case.traffic.measured:
        pair.note(job.baselines)
    note(("iteration", *work.iteration_key), case.iteration_ns)
    note(("pace", case.ranks.total), work.pace_ns)
    note(("operation", case.ranks.total), case.operation_ns)
    if case.operation_bytes is not None:
        note(("bytes", case.ranks.total), case.operation_bytes)
        note(("largest bytes", case.ranks.total), work.times.largest_bytes)
    if work.bus_bps:
        note(("bus",), 1 / work.bus_bps)
    if (work.times.observed > 0).any():
        note(("launch", case.ranks.total), case.share_of(work.times.launch))
        note(("wait", case.ranks.total), case.wait_share)
    if case.own_ns is not None:
        for rank, ns in zip(case.members, case.own_ns.tolist(), strict=True):
            note(("own", rank.number), ns)
    note_nics(case)
    job.baselines.end_interval()


def _longest_wait(case: Case) -> tuple[int, int, int]:
    """Return communicator, number and age, ns, of the operation that does not end; zeros if all end."""
    stuck, ras = case.stuck, case.ras
    if stuck is not None:
        return stuck.communicator, stuck.seq, case.end_ns - stuck.since_ns
    if ras is not None and not case.members:
        return 1, ras.since_ns, ras.at_ns - ras.since_ns
    return 0, 0, 0


def _case(
    job: JobView, network: NetworkView, begin_ns: int, end_ns: int, rules: DiagnosisRules | None
) -> Case:
    """Return the measures of a job in an interval. Raises ValueError for an empty interval."""
    if end_ns <= begin_ns:
        raise ValueError(f"interval {begin_ns} to {end_ns}: expected an end after the begin")
    case = case_of(job, network, begin_ns, end_ns, rules or DiagnosisRules())
    case.stuck = find_stuck(case)
    case.ras = job.ras.wait(end_ns)
    case.outliers = find_outliers(case)
    case.loads = link_loads(case)
    return case


def _diagnosis(case: Case) -> Diagnosis:
    missing = missing_evidence(case)
    candidates = [candidate for explanation in EXPLANATIONS for candidate in explanation(case)]
    ranked = _ranked(case, candidates)
    verdicts = [candidate for candidate in ranked if _is_verdict(case, candidate)]
    case.causes = [
        (cause.verdict, cause.subject, case.begin_ns if cause.since_ns is None else cause.since_ns)
        for cause in verdicts
    ]
    best = _best(case, ranked, verdicts, missing)
    others, further = _others(case, best, ranked)
    diagnosis = make_record(case, best, others[:MAX_ALTERNATIVES], further, missing)
    last = case.job.last
    if last is not None and (last.verdict, last.subject) == (best.verdict, best.subject):
        diagnosis["since_ns"] = min(last.since_ns, case.begin_ns)
    return diagnosis


def _others(case: Case, best: Candidate, ranked: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates other than the answer, and those of them that are further causes.

    Two simultaneous faults do not compete. So the others are weighed again as if the answer's cause and its
    effects were known. A further cause must last, and explain a share of the loss that the answer leaves.
    """
    others = [other for other in ranked if (other.verdict, other.subject) != (best.verdict, best.subject)]
    further: list[Candidate] = []
    if best.verdict not in WITHOUT_CAUSE and not best.decisive:
        beside = [other for other in others if not is_effect(other, best)]
        model.add_common_symptoms(case, beside, _cost)
        model.weigh(fitted_weights(), beside, lambda other: _costs(case, other))
        left, smallest = case.loss_share - best.loss_share, case.rules.min_loss_share
        further = [
            other for other in beside if min(other.loss_share, left) >= smallest and _is_verdict(case, other)
        ]
        others.sort(key=lambda other: _order(case, other))
    return others, case.job.answers.beside.of(further, case.end_ns)


def _best(case: Case, ranked: list[Candidate], verdicts: list[Candidate], missing: list[str]) -> Candidate:
    """Return the answer: the most probable of `verdicts`; if there are none, a verdict without a cause."""
    answers = case.job.answers
    is_clear = (case.coarse_ratio or CLEAR_RATIO) >= CLEAR_RATIO
    best = answers.lasting(verdicts, case.end_ns, is_clear=is_clear) or without_cause(case, missing, ranked)
    stopped = _longest_wait(case)[:2]
    return answers.settle(best, ranked, stopped if any(stopped) else None, case.end_ns, is_clear=is_clear)


def _ranked(case: Case, candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates with their confidence: those that stop the job first, then the most probable."""
    add_common_symptoms(case, candidates, _cost)
    weigh(fitted_weights(), candidates, lambda candidate: _costs(case, candidate))
    for candidate in candidates:
        candidate.loss_share = float(np.clip(candidate.loss_share, 0.0, 1.0))
    return sorted(candidates, key=lambda candidate: _order(case, candidate))


def _order(case: Case, candidate: Candidate) -> tuple[bool, float, str, str]:
    is_first = candidate.decisive and candidate.confidence >= case.rules.min_confidence
    return not is_first, -round(candidate.confidence, 9), str(candidate.verdict), candidate.subject


def _is_verdict(case: Case, candidate: Candidate) -> bool:
    return candidate.confidence >= case.rules.min_confidence and can_be_verdict(case, candidate)


def can_be_verdict(case: Case, candidate: Candidate) -> bool:
    """Return whether a candidate stops the job, or costs time of a job that is slower than its baseline."""
    return candidate.decisive or (_costs(case, candidate) and _is_slower(case, candidate))


def _is_slower(case: Case, candidate: Candidate) -> bool:
    """Return whether the job lost time since the cause began; True if its earlier speed is unknown."""
    since_ns = candidate.since_ns
    if since_ns is None and candidate.is_new:
        since_ns = case.begin_ns
    if since_ns is None or case.coarse_ratio is None or not case.has_clean_baseline(since_ns):
        return True
    return case.share_since(case.loss_share, since_ns) >= case.rules.min_loss_share


def _costs(case: Case, candidate: Candidate) -> bool:
    """Return whether the job lost a noticeable share of its time since the cause began."""
    return _cost(case, candidate) >= case.rules.min_loss_share


def _cost(case: Case, candidate: Candidate) -> float:
    """Return the share, 0 to 1, of the time since a cause began that the cause costs."""
    return case.share_since(candidate.loss_share, candidate.since_ns)
