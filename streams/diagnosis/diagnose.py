"""The explanation of a job's speed in an interval.

Every explanation of `EXPLANATIONS` yields candidates. A candidate that stops the job comes first, then the
one that costs most of the job's time. The others become alternatives. Without candidates, the job is HEALTHY
if enough is known.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from schemas.records import AlertKind, Diagnosis, Verdict
from schemas.topics import ALERTS
from streams.diagnosis.base import Candidate, Explanation, observation
from streams.diagnosis.case import Case, Stuck, case_of, is_fast
from streams.diagnosis.job_view import Interval, JobView, LastVerdict
from streams.diagnosis.link_loads import link_loads, max_pairs
from streams.diagnosis.network_view import NetworkView
from streams.diagnosis.outliers import find_outliers
from streams.diagnosis.record import make_record, missing_evidence
from streams.diagnosis.rules import DiagnosisRules
from streams.diagnosis.stuck import find_stuck
from streams.diagnosis.verdicts.configuration import delay_mismatch, own_pacing, rail_mismatch
from streams.diagnosis.verdicts.flows import (
    contention,
    contention_by_marks,
    few_queue_pairs,
    slow_flow,
    slow_flow_by_probes,
)
from streams.diagnosis.verdicts.hosts import pause_storm, pcie_limit, slow_end_by_flows, slow_end_by_pairs
from streams.diagnosis.verdicts.lateness import launch_skew, straggler
from streams.diagnosis.verdicts.links import faulty_links, links_with_losses
from streams.diagnosis.verdicts.progress import (
    dead_rank,
    hang,
    operation_text,
    program_mismatch,
    ranks_text,
)

EXPLANATIONS: Final[tuple[Explanation, ...]] = (
    *(dead_rank, hang, program_mismatch),
    *(straggler, launch_skew),
    *(pause_storm, pcie_limit, slow_end_by_pairs, slow_end_by_flows),
    *(faulty_links, links_with_losses),
    *(contention, contention_by_marks, few_queue_pairs, slow_flow, slow_flow_by_probes),
    *(own_pacing, delay_mismatch, rail_mismatch),
)
EFFECTS: Final = {
    Verdict.SLOW_FLOW: 0.6,
    Verdict.CONTENTION: 0.9,
    Verdict.SLOW_RECEIVER: 0.95,
    Verdict.FEW_QUEUE_PAIRS: 0.6,
}
"""Factor for the score of a verdict if another verdict about the same pairs explains it: causes come before
effects."""
CAUSES: Final = {
    Verdict.FEW_QUEUE_PAIRS: (Verdict.RAIL_MISMATCH, Verdict.DEAD_LINK, Verdict.FLAPPING_LINK),
}
"""Maps verdict to the only verdicts that can explain it."""
ROOTS: Final = (Verdict.RAIL_MISMATCH,)
"""Causes that take over the loss share of their effects, unless another job's flows queue there."""
CONTENDED: Final = 0.8
"""Confidence in CONTENTION that involves other jobs' flows; with the job's own flows alone it is lower."""
MAX_ALTERNATIVES: Final = 8


def diagnose(
    job: JobView, network: NetworkView, begin_ns: int, end_ns: int, rules: DiagnosisRules | None = None
) -> Diagnosis:
    """Return the verdict about a job in an interval of fabric time, without changing either view.

    Pass the case to `learn` to update the job's baseline, number and `since_ns`; `evaluate` does both.
    """
    return _diagnosis(_case(job, network, begin_ns, end_ns, rules))


def evaluate(
    job: JobView, network: NetworkView, begin_ns: int, end_ns: int, rules: DiagnosisRules | None = None
) -> Diagnosis:
    """Return the verdict about a job in its next interval, and record the interval in the job's view."""
    case = _case(job, network, begin_ns, end_ns, rules)
    diagnosis = _diagnosis(case)
    learn(case, diagnosis)
    return diagnosis


