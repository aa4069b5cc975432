"""Gives the answer if no cause explains a job's speed: HEALTHY if it is not slow, STALLED or UNKNOWN."""

from __future__ import annotations

from typing import Final

from schemas.records import AlertKind, Verdict
from schemas.topics import ALERTS
from streams.diagnosis.base import Candidate, observation
from streams.diagnosis.case import Case
from streams.diagnosis.model import fitted_weights
from streams.diagnosis.record import recent_stall_text
from streams.diagnosis.symptoms import Symptom, Symptoms
from streams.diagnosis.verdicts.ras import progress_text
from streams.diagnosis.verdicts.stall import stall_candidate
from streams.runtime.units import NS_PER_S

LARGE_RATIO: Final = 5.0
"""Ratio of a job's time to its baseline from which on a program that computes longer is no explanation."""
MORE_BYTES: Final = 1.2
"""Ratio of an operation's bytes to its baseline from which on the program moves more data."""
BYTES_EXPLAIN: Final = 1.5
"""Largest growth of the time as a multiple of the growth of the bytes that these explain."""
MAX_HOSTS: Final = 4
"""Largest number of hosts that a remedy names."""


def without_cause(case: Case, missing: list[str], ranked: list[Candidate]) -> Candidate:
    """Return the answer about a job without a cause. `ranked`: causes that are not likely enough."""
    answer = _without_cause(case, missing)
    answer.symptoms |= {
        Symptom.MISSING: bool(missing),
        Symptom.RIVAL: max((candidate.confidence for candidate in ranked), default=0.0),
    }
    if answer.verdict != Verdict.UNKNOWN:
        answer.confidence = fitted_weights().confidence(answer.verdict, answer.symptoms)
    return answer


def _without_cause(case: Case, missing: list[str]) -> Candidate:
    stall = stall_candidate(case)
    if stall is not None:
        return stall
    goes_on = progress_text(case)
    if goes_on:
        return Candidate(Verdict.HEALTHY, 0.0, "", goes_on, "")
    enough = _has_enough(case)
    if enough and not case.is_slow:
        text = "nothing is wrong with the network, and no rank is late" + recent_stall_text(case)
        symptoms: Symptoms = {
            Symptom.BASELINE: case.ratio is not None,
            Symptom.NEARLY_SLOW: nearly(case.loss_share, case.rules.min_loss_share),
        }
        return Candidate(Verdict.HEALTHY, 0.0, "", text, "", symptoms=symptoms)
    if enough and not recent_stall_text(case) and (case.coarse_ratio or 1.0) < LARGE_RATIO:
        text = _program_text(case)
        if text:
            remedy = "compare the program, its input and GPU clocks"
            symptoms = {Symptom.BASELINE: True, Symptom.PROGRAM: True}
            return Candidate(Verdict.HEALTHY, 0.0, "", text, remedy, symptoms=symptoms)
    return _unknown(case, missing)


def _has_enough(case: Case) -> bool:
    """Return whether enough ranks report operations to judge the job."""
    total = case.ranks.total or len(case.members)
    reported_share = len(case.ranks.reported) / max(1, total)
    has_work = bool(len(case.work.rows) or len(case.columns.summaries))
    return reported_share >= case.rules.seen_share and has_work


def nearly(share: float, min_share: float) -> float:
    """Return how near a share is to `min_share`: 0 up to half of it, rising to 1 at `min_share`."""
    return min(1.0, max(0.0, 2 * share / min_share - 1))


def _program_text(case: Case) -> str:
    """Return text about a program that works more than before; empty if that does not explain the job."""
    ratio = case.coarse_ratio or 1.0
    baseline = case.job.baselines.value(("largest bytes", case.ranks.total))
    growth = max(case.bytes_ratio, case.work.times.largest_bytes / baseline if baseline else 1.0)
    if case.bytes_ratio >= MORE_BYTES and ratio - 1 <= BYTES_EXPLAIN * (growth - 1):
        return (
            f"operations carry {case.bytes_ratio:.1f} times the bytes of the baseline, at one rank "
            f"{growth:.1f} times, and take {ratio:.2f} times as long; nothing is wrong with the network"
        )
    excess = case.network_excess
    is_restored = case.job.baselines.is_restored(("iteration", *case.work.iteration_key))
    computes = excess is not None and excess < 0.5 * case.loss_share and case.wait_share < 0.5
    if not computes or is_restored:
        return ""
    return (
        f"all ranks compute longer: the job takes {ratio:.2f} times its baseline; "
        f"nothing is wrong with the network"
    )


def _unknown(case: Case, missing: list[str]) -> Candidate:
    reason = missing[0] if missing else "no record explains it"
    text = f"{'the job is slow' if case.is_slow else 'not enough evidence'}: {reason}"
    if case.is_slow and (case.coarse_ratio or 1.0) >= LARGE_RATIO:
        text += f"; it takes {case.coarse_ratio:.0f} times the baseline"
    text += recent_stall_text(case)
    candidate = Candidate(Verdict.UNKNOWN, case.loss_share, "", text, "")
    if case.is_slow:
        _add_busy_hosts(case, candidate)
    return candidate


def _add_busy_hosts(case: Case, candidate: Candidate) -> None:
    """Add the job's hosts whose probers got in trouble since the job became slow.

    The processors of such hosts may lack time for the job, too.
    """
    hosts = {rank.host for rank in case.members}
    busy = [
        alert
        for alert in case.network.alerts(case.begin_ns, case.end_ns)
        if alert["kind"] == AlertKind.AGENT
        and alert["subject"] in hosts
        and alert["raised_ns"] >= _slow_since_ns(case)
    ]
    if not busy:
        return
    names = sorted({alert["subject"] for alert in busy})
    candidate.subjects = names[:64]
    candidate.remedy = f"look for load on the processors of {', '.join(names[:MAX_HOSTS])}"
    candidate.text += f"; {busy[0]['text']}" + (f" ({len(names) - 1} more hosts)" if len(names) > 1 else "")
    candidate.evidence = [
        observation(ALERTS.name, alert["subject"], "agent", None, None, alert["text"], alert["raised_ns"])
        for alert in busy[:8]
    ]


def _slow_since_ns(case: Case) -> int:
    """Return the end, ns, of the last fast interval, less 1 s; older troubles explain nothing."""
    limit = case.rules.slow_ratio
    fast = [past.end_ns for past in case.job.history if past.ratio is not None and past.ratio < limit]
    return max(fast, default=case.begin_ns) - NS_PER_S