def learn(case: Case, diagnosis: Diagnosis) -> None:
    """Record an evaluated interval in the job's view: its times, and the number and begin of the verdict."""
    job, work = case.job, case.work
    job.number = diagnosis["number"] + 1
    job.last = LastVerdict(diagnosis["verdict"], diagnosis["subject"], diagnosis["since_ns"])
    interval = Interval(case.begin_ns, case.end_ns, case.ratio, case.network_excess, max_pairs(case))
    job.moved.note(case.traffic.flows, case.traffic.routes, case.end_ns)
    job.causes.note(case.causes, case.end_ns)
    if is_fast(interval):
        job.causes.clear()
    job.history.append(interval)
    stuck = case.stuck
    job.stalls.note(*((stuck.communicator, stuck.seq, case.end_ns - stuck.since_ns) if stuck else (0, 0, 0)))
    note = job.baselines.note
    for kind, ns in work.kind_network.items():
        note(("network", *kind), ns)
    for kind, ns in work.kind_moving.items():
        note(("moving", *kind), ns)
    for pair in case.traffic.measured:
        pair.note(job.baselines)
    if case.iteration_ns is not None:
        note(("iteration", *work.iteration_key), case.iteration_ns)
    if work.pace_ns is not None:
        note(("pace", case.ranks.total), work.pace_ns)
    if work.bus_bps:
        note(("bus",), 1 / work.bus_bps)
    if (work.times.observed > 0).any():
        note(("launch", case.ranks.total), case.share_of(work.times.launch))
        note(("wait", case.ranks.total), case.wait_share)
    job.baselines.end_interval()


def _case(
    job: JobView, network: NetworkView, begin_ns: int, end_ns: int, rules: DiagnosisRules | None
) -> Case:
    """Return the measures of a job in an interval. Raises ValueError for an empty interval."""
    if end_ns <= begin_ns:
        raise ValueError(f"interval {begin_ns} to {end_ns}: expected an end after the begin")
    case = case_of(job, network, begin_ns, end_ns, rules or DiagnosisRules())
    case.stuck = find_stuck(case)
    case.outliers = find_outliers(case)
    case.loads = link_loads(case)
    return case


def _diagnosis(case: Case) -> Diagnosis:
    missing = missing_evidence(case)
    ranked = _ranked(case, [candidate for explanation in EXPLANATIONS for candidate in explanation(case)])
    case.causes = [
        (
            candidate.verdict,
            candidate.subject,
            case.begin_ns if candidate.since_ns is None else candidate.since_ns,
        )
        for candidate in ranked
        if _is_verdict(case, candidate)
    ]
    best = next((candidate for candidate in ranked if _is_verdict(case, candidate)), None)
    if best is None:
        best = _without_cause(case, missing)
    others = [candidate for candidate in ranked if candidate is not best][:MAX_ALTERNATIVES]
    diagnosis = make_record(case, best, others, missing)
    last = case.job.last
    if last is not None and (last.verdict, last.subject) == (best.verdict, best.subject):
        diagnosis["since_ns"] = min(last.since_ns, case.begin_ns)
    return diagnosis


def _ranked(case: Case, candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates by weight: causes before their effects, the most costly first."""
    for candidate in candidates:
        factor = EFFECTS.get(candidate.verdict)
        causes = [
            other
            for other in candidates
            if other is not candidate
            and other.verdict not in (candidate.verdict, Verdict.SLOW_FLOW)
            and other.verdict in CAUSES.get(candidate.verdict, (other.verdict,))
            and other.confidence >= case.rules.min_confidence
            and _costs(case, other)
            and other.pairs & candidate.pairs
        ]
        if factor is not None and causes:
            candidate.confidence *= factor
            contended = any(c.verdict == Verdict.CONTENTION and c.confidence >= CONTENDED for c in causes)
            is_whole = candidate.verdict != Verdict.CONTENTION and not contended
            for cause in (other for other in causes if other.verdict in ROOTS and is_whole):
                cause.loss_share = max(cause.loss_share, candidate.loss_share)
        candidate.loss_share = float(np.clip(candidate.loss_share, 0.0, 1.0))
    return sorted(
        candidates,
        key=lambda item: (
            not (item.decisive and item.confidence >= case.rules.min_confidence),
            -round(item.confidence if item.decisive else item.score, 9),
            str(item.verdict),
            item.subject,
        ),
    )


def _is_verdict(case: Case, candidate: Candidate) -> bool:
    is_sure = candidate.confidence >= case.rules.min_confidence
    return is_sure and (candidate.decisive or _costs(case, candidate))


def _costs(case: Case, candidate: Candidate) -> bool:
    """Return whether the job lost a noticeable share of its time since the cause began."""
    return case.share_since(candidate.loss_share, candidate.since_ns) >= case.rules.min_loss_share


def _without_cause(case: Case, missing: list[str]) -> Candidate:
    """Return a candidate without a cause: HEALTHY if enough is known and nothing is slow, else UNKNOWN."""
    total = case.ranks.total or len(case.members)
    reported_share = len(case.ranks.reported) / max(1, total)
    enough = reported_share >= case.rules.seen_share and bool(
        len(case.work.rows) or len(case.columns.summaries)
    )
    excess = case.network_excess
    if case.stuck is not None and case.stuck.stalls:
        return Candidate(Verdict.UNKNOWN, 0.0, case.loss_share, "", _stall_text(case, case.stuck), "")
    if enough and not case.is_slow:
        text = "nothing is wrong with the network, and no rank is late"
        confidence = 0.95 if case.ratio is not None else 0.8
        return Candidate(Verdict.HEALTHY, confidence * (0.9 if missing else 1.0), 0.0, "", text, "")
    is_restored = case.job.baselines.is_restored(("iteration", *case.work.iteration_key))
    computes = excess is not None and excess < 0.5 * case.loss_share and case.wait_share < 0.5
    if enough and computes and not is_restored:
        text = (
            f"all ranks compute longer: iterations take {case.ratio or 1:.2f} times the good time; "
            f"nothing is wrong with the network"
        )
        return Candidate(Verdict.HEALTHY, 0.7, 0.0, "", text, "compare the program, its input and GPU clocks")
    reason = missing[0] if missing else "no record explains it"
    text = f"{'the job is slow' if case.is_slow else 'not enough evidence'}: {reason}"
    candidate = Candidate(Verdict.UNKNOWN, 0.0, case.loss_share, "", text, "")
    if case.is_slow:
        _add_busy_hosts(case, candidate)
    return candidate


def _stall_text(case: Case, stuck: Stuck) -> str:
    text = operation_text(case, stuck)
    if stuck.usual_ns:
        text += f", {stuck.usual_ns / 1e6:.3g} ms usually"
    return text + (f": {ranks_text(stuck.missing)} did not begin it" if stuck.missing else "")


def _add_busy_hosts(case: Case, candidate: Candidate) -> None:
    """Add to a candidate the job's hosts whose probers are in trouble: their CPUs may lack time for the job,
    too."""
    hosts = {rank.host for rank in case.members}
    busy = [
        alert
        for alert in case.network.alerts(case.begin_ns, case.end_ns)
        if alert["kind"] == AlertKind.AGENT and alert["subject"] in hosts
    ]
    if not busy:
        return
    names = sorted({alert["subject"] for alert in busy})
    candidate.subjects = names[:64]
    candidate.remedy = f"look for load on the processors of {', '.join(names[:4])}"
    candidate.text += f"; {busy[0]['text']}" + (f" ({len(names) - 1} more hosts)" if len(names) > 1 else "")
    candidate.evidence = [
        observation(ALERTS.name, alert["subject"], "agent", None, None, alert["text"], alert["raised_ns"])
        for alert in busy[:8]
    ]
